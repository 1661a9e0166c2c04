//! The wait of an idle lane: it spins (checks for work without sleeping) or sleeps.
//!
//! Problem: putting a lane to sleep and waking it costs 5 to 40 µs on either side, more than a hundred messages cost.
//! Spinning instead costs a core while there is no work. Over a socket every check is a system call, and so is every
//! write of the peer meanwhile. So a lane spins at sockets only if the program asks for it. Within a process a check
//! compares two counters, and a peer that need not wake the lane makes no system call either.
//!
//! Approach: by default ([`Spin::Adaptive`]) a lane spins for at most [`ADAPTIVE_NS`] at those in-process connections
//! that it has just read from, and remembers whether it found work ([`SpinBackoff`]). A spin that found no work
//! doubles the number of times that the lane then sleeps at once, up to [`PASSES_MAX`]. A spin that found work halves
//! it. So two busy lanes never sleep. Lanes whose work is rare, or whose peer shares their core,
//! spin at a thousandth of their waits to find out whether that has changed. A lane that other lanes may run while it
//! sleeps spins only after a turn with much work: small work is done on the peer's thread (`errands.rs`, decision
//! 0108).
//!
//! Rejected: deciding by the length of the last sleeps. Two lanes on one core wake each other at once, so their sleeps
//! are short although spinning finds nothing. Also rejected: adapting the time of a spin instead of the frequency. A
//! spin that is too short for the peer's turn never learns that a longer one would be enough.

use std::hint::spin_loop;
use std::thread;
use std::time::Duration;

use tidewire_io::affinity::online_cores;
use tidewire_io::allocation::thread_allocations;
use tidewire_io::clock::now_ns;
use tidewire_io::poller::PollerError;

use super::seat::Turns;
use super::{Lane, LaneError, errands};
use crate::service::Service;

/// The choice whether lanes spin before they sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spin {
    /// Lanes spin at in-process connections only, as long as they find work.
    Adaptive,
    /// Lanes spin for this many nanoseconds each time, also at sockets.
    Always(u64),
    /// Lanes sleep at once.
    Never,
}

impl Spin {
    /// The choice for a builder's setting in microseconds. Without a setting the lane decides.
    pub(crate) fn chosen(microseconds: Option<u32>) -> Self {
        match microseconds {
            Some(0) => Self::Never,
            Some(microseconds) => Self::Always(u64::from(microseconds) * 1_000),
            // On a single core no other thread can bring work while this lane spins.
            None if online_cores() < 2 => Self::Never,
            None => Self::Adaptive,
        }
    }
}

/// Decides how often a lane spins, by the success of its last spins.
#[derive(Debug, Default)]
pub(super) struct SpinBackoff {
    /// Times to sleep at once before the next spin.
    left: u32,
    /// Times to sleep at once after the last spin that found no work.
    passes: u32,
}

impl SpinBackoff {
    /// Whether to spin this time.
    fn may_look(&mut self) -> bool {
        let may_look = self.left == 0;
        self.left = self.left.saturating_sub(1);
        may_look
    }

    fn note(&mut self, found: bool) {
        if found {
            self.passes /= 2;
        } else {
            self.passes = (2 * self.passes + 1).min(PASSES_MAX);
            self.left = self.passes;
        }
    }
}

/// Whether and how long a lane spins before it sleeps.
#[derive(Debug)]
pub(super) struct SpinControl {
    choice: Spin,
    backoff: SpinBackoff,
}

impl SpinControl {
    pub(super) fn new(choice: Spin) -> Self {
        Self {
            choice,
            backoff: SpinBackoff::default(),
        }
    }

    /// The settings of the next spin. `None` if the lane sleeps at once.
    fn next(&mut self, may_adapt: bool) -> Option<Look> {
        match self.choice {
            Spin::Always(time_ns) => Some(Look {
                time_ns,
                everywhere: true,
            }),
            Spin::Adaptive if may_adapt && self.backoff.may_look() => Some(Look {
                time_ns: ADAPTIVE_NS,
                everywhere: false,
            }),
            Spin::Adaptive | Spin::Never => None,
        }
    }
}

/// The settings of one spin.
#[derive(Clone, Copy)]
struct Look {
    time_ns: u64,
    /// The lane also polls, and yields its core between two checks.
    everywhere: bool,
}

impl<S: Service> Lane<S> {
    /// Sleeps on the poller, at most until the next turn is due.
    #[inline]
    pub(super) fn sleep(&mut self, wake_ns: Option<u64>) -> Result<(), LaneError> {
        self.core.exchange.mailbox.waker.before_sleep();
        let timeout = if self.has_work() || self.crew.must_hand_on() {
            Some(Duration::ZERO)
        } else {
            until(wake_ns)
        };
        let result = self.poll(timeout);
        self.core.exchange.mailbox.waker.after_sleep();
        Ok(result?)
    }

    /// Runs the errands, and looks for work. Without work, the in-process sessions announce the lane's sleep.
    #[inline(always)]
    pub(super) fn finds_work(&mut self, wake_ns: Option<u64>) -> Result<bool, LaneError> {
        if errands::is_any() {
            let (table, ready) = (&mut self.core.sessions.table, &mut self.ready);
            errands::run(&mut |errand| errand.answer(table, ready));
            // The other lanes have counted what they allocated on this thread.
            self.allocations = thread_allocations();
        }
        // The clock of the turn is exact enough: a sleep looks at the time again.
        let is_due = wake_ns.is_some_and(|at| at <= self.core.sessions.timers.now_ns());
        // A session that was resumed at the end of the turn may have whole frames that no event announces.
        let idle = !is_due && self.ready.is_empty() && self.core.is_idle();
        let has_awake = self.core.sessions.table.has_awake();
        if has_awake {
            self.visits.note_turn(self.core.counters.frames_in.read());
        }
        let may_spin = has_awake && self.visits.is_alone();
        let look = match idle {
            true => self.spinning.next(may_spin),
            false => None,
        };
        // A lane that is about to spin does not ask to be woken yet.
        let idle = !self.look_at_awake(idle && look.is_none()) && idle;
        if !idle {
            self.poll_if_due()?;
            return Ok(true);
        }
        match look {
            Some(look) => self.spin(look, wake_ns),
            None => Ok(false),
        }
    }

    /// Looks for input of in-process sessions. If there is none and the lane `sleeps`, they announce its sleep.
    #[inline(always)]
    pub(super) fn look_at_awake(&mut self, sleeps: bool) -> bool {
        let Self { core, ready, .. } = self;
        core.sessions.table.finish_turn_of_awake(sleeps, ready)
    }

    /// Polls the sockets, unless the last poll was less than [`SOCKETS_AFTER_NS`] ago. A turn with work from in-process
    /// sessions only takes less time than a poll.
    #[inline(never)]
    fn poll_if_due(&mut self) -> Result<(), PollerError> {
        let now_ns = self.core.sessions.timers.now_ns();
        if self.core.sessions.table.has_awake() && now_ns < self.polled_ns + SOCKETS_AFTER_NS {
            self.events.clear();
            return Ok(());
        }
        self.polled_ns = now_ns;
        self.poll(Some(Duration::ZERO))
    }

    pub(super) fn poll(&mut self, timeout: Option<Duration>) -> Result<(), PollerError> {
        self.core.counters.system_calls.add(1);
        self.core.sessions.poller.wait(&mut self.events, timeout)
    }

    /// Looks for work without sleeping, at most until the next turn is due. Returns whether there is work. If not, the
    /// in-process connections know that the lane will sleep.
    #[inline(never)]
    fn spin(&mut self, look: Look, wake_ns: Option<u64>) -> Result<bool, LaneError> {
        self.core.counters.spins.add(1);
        let end_ns = now_ns().saturating_add(look.time_ns);
        let end_ns = wake_ns.map_or(end_ns, |at| at.min(end_ns));
        loop {
            let mut found = false;
            if look.everywhere {
                self.poll(Some(Duration::ZERO))?;
                found = !self.events.is_empty();
            }
            found =
                found || self.has_work() || self.crew.must_hand_on() || self.look_at_awake(false);
            let is_over = !found && now_ns() >= end_ns;
            // Work that comes while the lane announces its sleep counts as found by the spin.
            found = found || (is_over && self.look_at_awake(true));
            if found || is_over {
                self.end_look(look, found)?;
                return Ok(found);
            }
            if look.everywhere {
                // The thread that brings the work may have no other core to run on.
                self.core.counters.system_calls.add(1);
                thread::yield_now();
            } else {
                spin_loop();
            }
        }
    }

    /// Notes the outcome of a spin.
    fn end_look(&mut self, look: Look, found: bool) -> Result<(), PollerError> {
        if found {
            self.core.counters.spins_found.add(1);
        }
        if look.everywhere {
            return Ok(());
        }
        self.spinning.backoff.note(found);
        if found {
            // Sockets must not starve.
            self.poll_if_due()?;
        }
        Ok(())
    }
}

/// The time from now until a moment.
#[inline]
pub(super) fn until(at_ns: Option<u64>) -> Option<Duration> {
    at_ns.map(|at| Duration::from_nanos(at.saturating_sub(now_ns())))
}

/// The time after which a lane that is busy with in-process sessions looks at its sockets again. A look costs as much
/// as a turn with one small message.
const SOCKETS_AFTER_NS: u64 = 20_000;

/// The longest spin of a lane that decides by itself. It must be longer than a sleeping peer takes to wake and answer.
/// Otherwise two lanes that exchange messages never find each other awake. That takes 5 µs on bare metal and 40 µs on
/// some virtual machines: there a limit of 10 µs made 12,000 round trips a second, and this one makes 600,000.
const ADAPTIVE_NS: u64 = 50_000;

/// The most times that a lane sleeps at once before it spins again. A spin that finds nothing then costs 50 ns for each
/// wait.
const PASSES_MAX: u32 = 1_023;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_become_rare_after_failures_and_not_after_success() {
        let mut backoff = SpinBackoff::default();
        let mut waits_until_the_next_look = || {
            let mut waits = 1;
            while !backoff.may_look() {
                waits += 1;
            }
            backoff.note(false);
            waits
        };
        let in_vain: Vec<u32> = (0..12).map(|_| waits_until_the_next_look()).collect();
        assert_eq!(in_vain[..5], [1, 2, 4, 8, 16]);
        assert_eq!(in_vain[11], PASSES_MAX + 1, "no less often than this");

        // The next spin finds work, and so do all later ones.
        while !backoff.may_look() {}
        for _ in 0..20 {
            backoff.note(true);
            assert!(backoff.may_look());
        }
        backoff.note(false);
        assert!(!backoff.may_look() && backoff.may_look(), "as at first");
    }

    #[test]
    fn the_setting_of_the_builder_is_used() {
        assert_eq!(Spin::chosen(Some(0)), Spin::Never);
        assert_eq!(Spin::chosen(Some(20)), Spin::Always(20_000));
        let by_itself = match online_cores() {
            0 | 1 => Spin::Never,
            _ => Spin::Adaptive,
        };
        assert_eq!(Spin::chosen(None), by_itself);
    }
}
