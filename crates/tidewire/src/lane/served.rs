//! The service of a lane, with its panics contained. Decision 0090 has the reasons.

use std::fmt;
use std::panic::resume_unwind;

use crate::engine::{Core, Panic};
use crate::service::{Service, UpstreamSessions, run_answers};
use crate::session::SessionId;

/// A service whose panics are contained.
pub(crate) struct ContainedService<S> {
    service: S,
    /// Turns in a row in which `on_turn` panicked.
    panics_in_a_row: u32,
}

impl<S: Service> ContainedService<S> {
    pub(crate) fn new(service: S) -> Self {
        Self {
            service,
            panics_in_a_row: 0,
        }
    }

    /// The service, for calls whose panic may end the lane.
    #[inline]
    pub(super) fn get(&self) -> &S {
        &self.service
    }

    /// Calls the service about a session, or about none. Returns `None` if it panicked: then the session ends, and the
    /// service has mended itself. If it cannot, the panic goes on and ends the lane.
    #[inline(always)]
    pub(super) fn call<T>(
        &mut self,
        core: &mut Core,
        id: SessionId,
        work: impl FnOnce(&mut Core, &mut S) -> T,
    ) -> Option<T> {
        let service = &mut self.service;
        match core.contain(id, |core| work(core, service)) {
            Ok(result) => Some(result),
            Err(panic) => {
                self.mend(core, panic);
                None
            }
        }
    }

    /// Tells the service that a session is open.
    pub(super) fn announce(&mut self, core: &mut Core, slot: usize) {
        core.enter(slot);
        let id = core.sessions[slot].id;
        if core.sessions[slot].profile.is_upstream() {
            UpstreamSessions.on_open(&mut core.context(id));
            return run_answers(core);
        }
        self.call(core, id, |core, service| {
            service.on_open(&mut core.context(id));
        });
    }

    /// As [`Self::call`], for the call that comes back each turn. If it panics again and again, the lane ends.
    #[inline(always)]
    pub(super) fn call_turn<T>(
        &mut self,
        core: &mut Core,
        work: impl FnOnce(&mut Core, &mut S) -> T,
    ) -> Option<T> {
        let service = &mut self.service;
        match core.contain(SessionId::NONE, |core| work(core, service)) {
            Ok(result) => {
                self.panics_in_a_row = 0;
                Some(result)
            }
            Err(panic) => {
                self.panics_in_a_row += 1;
                if self.panics_in_a_row >= PANICS_IN_A_ROW_MAX {
                    resume_unwind(panic);
                }
                self.mend(core, panic);
                None
            }
        }
    }

    /// Lets the service repair what the panic may have left in the middle of a change.
    #[cold]
    #[inline(never)]
    fn mend(&mut self, core: &mut Core, panic: Panic) {
        let service = &mut self.service;
        let mended = core.contain(SessionId::NONE, |core| {
            service.on_panic(&mut core.context_without_session());
        });
        if mended.is_err() {
            // The first panic is the cause of the second one.
            resume_unwind(panic);
        }
    }
}

impl<S> fmt::Debug for ContainedService<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ContainedService")
            .finish_non_exhaustive()
    }
}

/// Panics of `on_turn` in a row after which the lane ends. A fault that passes is gone after one. A lane that goes on
/// for ever would use a whole core and do nothing of what `on_turn` is for.
const PANICS_IN_A_ROW_MAX: u32 = 3;
