//! The typed service that the server and the client of the typed example share. In your own project this is a small
//! crate that both programs depend on.
//!
//! The crate also prints the errors of all examples, and has the [codec](checksum) of another example.

pub mod checksum;
#[cfg(doctest)]
mod documents;
mod errors;

use serde::{Deserialize, Serialize};
use tidewire::typed::DeferredReply;

pub use errors::report;

/// A shop. The attribute generates [`ShopServer`] and [`ShopClient`].
#[tidewire::service(version = 1)]
pub trait Shop {
    /// Returns the price of one article, in cents.
    fn price(&self, article: String) -> Result<u32, ShopError>;

    /// Takes articles out of the store. Packing takes a while, so the answer comes later.
    fn order(
        &mut self,
        article: String,
        count: u32,
        reply: DeferredReply<Result<Parcel, ShopError>>,
    );

    /// Puts articles into the store. There is no answer.
    #[method(one_way)]
    fn restock(&mut self, article: String, count: u32);
}

/// A packed order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parcel {
    /// The article.
    pub article: String,
    /// The number of articles.
    pub count: u32,
    /// The price of all articles, in cents.
    pub cents: u64,
}

/// The reason why the shop refuses an order. The client gets it unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ShopError {
    /// The shop does not sell this article.
    #[error("there is no {article} here")]
    Unknown {
        /// The requested article.
        article: String,
    },
    /// The shop has too few articles.
    #[error("only {left} are left")]
    SoldOut {
        /// The number of articles left.
        left: u32,
    },
}
