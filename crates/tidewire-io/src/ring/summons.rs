//! A signal to a ring's sleeping owner. Another thread can make it unnecessary.
//!
//! A signal costs two system calls, and the change to another thread. The thread that wrote to the ring can often do
//! the owner's work itself. So the end of a ring may have an [`Attendant`], which gets the signal as a [`Summons`]
//! before it is sent.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use super::sleep::ReadySignal;
use crate::process::Process;

/// Gets the signals to the owner of an end of a ring, see [`attend`](super::attend).
pub trait Attendant: Debug + Send + Sync {
    /// Takes an unsent signal. The peer's thread calls this after it has made the owner ready.
    fn summon(&self, summons: Summons);
}

/// A signal that was not sent yet. Dropping it sends it.
#[derive(Debug)]
pub struct Summons(Option<Arc<Bell>>);

/// How the peer wakes the owner of an end.
#[derive(Debug)]
pub(super) struct Bell {
    signal: EventFdSignal,
    attendant: OnceLock<Arc<dyn Attendant>>,
    process: Process,
}

pub(super) type EventFdSignal = ReadySignal<AtomicUsize, OwnedFd>;

impl Bell {
    pub(super) fn new(signal: EventFdSignal) -> Arc<Self> {
        Arc::new(Self {
            signal,
            attendant: OnceLock::new(),
            process: Process::this(),
        })
    }

    pub(super) fn signal(&self) -> &EventFdSignal {
        &self.signal
    }

    /// Only the first call has an effect.
    pub(super) fn set_attendant(&self, attendant: Arc<dyn Attendant>) {
        let _ = self.attendant.set(attendant);
    }

    /// Wakes the owner if it sleeps on one of `directions`, as [`ReadySignal::takes`](super::sleep::ReadySignal) says.
    #[inline]
    pub(super) fn wake(self: &Arc<Self>, directions: usize) {
        if self.signal.takes(directions) {
            self.summon();
        }
    }

    #[cold]
    fn summon(self: &Arc<Self>) {
        let summons = Summons(Some(Arc::clone(self)));
        if let Some(attendant) = self.attendant.get() {
            attendant.summon(summons);
        }
    }
}

impl Summons {
    /// A signal to nobody.
    #[cfg(tidewire_model)]
    #[must_use]
    pub fn in_model() -> Self {
        Self(None)
    }

    /// Whether this is a signal to the end with this bell.
    pub(super) fn is_for(&self, bell: &Arc<Bell>) -> bool {
        self.0.as_ref().is_some_and(|it| Arc::ptr_eq(it, bell))
    }

    /// Takes the signal back.
    pub(super) fn withdraw(mut self) {
        self.0 = None;
    }
}

impl Drop for Summons {
    fn drop(&mut self) {
        // In a child by `fork` the signal is that of the parent, which sends it.
        if let Some(bell) = self.0.as_ref().filter(|bell| bell.process.is_this()) {
            bell.signal.send();
        }
    }
}
