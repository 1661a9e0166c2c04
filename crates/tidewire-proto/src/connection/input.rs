//! The input side of a connection: whether it is read, and the bytes that were read and not handled.

use super::{CloseReason, Inbound, PauseReason, PauseReasons, Phase};
use crate::handshake::{FirstBytes, HandshakeError};
use crate::layer::{TlsFault, is_tls_record};

/// The state of the input, and the unhandled end of a read: a partial frame, or whole frames that must not be handled
/// yet.
///
/// An idle connection holds no bytes: the memory goes back to its owner.
#[derive(Debug)]
pub struct InputSide {
    state: Inbound,
    bytes: Vec<u8>,
    /// Whether the bytes may begin with whole frames, which were left when reading paused.
    has_frames: bool,
    /// The time when the first frame began to arrive, or when reading it went on; 0 while there is none.
    began_ns: u64,
    has_ended: bool,
}

impl InputSide {
    pub(super) const fn new() -> Self {
        Self {
            state: Inbound::Reading,
            bytes: Vec::new(),
            has_frames: false,
            began_ns: 0,
            has_ended: false,
        }
    }

    /// Whether input is read, and if not, why.
    #[inline]
    #[must_use]
    pub const fn state(&self) -> Inbound {
        self.state
    }

    #[inline]
    pub(super) const fn is_reading(&self) -> bool {
        matches!(self.state, Inbound::Reading)
    }

    /// Whether reading pauses for some reason.
    #[inline]
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        matches!(self.state, Inbound::Paused(_))
    }

    /// Whether reading pauses for this reason.
    #[inline]
    #[must_use]
    pub const fn is_paused_by(&self, reason: PauseReason) -> bool {
        match self.state {
            Inbound::Paused(reasons) => reasons.contains(reason),
            _ => false,
        }
    }

    /// Whether reading pauses for a reason that is not the peer's doing.
    pub(super) fn is_held(&self) -> bool {
        let by_peer = PauseReasons::NONE.with(PauseReason::Output);
        matches!(self.state, Inbound::Paused(reasons) if reasons != by_peer)
    }

    /// Stops reading for a reason. Returns whether it was reading.
    pub fn pause(&mut self, reason: PauseReason) -> bool {
        match self.state {
            Inbound::Reading => {
                self.state = Inbound::Paused(PauseReasons::NONE.with(reason));
                true
            }
            Inbound::Paused(reasons) => {
                self.state = Inbound::Paused(reasons.with(reason));
                false
            }
            Inbound::Ended => false,
        }
    }

    /// Removes a reason not to read. Returns whether it was the last reason, so that reading continues.
    pub fn resume(&mut self, reason: PauseReason) -> bool {
        let Inbound::Paused(reasons) = self.state else {
            return false;
        };
        let reasons = reasons.without(reason);
        self.state = if reasons.is_empty() {
            // While the connection did not read, the rest of a frame could not come.
            self.began_ns = 0;
            Inbound::Reading
        } else {
            Inbound::Paused(reasons)
        };
        reasons.is_empty()
    }

    /// Reads no more until the owner knows who the peer is, if the connection waits for that.
    pub(super) fn hold_in(&mut self, phase: Phase) {
        if phase == Phase::Authenticating {
            self.pause(PauseReason::Authentication);
        }
    }

    /// Reads no more.
    pub(super) fn end(&mut self) {
        self.state = Inbound::Ended;
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The memory held: the capacity of the buffer.
    #[inline]
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Frees the unused capacity of the buffer, if it is large.
    pub fn shrink(&mut self) {
        if self.bytes.capacity() > 2 * self.bytes.len() + SHRINK_BYTES_MIN {
            self.bytes.shrink_to_fit();
        }
    }

    /// Whether there are no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether the bytes may begin with whole frames.
    #[inline]
    #[must_use]
    pub const fn has_frames(&self) -> bool {
        self.has_frames
    }

    /// Keeps a partial frame.
    #[inline]
    pub fn keep(&mut self, bytes: Vec<u8>, now_ns: u64) {
        self.bytes = bytes;
        self.has_frames = false;
        if self.bytes.is_empty() {
            self.began_ns = 0;
        } else if self.began_ns == 0 {
            self.began_ns = now_ns;
        }
    }

    /// Keeps bytes that may begin with whole frames.
    pub fn keep_frames(&mut self, bytes: Vec<u8>) {
        self.has_frames = !bytes.is_empty();
        self.bytes = bytes;
        self.began_ns = 0;
    }

    /// Notes that a frame has ended. The rest of the input begins another frame.
    #[inline]
    pub fn note_end(&mut self) {
        self.has_ended = true;
        self.began_ns = 0;
    }

    /// Whether a frame has ended before.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The time when the partial frame began, if any.
    pub(super) fn frame_began_ns(&self) -> Option<u64> {
        let has_begun = self.began_ns != 0 && !self.bytes.is_empty() && !self.has_frames;
        has_begun.then_some(self.began_ns)
    }

    /// Takes the bytes out. Returns them, and whether they may begin with whole frames.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> (Vec<u8>, bool) {
        let has_frames = std::mem::take(&mut self.has_frames);
        (std::mem::take(&mut self.bytes), has_frames)
    }

    /// The reason of the end, if the server sent no whole frame and its bytes begin another protocol. A codec of lines,
    /// for example, waits for the line end that an alert of TLS does not have.
    pub(super) fn other_protocol(&self) -> Option<CloseReason> {
        if is_tls_record(&self.bytes) {
            return Some(CloseReason::Layer(TlsFault::UnexpectedTls.into()));
        }
        let looks_like = FirstBytes::of(&self.bytes);
        let reason = CloseReason::Handshake(HandshakeError::OtherProtocol { looks_like });
        looks_like.is_foreign().then_some(reason)
    }
}

/// The capacity that is too small for a smaller copy of a buffer.
const SHRINK_BYTES_MIN: usize = 1_024;
