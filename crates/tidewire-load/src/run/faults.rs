//! The processes of a run besides the instrument, and the faults of a step, which are inflicted on them at their times.
//!
//! A server takes a moment to start, so the faults have a thread of their own, and the coordinator looks on meanwhile.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{RunError, RunOptions};
use crate::lane_account::LaneAccount;
use crate::process::ProcessSample;
use crate::report::FaultFigures;
use crate::scenario::{Fault, FaultAction, Step};

/// A process that was started for the run: a server, or the broker between several. It can be observed, and faults can be
/// inflicted on it.
pub trait ServerProcess: fmt::Debug + Send + Sync {
    /// Its name in reports and in the faults of a scenario, such as `node 1`.
    fn name(&self) -> &str;

    /// Returns the use of the process up to now, with those that it replaced; nothing if that is not known.
    fn usage(&self) -> Option<ProcessSample>;

    /// Returns the account of its lanes up to now; nothing if it does not tell. It may take a moment to answer. The coordinator asks
    /// it at both ends of the steady window.
    fn lanes(&self) -> Option<LaneAccount>;

    /// Inflicts a fault, and returns when it has its effect: a server that is started again accepts connections. It is called
    /// on a thread of its own.
    ///
    /// # Errors
    /// The reason why it could not be done, in words.
    fn inflict(&self, action: FaultAction) -> Result<(), String>;
}

/// The thread that inflicts the faults of a step. It ends with the last of them, or when this is dropped.
pub(super) struct Faults {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Inflicted>>,
}

/// The faults that were inflicted, and those that could not be.
#[derive(Default)]
pub(super) struct Inflicted {
    pub(super) faults: Vec<FaultFigures>,
    pub(super) problems: Vec<String>,
}

/// Whether each fault of a step has a process.
pub(super) fn check(step: &Step, options: &RunOptions) -> Result<(), RunError> {
    for fault in &step.faults {
        if process_of(fault, options).is_none() {
            return Err(RunError::NoProcess(
                step.name.clone(),
                fault.process.clone(),
            ));
        }
    }
    Ok(())
}

fn process_of(fault: &Fault, options: &RunOptions) -> Option<Arc<dyn ServerProcess>> {
    let mut processes = options.processes.iter();
    processes
        .find(|process| process.name() == fault.process)
        .cloned()
}

impl Faults {
    /// Begins the schedule of a step that sends from `start_ns` on.
    pub(super) fn start(step: &Step, options: &RunOptions, start_ns: u64) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let with_process = |fault: &Fault| Some((fault.clone(), process_of(fault, options)?));
        let schedule: Vec<_> = step.faults.iter().filter_map(with_process).collect();
        let (clock, is_over) = (options.clock.clone(), Arc::clone(&ended));
        let work = move || {
            let mut inflicted = Inflicted::default();
            let elapsed_secs = || clock.now_ns().saturating_sub(start_ns) as f64 / 1e9;
            for (fault, process) in schedule {
                while elapsed_secs() < fault.at_secs || clock.now_ns() < start_ns {
                    if is_over.load(Ordering::Relaxed) {
                        return inflicted;
                    }
                    thread::sleep(PAUSE);
                }
                let what = format!("{} {}", fault.action.name(), fault.process);
                let (at_secs, began) = (elapsed_secs(), Instant::now());
                if let Err(error) = process.inflict(fault.action) {
                    inflicted
                        .problems
                        .push(format!("the fault {what:?} failed: {error}"));
                }
                inflicted.faults.push(FaultFigures {
                    at_secs,
                    took_secs: began.elapsed().as_secs_f64(),
                    what,
                });
            }
            inflicted
        };
        let thread = (!step.faults.is_empty()).then(|| thread::spawn(work));
        Self { ended, thread }
    }

    /// Ends the schedule. Faults that were not due by now are left out.
    pub(super) fn finish(mut self) -> Inflicted {
        self.ended.store(true, Ordering::Relaxed);
        let joined = self.thread.take().map(JoinHandle::join);
        joined.map_or_else(Inflicted::default, |joined| {
            joined.unwrap_or_else(|_| Inflicted {
                problems: vec!["the thread of the faults panicked".to_owned()],
                ..Inflicted::default()
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
