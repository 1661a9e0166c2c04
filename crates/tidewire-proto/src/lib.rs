//! The sans-IO core of Tidewire.
//!
//! Codecs, the handshake, the bodies of control frames, the room log with its cursors, topics, request matching
//! and limits. Nothing here touches a socket, a clock, a thread or a source of randomness: time and seeds
//! are arguments, so every behaviour can be replayed from a test.

pub mod backplane;
pub mod body;
pub mod codec;
pub mod connection;
pub mod correlate;
pub mod error;
pub mod handshake;
mod json;
pub mod layer;
pub mod limits;
pub mod message;
pub mod proxy;
pub mod room;
pub mod setting;
pub mod text;
pub mod topic;
pub mod websocket;

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
