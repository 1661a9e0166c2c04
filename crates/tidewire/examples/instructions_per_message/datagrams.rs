//! Messages over UDP, in lock step: a session of the lane sends them, and another one of the same lane takes them.

use std::mem;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use tidewire::{Context, Endpoint, HandlerResult, Kind, Message, Moment, Service};

use super::{Failure, PAYLOAD, Plan};

impl Plan {
    pub(super) fn datagrams(&self) -> Result<(), Failure> {
        let (done, ended) = channel();
        let target = Arc::new(OnceLock::new());
        let server = self.listen("udp://127.0.0.1:0")?.start(|_| Batches {
            target: Some(Arc::clone(&target)),
            batch: self.batch,
            taken: 0,
            left: self.rounds,
            done: done.clone(),
        })?;
        target.get_or_init(|| server.addresses()[0].clone());
        server.waker(0).wake();
        Ok(ended.recv()?)
    }
}

/// Sends batches to its own lane, each after the previous batch has arrived.
struct Batches {
    /// The lane's own address, once it is known.
    target: Option<Arc<OnceLock<Endpoint>>>,
    batch: u32,
    /// Messages of this batch that have come.
    taken: u32,
    left: u32,
    done: Sender<()>,
}

impl Batches {
    fn send(&self, cx: &mut Context<'_>) -> HandlerResult {
        cx.with_sender(cx.id(), |sender| {
            for _ in 1..self.batch {
                sender.send(&Message::new(Kind::OneWay, 0, &PAYLOAD))?;
            }
            Ok(sender.send(&Message::with_id(Kind::Request, 0, self.left, &PAYLOAD))?)
        })?
    }
}

impl Service for Batches {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        let known = self.target.take_if(|target| target.get().is_some());
        if let Some(target) = known.as_ref().and_then(|known| known.get())
            && let Err(error) = cx.connections().connect(target)
        {
            tracing::error!(%error, "cannot connect");
        }
        None
    }

    fn on_open(&mut self, cx: &mut Context<'_>) {
        if cx.session().is_outgoing() {
            // A refused send would be waited for, which a time limit from outside ends.
            let _ = self.send(cx);
        }
    }

    #[inline]
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if message.kind != Kind::Reply {
            self.taken += 1;
            // Nothing answers a batch of which something is missing, and the same ends it.
            if message.kind == Kind::Request && mem::take(&mut self.taken) == self.batch {
                return cx.reply(message.payload);
            }
            return Ok(());
        }
        self.left -= 1;
        if self.left > 0 {
            return self.send(cx);
        }
        // The main thread waits for it as long as it can be sent.
        let _ = self.done.send(());
        Ok(())
    }
}
