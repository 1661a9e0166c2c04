//! A service behind a pointer.

use tidewire_io::clock::Moment;
use tidewire_proto::message::Message;

use super::{ActionKind, Context, HandlerResult, Service};
use crate::session::CloseReason;
use crate::transport::ConnectError;

/// The one type for all services of [`ServerBuilder::start_boxed`](crate::ServerBuilder::start_boxed). It is no
/// implementation for `Box`, because a boxed closure is a closure, too.
pub(crate) struct BoxedService(pub(crate) Box<dyn Service>);

// `on_request` and `on_one_way` are not here: only the `on_message` of the service itself calls them.
impl Service for BoxedService {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        self.0.on_open(cx);
    }

    #[inline]
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        self.0.on_message(cx, message)
    }

    fn action(&self, cx: &Context<'_>, message: &Message<'_>) -> ActionKind {
        self.0.action(cx, message)
    }

    fn on_timer(&mut self, cx: &mut Context<'_>, token: u64) {
        self.0.on_timer(cx, token);
    }

    fn on_close(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        self.0.on_close(cx, reason);
    }

    fn on_connect_failed(&mut self, cx: &mut Context<'_>, error: ConnectError) {
        self.0.on_connect_failed(cx, error);
    }

    fn on_panic(&mut self, cx: &mut Context<'_>) {
        self.0.on_panic(cx);
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        self.0.on_turn(cx)
    }

    fn has_work(&self) -> bool {
        self.0.has_work()
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::sync::{Arc, Mutex};

    use tidewire_proto::message::Kind;

    use super::*;
    use crate::lane::lane;
    use crate::server::Server;

    /// Records the names of its calls.
    #[derive(Clone, Default)]
    struct Calls(Arc<Mutex<Vec<&'static str>>>);

    impl Calls {
        fn note(&self, name: &'static str) {
            self.0.lock().unwrap().push(name);
        }
    }

    impl Service for Calls {
        fn on_open(&mut self, _: &mut Context<'_>) {
            self.note("on_open");
        }

        fn on_request(&mut self, _: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
            self.note("on_request");
            Ok(())
        }

        fn on_one_way(&mut self, _: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
            self.note("on_one_way");
            Ok(())
        }

        fn action(&self, _: &Context<'_>, _: &Message<'_>) -> ActionKind {
            self.note("action");
            ActionKind::Free
        }

        fn on_timer(&mut self, _: &mut Context<'_>, _: u64) {
            self.note("on_timer");
        }

        fn on_close(&mut self, _: &mut Context<'_>, _: CloseReason) {
            self.note("on_close");
        }

        fn on_connect_failed(&mut self, _: &mut Context<'_>, _: ConnectError) {
            self.note("on_connect_failed");
        }

        fn on_panic(&mut self, _: &mut Context<'_>) {
            self.note("on_panic");
        }

        fn on_turn(&mut self, _: &mut Context<'_>) -> Option<Moment> {
            self.note("on_turn");
            Some(Moment::from_ns(7))
        }

        fn has_work(&self) -> bool {
            self.note("has_work");
            true
        }
    }

    #[test]
    fn a_boxed_service_gets_every_call() {
        let mut lane = lane(&Server::builder());
        let (slot, _far) = lane.open_session();
        let id = lane.core.sessions[slot].id;
        let mut cx = lane.core.context(id);
        let calls = Calls::default();
        let mut boxed = BoxedService(Box::new(calls.clone()));
        boxed.on_open(&mut cx);
        for kind in [Kind::Request, Kind::OneWay] {
            boxed
                .on_message(&mut cx, Message::new(kind, 0, b""))
                .unwrap();
        }
        let action = boxed.action(&cx, &Message::new(Kind::Request, 0, b""));
        assert!(matches!(action, ActionKind::Free));
        boxed.on_timer(&mut cx, 1);
        boxed.on_close(&mut cx, CloseReason::Io(ErrorKind::Other));
        boxed.on_connect_failed(&mut cx, ConnectError::NoTls);
        boxed.on_panic(&mut cx);
        assert_eq!(boxed.on_turn(&mut cx), Some(Moment::from_ns(7)));
        assert!(boxed.has_work());
        let expected = [
            "on_open",
            "on_request",
            "on_one_way",
            "action",
            "on_timer",
            "on_close",
            "on_connect_failed",
            "on_panic",
            "on_turn",
            "has_work",
        ];
        assert_eq!(*calls.0.lock().unwrap(), expected);
    }
}
