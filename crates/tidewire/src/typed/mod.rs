//! Typed services: a trait whose methods are called over the wire.
//!
//! Problem: a payload is bytes, and what they mean is agreed on in two programs that change separately. Approach: one
//! trait is the agreement, and [`#[tidewire::service]`](macro@crate::service) makes both sides of it. The server's
//! side is a set of [`Methods`](crate::Methods) for a [`Router`](crate::Router), so that typed and untyped methods,
//! and several versions of one service, live in one server. The client's side is a thin wrapper of a
//! [`Client`](crate::Client). Both work over every transport, and with every codec that carries names of methods.
//!
//! What is generated only calls the generic functions here, so that there is little of it, and little to compile.
//!
//! # What travels
//!
//! - **The name** of a method is `service.method.vVERSION.FINGERPRINT`, all of it known at compile time. The
//!   fingerprint is made of the argument names, the types as they are written, and the format. A changed signature is
//!   therefore another method, and its callers get [`CallError::MethodNotFound`] instead of an answer to something
//!   they did not ask. What the fingerprint cannot see is the inside of your own types and the meaning of it all:
//!   change the version with these.
//! - **The arguments** are a tuple, and **the answer** is what the method returns, each in the service's [`Format`].
//! - **The method's own error** is part of the answer, not a refusal; so it stays typed whatever the codec, and the
//!   client tells it from everything else: [`CallError::Failed`].
//! - **Arguments that cannot be read** are refused as bad parameters and counted in
//!   [`Metrics::refused`](crate::Metrics::refused).
//!
//! Rejected: the version alone in the name (whoever forgets to change it decodes garbage, because the default format
//! does not describe itself), the fingerprint in the payload (other peers could not read it, and an old server would
//! not know that it should), the method's error in an error frame (text of 255 bytes, in codes of the codec),
//! arguments that borrow from the receive buffer (formats with escapes cannot lend them), and async methods on the
//! server (a lane runs no tasks; a [`DeferredReply`] goes to whatever does).

mod answer;
mod call;
mod error;
mod format;

pub use answer::{DeferredReply, ReplyError};
pub use call::{TypedCall, TypedRequest};
pub use error::CallError;
pub use format::{Format, FormatError, Postcard};

/// Functions that generated code calls. They are no part of the interface: they change with the macro.
#[doc(hidden)]
pub mod generated {
    pub use super::answer::{acknowledge, answer, arguments, defer, no_such_method};
    pub use super::call::{call, fallible, infallible, send_one_way};
}
