//! The built binary as its users use it: through arguments, pipes, sockets, signals and a terminal.
#![allow(
    clippy::unwrap_used,
    reason = "a failure in a helper fails the test that called it"
)]

mod admin;
mod backplane;
mod balancers;
mod bench;
mod call;
mod chat;
mod cluster;
mod compare;
mod config;
mod credentials;
mod documents;
mod foreign;
mod generate;
mod hostile;
mod identity;
mod levels;
mod load;
mod logging;
mod operations;
mod otlp;
mod packaging;
mod process;
mod publisher;
mod secured;
mod serve;
mod stuck;
mod systemd;
mod terminal;
mod tls;
mod topics;
mod udp;
mod usage;
mod websocket;

/// The binary.
const PROGRAM: &str = env!("CARGO_BIN_EXE_tidewire");
