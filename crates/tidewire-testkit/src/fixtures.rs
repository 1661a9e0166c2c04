//! The service, the codecs and the builder that most tests begin with.

use tidewire::{AnyCodec, Context, HandlerResult, Limits, Message, Server, ServerBuilder};

/// Answers every message with its own payload.
///
/// # Errors
/// Those of [`Context::reply`].
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

/// The codec of this name.
///
/// # Panics
/// There is none.
#[must_use]
pub fn codec(name: &str) -> AnyCodec {
    AnyCodec::by_name(name).expect("the name of a codec")
}

/// The builder of a server with the default limits but for what `change` changes.
pub fn limited(change: impl FnOnce(&mut Limits)) -> ServerBuilder {
    let mut limits = Limits::default();
    change(&mut limits);
    Server::builder().limits(limits)
}
