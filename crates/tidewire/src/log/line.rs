//! The lines that the log says about itself, in the look of the others.

use std::fmt::Write;

use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::LogFormat;

/// What the log has to say about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// It begins.
    Opened,
    /// The queue was full.
    Dropped {
        /// Lines dropped since the last notice.
        lines: u64,
        /// Lines dropped since the beginning.
        total: u64,
    },
    /// The target could not be written.
    Failed {
        /// Lines lost since it was written last.
        lines: u64,
        /// Lines lost so since the beginning.
        total: u64,
    },
}

/// The line, its end included.
pub(super) fn render(format: LogFormat, notice: &Notice) -> Vec<u8> {
    let mut time = String::new();
    // Writing to a string cannot fail, and a line without its time is still a line.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let (level, text, counts) = match *notice {
        Notice::Opened => ("INFO", "the log begins", None),
        Notice::Dropped { lines, total } => (
            "WARN",
            "log lines were dropped here: they came faster than they could be written",
            Some((lines, total)),
        ),
        Notice::Failed { lines, total } => (
            "WARN",
            "log lines were lost here: the log could not be written",
            Some((lines, total)),
        ),
    };
    let mut line = String::new();
    // Writing to a string cannot fail.
    let _ = match (format, counts) {
        (LogFormat::Text, None) => writeln!(line, "{time} {level:>5} {text}"),
        (LogFormat::Text, Some((lines, total))) => {
            writeln!(line, "{time} {level:>5} {text} lines={lines} total={total}")
        }
        // Neither a time nor these texts hold anything that JSON would escape.
        (LogFormat::Json, None) => writeln!(
            line,
            r#"{{"timestamp":"{time}","level":"{level}","fields":{{"message":"{text}"}}}}"#
        ),
        (LogFormat::Json, Some((lines, total))) => writeln!(
            line,
            r#"{{"timestamp":"{time}","level":"{level}","fields":{{"message":"{text}","lines":{lines},"total":{total}}}}}"#
        ),
    };
    line.into_bytes()
}
