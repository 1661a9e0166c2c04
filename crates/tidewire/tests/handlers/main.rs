//! Forms and abilities of handlers: methods by kind, state and timers of sessions, ordinary errors.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod asynchronous;
mod kinds;
mod rates;
mod reading;
mod state;
mod waits;
