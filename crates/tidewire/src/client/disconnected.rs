//! The end of a connection: its reason, and the peer's explanation.

use std::fmt;
use std::sync::Arc;

use tidewire_proto::text::escaped;

use crate::session::CloseReason;

/// The reason why a connection ended, with the peer's explanation. `Display` escapes the text, so the result is safe for a
/// terminal and a log. A cause of [`RequestError::Closed`](crate::RequestError::Closed).
///
/// ```
/// use tidewire::{CloseReason, Disconnected};
///
/// let end = Disconnected::from(CloseReason::PeerClosed);
/// assert_eq!(end.to_string(), "the peer closed the connection");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnected {
    /// The reason, for programs.
    pub reason: CloseReason,
    /// The peer's explanation, or empty. It is foreign text, as the peer sent it: pass it through
    /// [`visible`](tidewire_proto::text::visible) before they are shown.
    pub text: Arc<str>,
}

impl From<CloseReason> for Disconnected {
    /// The end of a connection without an explanation from the peer.
    fn from(reason: CloseReason) -> Self {
        let text = Arc::from("");
        Self { reason, text }
    }
}

impl fmt::Display for Disconnected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, text } = self;
        match text.is_empty() {
            true => write!(formatter, "{reason}"),
            false => write!(formatter, "{reason}: {}", escaped(text.as_bytes())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GoAwayCode;

    #[test]
    fn the_words_of_a_peer_reach_a_terminal_escaped() {
        let end = Disconnected {
            reason: CloseReason::GoAway(GoAwayCode::Removed),
            text: "no\x1b[2J spam".into(),
        };
        assert_eq!(
            end.to_string(),
            "the peer went away: the peer removed this session for good: no\\u{1b}[2J spam"
        );
        let end = Disconnected::from(CloseReason::PeerClosed);
        assert_eq!(end.to_string(), "the peer closed the connection");
    }
}
