//! `tidewire pub` and `tidewire sub`: topics from the shell, one message a line.

mod publish;
mod subscribe;
mod view;

use tidewire::{NameError, RequestError};
use tidewire_proto::body::ErrorCode;

use crate::failure::{FORBIDDEN, Failure, LIMIT_REMEDY};

pub(crate) use publish::{PubArguments, run as run_publish};
pub(crate) use subscribe::{SubArguments, run as run_subscribe};

/// Makes the error of a topic or pattern that breaks a rule.
fn bad_topic(text: &str, error: NameError) -> Failure {
    Failure::configuration(
        format!("{text:?} is refused: {error}"),
        "segments with dots between, such as sensor.7.temperature; a pattern has * for any segment or > at its end",
    )
}

/// Makes the error of a failed request; `what` names its purpose.
fn request_failure(what: &str, error: RequestError) -> anyhow::Error {
    match error {
        RequestError::Refused { code, text, .. } => refused(what, code, &text).into(),
        error => anyhow::Error::new(error).context(format!("{what} failed")),
    }
}

fn refused(what: &str, code: ErrorCode, text: &str) -> Failure {
    let remedy = match code {
        ErrorCode::LimitReached => LIMIT_REMEDY,
        ErrorCode::Forbidden => FORBIDDEN,
        ErrorCode::Internal => "the log of the server may say why",
        ErrorCode::Draining => "connect to another server, or later",
        _ => {
            "check what it serves; only a server started with `tidewire serve --app pubsub` has topics"
        }
    };
    Failure::refused(format!("{what} is refused: {text}"), remedy)
}
