//! Calls, bare: frames of 16 bytes, one epoll loop on each side. A call is its number and two numbers to add, the reply
//! the number and the sum.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;

use tidewire::io::clock::now_ns;
use tidewire::io::socket::{Listener, SocketAddress, SocketOptions};
use tidewire::{Address, Endpoint};

use super::super::course::{Course, News, tell};
use super::super::frame_link::{self, FrameLink};
use super::{Calls, call_timeout_ns, numbers};
use crate::bench::contract::{Account, Work};
use crate::bench::plan::RoleError;
use crate::bench::stage::Stage;
use crate::probes::echo;
use crate::probes::wait::{AcceptSet, PATIENCE, WaitSet};

type Frame = [u8; FRAME_BYTES];

type Link = FrameLink<FRAME_BYTES>;

/// A client: its connection, and what it knows of its calls.
struct Client {
    link: Link,
    /// When the calls were sent whose replies are awaited, by number.
    sent: std::collections::VecDeque<u64>,
    next: u32,
    awaited: u32,
}

pub(super) fn serve(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let Endpoint::Socket(address) = super::super::endpoint(&super::super::bind_address(work))?
    else {
        let text = format!("no bare calls over {}", work.transport);
        return Err(RoleError::Unsupported(text));
    };
    let listener =
        Listener::bind(&address, &SocketOptions::default()).map_err(RoleError::failed("listen"))?;
    let local = Address::from(listener.local_address().clone()).to_string();
    // It ends with the process: the runner's last word is the end of our input.
    thread::spawn(move || answer(&listener));
    stage.serve(&local, Account::default)
}

fn answer(listener: &Listener) -> io::Result<()> {
    let mut set = AcceptSet::new(listener)?;
    let mut links: Vec<Option<Link>> = Vec::new();
    let mut ready = Vec::new();
    let mut buffer = frame_link::buffer();
    loop {
        set.wait_for(&mut ready, PATIENCE, |stream| {
            links.push(Some(Link::new(stream)));
        })?;
        for &number in &ready {
            let Some(link) = &mut links[number] else {
                continue;
            };
            let answered = link.exchange(&mut buffer, |call, out| {
                let mut reply = *call;
                let (first, second) = (number_at(call, 4), number_at(call, 8));
                reply[4..8].copy_from_slice(&first.wrapping_add(second).to_le_bytes());
                out.extend_from_slice(&reply);
            });
            if answered.is_err() {
                links[number] = None;
            }
        }
    }
}

/// Starts the threads, which say what becomes of them.
pub(super) fn start(
    address: &SocketAddress,
    work: &Work,
    course: &Arc<Course>,
    sender: &Sender<News<Calls>>,
) {
    for _ in 0..work.threads {
        let (address, work) = (address.clone(), work.clone());
        let (course, sender) = (Arc::clone(course), sender.clone());
        thread::spawn(move || {
            let news = match call(&address, &work, &course, &sender) {
                Ok(calls) => News::Done(calls),
                Err(error) => News::Failed(error.to_string()),
            };
            tell(&sender, news);
        });
    }
}

fn call(
    address: &SocketAddress,
    work: &Work,
    course: &Course,
    sender: &Sender<News<Calls>>,
) -> io::Result<Calls> {
    let mut set = WaitSet::new()?;
    let mut clients = Vec::with_capacity(work.connections);
    for number in 0..work.connections {
        let link = Link::new(echo::connect(address, false)?);
        set.add(link.as_fd(), number)?;
        clients.push(Client {
            link,
            sent: std::collections::VecDeque::new(),
            next: 0,
            awaited: 0,
        });
    }
    tell(sender, News::Connected);
    let mut calls = Calls::new();
    for client in &mut clients {
        client.send(work.in_flight)?;
    }
    let mut ready = Vec::new();
    let mut buffer = frame_link::buffer();
    loop {
        let now_ns = now_ns();
        if course.is_over(now_ns) {
            let patient = |client: &Client| {
                let oldest = client.sent.front();
                oldest.is_some_and(|sent_ns| now_ns < sent_ns + call_timeout_ns(work))
            };
            if !clients.iter().any(patient) {
                let unanswered = clients.iter().flat_map(|client| &client.sent);
                unanswered.for_each(|&sent_ns| calls.settle(course, sent_ns, None));
                return Ok(calls);
            }
        }
        set.wait_for(&mut ready, LOOK_EVERY)?;
        for &number in &ready {
            clients[number].receive(&mut buffer, course, &mut calls)?;
        }
    }
}

impl Client {
    fn send(&mut self, count: usize) -> io::Result<()> {
        let now_ns = now_ns();
        for _ in 0..count {
            push_call(&mut self.next, &mut self.link.output);
            self.sent.push_back(now_ns);
        }
        self.link.flush()
    }

    /// Takes the replies of one read, which came at one time, and calls again.
    fn receive(&mut self, buffer: &mut [u8], course: &Course, calls: &mut Calls) -> io::Result<()> {
        let Self {
            link,
            sent,
            next,
            awaited,
        } = self;
        // Read by the first frame, so that it is behind the read, and there is none for a read without frames.
        let mut read_ns = None;
        link.exchange(buffer, |reply, out| {
            let (first, second) = numbers(*awaited);
            let is_right = number_at(reply, 0) == awaited.cast_signed()
                && number_at(reply, 4) == first.wrapping_add(second);
            *awaited = awaited.wrapping_add(1);
            let now_ns = *read_ns.get_or_insert_with(now_ns);
            match sent.pop_front() {
                Some(sent_ns) => calls.settle(course, sent_ns, is_right.then_some(now_ns)),
                None => calls.wrong += 1,
            }
            if !course.is_over(now_ns) {
                push_call(next, out);
                sent.push_back(now_ns);
            }
        })
    }
}

fn push_call(next: &mut u32, out: &mut Vec<u8>) {
    let (first, second) = numbers(*next);
    out.extend_from_slice(&next.to_le_bytes());
    out.extend_from_slice(&first.to_le_bytes());
    out.extend_from_slice(&second.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    *next = next.wrapping_add(1);
}

fn number_at(frame: &Frame, at: usize) -> i32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&frame[at..at + 4]);
    i32::from_le_bytes(bytes)
}

const FRAME_BYTES: usize = 16;

/// How often a thread looks for the end.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(20);
