//! The failures of connections that this lane makes.

use super::{CloseReason, SessionId};
use crate::transport::ConnectError;

/// Why connections of this lane failed. A failure waits here until its session is removed and the service learns of it.
#[derive(Debug, Default)]
pub(crate) struct ConnectFailures(Vec<(SessionId, ConnectError)>);

impl ConnectFailures {
    pub(crate) fn note(&mut self, id: SessionId, failure: impl Into<ConnectError>) {
        self.0.push((id, failure.into()));
    }

    /// Takes the failure of a session that ends. Without a noted one, the failure is the reason of the end.
    pub(crate) fn take(&mut self, id: SessionId, reason: CloseReason) -> ConnectError {
        let index = self.0.iter().position(|(failed, _)| *failed == id);
        let noted = index.map(|index| self.0.swap_remove(index).1);
        noted.unwrap_or(ConnectError::Closed(reason))
    }
}
