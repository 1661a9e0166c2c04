//! Echo through the threaded `Client`: requests as futures, made and waited for by a thread that is not the lane.

use std::collections::VecDeque;
use std::time::Duration;

use tidewire::{Client, Reply, Request};
use tidewire_io::clock::now_ns;
use tidewire_load::statistics::LatencyHistogram;

use super::super::{codec, lanes_allocated};
use crate::contract::{Measured, Work};
use crate::plan::RoleError;
use crate::stage::{OrFailed, Stage, allocated_bytes};

/// Keeps the work's requests in flight on each of its clients, in turns.
pub(super) fn drive(address: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let mut caller = Caller::connect(address, work)?;
    caller.call_for(Duration::from_millis(work.warm_up_ms))?;
    stage.started()?;
    caller.latency = LatencyHistogram::new();
    caller.replies = 0;
    let (from_ns, allocated_before) = (now_ns(), caller.allocated());
    caller.call_for(Duration::from_millis(work.measure_ms))?;
    let seconds = (now_ns() - from_ns) as f64 / 1e9;
    let allocated = caller.allocated().zip(allocated_before);
    stage.stopped()?;
    let measured = Measured::verified(caller.replies, seconds, 0).with_times(&caller.latency);
    caller.finish()?;
    stage.measured(Measured {
        allocated_bytes: allocated.map(|(after, before)| after - before),
        ..measured
    })
}

struct Caller {
    clients: Vec<Client>,
    /// Of all clients together.
    in_flight: usize,
    waiting: VecDeque<PendingCall>,
    payload: Vec<u8>,
    next: u64,
    replies: u64,
    latency: LatencyHistogram,
}

struct PendingCall {
    request: Request,
    client: usize,
    number: u64,
    sent_ns: u64,
}

impl Caller {
    fn connect(address: &str, work: &Work) -> Result<Self, RoleError> {
        let connect = |_| {
            let client = Client::builder().codec(codec(work)?);
            client.connect(address).wait().or_failed("connect")
        };
        let clients = (0..work.connections)
            .map(connect)
            .collect::<Result<Vec<_>, RoleError>>()?;
        let mut caller = Self {
            clients,
            in_flight: work.connections * work.in_flight,
            waiting: VecDeque::with_capacity(work.connections * work.in_flight),
            payload: vec![b'.'; REQUEST_PAYLOAD_BYTES],
            next: 0,
            replies: 0,
            latency: LatencyHistogram::new(),
        };
        for index in 0..work.connections * work.in_flight {
            caller.ask(index % work.connections, now_ns());
        }
        Ok(caller)
    }

    fn ask(&mut self, client: usize, now_ns: u64) {
        let number = self.next;
        self.next += 1;
        self.payload[..8].copy_from_slice(&number.to_le_bytes());
        self.waiting.push_back(PendingCall {
            request: self.clients[client].request(&self.payload).send(),
            client,
            number,
            sent_ns: now_ns,
        });
    }

    /// Waits for the oldest request, and takes the next ones whose replies came with its own. `follow` is called for
    /// each, with whose it was and when the block was here. The clock is read once for a block, as the bare client
    /// reads it.
    fn take_replies(
        &mut self,
        mut follow: impl FnMut(&mut Self, usize, u64),
    ) -> Result<u64, RoleError> {
        let Some(oldest) = self.waiting.pop_front() else {
            return Ok(now_ns());
        };
        let reply = oldest.request.wait().or_failed(GET)?;
        let now = now_ns();
        self.verify(&reply, oldest.number, oldest.sent_ns, now)?;
        follow(self, oldest.client, now);
        for _ in 1..self.in_flight {
            let Some(next) = self.waiting.front_mut() else {
                break;
            };
            let Some(reply) = next.request.try_wait() else {
                break;
            };
            let (client, number, sent_ns) = (next.client, next.number, next.sent_ns);
            self.waiting.pop_front();
            self.verify(&reply.or_failed(GET)?, number, sent_ns, now)?;
            follow(self, client, now);
        }
        Ok(now)
    }

    /// Counts a reply to the request of this number.
    fn verify(
        &mut self,
        reply: &Reply,
        number: u64,
        sent_ns: u64,
        now_ns: u64,
    ) -> Result<(), RoleError> {
        let came = reply.payload().split_first_chunk();
        let is_whole = came.is_some_and(|(first, rest)| {
            *first == number.to_le_bytes() && *rest == self.payload[8..]
        });
        if !is_whole {
            let text = format!("a reply is not that to request {number}");
            return Err(RoleError::failed("verify a reply", text));
        }
        self.replies += 1;
        self.latency.record(now_ns.saturating_sub(sent_ns));
        Ok(())
    }

    fn call_for(&mut self, duration: Duration) -> Result<(), RoleError> {
        let until_ns = now_ns() + duration.as_nanos() as u64;
        while self.take_replies(Self::ask)? < until_ns {}
        Ok(())
    }

    /// Waits for what is in flight.
    fn finish(&mut self) -> Result<(), RoleError> {
        while !self.waiting.is_empty() {
            self.take_replies(|_, _, _| ())?;
        }
        Ok(())
    }

    /// Bytes that this thread and the clients' lanes have allocated.
    fn allocated(&self) -> Option<u64> {
        self.clients
            .iter()
            .map(|client| lanes_allocated(&client.metrics()))
            .sum::<Option<u64>>()
            .zip(allocated_bytes())
            .map(|(lanes, own)| lanes + own)
    }
}

const GET: &str = "get a reply";

/// With the header of a request in TW1, 12 bytes, a message has 32.
const REQUEST_PAYLOAD_BYTES: usize = 20;
