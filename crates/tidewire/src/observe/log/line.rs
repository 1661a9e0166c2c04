//! Lines of the log: renders the lines that the log writes about itself, and makes all other lines safe.

use std::fmt::Write;

use tidewire_proto::text::{escape_json, escaped};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::LogFormat;

/// A line that the log writes about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    Opened,
    /// The queue was full.
    Dropped {
        /// Lines dropped since the last notice.
        lines: u64,
        total: u64,
    },
    /// The target could not be written.
    Failed {
        /// Lines that failed since the last write.
        lines: u64,
        total: u64,
    },
}

/// Renders a notice as a line with its newline.
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
        // The time and these texts have no characters that JSON escapes.
        (LogFormat::Json, None) => writeln!(
            line,
            r#"{{"timestamp":"{time}","level":"{level}","fields":{{"message":"{text}"}}}}"#
        ),
        (LogFormat::Json, Some((lines, total))) => writeln!(
            line,
            "{{\"timestamp\":\"{time}\",\"level\":\"{level}\",\
             \"fields\":{{\"message\":\"{text}\",\"lines\":{lines},\"total\":{total}}}}}"
        ),
    };
    line.into_bytes()
}

/// Appends a line, and escapes all bytes that could control a terminal or forge another line: lines have bytes of
/// peers. Colours stay: only the formatter sets them, and it escapes the colours in fields.
pub(super) fn push_safe(format: LogFormat, line: &[u8], out: &mut Vec<u8>) {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte);
    // The fold checks every byte, which is faster than a loop that stops early.
    if text
        .iter()
        .fold(true, |plain, byte| plain & is_plain(*byte))
    {
        return out.extend_from_slice(line);
    }
    match (format, str::from_utf8(text)) {
        (LogFormat::Json, Ok(json)) => out.extend_from_slice(escape_json(json).as_bytes()),
        _ => push_escaped(text, out),
    }
    out.extend_from_slice(&line[text.len()..]);
}

/// Appends a text, and escapes everything hazardous but the sequences that set colours.
fn push_escaped(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == ESCAPE) {
        let (before, sequence) = rest.split_at(at);
        out.extend_from_slice(escaped(before).as_bytes());
        let colour = colour_bytes(sequence);
        match colour {
            0 => out.extend_from_slice(escaped(&[ESCAPE]).as_bytes()),
            bytes => out.extend_from_slice(&sequence[..bytes]),
        }
        rest = &sequence[colour.max(1)..];
    }
    out.extend_from_slice(escaped(rest).as_bytes());
}

/// Length of the sequence at the front if it sets a colour, else 0.
fn colour_bytes(sequence: &[u8]) -> usize {
    let Some(numbers) = sequence.strip_prefix(b"\x1b[") else {
        return 0;
    };
    let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b';';
    let end = numbers.iter().position(|byte| !is_number(byte));
    match end {
        Some(end) if numbers[end] == b'm' => 2 + end + 1,
        _ => 0,
    }
}

const ESCAPE: u8 = 0x1b;

#[cfg(test)]
mod tests {
    use super::*;

    fn safe(format: LogFormat, line: &str) -> String {
        let mut out = Vec::new();
        push_safe(format, line.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn texts_of_a_peer_cannot_forge_a_log_line_or_control_a_terminal() {
        let text = |line| safe(LogFormat::Text, line);
        assert_eq!(text("INFO plain x=1\n"), "INFO plain x=1\n");
        assert_eq!(text("Grüße 王\n"), "Grüße 王\n");
        assert_eq!(
            text("x=a\nERROR forged\u{9b}2J\u{202e}\t\n"),
            "x=a\\nERROR forged\\u{9b}2J\\u{202e}\\t\n"
        );
        assert_eq!(
            text("\u{1b}[2m\u{1b}[1;31mred\u{1b}[0m \u{1b}]0;t\u{7} \u{1b}[2J\u{1b}\n"),
            "\u{1b}[2m\u{1b}[1;31mred\u{1b}[0m \\u{1b}]0;t\\u{7} \\u{1b}[2J\\u{1b}\n"
        );
        assert_eq!(
            safe(LogFormat::Json, "{\"a\":\"\u{9b}\u{2028}ü\"}\n"),
            "{\"a\":\"\\u009b\\u2028ü\"}\n"
        );
    }
}
