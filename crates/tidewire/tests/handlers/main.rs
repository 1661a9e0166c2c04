//! What a handler can be and do: methods for each kind of message.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod kinds;
