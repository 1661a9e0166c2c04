//! The faults of a step, which are inflicted on the processes of the run at their times.
//!
//! A server takes a moment to start, so the faults have a thread of their own, and the coordinator looks on meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::plan::{PlannedFault, ServerProcess};
use crate::report::FaultFigures;
use crate::scenario::Fault;

/// The thread that inflicts the faults of a step. It ends with the last of them, or when this is dropped.
pub(super) struct Faults {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<FaultRecord>>,
}

/// The faults that were inflicted, and those that could not be.
#[derive(Default)]
pub(super) struct FaultRecord {
    pub(super) faults: Vec<FaultFigures>,
    pub(super) problems: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl FaultRecord {
    /// Inflicts a fault that is due so many seconds late.
    fn inflict(&mut self, fault: &Fault, process: &dyn ServerProcess, at_secs: f64) {
        let what = format!("{} {}", fault.action.name(), fault.process);
        let (due_secs, began) = (fault.at_secs, Instant::now());
        if at_secs - due_secs > LATE_SECS_MAX {
            let late = format!(
                "the fault {what:?} was due at {due_secs} s and began at {at_secs:.1} s, when the one before it was done"
            );
            self.notes.push(late);
        }
        match process.inflict(fault.action) {
            Ok(()) => self.faults.push(FaultFigures {
                at_secs,
                took_secs: began.elapsed().as_secs_f64(),
                what,
            }),
            Err(error) => {
                let failed = format!("the fault {what:?} failed: {error}");
                self.problems.push(failed);
            }
        }
    }
}

impl Faults {
    /// Begins the schedule of a step that sends from `start_ns` on.
    pub(super) fn start(schedule: &Arc<[PlannedFault]>, clock: Clock, start_ns: u64) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (schedule, is_over) = (Arc::clone(schedule), Arc::clone(&ended));
        let has_some = !schedule.is_empty();
        let work = move || {
            let mut inflicted = FaultRecord::default();
            let elapsed_secs = || clock.now_ns().saturating_sub(start_ns) as f64 / 1e9;
            for (number, PlannedFault { fault, process }) in schedule.iter().enumerate() {
                // One that is due is not inflicted any more when the step has ended: nothing would show its effect.
                while !is_over.load(Ordering::Relaxed)
                    && (elapsed_secs() < fault.at_secs || clock.now_ns() < start_ns)
                {
                    thread::sleep(PAUSE);
                }
                if is_over.load(Ordering::Relaxed) {
                    let (left, at_secs) = (schedule.len() - number, fault.at_secs);
                    let what = format!("{} {}", fault.action.name(), fault.process);
                    let first = format!("the first is {what:?} at {at_secs} s");
                    let told = format!("the step ended before {left} of its faults; {first}");
                    inflicted.problems.push(told);
                    break;
                }
                inflicted.inflict(fault, process.as_ref(), elapsed_secs());
            }
            inflicted
        };
        let thread = has_some.then(|| thread::spawn(work));
        Self { ended, thread }
    }

    /// Ends the schedule. Faults that were not inflicted by now are left out, which is a problem.
    pub(super) fn finish(mut self) -> FaultRecord {
        self.ended.store(true, Ordering::Relaxed);
        let joined = self.thread.take().map(JoinHandle::join);
        joined.map_or_else(FaultRecord::default, |joined| {
            joined.unwrap_or_else(|_| FaultRecord {
                problems: vec!["the thread of the faults panicked".to_owned()],
                ..FaultRecord::default()
            })
        })
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// How exactly the times of faults are kept.
const PAUSE: Duration = Duration::from_millis(5);

/// A fault that begins later than this after its time is noted as late.
const LATE_SECS_MAX: f64 = 0.25;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::lane_account::LaneAccount;
    use crate::process::ProcessSample;
    use crate::scenario::FaultAction;

    /// A process that can be stopped and not killed, and tells when it is asked.
    #[derive(Debug)]
    struct Asked(Sender<FaultAction>);

    impl ServerProcess for Asked {
        fn name(&self) -> &'static str {
            "nats"
        }

        fn usage(&self) -> Option<ProcessSample> {
            None
        }

        fn lanes(&self) -> Option<LaneAccount> {
            None
        }

        fn ended_by_itself(&self) -> bool {
            false
        }

        fn inflict(&self, action: FaultAction) -> Result<(), String> {
            self.0.send(action).unwrap();
            match action {
                FaultAction::Stop => Ok(()),
                _ => Err("it cannot".to_owned()),
            }
        }
    }

    /// The result of these faults in a step that began so many seconds ago and ends when the first `asked` were tried.
    fn inflicted(faults: &[(f64, FaultAction)], ago_secs: u64, asked: usize) -> FaultRecord {
        let (sender, receiver) = channel();
        let process: Arc<dyn ServerProcess> = Arc::new(Asked(sender));
        let fault = |(at_secs, action): &(f64, FaultAction)| PlannedFault {
            fault: Fault {
                at_secs: *at_secs,
                action: *action,
                process: "nats".to_owned(),
            },
            process: Arc::clone(&process),
        };
        let clock = Clock::default();
        let start_ns = clock.now_ns() - ago_secs * 1_000_000_000;
        let faults = Faults::start(&faults.iter().map(fault).collect(), clock, start_ns);
        for _ in 0..asked {
            receiver.recv().unwrap();
        }
        faults.finish()
    }

    #[test]
    fn a_fault_that_failed_is_a_problem_and_not_among_those_that_were_inflicted() {
        let faults = [(0.0, FaultAction::Kill), (0.0, FaultAction::Stop)];
        let inflicted = inflicted(&faults, 0, 2);
        let done: Vec<&str> = inflicted.faults.iter().map(|it| it.what.as_str()).collect();
        assert_eq!(done, ["stop nats"]);
        assert_eq!(
            inflicted.problems,
            ["the fault \"kill nats\" failed: it cannot"]
        );
    }

    #[test]
    fn faults_that_a_step_ends_before_are_a_problem() {
        let faults = [
            (0.0, FaultAction::Stop),
            (3_600.0, FaultAction::Kill),
            (3_601.0, FaultAction::Restart),
        ];
        let inflicted = inflicted(&faults, 0, 1);
        assert_eq!(inflicted.faults.len(), 1);
        let told = "the step ended before 2 of its faults; the first is \"kill nats\" at 3600 s";
        assert_eq!(inflicted.problems, [told]);
    }

    #[test]
    fn a_fault_that_begins_late_is_noted() {
        let inflicted = inflicted(&[(0.5, FaultAction::Stop)], 2, 1);
        assert!(inflicted.faults[0].at_secs >= 2.0 && inflicted.problems.is_empty());
        let told = "the fault \"stop nats\" was due at 0.5 s and began at 2";
        assert!(
            inflicted.notes[0].starts_with(told),
            "{:?}",
            inflicted.notes
        );
    }
}
