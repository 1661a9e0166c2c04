//! Services that share a server: each says which messages are its own.

use tidewire_proto::message::Message;

use super::{Context, Service};

/// A service that can share a server with others, by [`Router::with`](crate::Router::with).
///
/// It says which messages are its own, and gets these. Everything else that a service is told, such as the opening and the
/// closing of a session, all parts are told, in the order in which they were added.
pub trait Part: Service {
    /// Whether this message is one of this part's own. It is asked for each message that names no method of the router and that
    /// no part before this one takes, so it should be a look at the kind and little more.
    fn takes(&self, cx: &Context<'_>, message: &Message<'_>) -> bool;

    /// Whether a connection that this server wanted to make, and could not, was asked for by this part, as
    /// [`Context::tag`] tells: the first part that says so gets [`Service::on_connect_failed`]. Default no, for a part that
    /// connects to nobody.
    fn takes_connection(&self, cx: &Context<'_>) -> bool {
        let _ = cx;
        false
    }
}
