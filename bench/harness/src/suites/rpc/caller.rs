//! Tidewire's clients: sessions of a lane that call, check and call again.

use super::super::numbers::Place;
use tidewire::{
    CloseReason, ConnectError, Context, Endpoint, HandlerResult, Kind, Message, Moment, Server,
    Service,
};
use tidewire_io::clock::now_ns;

use super::super::course::Part;
use super::{Calls, METHOD, call_timeout_ns, numbers};
use crate::contract::Work;
use crate::plan::RoleError;
use crate::stage::OrFailed;

/// The clients of one thread.
struct Caller {
    endpoint: Endpoint,
    part: Part<Calls>,
    clients: Vec<Client>,
    open: usize,
    connects: bool,
    timeout_ns: u64,
    calls: Calls,
    is_done: bool,
}

/// A client, whose tag is its index, and its calls that are on their way: each in a slot of its own.
struct Client {
    session: Option<tidewire::SessionId>,
    slots: Vec<CallSlot>,
}

/// A slot for one call after another.
#[derive(Clone, Copy)]
struct CallSlot {
    /// The number of the call, which is its id. It grows by the number of slots, so that an id that was given up
    /// does not come again soon.
    call: u32,
    sent_ns: u64,
    is_waiting: bool,
}

/// Starts a lane for each thread.
pub(super) fn start(
    endpoint: &Endpoint,
    work: &Work,
    part: &Part<Calls>,
) -> Result<Server, RoleError> {
    let slot = |call| CallSlot {
        call,
        sent_ns: 0,
        is_waiting: false,
    };
    let client = || Client {
        session: None,
        slots: (1..=work.in_flight as u32).map(slot).collect(),
    };
    super::super::spinning(Server::builder(), work)
        .lanes(work.threads)
        .start(|_| Caller {
            endpoint: endpoint.clone(),
            part: part.clone(),
            clients: (0..work.connections).map(|_| client()).collect(),
            open: 0,
            connects: true,
            timeout_ns: call_timeout_ns(work),
            calls: Calls::default(),
            is_done: false,
        })
        .or_failed("start the clients")
}

impl Caller {
    /// Sends the call of a slot to the session at hand.
    fn call(&mut self, cx: &mut Context<'_>, index: usize, slot: usize, now_ns: u64) {
        let Some(session) = self.clients[index].session else {
            return;
        };
        let slot = &mut self.clients[index].slots[slot];
        let (first, second) = numbers(slot.call);
        let mut payload = [0; 8];
        payload[..4].copy_from_slice(&first.to_le_bytes());
        payload[4..].copy_from_slice(&second.to_le_bytes());
        let message = Message::with_id(Kind::Request, 0, slot.call, &payload).with_name(METHOD);
        slot.sent_ns = now_ns;
        slot.is_waiting = true;
        if let Err(error) = cx.send_to(session, &message) {
            self.part.fail_by(&error);
        }
    }

    /// Gives up calls whose replies do not come.
    fn expire(&mut self, cx: &mut Context<'_>, now_ns: u64) {
        let is_over = self.part.is_over(now_ns);
        for index in 0..self.clients.len() {
            let step = self.clients[index].slots.len();
            for number in 0..step {
                let slot = &mut self.clients[index].slots[number];
                if slot.is_waiting && now_ns > slot.sent_ns + self.timeout_ns {
                    slot.is_waiting = false;
                    slot.call = slot.call.wrapping_add(step as u32);
                    self.calls.resolve(&self.part, slot.sent_ns, None);
                    if !is_over {
                        self.call(cx, index, number, now_ns);
                    }
                }
            }
        }
    }

    fn is_waiting(&self) -> bool {
        let mut slots = self.clients.iter().flat_map(|client| &client.slots);
        slots.any(|slot| slot.is_waiting)
    }
}

impl Service for Caller {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        let index = Place::of(cx).unwrap_or_default();
        self.clients[index].session = Some(cx.id());
        self.open += 1;
        if self.open == self.clients.len() {
            self.part.connected();
        }
        for slot in 0..self.clients[index].slots.len() {
            self.call(cx, index, slot, now_ns());
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let index = Place::of(cx).unwrap_or_default();
        let slots = &mut self.clients[index].slots;
        let step = slots.len();
        let number = (message.id as usize).wrapping_sub(1) % step;
        let slot = &mut slots[number];
        if !slot.is_waiting || slot.call != message.id {
            // A reply that was given up, or came twice.
            self.calls.wrong += 1;
            return Ok(());
        }
        slot.is_waiting = false;
        let sent_ns = slot.sent_ns;
        slot.call = slot.call.wrapping_add(step as u32);
        let (first, second) = numbers(message.id);
        let is_right = message.kind == Kind::Reply
            && message.payload == first.wrapping_add(second).to_le_bytes();
        let now_ns = cx.now().as_ns();
        let answered_ns = is_right.then_some(now_ns);
        self.calls.resolve(&self.part, sent_ns, answered_ns);
        if !self.part.is_over(now_ns) {
            self.call(cx, index, number, now_ns);
        }
        Ok(())
    }

    fn on_close(&mut self, _: &mut Context<'_>, reason: CloseReason) {
        if !self.is_done {
            self.part
                .fail(format!("a client's session ended: {reason}"));
        }
    }

    fn on_connect_failed(&mut self, _: &mut Context<'_>, error: ConnectError) {
        self.part.fail_by(&error);
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if std::mem::take(&mut self.connects) {
            let clients = self.clients.len();
            self.part.connect(cx, &self.endpoint, clients);
        }
        let now_ns = now_ns();
        self.expire(cx, now_ns);
        if self.part.is_over(now_ns) && !self.is_waiting() && !self.is_done {
            self.is_done = true;
            self.part.done(std::mem::take(&mut self.calls));
        }
        (!self.is_done).then_some(Moment::from_ns(now_ns + LOOK_EVERY_NS))
    }
}

/// How often it looks for calls to give up, and for the end.
const LOOK_EVERY_NS: u64 = 20_000_000;
