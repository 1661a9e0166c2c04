//! The reply to a request, and the memory that replies are in.
//!
//! Memory goes round: a thread fetches a short reply into it, the application drops the reply, and the next one that the same
//! thread fetches is in it again. In between it waits with the thread, because a lock for it alone would be a third of all
//! that a request costs the application. Memory is as good for one client as for another.
//!
//! A reply that does not fit its slot is put into memory by the lane. Whoever fetches one leaves a piece for it in exchange.
//! All requests of a client share a [pile](Pile) of them. Rejected: a piece with each slot, of which there are as many as
//! requests were ever held at once.

use std::cell::RefCell;

use tidewire_io::words::SharedBytes;

/// The answer to a request.
///
/// The memory it is in serves another request once it is dropped. That of a short one has room for 120 bytes, unless it is
/// empty. [`Call`](crate::Call) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    payload: Vec<u8>,
    /// A whole word, because it is moved with the payload: two bytes of one, read as a word, would have to be waited for.
    channel: u64,
}

/// Emptied memory: so many pieces at most, none of which is too small for a short reply, or large.
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

    /// The channel the answer came on; for a join, the room's alias.
    #[must_use]
    pub fn channel(&self) -> u16 {
        self.channel as u16
    }

    /// The server's answer.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The server's answer as an owned value.
    #[must_use]
    pub fn into_payload(mut self) -> Vec<u8> {
        std::mem::take(&mut self.payload)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        give_back(std::mem::take(&mut self.payload));
    }
}

impl Pile {
    /// One of the pieces, if there is any.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.0.pop()
    }

    /// Empties a piece and adds it, or returns it if it is not to be kept.
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

    /// Exchanges all pieces with those of another pile.
    pub(super) fn swap(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.0, &mut other.0);
    }
}

/// Emptied memory, or none.
// Into its callers: returned by way of memory it would be read in larger pieces than it was just written in.
#[inline(always)]
pub(crate) fn take_memory() -> Vec<u8> {
    let mut taken = Vec::new();
    // A thread that ends has nothing any more.
    let _ = RETURNED.try_with(|returned| {
        if let Some(memory) = returned.borrow_mut().pop() {
            taken = memory;
        }
    });
    taken
}

/// Emptied memory to write a payload into, with so much room that it is worth keeping.
#[cfg(feature = "typed")]
pub(crate) fn take_memory_to_write() -> Vec<u8> {
    let mut memory = take_memory();
    memory.reserve(SHORT_BYTES_MAX);
    memory
}

/// Takes memory back that is not needed any more.
pub(crate) fn give_back(memory: Vec<u8>) {
    let _ = RETURNED.try_with(|returned| returned.borrow_mut().push(memory));
}

thread_local! {
    static RETURNED: RefCell<Pile> = const { RefCell::new(Pile(Vec::new())) };
}

/// Words of a short reply: with them and its two states a slot is two cache lines.
pub(super) const SHORT_WORDS: usize = 15;

/// Largest payload of a short reply, in bytes.
pub(super) const SHORT_BYTES_MAX: usize = SharedBytes::<SHORT_WORDS>::BYTES_MAX;

/// Pieces of a pile: more than most windows of requests. A thread that only drops replies holds no more.
pub(super) const PIECES_MAX: usize = 256;

/// Largest piece that is kept, in bytes. So there is 1 MiB at most with each thread, and twice as much with each client.
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

    /// They took places of memory that is of use, and a short reply that got one of them allocated all the same.
    #[test]
    fn pieces_too_small_for_a_short_reply_are_not_kept() {
        give_back(Vec::with_capacity(SHORT_BYTES_MAX - 1));
        assert_eq!(take_memory().capacity(), 0);
    }

    #[cfg(feature = "typed")]
    #[test]
    fn what_a_short_payload_was_written_into_is_kept() {
        let mut payload = take_memory_to_write();
        payload.push(1);
        let place = payload.as_ptr();
        give_back(payload);
        let again = take_memory_to_write();
        assert_eq!(again.as_ptr(), place);
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
