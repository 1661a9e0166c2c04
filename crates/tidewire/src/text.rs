//! Makes text from a peer safe for a terminal or a log, and has the rules for names of members and rooms.
//!
//! Names, payloads and error texts of peers may contain control characters. Call [`visible`] before you show such text
//! to people, and [`escaped`] before you write it to a log line. [`hexadecimal`] reads numbers of peers without a sign.
//! [`validate_name`] is the check of a member's name. [`name_skeleton`] finds names that look the same.
//!
//! ```
//! use tidewire::text::visible;
//!
//! assert!(!visible(b"clear\x1b[2J").contains('\u{1b}'));
//! ```

pub use tidewire_proto::body::{displayed_name, name_skeleton, validate_name};
pub use tidewire_proto::text::{escaped, hexadecimal, visible};
