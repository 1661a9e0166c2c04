//! Services that share a server. Each one selects its messages.

use tidewire_proto::message::Message;

use super::{Context, Service};

/// A service that can share a server with others, by [`Router::with`](crate::Router::with).
///
/// It selects its own messages, and gets these. All other events, such as the opening and the closing of a session,
/// go to all parts, in the order in which they were added.
pub trait Part: Service {
    /// Whether this message belongs to this part. It is called for each message that names no method of the router
    /// and that no earlier part has taken, so it should check little more than the kind.
    ///
    /// The answer must not depend on the payload: the lane asks [`Service::action`] once for consecutive messages of
    /// the same kind, channel and name, and checks permissions by that answer.
    fn takes(&self, cx: &Context<'_>, message: &Message<'_>) -> bool;

    /// Whether a failed connection was started by this part, as its [state](Context::set_state) tells. The first part
    /// that returns true gets [`Service::on_connect_failed`]. The default is false, for a part that makes no
    /// connections.
    fn takes_connection(&self, cx: &Context<'_>) -> bool {
        let _ = cx;
        false
    }
}
