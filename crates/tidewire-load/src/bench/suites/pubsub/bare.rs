//! Publish and subscribe, bare: the first connections are the subscribers, the others publish, and the server copies.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use tidewire::io::clock::now_ns;
use tidewire::io::socket::{Listener, SocketAddress, SocketOptions};
use tidewire::{Address, Endpoint};

use super::super::course::{Course, News, tell};
use super::super::frame_link::{self, FrameLink};
use super::flow::{Deliveries, Flow};
use super::{LOOK_EVERY_NS, PAYLOAD_BYTES};
use crate::bench::contract::{Account, Work};
use crate::bench::plan::RoleError;
use crate::bench::stage::Stage;
use crate::probes::echo;
use crate::probes::wait::{AcceptSet, WaitSet};

type Link = FrameLink<PAYLOAD_BYTES>;

pub(super) fn serve(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let Endpoint::Socket(address) = super::super::endpoint(&super::super::bind_address(work))?
    else {
        let text = format!("no bare server over {}", work.transport);
        return Err(RoleError::Unsupported(text));
    };
    let listener =
        Listener::bind(&address, &SocketOptions::default()).map_err(RoleError::failed("listen"))?;
    let local = Address::from(listener.local_address().clone()).to_string();
    let subscribers = work.subscribers;
    // It ends with the process: the runner's last word is the end of our input.
    thread::spawn(move || copy(&listener, subscribers));
    stage.serve(&local, Account::default)
}

/// Writes to every subscriber what publishers send.
fn copy(listener: &Listener, subscribers: usize) -> io::Result<()> {
    let mut set = AcceptSet::new(listener)?;
    let mut links: Vec<Link> = Vec::new();
    let mut ready = Vec::new();
    let mut news = Vec::new();
    let mut buffer = frame_link::buffer();
    loop {
        let is_behind = links.iter().any(|link| !link.output.is_empty());
        let patience = if is_behind { SOON } else { LOOK_EVERY };
        set.wait_for(&mut ready, patience, |stream| links.push(Link::new(stream)))?;
        for &number in &ready {
            // With the first connection that ends, all end: the driver is done.
            links[number].exchange(&mut buffer, |frame, _| news.extend_from_slice(frame))?;
        }
        for link in links.iter_mut().take(subscribers) {
            link.output.extend_from_slice(&news);
            link.flush()?;
        }
        news.clear();
    }
}

/// Starts the driver's thread, which says what becomes of it.
pub(super) fn start(
    address: SocketAddress,
    work: &Work,
    course: &Arc<Course>,
    sender: &Sender<News<Deliveries>>,
) {
    let (work, course, sender) = (work.clone(), Arc::clone(course), sender.clone());
    thread::spawn(move || {
        let news = match drive(&address, &work, &course, &sender) {
            Ok(deliveries) => News::Done(deliveries),
            Err(error) => News::Failed(error.to_string()),
        };
        tell(&sender, news);
    });
}

fn drive(
    address: &SocketAddress,
    work: &Work,
    course: &Course,
    sender: &Sender<News<Deliveries>>,
) -> io::Result<Deliveries> {
    let mut set = WaitSet::new()?;
    let mut links = Vec::new();
    for number in 0..work.subscribers + work.publishers {
        let link = Link::new(echo::connect(address, false)?);
        set.add(link.as_fd(), number)?;
        links.push(link);
    }
    tell(sender, News::Connected);
    let mut flow = Flow::new(work);
    let mut ready = Vec::new();
    let mut buffer = frame_link::buffer();
    loop {
        let now_ns = now_ns();
        let is_settled = flow.settle(now_ns);
        if course.is_over(now_ns) {
            if is_settled {
                return Ok(flow.into_deliveries());
            }
        } else {
            for (publisher, link) in links.iter_mut().skip(work.subscribers).enumerate() {
                for _ in 0..flow.room(publisher) {
                    flow.append(publisher, now_ns, &mut link.output);
                }
                link.flush()?;
            }
        }
        set.wait_for(&mut ready, LOOK_EVERY)?;
        let heard_ns = self::now_ns();
        for &number in &ready {
            links[number].exchange(&mut buffer, |frame, _| {
                flow.take(number, frame, heard_ns, course);
            })?;
        }
    }
}

const LOOK_EVERY: Duration = Duration::from_nanos(LOOK_EVERY_NS);

/// When a socket that took too little is tried again.
const SOON: Duration = Duration::from_micros(100);
