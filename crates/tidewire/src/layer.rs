//! Layers between the bytes of a socket and the frames of a codec, such as TLS and WebSocket.
//!
//! Implement [`Layer`] and give the builders of servers and clients a function that makes a layer for each connection:
//! [`ServerBuilder::layers`](crate::ServerBuilder::layers), [`ClientBuilder::layers`](crate::ClientBuilder::layers).
//! The module [`tidewire_proto::layer`] has the contract, and the `Stack` in which a program without Tidewire's sockets
//! runs layers. Lengths are in bytes.

pub use tidewire_proto::layer::{
    Ending, Layer, LayerError, OUTPUT_BYTES_MAX, PLAIN_BYTES_MAX, RECORD_BYTES_MAX, RecordHeader,
};
