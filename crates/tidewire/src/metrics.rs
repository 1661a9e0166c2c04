//! The figures of a server: its counters, its health, and its lanes, sessions and rooms as they are now.

pub use crate::mailbox::RoomFigures;
pub use crate::observe::Metrics;
pub use crate::server::Inspector;
pub use crate::session::{Lag, LaneFigures, SessionFigures};
