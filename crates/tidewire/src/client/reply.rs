//! Replies to requests and other outcomes, and the reuse of their memory.
//!
//! Memory is reused: a thread fetches a short reply into a buffer, the application drops the reply, and the same thread
//! fetches its next reply into that buffer. Free buffers belong to a thread, because a lock for them would be a third
//! of the cost of a request. All clients of a thread share them.
//!
//! The lane puts a reply that does not fit its slot into a separate buffer. The thread that fetches the reply gives the
//! lane a buffer in exchange. All requests of a client share a [pile](Pile) of them. Rejected: a buffer in each slot,
//! because there are as many slots as requests were ever open at once.

use std::cell::RefCell;

use tidewire_io::words::SharedBytes;

use super::error::RequestError;

/// The reply to a request.
///
/// Dropping it frees its buffer for another reply. The buffer of a short reply has room for 120 bytes, unless the
/// payload is empty. [`Call`](crate::Call) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    payload: Vec<u8>,
    /// A full word, because it is moved together with the payload. Reading a word after a store of two bytes stalls the
    /// processor.
    channel: u64,
}

/// The outcome of a request: its reply, or an error. The error is boxed to keep the type small, because outcomes are
/// moved often.
pub(super) type Outcome = Result<Reply, Box<RequestError>>;

/// A bounded stack of empty buffers. Each is large enough for a short reply and not too large to keep.
#[derive(Debug, Default)]
pub(super) struct Pile(Vec<Vec<u8>>);

impl Reply {
    #[inline(always)]
    pub(super) fn new(channel: u16, payload: Vec<u8>) -> Self {
        Self {
            payload,
            channel: u64::from(channel),
        }
    }

    /// The channel of the reply. For a join it is the room's alias.
    #[must_use]
    pub fn channel(&self) -> u16 {
        self.channel as u16
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Converts the reply into its payload.
    #[must_use]
    pub fn into_payload(mut self) -> Vec<u8> {
        std::mem::take(&mut self.payload)
    }
}

impl Drop for Reply {
    #[inline]
    fn drop(&mut self) {
        give_back(std::mem::take(&mut self.payload));
    }
}

impl Pile {
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.0.pop()
    }

    /// Empties a buffer and adds it. Returns the buffer if it is not kept.
    #[inline(always)]
    pub(super) fn push(&mut self, mut memory: Vec<u8>) -> Option<Vec<u8>> {
        if self.0.len() >= PIECES_MAX
            || !(SHORT_BYTES_MAX..=PIECE_BYTES_MAX).contains(&memory.capacity())
        {
            return Some(memory);
        }
        memory.clear();
        self.0.push(memory);
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn swap(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.0, &mut other.0);
    }
}

/// Returns an empty buffer of this thread, or an empty `Vec` without memory.
// Inlined: a value returned through memory would be read in larger pieces than it was just written in.
#[inline(always)]
pub(crate) fn take_memory() -> Vec<u8> {
    let mut taken = Vec::new();
    // Thread-local variables are gone while a thread ends.
    let _ = RETURNED.try_with(|returned| {
        if let Some(memory) = returned.borrow_mut().pop() {
            taken = memory;
        }
    });
    taken
}

/// Returns an empty buffer for a payload, large enough that [`give_back`] keeps it.
#[cfg(feature = "typed")]
pub(crate) fn take_memory_to_write() -> Vec<u8> {
    let mut memory = take_memory();
    memory.reserve(SHORT_BYTES_MAX);
    memory
}

/// Keeps a buffer for the next reply of this thread.
pub(crate) fn give_back(memory: Vec<u8>) {
    let _ = RETURNED.try_with(|returned| returned.borrow_mut().push(memory));
}

thread_local! {
    static RETURNED: RefCell<Pile> = const { RefCell::new(Pile(Vec::new())) };
}

/// Words of a short reply: with them and its two states a slot fills two cache lines.
pub(super) const SHORT_WORDS: usize = 15;

/// Largest payload of a short reply, in bytes.
pub(super) const SHORT_BYTES_MAX: usize = SharedBytes::<SHORT_WORDS>::BYTES_MAX;

/// Largest number of buffers in a pile: more than most windows of requests.
pub(super) const PIECES_MAX: usize = 256;

/// Largest buffer that is kept, in bytes. So a thread keeps at most 1 MiB, and a client at most twice as much.
const PIECE_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_waits_with_its_thread_unless_it_is_large() {
        give_back(vec![1; SHORT_BYTES_MAX]);
        give_back(vec![0; PIECE_BYTES_MAX + 1]);
        give_back(Vec::new());
        std::thread::spawn(|| assert_eq!(take_memory().capacity(), 0))
            .join()
            .unwrap();
        let memory = take_memory();
        assert!(memory.is_empty() && memory.capacity() >= SHORT_BYTES_MAX);
        assert_eq!(take_memory().capacity(), 0);
    }

    /// Regression: small buffers filled the pile, and a short reply that got one allocated anyway.
    #[test]
    fn pieces_too_small_for_a_short_reply_are_not_kept() {
        give_back(Vec::with_capacity(SHORT_BYTES_MAX - 1));
        assert_eq!(take_memory().capacity(), 0);
    }

    #[cfg(feature = "typed")]
    #[test]
    fn the_buffer_of_a_short_payload_is_kept() {
        let mut payload = take_memory_to_write();
        payload.push(1);
        let address = payload.as_ptr();
        give_back(payload);
        let again = take_memory_to_write();
        assert_eq!(again.as_ptr(), address);
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        for _ in 0..PIECES_MAX + 1 {
            give_back(vec![1; SHORT_BYTES_MAX]);
        }
        let kept = std::iter::repeat_with(take_memory).take_while(|memory| memory.capacity() > 0);
        assert_eq!(kept.count(), PIECES_MAX);
    }
}
