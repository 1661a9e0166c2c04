//! Errors as a program prints them.

use std::error::Error;

use tidewire_proto::text::escaped;

/// Formats an error with all its causes on one line, escaped for a terminal and a log. Some errors contain the text of
/// their cause, such as in front of the remedy; that text appears once.
///
/// The errors of this crate say what failed, why, and what to do, so `{error}` is enough for them. Use this function
/// for the errors of a program that wraps them in its own errors.
///
/// ```
/// use tidewire::Client;
///
/// // No server listens on this port.
/// let error = Client::connect("tcp://127.0.0.1:1").wait().unwrap_err();
/// assert_eq!(
///     tidewire::describe(&error),
///     "cannot connect to tcp://127.0.0.1:1: connection refused; is the server running?"
/// );
/// ```
#[must_use]
pub fn describe(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    escaped(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_described_with_all_its_causes_once_each() {
        #[derive(Debug, thiserror::Error)]
        enum Level {
            #[error("cannot start")]
            Top(#[source] Box<Level>),
            #[error(transparent)]
            PassedOn(Box<Level>),
            #[error("no room: {0}; make some")]
            Middle(#[source] std::io::Error),
        }
        let bottom = std::io::Error::other("disk full");
        let middle = Level::PassedOn(Box::new(Level::Middle(bottom)));
        let error = Level::Top(Box::new(middle));
        assert_eq!(
            describe(&error),
            "cannot start: no room: disk full; make some"
        );
    }

    #[test]
    fn control_characters_of_a_cause_are_escaped() {
        let error = std::io::Error::other("\u{1b}[2J");
        assert_eq!(describe(&error), "\\u{1b}[2J");
    }
}
