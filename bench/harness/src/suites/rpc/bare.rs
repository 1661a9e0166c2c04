//! Calls, bare: frames of 16 bytes, one loop on each side. A call is its number and two numbers to add, the reply
//! the number and the sum.
//!
//! Neither way to write is always the better one, so that there are two loops that sleep: with many calls on their way
//! it pays to give the other side work early, with few to wake it less often.

use std::io;

use tidewire_io::clock::now_ns;

use super::super::course::{Course, Part};
use super::super::frame_link::{self, Links, Server, Strategy, Way};
use super::{Calls, call_timeout_ns, numbers};
use crate::contract::Work;
use crate::plan::RoleError;
use crate::stage::Stage;

type Frame = [u8; FRAME_BYTES];

/// The calls of a client.
#[derive(Default)]
struct Client {
    /// When the calls were sent whose replies are awaited, by number.
    sent: std::collections::VecDeque<u64>,
    next: u32,
    awaited: u32,
}

/// The loops of the limit, with their names in the tables.
pub(super) fn loops(work: &Work) -> Vec<(String, Work)> {
    Strategy::loops(&[Strategy::WriteEach, Strategy::WriteTogether], work)
}

pub(super) fn serve(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let strategy = Strategy::of(work);
    frame_link::serve(work, stage, move |server| answer(server, strategy))
}

/// Starts the threads, which say what becomes of them. Within a process the server starts here, too.
pub(super) fn start(address: &str, work: &Work, part: &Part<Calls>) -> Result<(), RoleError> {
    let (connections, strategy) = (work.connections * work.threads, Strategy::of(work));
    let way = frame_link::way(work, address, connections, move |server| {
        answer(server, strategy)
    })?;
    for _ in 0..work.threads {
        let (way, work) = (way.clone(), work.clone());
        part.start(move |part| call(&way, &work, part));
    }
    Ok(())
}

fn answer(server: Server, strategy: Strategy) -> io::Result<()> {
    let add = |call: &Frame, out: &mut Vec<u8>| {
        let mut reply = *call;
        let (first, second) = (number_at(call, 4), number_at(call, 8));
        reply[4..8].copy_from_slice(&first.wrapping_add(second).to_le_bytes());
        out.extend_from_slice(&reply);
    };
    server.serve(strategy, add, |_| {})
}

fn call(way: &Way, work: &Work, part: &Part<Calls>) -> io::Result<Calls> {
    let mut links: Links<FRAME_BYTES> = Links::connect(way, work, work.connections)?;
    let strategy = Strategy::of(work);
    let mut clients: Vec<Client> = links.all.iter().map(|_| Client::default()).collect();
    part.connected();
    let mut calls = Calls::default();
    for (client, link) in clients.iter_mut().zip(&mut links.all) {
        client.send(work.in_flight, &mut link.output);
        link.flush()?;
    }
    loop {
        let now_ns = now_ns();
        if part.is_over(now_ns) {
            let patient = |client: &Client| {
                let oldest = client.sent.front();
                oldest.is_some_and(|sent_ns| now_ns < sent_ns + call_timeout_ns(work))
            };
            if !clients.iter().any(patient) {
                let unanswered = clients.iter().flat_map(|client| &client.sent);
                unanswered.for_each(|&sent_ns| calls.resolve(part, sent_ns, None));
                return Ok(calls);
            }
        }
        // Read by the first frame of a turn, so that it is behind its read, and there is none for a turn without
        // frames.
        let mut read_ns = None;
        links.turn(LOOK_EVERY, strategy, |number, reply, out| {
            let now_ns = *read_ns.get_or_insert_with(tidewire_io::clock::now_ns);
            clients[number].take(reply, now_ns, out, part, &mut calls);
        })?;
    }
}

impl Client {
    fn send(&mut self, count: usize, out: &mut Vec<u8>) {
        let now_ns = now_ns();
        for _ in 0..count {
            push_call(&mut self.next, out);
            self.sent.push_back(now_ns);
        }
    }

    /// Takes a reply that came at this time, and calls again.
    fn take(
        &mut self,
        reply: &Frame,
        now_ns: u64,
        out: &mut Vec<u8>,
        course: &Course,
        calls: &mut Calls,
    ) {
        let (first, second) = numbers(self.awaited);
        let is_right = number_at(reply, 0) == self.awaited.cast_signed()
            && number_at(reply, 4) == first.wrapping_add(second);
        self.awaited = self.awaited.wrapping_add(1);
        match self.sent.pop_front() {
            Some(sent_ns) => calls.resolve(course, sent_ns, is_right.then_some(now_ns)),
            None => calls.wrong += 1,
        }
        if !course.is_over(now_ns) {
            push_call(&mut self.next, out);
            self.sent.push_back(now_ns);
        }
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
