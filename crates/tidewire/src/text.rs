//! Text that a peer sent, made safe for a terminal or a log.
//!
//! Names, payloads and error texts of peers may hold control characters. A program that shows them calls [`visible`] for
//! people or [`escaped`] for a line of a log.
//!
//! ```
//! use tidewire::text::visible;
//!
//! assert!(!visible(b"clear\x1b[2J").contains('\u{1b}'));
//! ```

pub use tidewire_proto::text::{escaped, visible};
