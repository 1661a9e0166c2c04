//! The client as a program uses it: futures and their blocking twins, streams, and connections made at their first use.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod executor;
mod given_up;
mod lazy;
mod misuse;
mod streams;
mod twins;
