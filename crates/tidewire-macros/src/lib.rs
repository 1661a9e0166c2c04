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

// The programs in it need the crate `tidewire`: `tidewire-examples` compiles and runs them.
#[doc = include_str!("service.md")]
#[proc_macro_attribute]
pub fn service(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand::service(attribute.into(), &item.into()).into()
}
