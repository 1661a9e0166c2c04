//! The unhandled end of a read: a partial frame, or whole frames that must not be handled yet.

/// Bytes that were read and not handled.
///
/// An idle connection holds none: the memory goes back to its owner.
#[derive(Debug, Default)]
pub struct PartialFrame {
    bytes: Vec<u8>,
    /// Whether the bytes may begin with whole frames, which were left when reading paused.
    has_frames: bool,
    /// The time when the first frame began to arrive, or when reading it went on; 0 while there is none.
    began_ns: u64,
    /// Whether a frame has ended.
    has_ended: bool,
}

impl PartialFrame {
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

    /// Restarts the time of a frame, whose rest could not come because the connection did not read.
    #[inline]
    pub fn restart_clock(&mut self) {
        self.began_ns = 0;
    }

    /// Notes that a frame has ended. The rest of the input is the beginning of another one.
    #[inline]
    pub fn note_end(&mut self) {
        self.has_ended = true;
        self.restart_clock();
    }

    /// Whether a frame has ended before.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The time when the partial frame began, if there is one.
    #[must_use]
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
}

/// The capacity that is too small for a smaller copy of a buffer.
const SHRINK_BYTES_MIN: usize = 1_024;
