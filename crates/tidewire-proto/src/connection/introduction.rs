//! The facts that a connection tells its peer about its own side.

use std::fmt;

/// The facts that this side tells its peer about itself.
#[derive(Clone, Copy)]
pub struct Introduction<'a> {
    /// Name and version of the software.
    pub agent: &'a str,
    /// Number of the session, for logs on both sides. Only the accepting side sends it.
    pub session: u64,
    /// Data by which the server identifies this side. Only the connecting side sends it; may be empty.
    pub credentials: &'a [u8],
    /// Whether this side connects to the server that a go-away names. Only the connecting side sends this.
    pub follows_moves: bool,
    /// The address at which a draining server wants its clients to connect, in at most
    /// [`MOVED_ADDRESS_BYTES_MAX`](crate::limits::MOVED_ADDRESS_BYTES_MAX) bytes; may be empty. Clients that follow
    /// moves receive it.
    pub moved_to: &'a str,
    /// The time now. A welcome says how long credentials are valid from now on.
    pub now_ns: u64,
}

impl fmt::Debug for Introduction<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Introduction")
            .field("agent", &self.agent)
            .field("session", &self.session)
            .field("credentials_bytes", &self.credentials.len())
            .finish_non_exhaustive()
    }
}
