//! The attribute of Tidewire's typed services. Use it as `tidewire::service`; the generated code refers to that crate.
//!
//! Problem: one trait defines both sides of a service, and an error should be reported at the position of the
//! mistake. Approach: `model` parses a trait into the parts of a service; `check` reports all errors; `name` makes
//! the names on the wire; `expand` generates both sides from the model, as calls of generic functions in
//! `tidewire::typed`. All of it works on `proc_macro2`, so that ordinary tests can call it.
//!
//! Rejected: an attribute on the implementation instead of a trait (the client would need the server's code).

mod check;
mod expand;
mod model;
mod name;

use proc_macro::TokenStream;

/// Turns a trait into a typed service: the trait itself, `NAMEServer` to serve it, and `NAMEClient` to call it.
///
/// ```
/// use std::time::Duration;
///
/// use serde::{Deserialize, Serialize};
/// use tidewire::typed::{CallError, DeferredReply};
/// use tidewire::{Client, Context, Router, Server};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
/// #[error("the result does not fit 64 bits")]
/// pub struct Overflow;
///
/// #[tidewire::service(version = 1)]
/// pub trait Calculator {
///     /// Adds two numbers.
///     fn add(&mut self, a: i64, b: i64) -> Result<i64, Overflow>;
///     /// A method may use the lane and the session.
///     fn greet(&mut self, cx: &mut Context<'_>, name: String) -> String;
///     /// It may answer later, from another thread.
///     fn factor(&mut self, number: u64, reply: DeferredReply<Vec<u64>>);
///     /// And it may have no answer at all.
///     #[method(one_way)]
///     fn forget(&mut self, number: u64);
/// }
///
/// struct Abacus;
///
/// impl Calculator for Abacus {
///     fn add(&mut self, a: i64, b: i64) -> Result<i64, Overflow> {
///         a.checked_add(b).ok_or(Overflow)
///     }
///
///     fn greet(&mut self, cx: &mut Context<'_>, name: String) -> String {
///         format!("hello {name}, this is lane {}", cx.lane())
///     }
///
///     fn factor(&mut self, number: u64, reply: DeferredReply<Vec<u64>>) {
///         std::thread::spawn(move || {
///             let factors = (1..=number).filter(|divisor| number % divisor == 0).collect();
///             // An error here means that the answer fits no frame; the caller got an error.
///             let _ = reply.send(factors);
///         });
///     }
///
///     fn forget(&mut self, _: u64) {}
/// }
///
/// let server = Server::builder()
///     .listen("tcp://127.0.0.1:0")?
///     .start(|_| Router::new().mount(CalculatorServer::new(Abacus)))?;
///
/// let calculator = CalculatorClient::new(Client::connect(&server.to_string()).wait()?);
/// assert_eq!(calculator.add(1, 2).wait()?, 3); // or `.await?` in a task
/// assert!(matches!(calculator.add(i64::MAX, 1).wait(), Err(CallError::Failed(Overflow))));
/// assert_eq!(calculator.greet("Ada".into()).wait()?, "hello Ada, this is lane 0");
/// let factors = calculator.factor(12).timeout(Duration::from_secs(30)).idempotent().send();
/// calculator.forget(7)?;
/// assert_eq!(factors.wait()?, [1, 2, 3, 4, 6, 12]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # The trait
///
/// - Arguments and results are owned types with serde's `Serialize` and `Deserialize`.
/// - A method takes `&mut self` or `&self`, then optionally `cx: &mut Context<'_>`, then at most 16 arguments.
/// - Its return value is the answer. If the type is written as `Result<T, E>`, the client gets `E` as
///   `CallError::Failed`. An alias of `Result` with another name is an ordinary value.
/// - A method whose last parameter is a `DeferredReply<R>` returns nothing and answers later, as if it returned `R`.
///   The client sees no difference.
/// - `#[method(one_way)]`: the method has no answer; the client's method only enqueues the message.
/// - `#[method(name = "Login")]`: the exact name on the wire, for peers that are not Rust programs. It has neither
///   version nor fingerprint, so you must keep it compatible yourself.
///
/// Handlers run on the lane and must not block; see `tidewire::Service`.
///
/// # The attribute
///
/// - `version = 1`: a part of every method's name; default 1. Change it when the meaning of a method changes, or the
///   fields of a type. A server may mount several versions of a service, each from its own trait.
/// - `name = "calculator"`: the first part of every method's name; default: the trait's name in snake case.
/// - `format = Json`: a type with `tidewire::typed::Format`; default Postcard.
///
/// # Errors of the attribute
///
/// The attribute refuses everything that cannot be sent. The error is at its position in the source and names the
/// remedy. Borrowed arguments:
///
/// ```compile_fail
/// #[tidewire::service]
/// trait Greeter {
///     fn greet(&mut self, name: &str) -> String;
/// }
/// ```
///
/// Generic traits:
///
/// ```compile_fail
/// #[tidewire::service]
/// trait Store<T> {
///     fn load(&self) -> T;
/// }
/// ```
///
/// Methods that would consume the service:
///
/// ```compile_fail
/// #[tidewire::service]
/// trait Once {
///     fn finish(self) -> u8;
/// }
/// ```
///
/// Two methods with one name on the wire:
///
/// ```compile_fail
/// #[tidewire::service]
/// trait Twins {
///     #[method(name = "same")]
///     fn one(&self);
///     #[method(name = "Same")]
///     fn other(&self);
/// }
/// ```
#[proc_macro_attribute]
pub fn service(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand::service(attribute.into(), &item.into()).into()
}

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
