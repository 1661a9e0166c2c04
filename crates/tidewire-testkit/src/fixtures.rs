//! The service, the codecs and the builder that most tests use.

use tidewire::{AnyCodec, Context, HandlerResult, Limits, Message, Server, ServerBuilder};

/// Answers every message with its own payload.
///
/// # Errors
/// The errors of [`Context::reply`].
pub fn echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    cx.reply(message.payload)
}

/// The native codec.
#[must_use]
pub fn tw1() -> AnyCodec {
    codec("tw1")
}

/// The codec of lines of text.
#[must_use]
pub fn lines() -> AnyCodec {
    codec("lines")
}

/// Returns the codec of this name.
#[must_use]
pub fn codec(name: &str) -> AnyCodec {
    AnyCodec::by_name(name).expect("the name of a codec")
}

/// Returns a builder of a server with limits that `change` modifies.
pub fn limited(change: impl FnOnce(&mut Limits)) -> ServerBuilder {
    let mut limits = Limits::default();
    change(&mut limits);
    Server::builder().limits(limits)
}
