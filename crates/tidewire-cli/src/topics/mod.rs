//! `tidewire pub` and `tidewire sub`: topics from the shell, one message a line.

mod publish;
mod subscribe;
mod view;

use std::io;
use std::time::Duration;

use tidewire::io::poller::PollerChoice;
use tidewire::{Backoff, Client, ConnectError, RequestError, TopicError};

use crate::failure::Failure;

pub(crate) use publish::{PubArguments, run as run_publish};
pub(crate) use subscribe::{SubArguments, run as run_subscribe};

/// Connects; with a backoff the connection comes back by itself.
fn connect(address: &str, backoff: Option<Backoff>, timeout: Duration) -> anyhow::Result<Client> {
    let mut builder = Client::builder()
        .poller(PollerChoice::from_env()?.unwrap_or_default())
        .request_timeout(timeout);
    if let Some(backoff) = backoff {
        builder = builder.reconnect(backoff);
    }
    let client: Result<Client, ConnectError> = builder.connect(address);
    Ok(client?)
}

/// A topic or pattern that breaks a rule.
fn bad_topic(text: &str, error: TopicError) -> Failure {
    let shown = text.escape_debug();
    Failure::configuration(
        format!("{shown:?} is refused: {error}"),
        "write segments with dots between them, such as sensor.7.temperature; a pattern may end in .* or .>",
    )
}

/// What a failed request means for the exit code.
fn request_failure(what: &str, error: RequestError) -> Failure {
    match error {
        RequestError::Refused { text, .. } => Failure::configuration(
            format!("the server refuses {what}: {}", text.escape_debug()),
            "check that it was started with `tidewire serve --app pubsub`",
        ),
        error => Failure::unreachable(
            format!("{what} failed: {error}"),
            "try again, or check the server",
        ),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number of seconds"))?;
    if seconds > 0.0 && seconds <= SECONDS_MAX {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!(
            "{text} is not more than 0 and at most {SECONDS_MAX} seconds"
        ))
    }
}

/// Whether whoever read our output is gone, as `head` goes when it has enough.
fn is_closed_output(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// A day: longer waits are mistakes.
const SECONDS_MAX: f64 = 86_400.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_have_fractions_and_have_bounds() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "NaN", "inf", "86401", "5s", ""] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
