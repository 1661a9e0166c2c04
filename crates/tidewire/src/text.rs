//! Makes text from a peer safe for a terminal or a log.
//!
//! Names, payloads and error texts of peers may contain control characters. Call [`visible`] before you show such text
//! to people, and [`escaped`] before you write it to a log line. [`hexadecimal`] reads numbers of peers without a sign.
//!
//! ```
//! use tidewire::text::visible;
//!
//! assert!(!visible(b"clear\x1b[2J").contains('\u{1b}'));
//! ```

pub use tidewire_proto::text::{escaped, hexadecimal, visible};
