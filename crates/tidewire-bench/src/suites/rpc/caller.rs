//! Tidewire's clients: sessions of a lane that call, check and call again.

use tidewire::{
    CloseReason, ConnectFailure, Context, Endpoint, HandlerResult, Kind, Message, Server, Service,
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

/// A client, whose tag is its index, and its calls that are on their way: each in a place of its own.
struct Client {
    session: Option<tidewire::SessionId>,
    places: Vec<Place>,
}

/// Where one call after another is on its way.
#[derive(Clone, Copy)]
struct Place {
    /// The number of the call, which is its id. It grows by the number of places, so that an id that was given up
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
    let place = |call| Place {
        call,
        sent_ns: 0,
        is_waiting: false,
    };
    let client = || Client {
        session: None,
        places: (1..=work.in_flight as u32).map(place).collect(),
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
    /// Sends the call of a place to the session at hand.
    fn call(&mut self, cx: &mut Context<'_>, index: usize, place: usize, now_ns: u64) {
        let Some(session) = self.clients[index].session else {
            return;
        };
        let place = &mut self.clients[index].places[place];
        let (first, second) = numbers(place.call);
        let mut payload = [0; 8];
        payload[..4].copy_from_slice(&first.to_le_bytes());
        payload[4..].copy_from_slice(&second.to_le_bytes());
        let message = Message::with_id(Kind::Request, 0, place.call, &payload).with_name(METHOD);
        place.sent_ns = now_ns;
        place.is_waiting = true;
        if let Err(error) = cx.send_to(session, &message) {
            self.part.fail_by(&error);
        }
    }

    /// Gives up calls whose replies do not come.
    fn expire(&mut self, cx: &mut Context<'_>, now_ns: u64) {
        let is_over = self.part.is_over(now_ns);
        for index in 0..self.clients.len() {
            let step = self.clients[index].places.len();
            for number in 0..step {
                let place = &mut self.clients[index].places[number];
                if place.is_waiting && now_ns > place.sent_ns + self.timeout_ns {
                    place.is_waiting = false;
                    place.call = place.call.wrapping_add(step as u32);
                    self.calls.settle(&self.part, place.sent_ns, None);
                    if !is_over {
                        self.call(cx, index, number, now_ns);
                    }
                }
            }
        }
    }

    fn is_waiting(&self) -> bool {
        let mut places = self.clients.iter().flat_map(|client| &client.places);
        places.any(|place| place.is_waiting)
    }
}

impl Service for Caller {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        let index = cx.tag() as usize;
        self.clients[index].session = Some(cx.session());
        self.open += 1;
        if self.open == self.clients.len() {
            self.part.connected();
        }
        for place in 0..self.clients[index].places.len() {
            self.call(cx, index, place, now_ns());
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let index = cx.tag() as usize;
        let places = &mut self.clients[index].places;
        let step = places.len();
        let number = (message.id as usize).wrapping_sub(1) % step;
        let place = &mut places[number];
        if !place.is_waiting || place.call != message.id {
            // A reply that was given up, or came twice.
            self.calls.wrong += 1;
            return Ok(());
        }
        place.is_waiting = false;
        let sent_ns = place.sent_ns;
        place.call = place.call.wrapping_add(step as u32);
        let (first, second) = numbers(message.id);
        let is_right = message.kind == Kind::Reply
            && message.payload == first.wrapping_add(second).to_le_bytes();
        let now_ns = cx.now_ns();
        let answered_ns = is_right.then_some(now_ns);
        self.calls.settle(&self.part, sent_ns, answered_ns);
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

    fn on_connect_failed(&mut self, _: &mut Context<'_>, error: ConnectFailure) {
        self.part.fail_by(&error);
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<u64> {
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
        (!self.is_done).then_some(now_ns + LOOK_EVERY_NS)
    }
}

/// How often it looks for calls to give up, and for the end.
const LOOK_EVERY_NS: u64 = 20_000_000;
