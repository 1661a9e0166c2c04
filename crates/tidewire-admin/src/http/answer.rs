//! Answers: their bodies, and the headers that all have.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;

pub(crate) type Answer = Response<Body>;

pub(crate) enum Body {
    /// A complete body. `None` once it was sent.
    Whole(Option<Bytes>),
    Events(EventFrames),
}

/// A body without an end: a future for the next part, which also returns the future for the part after it.
pub(crate) struct EventFrames(pub(crate) NextFrame);

type NextFrame = Pin<Box<dyn Future<Output = Option<(Bytes, EventFrames)>> + Send>>;

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|it| Ok(Frame::data(it)))),
            Self::Events(frames) => match frames.0.as_mut().poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Ready(Some((bytes, next))) => {
                    *frames = next;
                    Poll::Ready(Some(Ok(Frame::data(bytes))))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// An answer with the headers that all have. They keep browsers from guessing types, storing figures, and embedding the
/// pages.
pub(crate) fn answer(status: StatusCode, content_type: &'static str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

pub(crate) fn bytes(content_type: &'static str, body: &'static [u8]) -> Answer {
    let body = Body::Whole(Some(Bytes::from_static(body)));
    answer(StatusCode::OK, content_type, body)
}

pub(crate) fn text(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    answer(status, content_type, Body::Whole(Some(body.into())))
}

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    match serde_json::to_string(value) {
        Ok(body) => text(status, "application/json", body),
        Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// An error for people and programs.
pub(crate) fn failure(status: StatusCode, error: &str) -> Answer {
    let body = json!({ "error": error }).to_string();
    text(status, "application/json", body)
}

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri \
         'none'; form-action 'self'; frame-ancestors 'none'",
    ),
];
