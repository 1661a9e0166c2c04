//! The figures of a server: its counters, its health, and its lanes, sessions and rooms as they are now.

pub use crate::mailbox::RoomFigures;
pub use crate::observe::{DatagramDrop, DropReason, Metrics, MetricsReader};
pub use crate::server::{Liveness, Readiness};
pub use crate::service::{InspectError, Inspector};
pub use crate::session::{Lag, LaneFigures, SessionFigures};
