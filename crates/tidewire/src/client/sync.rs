//! The synchronisation primitives of the request table, so that a model checker can substitute its own.
//!
//! The table shares memory between threads through these traits only. The tests run the table itself, not a copy of its
//! protocol, with the primitives of `loom`. `loom` tries every interleaving and every value that a weak load may see.

use std::fmt::Debug;
use std::ops::DerefMut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tidewire_io::words::SharedBytes;

use super::reply::SHORT_WORDS;
use super::waiting::{ClientLane, Waiting};

pub(super) trait Primitives: Debug + 'static {
    type Word: Word;
    type Payload: Payload;
    type Lock<T: Debug + Default>: Lock<T>;
    type Waker: WakeLane;

    /// Number of slots at the start.
    const SLOTS_MIN: usize;
}

pub(super) trait Word: Debug {
    fn new(value: u32) -> Self;
    fn load(&self, ordering: Ordering) -> u32;
    fn store(&self, value: u32, ordering: Ordering);
}

/// A short payload that one thread writes and another reads. The slot's words order the accesses.
pub(super) trait Payload: Debug + Default {
    /// Largest payload that fits.
    const BYTES_MAX: usize;

    fn store(&self, bytes: &[u8]);

    /// Replaces the content of `memory` by the first `count` bytes.
    fn load(&self, count: usize, memory: Vec<u8>) -> Vec<u8>;
}

/// A mutex whose content stays valid even if a holder panicked.
pub(super) trait Lock<T>: Debug + Default {
    fn lock(&self) -> impl DerefMut<Target = T>;
}

/// Wakes the lane of a table if it sleeps or rests.
pub(super) trait WakeLane: Debug + Default {
    /// Call it after the lane's new data is stored. It begins with a sequentially consistent fence.
    fn wake(&self);

    /// As [`wake`](Self::wake), but does not call a lane that rests.
    fn wake_poller(&self);

    /// Notes who waits.
    fn note_waiting(&self, waker: &Waker) -> Waiting;

    /// Calls the thread of a lane at rest if a task waits. Call it after the task is noted, without a lock.
    fn wake_for_task(&self);
}

/// The primitives of all builds except the model's.
#[derive(Debug)]
pub(super) struct Native;

impl Primitives for Native {
    type Word = AtomicU32;
    type Payload = SharedBytes<SHORT_WORDS>;
    type Lock<T: Debug + Default> = Mutex<T>;
    type Waker = ClientLane;

    const SLOTS_MIN: usize = 64;
}

impl Word for AtomicU32 {
    #[inline(always)]
    fn new(value: u32) -> Self {
        Self::new(value)
    }

    #[inline(always)]
    fn load(&self, ordering: Ordering) -> u32 {
        Self::load(self, ordering)
    }

    #[inline(always)]
    fn store(&self, value: u32, ordering: Ordering) {
        Self::store(self, value, ordering);
    }
}

impl<const WORDS: usize> Payload for SharedBytes<WORDS> {
    const BYTES_MAX: usize = Self::BYTES_MAX;

    #[inline(always)]
    fn store(&self, bytes: &[u8]) {
        Self::store(self, bytes);
    }

    #[inline(always)]
    fn load(&self, count: usize, memory: Vec<u8>) -> Vec<u8> {
        Self::load(self, count, memory)
    }
}

impl<T: Debug + Default> Lock<T> for Mutex<T> {
    #[inline(always)]
    fn lock(&self) -> impl DerefMut<Target = T> {
        let locked: Result<MutexGuard<'_, T>, _> = Self::lock(self);
        locked.unwrap_or_else(PoisonError::into_inner)
    }
}
