//! The load instrument on trial.
//!
//! Every run here goes through the same code as a user's, against a server that commits known faults and
//! counts them itself. The instrument passes only when its figures are those of the server, one by one; times
//! are compared with the delays the server added, from below only, because a busy machine adds its own.

#![allow(
    clippy::unwrap_used,
    reason = "the helpers of a test fail it by panicking, as its body does"
)]

mod clients;
mod clocks;
mod cluster;
mod counts;
mod failures;
mod known;
mod levels;
mod merged;
mod overload;
mod proof;
mod secured;
mod times;
mod workloads;
