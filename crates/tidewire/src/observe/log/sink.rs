//! The target's side of a log. It runs on the log's thread, writes and counts lines, and reports lost lines.
//!
//! It collects the lines of the queue, and writes them together when the queue is empty or a block is full. A system
//! call for each line took most of the time of a busy log. A line is counted as written when the target has accepted
//! it. Until then it is in flight, in the queue or here.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::mem;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidewire_io::descriptors::wait_writable;

use super::LogFormat;
use super::line::{Notice, push_safe, render};
use super::tally::Tally;

/// The target as `tracing-appender` sees it. It never fails, because failures are counted here.
#[derive(Debug)]
pub(super) struct Sink<W> {
    out: W,
    /// Lines taken from the queue and not yet offered to the target.
    block: Vec<u8>,
    /// The end of each line in the block.
    ends: VecDeque<usize>,
    format: LogFormat,
    /// The file, if the target is one. Its failures are reported on stderr.
    path: Option<PathBuf>,
    tally: Arc<Tally>,
    /// The target accepted only a part of a line.
    torn: bool,
    dropped_told: u64,
    told_at: Instant,
    failed_told: u64,
    /// The failure was reported on stderr, and nothing has been written since.
    failing: bool,
}

impl<W: Write> Sink<W> {
    pub(super) fn new(out: W, format: LogFormat, path: Option<PathBuf>) -> Self {
        Self {
            out,
            block: Vec::with_capacity(BLOCK_BYTES),
            ends: VecDeque::new(),
            format,
            path,
            tally: Arc::new(Tally::default()),
            torn: false,
            dropped_told: 0,
            told_at: Instant::now(),
            failed_told: 0,
            failing: false,
        }
    }

    pub(super) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Offers the target the collected lines. A line that it does not accept whole has failed. The lines after it are
    /// offered again.
    fn write_block(&mut self) {
        let block = mem::take(&mut self.block);
        let mut at = 0;
        while !self.ends.is_empty() {
            let (taken, error) = match self.put(&block[at..]) {
                Ok(()) => (block.len(), None),
                Err((taken, error)) => (at + taken, Some(error)),
            };
            let whole = self.ends.iter().take_while(|end| **end <= taken).count();
            at = self.ends.drain(..whole).next_back().unwrap_or(at);
            if whole > 0 {
                self.failing = false;
                self.tally.add_written(whole as u64);
            }
            if let Some(error) = error {
                // If the target accepts whole lines and then fails, the next line has failed, or the newline before it.
                self.torn |= taken > at;
                at = self.ends.pop_front().unwrap_or(taken);
                self.tally.add_failed();
                self.say_failing(&error);
            }
        }
        self.block = block;
        self.block.clear();
    }

    /// Offers the collected lines, and then reports the lines lost until now. So the report comes after the lines that
    /// filled the queue.
    fn write_and_tell(&mut self) {
        let dropped = self.tally.dropped_by_queue();
        self.write_block();
        if !self.failing {
            self.tell(dropped);
        }
    }

    /// Writes a report of new lost lines, if any.
    fn tell(&mut self, dropped: u64) {
        self.told_at = Instant::now();
        let failed = self.tally.failed();
        if failed > self.failed_told {
            let lines = failed - self.failed_told;
            let notice = Notice::Failed {
                lines,
                total: failed,
            };
            if !self.put_notice(&notice) {
                return;
            }
            self.failed_told = failed;
        }
        if dropped > self.dropped_told {
            let lines = dropped - self.dropped_told;
            let notice = Notice::Dropped {
                lines,
                total: dropped,
            };
            if self.put_notice(&notice) {
                self.dropped_told = dropped;
            }
        }
    }

    /// Offers the target whole lines. An error has the number of bytes that it accepted.
    fn put(&mut self, lines: &[u8]) -> Result<(), (usize, io::Error)> {
        if self.torn {
            // The next line must not look like the end of the cut line.
            write_whole(&mut self.out, b"\n").map_err(|(_, error)| (0, error))?;
            self.torn = false;
        }
        write_whole(&mut self.out, lines)
    }

    /// Offers the target a line of the log's own. Returns whether it was accepted.
    fn put_notice(&mut self, notice: &Notice) -> bool {
        let put = self.put(&render(self.format, notice));
        put.map_err(|(taken, _)| self.torn |= taken > 0).is_ok()
    }

    fn say_failing(&mut self, error: &io::Error) {
        if let Some(path) = &self.path
            && !self.failing
            && wait_writable(io::stderr().as_fd(), Duration::ZERO).unwrap_or(false)
        {
            // If stderr is closed too, the failure cannot be reported.
            let _ = writeln!(
                io::stderr(),
                "cannot write to the log file {}: {error}; its lines are counted until it can be written again",
                path.display()
            );
        }
        self.failing = true;
    }
}

impl<W: Write> Write for Sink<W> {
    /// Takes one whole line, and makes it safe. Every line passes here, so no line with bytes of a peer escapes that.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        push_safe(self.format, line, &mut self.block);
        self.ends.push_back(self.block.len());
        if self.block.len() >= BLOCK_BYTES {
            // A queue that is never empty reports its losses too, but not with every block.
            if self.told_at.elapsed() >= TELL_INTERVAL {
                self.write_and_tell();
            } else {
                self.write_block();
            }
        }
        Ok(line.len())
    }

    /// Writes everything. It is called when the queue is empty.
    fn flush(&mut self) -> io::Result<()> {
        self.write_and_tell();
        // The lines are counted as written already, so an error has no line to fail.
        let _ = self.out.flush();
        Ok(())
    }
}

/// Writes all bytes. An error has the number of bytes that were accepted.
fn write_whole(out: &mut impl Write, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut taken = 0;
    while taken < bytes.len() {
        match out.write(&bytes[taken..]) {
            Ok(0) => return Err((taken, io::ErrorKind::WriteZero.into())),
            Ok(count) => taken += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((taken, error)),
        }
    }
    Ok(())
}

/// Bytes that are collected before they are written: some hundred lines, so that a system call for each block costs
/// little.
const BLOCK_BYTES: usize = 32 << 10;

/// The time between two reports of a log that loses lines all the time.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// A target that accepts the next number of bytes at each call, and fails if that is 0. It keeps the bytes of each
    /// call.
    #[derive(Default)]
    struct Script {
        takes: VecDeque<usize>,
        calls: Vec<String>,
        kept: String,
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls.push(String::from_utf8_lossy(bytes).into_owned());
            let taken = self
                .takes
                .pop_front()
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.kept
                .push_str(&String::from_utf8_lossy(&bytes[..taken]));
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Logs three lines to a target that accepts these numbers of bytes, and flushes once.
    fn logged(takes: &[usize]) -> Sink<Script> {
        let script = Script {
            takes: takes.iter().copied().collect(),
            ..Script::default()
        };
        let mut sink = Sink::new(script, LogFormat::Text, None);
        for line in ["one\n", "two\n", "three\n"] {
            assert_eq!(sink.write(line.as_bytes()).unwrap(), line.len());
            assert!(sink.out.calls.is_empty(), "it is collected");
        }
        sink.flush().unwrap();
        sink
    }

    fn fates(sink: &Sink<Script>) -> (u64, u64) {
        let metrics = sink.tally.metrics();
        (metrics.written, metrics.failed)
    }

    #[test]
    fn lines_that_wait_are_written_in_one_call() {
        let mut sink = logged(&[]);
        assert_eq!(sink.out.calls, ["one\ntwo\nthree\n"]);
        assert_eq!(fates(&sink), (3, 0));
        // A full block does not wait until the queue is empty.
        let line = format!("{}\n", "x".repeat(BLOCK_BYTES));
        sink.write_all(line.as_bytes()).unwrap();
        assert_eq!(sink.out.calls.len(), 2);
        assert_eq!(fates(&sink), (4, 0));
    }

    #[test]
    fn of_a_block_that_is_cut_each_line_has_its_own_fate() {
        // The second line is cut, and the third follows.
        let sink = logged(&[6, 0]);
        assert_eq!(fates(&sink), (2, 1));
        assert!(
            sink.out.kept.starts_with("one\ntw\nthree\n"),
            "{}",
            sink.out.kept
        );
        assert!(
            sink.out.kept.contains("lines=1 total=1"),
            "{}",
            sink.out.kept
        );
        // The cut is between two lines: none is torn, and the second has failed.
        let sink = logged(&[4, 0]);
        assert_eq!(fates(&sink), (2, 1));
        assert!(
            sink.out.kept.starts_with("one\nthree\n"),
            "{}",
            sink.out.kept
        );
        // A line that is accepted in pieces is written.
        let sink = logged(&[1, 2, 3]);
        assert_eq!(
            (fates(&sink), sink.out.kept.as_str()),
            ((3, 0), "one\ntwo\nthree\n")
        );
        // All lines fail, also the newline that would end a torn line.
        let sink = logged(&[2, 0, 0, 0, 0]);
        assert_eq!((fates(&sink), sink.out.kept.as_str()), ((0, 3), "on"));
    }
}
