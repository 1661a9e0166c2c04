//! The servers that listen on names in this process, and the connections that wait for them.
//!
//! ```text
//!   connect ─▶ name known? ──yes─▶ RingStream::pair ─▶ one end to the server's first lane, as an arrival
//!                  │ no
//!                  ├─ by default ─▶ an error
//!                  └─ by choice ──▶ the end waits here ─▶ bind ─▶ arrival there, "placed" to the lane that waits
//! ```
//!
//! One lock protects the registry. Only binding and connecting take it. Rejected: a table per thread, or one that the
//! program passes on, because two parts of a program should need to share a name only.
//!
//! A guard removes each entry: a name when its server stops, and a waiting end when its session has ended.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewire_io::ring::RingStream;

use crate::address::InprocName;
use crate::limits::{INPROC_RING_BYTES, INPROC_WAITING_MAX};
use crate::transport::ConnectError;

/// The mailbox of a lane that accepts connections, or of a lane whose session waits for its server.
pub(crate) trait Party: fmt::Debug + Send + Sync {
    /// Posts the server's end of a connection. Returns whether there was room for it.
    fn leave_arrival(&self, stream: RingStream) -> bool;

    /// Reports that a server has taken the connection with this ticket. Returns whether there was room for the report.
    fn leave_placed(&self, ticket: u64) -> bool;

    /// Whether its lane has ended.
    fn is_retired(&self) -> bool;

    /// A number that no other lane of the process has at the same time.
    fn key(&self) -> usize;
}

/// A server's hold on its name.
#[derive(Debug)]
pub(crate) struct Bound {
    name: InprocName,
    ticket: u64,
}

/// A session's entry among the connections that wait for a name.
#[derive(Debug)]
pub(crate) struct WaitingEnd {
    name: InprocName,
    ticket: u64,
}

#[derive(Debug)]
struct Registry {
    servers: BTreeMap<InprocName, Listening>,
    waiting: Vec<Waiter>,
    /// The last ticket of a server or a waiting end. No ticket is used twice.
    last_ticket: u64,
}

#[derive(Debug)]
struct Listening {
    lane: Arc<dyn Party>,
    ticket: u64,
}

#[derive(Debug)]
struct Waiter {
    name: InprocName,
    ticket: u64,
    /// The server's end.
    far: RingStream,
    /// The lane of the other end.
    lane: Arc<dyn Party>,
}

/// Takes a name for the server with this first lane, and gives the lane the connections that waited for the name.
/// Returns `None` if another server of this process has the name, until that server is shut down or dropped.
pub(crate) fn bind(name: &InprocName, lane: &Arc<dyn Party>) -> Option<Bound> {
    let mut registry = lock();
    let taken = registry.servers.get(name);
    // A server whose lane has failed loses its name, as a dead process loses its port.
    if taken.is_some_and(|listening| !listening.lane.is_retired()) {
        return None;
    }
    let ticket = registry.ticket();
    let listening = Listening {
        lane: Arc::clone(lane),
        ticket,
    };
    registry.servers.insert(name.clone(), listening);
    let is_for_us = |waiter: &mut Waiter| waiter.name == *name;
    for waiter in registry.waiting.extract_if(.., is_for_us) {
        // A connection that does not fit the queue is dropped, and the other lane sees it close.
        if !lane.leave_arrival(waiter.far) {
            tracing::warn!(%name, "a waiting connection found the server's queue full");
        }
        if !waiter.lane.leave_placed(waiter.ticket) {
            // The session waits until its handshake timeout.
            tracing::warn!(%name, "a waiting lane could not be told of its server");
        }
    }
    Some(Bound {
        name: name.clone(),
        ticket,
    })
}

/// Moves the names of a lane that ends to another lane of its server.
pub(crate) fn hand_over(from: &dyn Party, to: &Arc<dyn Party>) {
    for listening in lock().servers.values_mut() {
        if listening.lane.key() == from.key() {
            listening.lane = Arc::clone(to);
        }
    }
}

/// Connects to the server that listens on `name` now.
pub(super) fn connect(name: &InprocName) -> Result<RingStream, ConnectError> {
    lock().connect(name)
}

/// Connects to the server that listens on `name`. If none does, one end waits for it, and `lane` gets a report when a
/// server takes that end.
pub(super) fn connect_or_wait(
    name: &InprocName,
    lane: &Arc<dyn Party>,
) -> Result<(RingStream, Option<WaitingEnd>), ConnectError> {
    let mut registry = lock();
    match registry.connect(name) {
        Err(ConnectError::NotListening { .. }) => {}
        outcome => return Ok((outcome?, None)),
    }
    if registry.waiting.len() >= INPROC_WAITING_MAX {
        return Err(ConnectError::TooManyWaiting { name: name.clone() });
    }
    let (near, far) = pair(name)?;
    let ticket = registry.ticket();
    registry.waiting.push(Waiter {
        name: name.clone(),
        ticket,
        far,
        lane: Arc::clone(lane),
    });
    let waiting = WaitingEnd {
        name: name.clone(),
        ticket,
    };
    Ok((near, Some(waiting)))
}

impl Registry {
    fn ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    fn connect(&self, name: &InprocName) -> Result<RingStream, ConnectError> {
        let not_listening = || ConnectError::NotListening { name: name.clone() };
        let listening = self
            .servers
            .get(name)
            .filter(|listening| !listening.lane.is_retired())
            .ok_or_else(not_listening)?;
        let (near, far) = pair(name)?;
        match listening.lane.leave_arrival(far) {
            true => Ok(near),
            false if listening.lane.is_retired() => Err(not_listening()),
            false => Err(ConnectError::Busy { name: name.clone() }),
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let mut registry = lock();
        // Another server may have taken the name after the lane of this one failed.
        if registry
            .servers
            .get(&self.name)
            .is_some_and(|listening| listening.ticket == self.ticket)
        {
            registry.servers.remove(&self.name);
        }
    }
}

impl WaitingEnd {
    /// The name that must be listened on before the connection is made.
    pub(crate) fn name(&self) -> &InprocName {
        &self.name
    }

    /// The number under which another lane reports that the connection is made.
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket
    }
}

impl Drop for WaitingEnd {
    fn drop(&mut self) {
        lock().waiting.retain(|waiter| waiter.ticket != self.ticket);
    }
}

fn pair(name: &InprocName) -> Result<(RingStream, RingStream), ConnectError> {
    RingStream::pair(INPROC_RING_BYTES).map_err(|source| ConnectError::Rings {
        name: name.clone(),
        source,
    })
}

fn lock() -> MutexGuard<'static, Registry> {
    // Every change is a single insertion or removal, so a panic leaves no change half done.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    servers: BTreeMap::new(),
    waiting: Vec::new(),
    last_ticket: 0,
});
