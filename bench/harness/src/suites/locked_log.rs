//! A log by hand, for limits. The thread that logs formats the same lines as Tidewire's log, and writes them into a
//! buffered file under a lock. There are no levels to look up, no filter, no subscriber and no queue. The thread that logs
//! waits for the disk.

use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

pub(super) struct LockedLog(Mutex<BufWriter<File>>);

impl LockedLog {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().append(true).open(path)?;
        Ok(Self(Mutex::new(BufWriter::new(file))))
    }

    /// Writes a line of level `INFO`: time, level, text.
    pub(super) fn log(&self, text: fmt::Arguments<'_>) {
        LINE.with_borrow_mut(|line| {
            line.clear();
            // Writing to a string cannot fail. The time is the same text, by the same code, as in Tidewire's log.
            let _ = SystemTime.format_time(&mut Writer::new(line));
            let _ = writeln!(line, "  INFO {text}");
            let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // A line that is not written will not be found.
            let _ = out.write_all(line.as_bytes());
        });
    }

    /// Writes what is buffered.
    pub(super) fn finish(self) -> io::Result<()> {
        let mut out = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        out.flush()
    }
}

thread_local! {
    /// Where a thread puts its lines together.
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
}

#[cfg(test)]
mod tests {
    use tidewire::log::LogBuilder;

    use super::super::log_file;
    use super::*;

    /// The text after the time of the last line, and the length of that time.
    fn last_line(file: &Path) -> (usize, String) {
        let text = std::fs::read_to_string(file).unwrap();
        let (time, rest) = text.lines().next_back().unwrap().split_once(' ').unwrap();
        (time.len(), rest.to_owned())
    }

    #[test]
    fn its_lines_are_those_of_our_log() {
        let (theirs, ours) = (log_file().unwrap(), log_file().unwrap());
        let log = LockedLog::open(theirs.path()).unwrap();
        log.log(format_args!("the same {}", 7));
        log.finish().unwrap();
        let (writer, log) = LogBuilder::new().file(ours.path()).open().unwrap();
        tracing::dispatcher::with_default(&super::super::dispatch(writer), || {
            tracing::info!("the same {}", 7);
        });
        assert_eq!(log.finish().written, 1);
        assert_eq!(last_line(theirs.path()), last_line(ours.path()));
    }
}
