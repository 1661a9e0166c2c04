//! What a client's lane shares with the application's threads.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use tidewire_io::doorbell::Doorbell;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::message::Message;

use super::events::{Event, EventQueue};
use super::queue::{Batch, Command, CommandQueue, Refused, fail};
use super::request::PendingPool;
use super::{ConnectError, HandOverError};
use crate::context::encode_within;

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    commands: CommandQueue,
    /// Set once the lane runs.
    doorbell: OnceLock<Arc<Doorbell>>,
    /// Largest frame that both sides take.
    frame_bytes_max: AtomicUsize,
    /// When the client ends, whatever still waits; never, before somebody closed it.
    close_at_ns: AtomicU64,
    pub(crate) spare: PendingPool,
    pub(crate) events: EventQueue<Event>,
    first: Mutex<Option<Result<(), ConnectError>>>,
    first_ready: Condvar,
}

impl Link {
    /// A link whose messages wait for the lane in such a queue.
    pub(crate) fn new(commands: CommandQueue) -> Self {
        Self {
            commands,
            doorbell: OnceLock::new(),
            frame_bytes_max: AtomicUsize::new(usize::MAX),
            close_at_ns: AtomicU64::new(u64::MAX),
            spare: PendingPool::default(),
            events: EventQueue::default(),
            first: Mutex::new(None),
            first_ready: Condvar::new(),
        }
    }

    pub(crate) fn set_frame_bytes_max(&self, bytes: usize) {
        self.frame_bytes_max.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_doorbell(&self, doorbell: Arc<Doorbell>) {
        // A link belongs to one lane, so it was not set before.
        let _ = self.doorbell.set(doorbell);
    }

    /// Leaves a command for the lane and wakes it if it sleeps.
    pub(crate) fn push(&self, command: Command) -> Result<(), Box<Refused>> {
        self.commands.push(command)?;
        self.ring();
        Ok(())
    }

    /// Leaves a one-way message for the lane and wakes it if it sleeps.
    pub(crate) fn push_message(
        &self,
        codec: &AnyCodec,
        message: &Message<'_>,
    ) -> Result<(), HandOverError> {
        let limit = self.frame_bytes_max.load(Ordering::Relaxed);
        self.commands
            .push_frame(|out| encode_within(limit, out, |out| codec.encode(message, out)))?;
        self.ring();
        Ok(())
    }

    /// Ends the client at this time, or an earlier one that was set before.
    pub(crate) fn close_by(&self, at_ns: u64) {
        self.close_at_ns.fetch_min(at_ns, Ordering::SeqCst);
        self.ring();
    }

    /// When the client ends, once somebody has closed it.
    pub(super) fn close_at_ns(&self) -> Option<u64> {
        let at_ns = self.close_at_ns.load(Ordering::SeqCst);
        (at_ns < u64::MAX).then_some(at_ns)
    }

    pub(crate) fn ring(&self) {
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.ring();
        }
    }

    pub(super) fn has_commands(&self) -> bool {
        self.commands.is_occupied()
    }

    /// Whether there are commands that the lane has not seen.
    pub(super) fn has_new_commands(&self) -> bool {
        self.commands.has_news()
    }

    /// Fails requests among the commands whose deadlines have passed. Returns when the next one will.
    pub(super) fn expire_commands(&self, now_ns: u64) -> Option<u64> {
        self.commands.expire(now_ns)
    }

    pub(super) fn take_commands(&self, batch: &mut Batch) {
        self.commands.take(batch);
    }

    /// Takes no more commands, and fails those that wait. Returns the one-way messages among them.
    pub(super) fn end(&self) -> u64 {
        fail(self.commands.end().commands.drain(..))
    }

    /// Blocks until the first attempt to connect succeeded or failed.
    pub(crate) fn wait_first(&self) -> Result<(), ConnectError> {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(result) = first.take() {
                return result;
            }
            first = self
                .first_ready
                .wait(first)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Answers [`wait_first`](Self::wait_first); the first answer counts.
    pub(super) fn complete_first(&self, result: Result<(), ConnectError>) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(result);
        drop(first);
        self.first_ready.notify_all();
    }
}
