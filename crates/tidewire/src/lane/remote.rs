//! Requests of other nodes. A handler sees them in a call without a session, and answers as always.

use tidewire_proto::body::ErrorCode;
use tidewire_proto::message::{Kind, Message};

use super::Lane;
use crate::broker::RemoteCall;
use crate::service::{Service, run_answers};
use crate::session::SessionId;

impl<S: Service> Lane<S> {
    /// Passes a request of another node to the service.
    pub(super) fn serve_remote(&mut self, call: RemoteCall) {
        let RemoteCall {
            service,
            payload,
            ticket,
        } = call;
        if self.core.ending.is_of_server() {
            return ticket.refuse(ErrorCode::Draining, "the node is ending");
        }
        if ticket.is_cancelled() {
            return;
        }
        let message = Message::new(Kind::Request, 0, &payload).with_name(&service);
        self.core.replies.remote = Some(ticket);
        self.service
            .call(&mut self.core, SessionId::NONE, |core, handler| {
                let mut cx = core.context_without_session();
                cx.call.begin(&message);
                // The name takes the reply to the way where it goes to the other node.
                cx.call.remember_name(&mut cx.core.replies, &service);
                if let Err(error) = handler.on_message(&mut cx, message) {
                    cx.call.refuse(cx.core, error);
                }
            });
        // A handler that has neither replied nor deferred leaves the duty here. Dropping it answers.
        drop(self.core.replies.remote.take());
        run_answers(&mut self.core);
    }
}
