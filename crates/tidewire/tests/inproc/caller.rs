//! A lane that connects by itself and reports to the test.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidewire::{
    AnyCodec, CloseReason, ConnectError, Context, Endpoint, HandlerResult, Kind, Limits, Message,
    Moment, Server, Service,
};
use tidewire_proto::codec::Codec;
use tidewire_testkit::DEADLINE;

use crate::endpoint;

/// A lane that connects in its first turn and reports what happens. It waits for the server if there is none.
pub(crate) struct Caller {
    pub(crate) target: Endpoint,
    pub(crate) calls: usize,
    pub(crate) told: Sender<CallerEvent>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CallerEvent {
    Called,
    RefusedAtOnce(String),
    Opened(u64),
    Heard(Vec<u8>),
    Failed(String),
    Closed(CloseReason),
}

impl Caller {
    pub(crate) fn start(
        codec: AnyCodec,
        limits: Limits,
        target: &str,
        calls: usize,
    ) -> (Server, Receiver<CallerEvent>) {
        let (told, heard) = channel();
        let server = Server::builder()
            .codec(codec)
            .limits(limits)
            .start(|_| Caller {
                target: endpoint(target),
                calls,
                told: told.clone(),
            })
            .unwrap();
        (server, heard)
    }

    pub(crate) fn tell(&self, told: CallerEvent) {
        // The test may have dropped the receiver.
        let _ = self.told.send(told);
    }
}

/// The number of a connection, as its state.
struct Call(u64);

impl Service for Caller {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        for call in 0..std::mem::take(&mut self.calls) {
            let told = match cx.connections().connect_when_bound(&self.target) {
                Ok(id) => {
                    cx.connections().set_state(id, Call(call as u64));
                    CallerEvent::Called
                }
                Err(failure) => CallerEvent::RefusedAtOnce(text_of(&failure)),
            };
            self.tell(told);
        }
        None
    }

    fn on_open(&mut self, cx: &mut Context<'_>) {
        let call: &Call = cx.state().expect("a connection of this caller");
        self.tell(CallerEvent::Opened(call.0));
        let message = if cx.codec().format().has_ids() {
            Message::with_id(Kind::Request, 0, 1, b"hello")
        } else {
            Message::new(Kind::OneWay, 0, b"hello")
        };
        cx.send(message).unwrap();
    }

    fn on_message(&mut self, _: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        self.tell(CallerEvent::Heard(message.payload.to_vec()));
        Ok(())
    }

    fn on_connect_failed(&mut self, _: &mut Context<'_>, failure: ConnectError) {
        self.tell(CallerEvent::Failed(text_of(&failure)));
    }

    fn on_close(&mut self, _: &mut Context<'_>, reason: CloseReason) {
        self.tell(CallerEvent::Closed(reason));
    }
}

pub(crate) fn text_of(failure: &ConnectError) -> String {
    let source = std::error::Error::source(failure);
    source.map_or_else(|| failure.to_string(), ToString::to_string)
}

pub(crate) fn next(heard: &Receiver<CallerEvent>) -> CallerEvent {
    heard.recv_timeout(DEADLINE).unwrap()
}

/// Serialises tests with waiting connections, because a process may have only a limited number of them.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
