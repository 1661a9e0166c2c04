//! Numbers and texts as people read them, the same in tables, in Markdown and in verdicts.

use std::time::SystemTime;

use tidewire_proto::text::is_hazardous;
use time::OffsetDateTime;

/// A wall-clock time in RFC 3339, UTC, with milliseconds.
pub fn utc(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    // Only a clock set before 1970 or after the year 9999 cannot be expressed.
    let utc = i128::try_from(since.unwrap_or_default().as_nanos())
        .ok()
        .and_then(|nanos| OffsetDateTime::from_unix_timestamp_nanos(nanos).ok())
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (hour, minute, second, millisecond) = utc.to_hms_milli();
    format!(
        "{}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z",
        utc.date()
    )
}

/// `1234567` as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// How many there were of each kind, leaving out those that there were none of.
pub(crate) fn counted(kinds: &[(u64, &str)]) -> Vec<String> {
    let some = kinds.iter().filter(|(count, _)| *count > 0);
    some.map(|(count, kind)| format!("{} {kind}", thousands(*count)))
        .collect()
}

/// Events a second: two decimals for the small rates in which they matter.
pub(crate) fn per_second(rate: f64) -> String {
    if rate < 1_000.0 {
        format!("{rate:.2}/s")
    } else {
        format!("{}/s", thousands(rate.round() as u64))
    }
}

/// A share in percent, rounded *down*, so that 100 % means all.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.3} %", (share * 100_000.0).floor() / 1_000.0)
}

/// Milliseconds with three significant digits, or to a tenth of a microsecond.
pub(crate) fn milliseconds(value: f64) -> String {
    format!("{value:.*}", decimals(value))
}

/// Decimals with which a number has three significant digits, from 0 to 4. More digits would claim what no run can
/// repeat.
pub(crate) fn decimals(number: f64) -> usize {
    match number.abs() {
        0.0 => 0,
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        size if size >= 0.09995 => 3,
        _ => 4,
    }
}

/// A number with this many decimals and with separators. A text for one that no table has room for.
pub(crate) fn fixed(number: f64, decimals: usize) -> String {
    if !number.is_finite() || number.abs() >= 1e15 {
        return "beyond measure".to_owned();
    }
    let text = format!("{:.decimals$}", number.abs());
    let (whole, part) = text.split_at(text.find('.').unwrap_or(text.len()));
    let sign = if number < 0.0 { "-" } else { "" };
    format!(
        "{sign}{}{part}",
        thousands(whole.parse().unwrap_or(u64::MAX))
    )
}

/// Milliseconds with their unit, or that there are none to show.
pub fn known_milliseconds(value: Option<f64>) -> String {
    value.map_or_else(
        || NOT_KNOWN.to_owned(),
        |value| format!("{} ms", milliseconds(value)),
    )
}

/// A figure of which nothing is known, as opposed to one that is 0.
pub(crate) const NOT_KNOWN: &str = "n/a";

pub use tidewire::describe;

/// How many of something there are for each of something else, which may be far below one.
pub fn few(value: f64) -> String {
    match value {
        value if value >= 1_000.0 => thousands(value.round() as u64),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value if value >= 0.1 => format!("{value:.3}"),
        value if value >= 0.001 => format!("{value:.4}"),
        0.0 => "0".to_owned(),
        value => format!("{value:.1e}"),
    }
}

/// How many of something there are for each message. Fewer than one in a thousand messages is the noise of a run, and
/// is none.
pub fn each(value: f64) -> String {
    if value < NONE_BELOW {
        "none".to_owned()
    } else {
        few(value)
    }
}

/// The same, in front of the name of what is counted.
pub(crate) fn each_of(value: f64, name: &str) -> String {
    if value < NONE_BELOW {
        format!("no {name}")
    } else {
        format!("{} {name}", few(value))
    }
}

/// A share below this, for each message, is shown as none.
pub(crate) const NONE_BELOW: f64 = 0.001;

pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Bytes in GiB.
pub(crate) fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// The text with its lines broken between words, so that none is longer than `columns`. The rest of a broken line is
/// indented by `indent` blanks, so that a reader tells it from a line of its own. A word that is longer than a line
/// stays whole.
pub fn wrapped(text: &str, columns: usize, indent: usize) -> String {
    // On a narrow terminal the indent must not take the place of the words.
    let indent = indent.min(columns / 3);
    let mut wrapped = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut used = 0;
        for word in line.split_inclusive(' ') {
            let letters = word.trim_end().chars().count();
            if letters > 0 && used > indent && used + letters > columns {
                wrapped.truncate(wrapped.trim_end_matches(' ').len());
                wrapped.push('\n');
                wrapped.extend(std::iter::repeat_n(' ', indent));
                used = indent;
            }
            wrapped.push_str(word);
            used += word.chars().count();
        }
    }
    wrapped
}

/// A text inside XML or HTML, also between quotes, without the control characters, which XML cannot hold.
pub fn markup(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' => escaped.push_str("&#10;"),
            letter if is_hazardous(letter) => escaped.push('\u{FFFD}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Processor time in seconds, and the cores that were busy with it for `duration_secs`.
pub(crate) fn processor_time(cpu_secs: f64, duration_secs: f64) -> String {
    let text = format!("{cpu_secs:.2} s of processor time");
    match duration_secs > 0.0 {
        true => format!("{text} ({:.2} cores)", cpu_secs / duration_secs),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(per_second(66.666), "66.67/s");
        assert_eq!(per_second(1_980_123.4), "1,980,123/s");
        assert_eq!(mebibytes(3 << 19), "1.5 MiB");
        assert_eq!(gibibytes(3 << 29), "1.5 GiB");
    }

    #[test]
    fn few_of_something_keep_their_digits() {
        let cases = [
            (0.0, "0"),
            (0.000_012_3, "1.2e-5"),
            (0.012_34, "0.0123"),
            (3.0, "3.00"),
            (123.4, "123"),
            (12_345.6, "12,346"),
        ];
        for (value, text) in cases {
            assert_eq!(few(value), text);
        }
    }

    #[test]
    fn what_is_rarer_than_one_in_a_thousand_messages_is_none() {
        assert_eq!([0.0, 0.000_19, 0.25].map(each), ["none", "none", "0.250"]);
        assert_eq!(each_of(0.000_19, "allocations"), "no allocations");
        assert_eq!(each_of(2.0, "allocations"), "2.00 allocations");
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        let shown = |number: f64| fixed(number, decimals(number));
        let cases = [
            (0.0, "0"),
            (0.000_9, "0.0009"),
            (0.09996, "0.100"),
            (0.5, "0.500"),
            (-0.9996, "-1.00"),
            (9.996, "10.0"),
            (12.34, "12.3"),
            (99.96, "100"),
            (1_234.5, "1,234"),
        ];
        for (number, text) in cases {
            assert_eq!(shown(number), text);
        }
        assert_eq!(fixed(f64::INFINITY, 2), "beyond measure");
    }

    /// Regression: a terminal cut words of the final report, as in "no allocations a m/essage".
    #[test]
    fn long_lines_are_broken_between_words_and_lose_none() {
        let text = "a: passed\n  server cost  3,196 ns of processor time a message; system calls and allocations not known\n  ms\n";
        let narrow = wrapped(text, 50, 15);
        assert!(
            narrow.lines().all(|line| line.chars().count() <= 50),
            "{narrow}"
        );
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        assert_eq!(words(&narrow), words(text));
        assert_eq!(
            narrow.lines().nth(1),
            Some("  server cost  3,196 ns of processor time a")
        );
        assert_eq!(
            narrow.lines().nth(2),
            Some("               message; system calls and")
        );
        assert!(narrow.ends_with("\n  ms\n"), "{narrow}");
        assert_eq!(wrapped(text, usize::MAX, 15), text);
        assert_eq!(words(&wrapped(text, 1, 15)), words(text));
    }

    #[test]
    fn only_all_is_a_hundred_percent() {
        assert_eq!(percent(1.0), "100.000 %");
        assert_eq!(percent(1.0_f64.next_down()), "99.999 %");
        assert_eq!(percent(0.5), "50.000 %");
    }

    #[test]
    fn times_keep_their_meaning_over_six_decades() {
        let shown = [0.000_95, 0.5, 1.234, 15.67, 1_234.5].map(milliseconds);
        assert_eq!(shown, ["0.0009", "0.500", "1.23", "15.7", "1234"]);
    }

    #[test]
    fn wall_time_is_rfc_3339_with_milliseconds() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_120);
        assert_eq!(utc(time), "2023-11-14T22:13:20.120Z");
    }

    #[test]
    fn control_characters_do_not_reach_a_page() {
        let shown = markup("<a\u{1b}\u{9b}\u{202e}\n");
        assert_eq!(shown, "&lt;a\u{FFFD}\u{FFFD}\u{FFFD}&#10;");
    }
}
