//! One step at several levels: at several rates, to find the highest that holds, or with several numbers of agents, to
//! see how the server scales.
//! Each run is an ordinary run with an ordinary report. This module combines them: runs of one level are merged as
//! repeats of one step, and the levels are the steps of one report, from the lowest to the highest, which can be
//! rendered like any other. [`Probe`] and [`Sweep`] judge the levels. No message is moved here.

mod probe;
mod sweep;

pub use self::probe::{Probe, RateSearch};
pub use self::sweep::{Sweep, SweepLevel};
use crate::report::{MergeError, MergeKind, Report, Status};

/// The reports of the runs of one step, by level.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    levels: Vec<(f64, Vec<Report>)>,
}

impl Levels {
    /// Adds a run. One that was stopped before its step began has nothing to add.
    pub fn add(&mut self, level: f64, report: Report) {
        if report.steps.is_empty() {
            return;
        }
        let place = self.levels.partition_point(|(known, _)| *known < level);
        match self.levels.get_mut(place) {
            Some((known, reports)) if *known == level => reports.push(report),
            _ => self.levels.insert(place, (level, vec![report])),
        }
    }

    /// One report whose steps are the levels; nothing when there was no run.
    ///
    /// # Errors
    /// [`MergeError`] when the runs of a level were not of one step, or one of them could not be measured.
    pub fn report(&self) -> Result<Option<Report>, MergeError> {
        let mut whole: Option<Report> = None;
        for (_, reports) in &self.levels {
            let level = Report::merge(reports, MergeKind::Runs)?;
            match &mut whole {
                None => whole = Some(level),
                Some(whole) => append(whole, level),
            }
        }
        Ok(whole)
    }
}

/// Adds the steps of another report. RFC 3339 in UTC sorts by time.
fn append(whole: &mut Report, level: Report) {
    whole.steps.extend(level.steps);
    whole.total_duration_secs += level.total_duration_secs;
    if level.start_time_utc < whole.start_time_utc {
        whole.start_time_utc = level.start_time_utc;
    }
    if level.end_time_utc > whole.end_time_utc {
        whole.end_time_utc = level.end_time_utc;
    }
    let is_interrupted = [whole.status, level.status].contains(&Status::Interrupted);
    whole.status = Status::of(is_interrupted, whole.scenario_version, &whole.steps);
}
