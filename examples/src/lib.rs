//! What the server and the client of the typed example share: the service itself. In a project of your own this is a
//! small crate that both programs depend on.
//!
//! How all of the examples print errors is here too, and the [codec](checksum) of another example.

pub mod checksum;
#[cfg(doctest)]
mod documents;
mod errors;

use serde::{Deserialize, Serialize};
use tidewire::typed::DeferredReply;

pub use errors::report;

/// A shop. The attribute makes [`ShopServer`] and [`ShopClient`] of it.
#[tidewire::service(version = 1)]
pub trait Shop {
    /// What one of these costs, in cents.
    fn price(&self, article: String) -> Result<u32, ShopError>;

    /// Takes articles out of the store. Packing takes a while, so the answer comes later.
    fn order(
        &mut self,
        article: String,
        count: u32,
        reply: DeferredReply<Result<Parcel, ShopError>>,
    );

    /// Puts articles into the store. Nobody answers.
    #[method(one_way)]
    fn restock(&mut self, article: String, count: u32);
}

/// What was ordered, packed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parcel {
    /// What is in it.
    pub article: String,
    /// How many of them.
    pub count: u32,
    /// What all of it costs, in cents.
    pub cents: u64,
}

/// Why the shop cannot do it. It reaches the client as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ShopError {
    /// The shop never had any.
    #[error("there is no {article} here")]
    Unknown {
        /// What was asked for.
        article: String,
    },
    /// The shop has not as many.
    #[error("only {left} are left")]
    SoldOut {
        /// How many there are.
        left: u32,
    },
}
