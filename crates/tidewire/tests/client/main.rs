//! The client's public interface: futures and their blocking twins, streams, and connections made at the first use.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod executor;
mod given_up;
mod lazy;
mod leading;
mod misuse;
mod placements;
mod relay;
mod streams;
mod twins;
mod unconfirmed;
