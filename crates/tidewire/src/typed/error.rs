//! Errors of typed calls.

use std::convert::Infallible;
use std::error::Error;

use thiserror::Error;
use tidewire_proto::body::ErrorCode;

use crate::client::RequestError;
use crate::session::SendError;

/// A typed call has no result. `E` is the method's own error. For a method without one it is [`Infallible`].
///
/// The type implements [`std::error::Error`] if `E` does.
///
/// ```
/// use tidewire::typed::CallError;
/// use tidewire::{Client, Router, Server};
///
/// #[tidewire::service]
/// pub trait Divider {
///     fn divide(&mut self, a: i64, b: i64) -> Result<i64, String>;
/// }
///
/// struct Whole;
///
/// impl Divider for Whole {
///     fn divide(&mut self, a: i64, b: i64) -> Result<i64, String> {
///         a.checked_div(b).ok_or_else(|| "no result".to_owned())
///     }
/// }
///
/// let server = Server::builder()
///     .listen("tcp://127.0.0.1:0")?
///     .start_one(Router::new().mount(DividerServer::new(Whole)))?;
/// let client = DividerClient::new(Client::connect(&server.to_string()).wait()?);
/// let under_way = client.divide(7, 2).send();
/// assert!(matches!(client.divide(7, 0).wait(), Err(CallError::Failed(text)) if text == "no result"));
/// assert!(matches!(under_way.wait(), Ok(3)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CallError<E = Infallible> {
    /// The method ran and returned its own error.
    #[error("the method failed")]
    Failed(#[source] E),
    /// The server has no such method, or only another version of it. No method ran. Use the same version of the service
    /// on both sides.
    #[error("the server has no method `{method}`, or only another version of it")]
    MethodNotFound {
        /// The name that was called.
        method: &'static str,
    },
    /// The server could not decode the arguments. No method ran. A type of the service differs between the two sides.
    #[error("the server cannot decode the arguments of `{method}`; use equal types on both sides")]
    BadParameters {
        /// The name that was called.
        method: &'static str,
    },
    /// The arguments cannot be encoded. Nothing was sent.
    #[error("the arguments cannot be sent: {0}")]
    Arguments(#[source] Box<dyn Error + Send + Sync>),
    /// The answer of a [`DeferredReply`](super::DeferredReply) cannot be encoded. The caller gets an internal error.
    #[error("the answer cannot be encoded")]
    Answer(#[source] Box<dyn Error + Send + Sync>),
    /// The method ran, but its answer cannot be decoded. A type of the service differs between the two sides.
    #[error("the answer cannot be decoded: {0}")]
    MalformedAnswer(#[source] Box<dyn Error + Send + Sync>),
    /// There was no answer, or a refusal that is not the method's own error: see [`RequestError`].
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl<E> CallError<E> {
    pub(super) fn from_request(method: &'static str, error: RequestError) -> Self {
        match error {
            RequestError::Refused {
                code: ErrorCode::MethodNotFound,
                ..
            } => Self::MethodNotFound { method },
            RequestError::Refused {
                code: ErrorCode::MalformedBody,
                ..
            } => Self::BadParameters { method },
            other => Self::Request(other),
        }
    }

    /// Returns the method's own error, if this is one.
    #[must_use]
    pub fn into_failure(self) -> Option<E> {
        match self {
            Self::Failed(error) => Some(error),
            _ => None,
        }
    }
}

impl<E> From<SendError> for CallError<E> {
    fn from(error: SendError) -> Self {
        Self::Request(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_sorted_by_their_codes() {
        let refused = |code| {
            let error = RequestError::Refused {
                code,
                number: 0,
                text: String::from("no"),
            };
            CallError::<Infallible>::from_request("a.b.v1", error)
        };
        assert!(matches!(
            refused(ErrorCode::MethodNotFound),
            CallError::MethodNotFound { method: "a.b.v1" }
        ));
        assert!(matches!(
            refused(ErrorCode::MalformedBody),
            CallError::BadParameters { method: "a.b.v1" }
        ));
        assert!(matches!(
            refused(ErrorCode::Internal),
            CallError::Request(RequestError::Refused { .. })
        ));
        assert!(matches!(
            refused(ErrorCode::NotFound),
            CallError::Request(RequestError::Refused { .. })
        ));
    }

    #[test]
    fn only_the_methods_own_error_is_its_failure() {
        assert_eq!(CallError::Failed(7).into_failure(), Some(7));
        let full = CallError::<u8>::from(SendError::QueueFull);
        assert!(matches!(full, CallError::Request(RequestError::WindowFull)));
        assert_eq!(full.into_failure(), None);
    }
}
