//! A lane under a clock of the test's own, so that timeouts can be tested without waiting for them.

use std::sync::Arc;

use tidewire_io::poller::{PollerChoice, open};
use tidewire_io::socket::Stream;

use super::{Core, Lane, LaneHandle};
use crate::context::Context;
use crate::server::ServerBuilder;
use crate::service::HandlerResult;
use crate::session::State;
use tidewire_proto::message::Message;

type Handler = fn(&mut Context<'_>, Message<'_>) -> HandlerResult;

/// The only lane of a server that this builder describes. It runs when the test calls it.
pub(crate) fn lane(builder: &ServerBuilder) -> Lane<Handler> {
    let poller = open(PollerChoice::Auto).unwrap();
    let counters = Arc::default();
    let shared = builder.share(poller.kind());
    let handle = LaneHandle::new(Arc::clone(&counters)).unwrap();
    shared.lanes.set(vec![handle.clone()]).unwrap();
    let core = Core::new(0, Arc::new(shared), handle, poller, counters);
    Lane::new(core, |cx, message| cx.reply(message.payload))
}

impl<S> Lane<S> {
    /// An open session; returns its slot and the peer's end.
    pub(crate) fn open_session(&mut self) -> (usize, Stream) {
        let (near, far) = Stream::pair().unwrap();
        assert!(self.core.shared.gate.enter(None));
        let slot = self.core.insert(near.into(), None, State::Open, false);
        let slot = slot.unwrap();
        self.core.sessions[slot].announced = true;
        self.core.enter(slot);
        (slot, far)
    }
}
