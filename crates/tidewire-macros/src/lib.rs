//! The attribute of Tidewire's typed services. Use it as `tidewire::service`; what it generates refers to that crate.
//!
//! Problem: the two sides of a service are written from one agreement, and a mistake in it should be a message where it
//! was made. Approach: `model` reads a trait into what a service needs; `check` says everything that is wrong with it;
//! `name` makes the names on the wire; `expand` writes both sides from the model, as calls of generic functions in
//! `tidewire::typed`. All of it works on `proc_macro2`, so that ordinary tests reach it.
//!
//! Rejected: an attribute on the implementation instead of a trait (the client would need the server's code).

mod check;
mod expand;
mod model;
mod name;

use proc_macro::TokenStream;

/// Makes a typed service of a trait: the trait itself, `NAMEServer` that serves it, and `NAMEClient` that calls it.
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
///     /// A method may look at the lane and the session.
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
///             // An error here means that the answer fits no frame; the caller has been told.
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
/// - A method takes `&mut self` or `&self`, then perhaps `cx: &mut Context<'_>`, then at most 16 arguments.
/// - It answers with what it returns. If that is written as `Result<T, E>`, the client gets `E` as
///   `CallError::Failed`; behind an alias of another name it is a value like any other.
/// - A method whose last parameter is a `DeferredReply<R>` returns nothing and answers later, as if it returned `R`.
///   The client does not see the difference.
/// - `#[method(one_way)]`: no answer; the client's method only hands the message over.
/// - `#[method(name = "Login")]`: exactly this name on the wire, for peers that are no Rust programs. It has neither
///   version nor fingerprint, so its compatibility is yours to keep.
///
/// Handlers run on the lane and must not block; see `tidewire::Service`.
///
/// # The attribute
///
/// - `version = 1`: part of every method's name; default 1. Change it when the meaning changes, or the inside of a
///   type. A server may mount several versions of a service, each a trait of its own.
/// - `name = "calculator"`: the first part of every method's name; default: the trait's name in snake case.
/// - `format = Json`: a type with `tidewire::typed::Format`; default Postcard.
///
/// # What it refuses
///
/// What cannot travel, at its place in the source and with what to do instead. Borrowed arguments:
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
/// Methods that would use the service up:
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
