//! Typed services: a trait whose methods are called over the wire.
//!
//! Problem: a payload is bytes, and their meaning is defined in two programs that change separately. Approach: one
//! trait defines it, and [`#[tidewire::service]`](macro@crate::service) generates both sides from the trait. The
//! server's side is a set of [`Methods`](crate::Methods) for a [`Router`](crate::Router), so one server can have typed
//! and untyped methods, and several versions of a service. The client's side is a thin wrapper of a
//! [`Client`](crate::Client). Both work over every transport, and with every codec that transmits names of methods.
//!
//! Generated code only calls the generic functions of this module, so it stays small and compiles fast.
//!
//! # On the wire
//!
//! - **The name** of a method is `service.method.vVERSION.FINGERPRINT`, all of it known at compile time. The
//!   fingerprint is computed from the argument names, the types as they are written, and the format. So a changed
//!   signature is another method, and old callers get [`CallError::MethodNotFound`] instead of a wrong answer. The
//!   fingerprint does not cover the fields of your own types, nor their meaning: change the version when these change.
//! - **The arguments** are a tuple, and **the answer** is the method's return value, each in the service's [`Format`].
//! - **The method's own error** is part of the answer, not a refusal. So it stays typed with every codec, and the
//!   client gets it as [`CallError::Failed`].
//! - **Arguments that cannot be decoded** are refused as bad parameters and counted in
//!   [`Metrics::refused`](crate::metrics::Metrics::refused).
//!
//! Rejected: only the version in the name, because a forgotten change would decode garbage: the default format does not
//! describe itself. The fingerprint in the payload: other peers could not read it, and an old server would not check
//! it. The method's error in an error frame: it has a code of the codec and a text of 255 bytes. Arguments that borrow
//! from the receive buffer: formats with escapes cannot lend them. Async methods on the server: a lane runs no tasks,
//! but a [`DeferredReply`] can be moved into one.

mod answer;
mod call;
mod error;
mod format;

pub use answer::DeferredReply;
pub use call::{TypedCall, TypedRequest};
pub use error::CallError;
pub use format::{Format, Postcard};

/// Functions that generated code calls. They are not part of the public interface, and change with the macro.
#[doc(hidden)]
pub mod generated {
    pub use super::answer::{acknowledge, answer, arguments, defer, no_such_method};
    pub use super::call::{call, fallible, infallible, send_one_way};
}
