//! Connections within the process: a byte ring each way, read by the same decoders as a socket.
//!
//! A session of this kind differs from a socket's in three things only. Its bytes never pass the kernel. Its connection
//! comes to the mailbox of the server's first lane instead of a listener, see [`registry`]. An event costs the peer a
//! system call, so the lane asks for none while it is awake:
//!
//! ```text
//!   asleep, announced to the peer ─ the peer writes and signals ─▶ awake: read each turn until there is nothing
//!        ▲                                                              │ the peer writes and does not signal
//!        └── the lane would sleep, and still nothing to read: announce ◀───────┘
//! ```
//!
//! So two busy lanes exchange bytes without system calls, except that each lane polls. If the lane that sleeps offers
//! its seat, the signal is an errand: the thread that wrote runs that lane, see `lane/errands.rs`. A lane that is
//! awake is never woken to read. Rejected: announcing at the first read without bytes, because the peer's next write
//! would wake a lane that is about to read again. Rejected: checking every ring in every turn, because a lane may have
//! ten thousand rings, few of them busy.

mod registry;

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use tidewire_io::poller::{Event, Interest, Poller, PollerError, Token};
use tidewire_io::ring::{Attendant, RingStream, Summons, attend};
use tidewire_io::socket::SocketError;

pub(crate) use registry::WaitingEnd;
pub(crate) use registry::{Bound, Party, bind, hand_over};

use super::Transport;
use crate::address::InprocName;
use crate::transport::ConnectError;

/// One end of a pair of rings, as a lane's session holds it.
#[derive(Debug)]
pub(crate) struct InprocStream {
    ring: RingStream,
    /// Held until a server has taken the other end.
    waiting: Option<WaitingEnd>,
    /// The events that the lane waits for.
    wanted: Interest,
    /// The lane reads without events.
    awake: bool,
}

/// Makes the attendants of the in-process sessions of a lane.
pub(crate) trait Doors: fmt::Debug + Send + Sync {
    fn door(&self, slot: usize) -> Arc<dyn Attendant>;
}

/// Connects a session of a lane to a name. With `waiter`, the connection waits for a server of that name, and the lane
/// gets a report when there is one.
pub(crate) fn connect(
    name: &InprocName,
    waiter: Option<&Arc<dyn Party>>,
) -> Result<InprocStream, ConnectError> {
    let (ring, waiting) = match waiter {
        None => (registry::connect(name)?, None),
        Some(lane) => registry::connect_or_wait(name, lane)?,
    };
    Ok(InprocStream {
        waiting,
        ..ring.into()
    })
}

impl InprocName {
    /// Makes a bare connection to the server of this name, for tests that speak its codec themselves. The server sees
    /// an ordinary session. It never waits for a server.
    ///
    /// Hidden, because rings are a matter of `tidewire-io`. A program that speaks a codec itself connects by `ipc://`.
    ///
    /// # Errors
    /// [`ConnectError`] if no server listens on the name, its queue is full, or the system refuses the rings.
    #[doc(hidden)]
    pub fn connect(&self) -> Result<RingStream, ConnectError> {
        registry::connect(self)
    }
}

impl InprocStream {
    pub(crate) fn waiting(&self) -> Option<&WaitingEnd> {
        self.waiting.as_ref()
    }

    pub(crate) fn set_placed(&mut self) {
        self.waiting = None;
    }

    /// Sets who gets the signals to this end.
    pub(crate) fn set_attendant(&self, attendant: Arc<dyn Attendant>) {
        attend(&self.ring, attendant);
    }

    /// Takes a signal in place of the poller. The lane reads this end from now on without events.
    pub(crate) fn answer(&mut self, summons: Summons) {
        summons.answer(&mut self.ring);
        self.awake = true;
        self.announce();
    }

    /// Sets the events for which the peer wakes this lane.
    fn announce(&mut self) {
        let interest = if self.waiting.is_some() {
            // Another lane reports the server. Until then there is no peer.
            Interest::NONE
        } else if !self.awake {
            self.wanted
        } else if self.wanted.is_writable() {
            Interest::WRITE
        } else {
            Interest::NONE
        };
        self.ring.set_interest(interest);
    }
}

impl Transport for InprocStream {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.ring.read(buffer)
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.ring.write(bytes)
    }

    #[inline]
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.ring.write_vectored(pieces)
    }

    fn shutdown_write(&mut self) -> io::Result<()> {
        self.ring.shutdown_write()
    }

    fn finish_connect(&self) -> Result<bool, SocketError> {
        Ok(self.waiting.is_none())
    }

    fn add(
        &mut self,
        poller: &mut dyn Poller,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        // The descriptor is always watched for reading. The ring knows which events have come.
        poller.add(self.ring.as_fd(), token, Interest::READ)?;
        self.wanted = interest;
        self.announce();
        Ok(())
    }

    fn watch(
        &mut self,
        _poller: &mut dyn Poller,
        _token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        self.wanted = interest;
        self.announce();
        Ok(())
    }

    fn admit(&mut self, event: Event) -> Event {
        let ready = self.ring.poll_ready();
        if ready.readable {
            self.awake = true;
            self.announce();
        }
        Event {
            readable: ready.readable,
            writable: ready.writable,
            ..event
        }
    }

    #[inline]
    fn is_dry_after_short_read(&self) -> bool {
        false
    }

    #[inline]
    fn step_bytes(&self) -> usize {
        STEP_BYTES
    }

    #[inline]
    fn is_awake(&self) -> bool {
        self.awake
    }

    fn finish_turn(&mut self, sleeps: bool) -> bool {
        // While no event is announced for reading, this compares two counters.
        if self.awake && self.wanted.is_readable() && self.ring.readable().is_ok() {
            return true;
        }
        if sleeps {
            self.awake = false;
            self.announce();
        }
        false
    }
}

impl AsFd for InprocStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl From<RingStream> for InprocStream {
    fn from(ring: RingStream) -> Self {
        Self {
            wanted: ring.interest(),
            ring,
            waiting: None,
            awake: false,
        }
    }
}

/// Some dozens of small messages. They are enough to share the cost of a write to the ring (a fence, a cache line of
/// the peer). They are few enough that two lanes with a hundred messages in flight both have work.
const STEP_BYTES: usize = 2 * 1024;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidewire_io::poller::{Events, PollerChoice, open};

    use super::*;

    struct Scene {
        near: InprocStream,
        far: RingStream,
        poller: Box<dyn Poller>,
        events: Events,
    }

    impl Scene {
        fn set() -> Self {
            let (near, far) = RingStream::pair(65_536).unwrap();
            let mut near = InprocStream::from(near);
            let mut poller = open(PollerChoice::Auto).unwrap();
            near.add(&mut *poller, Token(7), Interest::READ).unwrap();
            Self {
                near,
                far,
                poller,
                events: Events::with_capacity(8),
            }
        }

        /// The event that the poller reports now.
        fn reported(&mut self) -> Option<Event> {
            let at_once = Some(Duration::ZERO);
            self.poller.wait(&mut self.events, at_once).unwrap();
            (!self.events.is_empty()).then(|| self.events[0])
        }

        /// Reads until the ring is empty, and returns the number of bytes.
        fn read(&mut self) -> usize {
            let (mut buffer, mut total) = ([0; 64], 0);
            loop {
                match self.near.read(&mut buffer) {
                    Ok(0) => return total,
                    Ok(count) => total += count,
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        return total;
                    }
                }
            }
        }

        fn wake(&mut self) {
            self.far.write(b"wake up").unwrap();
            let event = self.reported().unwrap();
            assert!(self.near.admit(event).readable);
            assert_eq!(self.read(), 7);
        }
    }

    #[test]
    fn a_peer_rings_a_sleeper_and_leaves_who_is_awake_alone() {
        let mut scene = Scene::set();
        scene.wake();
        for _ in 0..3 {
            scene.far.write(b"more").unwrap();
            assert_eq!(scene.reported(), None, "it was rung although awake");
            // A lane that is busy with others checks by itself.
            assert!(scene.near.finish_turn(false));
            assert_eq!(scene.read(), 4);
        }
        assert!(!scene.near.finish_turn(false));
        scene.far.write(b"more").unwrap();
        assert_eq!(scene.reported(), None, "it was rung although awake");
        // Bytes that come before the lane sleeps keep it awake. Later bytes wake it.
        assert!(scene.near.finish_turn(true));
        assert_eq!(scene.read(), 4);
        assert!(!scene.near.finish_turn(true) && !scene.near.is_awake());
        assert_eq!(scene.reported(), None);
        scene.wake();
    }

    #[test]
    fn the_end_of_a_peer_is_noticed_awake_and_asleep() {
        for sleeps in [false, true] {
            let mut scene = Scene::set();
            scene.wake();
            scene.near.finish_turn(sleeps);
            scene.far.write(b"bye").unwrap();
            let Scene { far, .. } = &scene;
            far.shutdown_write().unwrap();
            if sleeps {
                let event = scene.reported().unwrap();
                assert!(scene.near.admit(event).readable);
            } else {
                assert!(scene.near.finish_turn(false));
            }
            assert_eq!(scene.read(), 3);
            assert_eq!(scene.near.read(&mut [0; 8]).unwrap(), 0);
        }
    }

    /// Keeps the signals that it gets.
    #[derive(Debug, Default)]
    struct Keeper(std::sync::Mutex<Vec<Summons>>);

    impl Attendant for Keeper {
        fn summon(&self, summons: Summons) {
            self.0.lock().unwrap().push(summons);
        }
    }

    #[test]
    fn a_signal_that_is_answered_makes_a_sleeper_read_without_an_event() {
        let mut scene = Scene::set();
        let keeper = Arc::new(Keeper::default());
        scene
            .near
            .set_attendant(Arc::clone(&keeper) as Arc<dyn Attendant>);
        for _ in 0..3 {
            scene.far.write(b"more").unwrap();
            let summons = keeper.0.lock().unwrap().pop().unwrap();
            scene.near.answer(summons);
            assert!(scene.near.finish_turn(false));
            assert_eq!(scene.read(), 4);
            assert!(!scene.near.finish_turn(true));
            assert_eq!(scene.reported(), None, "the signal was taken back");
        }
        scene.far.write(b"more").unwrap();
        keeper.0.lock().unwrap().clear();
        assert!(
            scene.reported().is_some(),
            "a signal that is dropped is sent"
        );
    }

    /// Regression: the signal was taken back, and no part of the lane wrote.
    #[test]
    fn a_paused_reader_that_answers_a_signal_is_told_of_room() {
        let mut scene = Scene::set();
        scene.wake();
        let keeper = Arc::new(Keeper::default());
        let Scene { near, poller, .. } = &mut scene;
        while near.write(&[0; 4096]).is_ok() {}
        near.watch(&mut **poller, Token(7), Interest::WRITE)
            .unwrap();
        assert!(!near.finish_turn(true));
        near.set_attendant(Arc::clone(&keeper) as Arc<dyn Attendant>);
        scene.far.read(&mut [0; 65_536]).unwrap();
        let summons = keeper.0.lock().unwrap().pop().unwrap();
        scene.near.answer(summons);
        assert!(!scene.near.finish_turn(false) && !scene.near.finish_turn(true));
        let event = scene.reported().unwrap();
        assert!(scene.near.admit(event).writable);
    }

    #[test]
    fn a_paused_reader_is_told_of_room_only() {
        let mut scene = Scene::set();
        scene.wake();
        let Scene { near, poller, .. } = &mut scene;
        while near.write(&[0; 4096]).is_ok() {}
        near.watch(&mut **poller, Token(7), Interest::WRITE)
            .unwrap();
        assert!(!near.finish_turn(true));
        scene.far.write(b"unheard").unwrap();
        assert_eq!(scene.reported(), None);
        scene.far.read(&mut [0; 65_536]).unwrap();
        let event = scene.reported().unwrap();
        let event = scene.near.admit(event);
        assert!(event.writable && !event.readable && !scene.near.is_awake());
    }
}
