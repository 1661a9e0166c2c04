//! Logging: four threads that log 50,000 lines of 80 characters each, and the lines that are in the file at the end.
//!
//! Tidewire's log is what a program gets by `tracing::info!`: formatted by the thread that logs, written by a thread of
//! its own. The limit is the same line put together by hand into a [buffered file behind a lock](super::locked_log).
//! The file is read at the end and every line looked for.

use std::fmt::Write as _;
use std::fs;
use std::sync::Barrier;
use std::thread;

use tidewire::log::LogBuilder;
use tidewire_io::clock::now_ns;
use tidewire_load::statistics::LatencyHistogram;
use tracing::dispatcher::DefaultGuard;

use super::locked_log::LockedLog;
use crate::contract::{Measured, Work};
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::stage::{OrFailed, Stage};

pub(super) const SUITE: Suite = Suite {
    name: "logging",
    about: "lines that four threads log, and that are in the file at the end",
    rows,
    serve: super::serves_nobody,
    drive,
};

fn rows(quick: bool) -> Vec<RowPlan> {
    let row = |mode: &str, threads| {
        let work = Work {
            mode: mode.to_owned(),
            threads,
            count: if quick { 5_000 } else { 50_000 },
            message_bytes: LINE_BYTES,
            ..super::work(&SUITE, "inproc", "")
        };
        let id = format!("{threads} threads, {mode}, beside a locked file");
        let locked = work.clone();
        RowPlan::new(id, work, LINES)
            .beside(locked)
            .with_peers(None)
    };
    let mut rows = vec![row(LOSSLESS, 4), row(LOSSY, 4)];
    rows[1].may_drop = true;
    if !quick {
        rows.push(row(LOSSLESS, 1));
    }
    rows
}

fn drive(side: Side, _: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let file = super::log_file()?;
    let (mut logged, dropped) = match side {
        Side::Tidewire => {
            let builder = LogBuilder::new()
                .lossy(work.mode == LOSSY)
                .file(file.path());
            let (writer, log) = builder.open().or_failed("open the log")?;
            let dispatch = super::dispatch(writer);
            stage.started()?;
            let prepare = || Some(tracing::dispatcher::set_default(&dispatch));
            let logged = log_all(work, prepare, |text| tracing::info!("{text}"));
            let metrics = log.finish();
            (logged, metrics.dropped + metrics.failed)
        }
        Side::Bare => {
            let log = LockedLog::open(file.path()).or_failed("open the log")?;
            stage.started()?;
            let logged = log_all(work, || None, |text| log.log(format_args!("{text}")));
            log.finish().or_failed("write the log")?;
            (logged, 0)
        }
    };
    logged.until_ns = now_ns();
    // Reading it all again is not what logging costs.
    stage.stopped()?;
    let text = fs::read_to_string(file.path()).or_failed("read the log")?;
    let offered = work.count * work.threads as u64;
    let found = LogLines::of(&text, work);
    let seconds = (logged.until_ns - logged.from_ns) as f64 / 1e9;
    let lost = offered - found.lines + found.wrong;
    stage.measured(Measured {
        dropped,
        ..Measured::verified(found.lines, seconds, lost).with_times(&logged.calls)
    })
}

struct CallTimes {
    from_ns: u64,
    until_ns: u64,
    /// How long each call took.
    calls: LatencyHistogram,
}

/// Lets the threads log. Each of them is ready for it as long as what `prepare` returns lives.
fn log_all(
    work: &Work,
    prepare: impl Fn() -> Option<DefaultGuard> + Sync,
    log_one: impl Fn(&str) + Sync,
) -> CallTimes {
    // One more than those that log: this one tells the time when all are there.
    let ready = Barrier::new(work.threads + 1);
    let log = |thread: usize| {
        let mut calls = LatencyHistogram::new();
        let _prepared = prepare();
        let mut text = String::new();
        ready.wait();
        for number in 0..work.count {
            make_text(thread, number, &mut text);
            let before_ns = now_ns();
            log_one(&text);
            calls.record(now_ns() - before_ns);
        }
        calls
    };
    thread::scope(|scope| {
        let log = &log;
        let threads: Vec<_> = (0..work.threads)
            .map(|thread| scope.spawn(move || log(thread)))
            .collect();
        ready.wait();
        let from_ns = now_ns();
        let mut calls = LatencyHistogram::new();
        for thread in threads {
            match thread.join() {
                Ok(one) => calls.merge(&one),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        CallTimes {
            from_ns,
            until_ns: now_ns(),
            calls,
        }
    })
}

/// Makes the text of a line: whose it is, which one, and filling, 80 characters in all. As cheap as can be, for it is
/// not what is measured.
fn make_text(thread: usize, number: u64, text: &mut String) {
    text.clear();
    // Writing to a string cannot fail.
    let _ = write!(text, "{MARK}{thread:02}-{number:08}");
    text.push_str(&FILLING[text.len()..]);
}

struct LogLines {
    /// Lines of ours, each counted once.
    lines: u64,
    /// Lines that are there twice, cut or changed.
    wrong: u64,
}

impl LogLines {
    fn of(log: &str, work: &Work) -> Self {
        let mut seen = vec![false; work.threads * work.count as usize];
        let mut found = Self { lines: 0, wrong: 0 };
        let mut expected = String::new();
        for line in log.lines() {
            let Some(at) = line.find(MARK) else {
                // The log reports on itself in these lines.
                continue;
            };
            match place(&line[at..], work, &mut expected) {
                Some(place) if !seen[place] => {
                    seen[place] = true;
                    found.lines += 1;
                }
                _ => found.wrong += 1,
            }
        }
        found
    }
}

/// Returns the number of a line, if the line is whole.
fn place(line: &str, work: &Work, expected: &mut String) -> Option<usize> {
    let (thread, rest) = line.strip_prefix(MARK)?.split_once('-')?;
    let (thread, number): (usize, u64) = (thread.parse().ok()?, rest.get(..8)?.parse().ok()?);
    make_text(thread, number, expected);
    let is_ours = thread < work.threads && number < work.count && line == expected;
    is_ours.then(|| thread * work.count as usize + number as usize)
}

const LINES: Metric = Metric::rate("lines_per_sec", "lines/s");

/// The policy for lines that come faster than the log writes.
const LOSSLESS: &str = "lossless";
const LOSSY: &str = "lossy";

const LINE_BYTES: usize = 80;

/// The filling of a line up to its length.
const FILLING: &str =
    "................................................................................";

const MARK: &str = "line-";

#[cfg(test)]
mod tests {
    use super::super::played::{loses_nothing, play};
    use super::*;

    #[test]
    fn every_line_is_in_the_file() {
        loses_nothing(&SUITE, |work| {
            work.count = 200;
        });
    }

    #[test]
    fn a_lossy_log_counts_what_it_dropped() {
        let mut work = rows(false).remove(1).work;
        work.count = 20_000;
        let measured = play(&SUITE, Side::Tidewire, &work).measured;
        assert_eq!(measured.lost, measured.dropped);
        assert_eq!(measured.messages + measured.lost, 80_000);
    }

    #[test]
    fn lines_that_are_cut_or_doubled_are_wrong() {
        let work = rows(true).remove(0).work;
        let text = |thread, number| {
            let mut text = String::new();
            make_text(thread, number, &mut text);
            assert_eq!(text.len(), LINE_BYTES);
            text
        };
        let (good, other) = (text(0, 1), text(3, 4_999));
        let log = format!(
            "a {good}\nb {other}\nb {other}\nc {}\nd {}\n",
            &good[..40],
            text(4, 0)
        );
        let found = LogLines::of(&log, &work);
        assert_eq!((found.lines, found.wrong), (2, 3));
    }
}
