//! One end of an in-process connection that looks like a socket to a lane.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use super::sleep::{READ, ReadySignal, WRITE, Watch};
use super::summons::{Attendant, Bell, EventFdSignal, Summons};
use super::{Consumer, Producer, ring};
use crate::poller::Interest;

/// One end of a pair of byte rings. It never blocks and may be sent to another thread. Dropping it closes it.
///
/// # With a poller
///
/// A lane treats the stream like a socket, with two differences, because an eventfd has only one direction:
///
/// 1. Its descriptor is registered for [`Interest::READ`] and stays so. [`set_interest`](Self::set_interest) takes the
///    directions that the lane watches, in place of `Poller::modify`. The first interest is `READ`.
/// 2. When the poller reports the descriptor, [`poll_ready`](Self::poll_ready) returns the directions. The call clears
///    a report without cause.
///
/// The descriptor is then level-triggered as the pollers promise: it is readable while the stream is ready in a
/// direction of interest, also when a lane stops reading early.
///
/// A read or write that returns `WouldBlock` announces that this end will sleep, if it is interested in that direction.
/// Only then does the peer signal. The signal costs the peer a system call, and this end another to clear it. A lane
/// should therefore read until `WouldBlock` rather than until a short read, after which the descriptor is only reported
/// again. A lane that spins takes its interest back while it spins ([`Interest::NONE`]), and neither end makes system
/// calls.
///
/// # Differences from a socket
///
/// Bytes of a dropped peer can still be read, even if the peer left bytes unread. A direction is writable when a
/// quarter of the ring is free, so that a few free bytes do not wake the writer. A write uses any free room.
///
/// ```
/// use std::os::fd::AsFd;
/// use tidewire_io::poller::{Events, Interest, PollerChoice, Token, open};
/// use tidewire_io::ring::RingStream;
///
/// let (mut near, mut far) = RingStream::pair(65_536)?;
/// let mut poller = open(PollerChoice::Auto)?;
/// let mut events = Events::with_capacity(16);
/// poller.add(near.as_fd(), Token(7), Interest::READ)?;
///
/// far.write(b"hello")?;
/// poller.wait(&mut events, None)?;
/// assert_eq!(events[0].token, Token(7));
/// assert!(near.poll_ready().readable);
/// assert_eq!(near.read(&mut [0; 64])?, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RingStream {
    outgoing: Producer,
    incoming: Consumer,
    own: Arc<Bell>,
    peer: Arc<Bell>,
    watch: Watch,
    /// The directions of interest.
    wanted: usize,
}

/// The directions of interest in which a [`RingStream`] is ready.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Readiness {
    /// A read will not block: there are bytes, or the stream has ended.
    pub readable: bool,
    /// A write will not block: there is room, or the write fails because the reader is gone.
    pub writable: bool,
}

impl RingStream {
    /// Creates two connected ends, with a ring of `capacity` bytes for each direction. A pair costs two descriptors,
    /// and up to twice the capacity in memory.
    ///
    /// # Errors
    ///
    /// As [`ring`](ring()). The kernel may also refuse to create an eventfd, usually because no descriptor is left:
    /// raise the limit with `ulimit -n`.
    pub fn pair(capacity: usize) -> io::Result<(Self, Self)> {
        let (near_out, far_in) = ring(capacity)?;
        let (far_out, near_in) = ring(capacity)?;
        let (near_bell, far_bell) = (Bell::new(new_signal()?), Bell::new(new_signal()?));
        let near = Self::new(near_out, near_in, &near_bell, &far_bell);
        let far = Self::new(far_out, far_in, &far_bell, &near_bell);
        Ok((near, far))
    }

    fn new(outgoing: Producer, incoming: Consumer, own: &Arc<Bell>, peer: &Arc<Bell>) -> Self {
        let mut stream = Self {
            outgoing,
            incoming,
            own: Arc::clone(own),
            peer: Arc::clone(peer),
            watch: Watch::default(),
            wanted: 0,
        };
        stream.set_interest(Interest::READ);
        stream
    }

    /// Reads the available bytes, up to the size of the buffer; 0 means that the peer sends no more.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when no bytes are there. With an interest in reading, the descriptor then becomes readable when
    /// bytes come.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.incoming.read(buffer);
            if count > 0 {
                self.tell_of_room();
                return Ok(count);
            }
            if buffer.is_empty() {
                return Ok(0);
            }
            self.await_bytes()?;
            if self.has_ended() {
                return Ok(0);
            }
        }
    }

    /// Returns the available bytes as one contiguous span, to be decoded in place. An empty slice means that the peer
    /// sends no more. The bytes stay until [`consume`](Self::consume).
    ///
    /// Consume all bytes, and store a partial frame elsewhere as with a socket: bytes that stay are reported again and
    /// again.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    pub fn readable(&mut self) -> io::Result<&[u8]> {
        if self.incoming.is_empty() {
            self.await_bytes()?;
        }
        Ok(self.incoming.readable())
    }

    /// Gives the first `count` bytes of [`readable`](Self::readable) back to the peer as room.
    ///
    /// # Panics
    ///
    /// When the span had fewer bytes.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.incoming.consume(count);
        self.tell_of_room();
    }

    /// Writes as many bytes as there is room for, and returns their number.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when there is no room. With an interest in writing, the descriptor then becomes readable when there
    /// is room. `BrokenPipe` when the peer is gone, or after [`shutdown_write`](Self::shutdown_write).
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// Writes several pieces in order, as many bytes as there is room for, and returns their number. The peer sees all
    /// of them at once.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    #[inline]
    pub fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check_writing()?;
        loop {
            let mut total = 0;
            let mut is_full = false;
            for piece in pieces {
                let count = self.outgoing.fill(total, piece);
                total += count;
                if count < piece.len() {
                    is_full = true;
                    break;
                }
            }
            if total > 0 {
                self.commit(total);
                return Ok(total);
            }
            if !is_full {
                return Ok(0);
            }
            self.await_room()?;
        }
    }

    /// Returns the free room as one contiguous span, to encode into directly. No byte of it is sent before
    /// [`commit`](Self::commit).
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    #[inline]
    pub fn writable(&mut self) -> io::Result<&mut [u8]> {
        self.check_writing()?;
        if self.outgoing.free() == 0 {
            self.await_room()?;
        }
        Ok(self.outgoing.writable())
    }

    /// Sends the first `count` bytes of [`writable`](Self::writable). The call costs a full fence, some tens of
    /// nanoseconds with a busy peer, so many messages should share one call.
    ///
    /// # Panics
    ///
    /// When the span had fewer bytes.
    #[inline]
    pub fn commit(&mut self, count: usize) {
        self.outgoing.commit(count);
        self.peer.wake(READ);
    }

    /// Tells the peer that this end sends no more. The peer's bytes can still be read.
    ///
    /// # Errors
    ///
    /// Never fails. The signature is that of a socket.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.outgoing.close();
        self.peer.wake(READ);
        Ok(())
    }

    /// Replaces the directions in which the descriptor reports this stream. If the stream is ready in one of them, the
    /// report comes at once.
    pub fn set_interest(&mut self, interest: Interest) {
        let wanted = usize::from(interest.is_readable()) * READ
            + usize::from(interest.is_writable()) * WRITE;
        if wanted != self.wanted {
            self.wanted = wanted;
            self.rearm();
        }
    }

    /// The directions in which the descriptor reports this stream.
    #[must_use]
    pub fn interest(&self) -> Interest {
        match (self.wanted & READ != 0, self.wanted & WRITE != 0) {
            (true, true) => Interest::READ_WRITE,
            (true, false) => Interest::READ,
            (false, true) => Interest::WRITE,
            (false, false) => Interest::NONE,
        }
    }

    /// Returns the directions of interest for which the descriptor was reported. A lane calls it after a report. A
    /// report may come late: if no direction is ready, the call clears the signal.
    pub fn poll_ready(&mut self) -> Readiness {
        let found = self.rearm();
        Readiness {
            readable: found & READ != 0,
            writable: found & WRITE != 0,
        }
    }

    /// Whether the peer is gone, or sends no more. Bytes may still wait to be read.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.incoming.is_closed() || self.outgoing.is_closed()
    }

    /// The size of each of the two rings in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.outgoing.capacity()
    }

    /// Succeeds when bytes are there or the stream has ended.
    #[inline]
    fn await_bytes(&mut self) -> io::Result<()> {
        // The end is checked first, so the next check sees all bytes that were written before the end.
        if self.incoming.is_closed() || !self.incoming.is_empty() {
            return Ok(());
        }
        self.sleep_on(READ)
    }

    /// Succeeds when there is room or the peer is gone.
    #[inline]
    fn await_room(&mut self) -> io::Result<()> {
        self.sleep_on(WRITE)?;
        self.check_writing()
    }

    /// Announces that this end sleeps, if the direction is of interest and not ready.
    fn sleep_on(&mut self, direction: usize) -> io::Result<()> {
        let is_ready = self.wanted & direction != 0
            && !self.watch.is_armed(self.own.signal(), self.wanted)
            && self.rearm() & direction != 0;
        if is_ready {
            Ok(())
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    fn rearm(&mut self) -> usize {
        let (outgoing, incoming) = (&self.outgoing, &self.incoming);
        self.watch.rearm(self.own.signal(), self.wanted, || {
            let is_readable = !incoming.is_empty() || incoming.is_closed();
            let is_writable =
                outgoing.is_closed() || outgoing.free() >= low_water(outgoing.capacity());
            usize::from(is_readable) * READ + usize::from(is_writable) * WRITE
        })
    }

    /// Whether the peer sends no more and everything was read.
    fn has_ended(&self) -> bool {
        self.incoming.is_closed() && self.incoming.is_empty()
    }

    #[inline]
    fn check_writing(&self) -> io::Result<()> {
        if self.outgoing.is_closed() || self.outgoing.has_closed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    }

    /// Wakes a peer that sleeps for lack of room, once there is enough room.
    #[inline]
    fn tell_of_room(&self) {
        if self.incoming.free_at_most() >= low_water(self.incoming.capacity()) {
            self.peer.wake(WRITE);
        }
    }
}

/// Sets who gets the signals to an end before they are sent. Only the first call for an end has an effect.
pub fn attend(stream: &RingStream, attendant: Arc<dyn Attendant>) {
    stream.own.set_attendant(attendant);
}

impl Summons {
    /// Takes this signal to an end in place of the poller, if the end is interested in reading. The stream may be
    /// readable from now on without a report of the descriptor: the caller reads until `WouldBlock`, or takes back the
    /// interest in reading. A signal to an end that does not read is sent, because the caller would not act on it. So
    /// is a signal to another end.
    pub fn answer(self, stream: &mut RingStream) {
        let reads = stream.wanted & READ != 0;
        if reads && self.is_for(&stream.own) && stream.watch.answer(stream.own.signal()) {
            self.withdraw();
        }
    }
}

impl AsFd for RingStream {
    /// An eventfd that is readable while the stream is ready in a direction of interest. Only the stream itself reads
    /// or writes it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.signal().counter().as_fd()
    }
}

impl Drop for RingStream {
    fn drop(&mut self) {
        self.outgoing.close();
        self.incoming.close();
        self.peer.wake(READ | WRITE);
    }
}

fn new_signal() -> io::Result<EventFdSignal> {
    let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    Ok(ReadySignal::new(counter))
}

/// The free room that wakes a sleeping writer. A wake costs microseconds, so it should serve many messages. A reader
/// that waits for a writer must not wait long either, so the threshold is not the whole ring.
const fn low_water(capacity: usize) -> usize {
    capacity / 4
}

#[cfg(test)]
mod tests;
