//! The members of each room, and the deliveries to them with their faults.
//!
//! Everything happens under one lock, so the order of messages is the same for all receivers and every "every Nth" is
//! exact.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tidewire_proto::body::{ErrorCode, JoinBody, JoinedBody, Roster, validate_name};
use tidewire_proto::codec::{Codec, Presence, Tw1};
use tidewire_proto::message::{Kind, MemberId, Message, PresenceEvent};

use super::ledger::FaultLedger;
use super::plan::{Chooser, Countdown, Fault, FaultPlan};
use super::shared::Peer;
use super::writer::{Delivery, Outgoing};

#[derive(Debug)]
pub(super) struct Rooms {
    plan: FaultPlan,
    chooser: Chooser,
    rooms: BTreeMap<u16, Room>,
    joins: u64,
}

#[derive(Debug)]
struct Room {
    name: String,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    id: MemberId,
    name: String,
    peer: Arc<Peer>,
    queue: Sender<Outgoing>,
    swap: Countdown,
    /// The additional delay of a delivery to it.
    lag: Duration,
    /// The last message of each sender that this member got without a fault, for substitutions.
    last_unharmed: HashMap<MemberId, Arc<[u8]>>,
}

/// A message on its way to several members.
struct OutgoingMessage<'p> {
    plan: &'p FaultPlan,
    alias: u16,
    header_bytes: usize,
    delivery: Delivery,
}

impl Rooms {
    pub(super) fn new(plan: &FaultPlan) -> Self {
        Self {
            plan: plan.clone(),
            chooser: Chooser::new(plan),
            rooms: BTreeMap::new(),
            joins: 0,
        }
    }

    /// Adds a member, answers it, and announces it to the others.
    pub(super) fn join(
        &mut self,
        peer: &Arc<Peer>,
        queue: &Sender<Outgoing>,
        request: u32,
        body: &JoinBody<'_>,
        ledger: &mut FaultLedger,
    ) -> Result<(), ErrorCode> {
        validate_name(body.room).map_err(|error| error.code())?;
        validate_name(body.name).map_err(|error| error.code())?;
        let alias = self.alias_of(body.room)?;
        let id = MemberId(self.joins as u32 + 1);
        let room = self.rooms.entry(alias).or_insert_with(|| Room {
            name: body.room.to_owned(),
            members: Vec::new(),
        });
        if room.present().any(|member| member.name == body.name) {
            return Err(ErrorCode::NameTaken);
        }
        if room.find(peer.connection).is_some() {
            return Err(ErrorCode::AlreadyJoined);
        }
        if self.chooser.refuses_next_join() {
            ledger.joins_refused += 1;
            return Err(ErrorCode::NameTaken);
        }
        if let Some(disconnect) = self.plan.disconnect
            && disconnect.receiver == self.joins
        {
            let after = disconnect.after_deliveries.max(1);
            peer.cut_after.store(after, Ordering::SeqCst);
        }
        let mut random = fastrand::Rng::with_seed(self.plan.seed ^ u64::from(id.0));
        let slow = self.plan.slow_receiver.as_ref();
        let lag = slow
            .filter(|slow| body.name.ends_with(&slow.name_end))
            .map_or(Duration::ZERO, |slow| slow.delay);
        let member = Member {
            id,
            name: body.name.to_owned(),
            peer: Arc::clone(peer),
            queue: queue.clone(),
            swap: Countdown::new(self.plan.swap, &mut random),
            lag,
            last_unharmed: HashMap::new(),
        };
        self.joins += 1;
        ledger.joins += 1;
        room.welcome(alias, member, request);
        Ok(())
    }

    /// Delivers a message to all other members of the room, and commits the faults that are due.
    pub(super) fn say(
        &mut self,
        peer: &Peer,
        alias: u16,
        payload: &[u8],
        ledger: &mut FaultLedger,
    ) -> Result<(), ErrorCode> {
        let room = self.rooms.get_mut(&alias).ok_or(ErrorCode::NotJoined)?;
        let sender = room.find(peer.connection).ok_or(ErrorCode::NotJoined)?.id;
        let frame = frame(&Message::with_id(Kind::Deliver, alias, sender.0, payload));
        let message = OutgoingMessage {
            plan: &self.plan,
            alias,
            header_bytes: frame.len() - payload.len(),
            delivery: Delivery {
                frame: frame.into(),
                sender,
                due: Instant::now() + self.plan.delay,
                swap: false,
                is_intact: true,
            },
        };
        ledger.messages += 1;
        let echoes = self.chooser.echoes_next_message();
        for member in &mut room.members {
            if member.id != sender {
                ledger.offered += 1;
                member.deliver(&message, &mut self.chooser, ledger);
            } else if echoes {
                ledger.echoed += 1;
                member.send(message.delivery.clone(), ledger);
            }
        }
        Ok(())
    }

    /// Delivers a message to its own sender, and commits the due fault: a drop, a duplicate, a corruption or a cut.
    pub(super) fn send_back(
        &mut self,
        peer: &Peer,
        queue: &Sender<Outgoing>,
        message: &Message<'_>,
        ledger: &mut FaultLedger,
    ) {
        let kind = match message.kind {
            Kind::Request => Kind::Reply,
            other => other,
        };
        let mut answer = Message::with_id(kind, message.channel, message.id, message.payload);
        if !kind.has_id() {
            answer.id = 0;
        }
        let mut bytes = frame(&answer);
        let header_bytes = bytes.len() - message.payload.len();
        ledger.messages += 1;
        ledger.offered += 1;
        let (mut copies, mut is_intact) = (1, true);
        match self.chooser.next_fault(false) {
            Some(Fault::Drop) => {
                ledger.dropped += 1;
                return;
            }
            Some(Fault::Duplicate) => {
                ledger.duplicated += 1;
                copies = 2;
            }
            Some(Fault::Corrupt) => {
                ledger.corrupted += 1;
                self.chooser.corrupt(&mut bytes[header_bytes..]);
                is_intact = false;
            }
            Some(Fault::Cut) => {
                ledger.cut += 1;
                cut(&mut bytes, header_bytes);
                is_intact = false;
            }
            Some(Fault::Substitute) | None => {}
        }
        let delivery = Delivery {
            frame: bytes.into(),
            sender: MemberId(peer.connection as u32),
            due: Instant::now() + self.plan.delay,
            swap: false,
            is_intact,
        };
        for _ in 0..copies {
            if queue.send(Outgoing::Delivery(delivery.clone())).is_ok() {
                ledger.queued += 1;
            } else {
                ledger.undeliverable += 1;
            }
        }
    }

    /// The members of a room as the payload of a reply, if `peer` is one of them.
    pub(super) fn list(&self, peer: &Peer, alias: u16) -> Result<Vec<u8>, ErrorCode> {
        let room = self.rooms.get(&alias).ok_or(ErrorCode::NotJoined)?;
        room.find(peer.connection).ok_or(ErrorCode::NotJoined)?;
        let mut roster = Vec::new();
        for member in room.present() {
            Roster::push_entry(member.id, &member.name, &mut roster)
                .map_err(|_| ErrorCode::Internal)?;
        }
        Ok(roster)
    }

    /// Removes a member from a room and announces it to the others.
    pub(super) fn leave(&mut self, peer: &Peer, alias: u16) -> Result<(), ErrorCode> {
        let room = self.rooms.get_mut(&alias).ok_or(ErrorCode::NotJoined)?;
        room.remove(alias, peer.connection)
            .ok_or(ErrorCode::NotJoined)
    }

    /// Handles the end of a connection. A member that was cut off on purpose stays, so that its missed deliveries are
    /// counted.
    pub(super) fn vanish(&mut self, peer: &Peer, is_stopped: bool) {
        if peer.is_cut.load(Ordering::SeqCst) && !is_stopped {
            return;
        }
        for (alias, room) in &mut self.rooms {
            room.remove(*alias, peer.connection);
        }
    }

    /// Drops every member, and with it every queue.
    pub(super) fn clear(&mut self) {
        self.rooms.clear();
    }

    fn alias_of(&self, name: &str) -> Result<u16, ErrorCode> {
        let known = self.rooms.iter().find(|(_, room)| room.name == name);
        match known {
            Some((alias, _)) => Ok(*alias),
            None => u16::try_from(self.rooms.len() + 1).map_err(|_| ErrorCode::LimitReached),
        }
    }
}

impl Room {
    fn find(&self, connection: u64) -> Option<&Member> {
        self.members
            .iter()
            .find(|member| member.peer.connection == connection)
    }

    /// The members that other members see, without members that were cut off.
    fn present(&self) -> impl Iterator<Item = &Member> {
        self.members
            .iter()
            .filter(|member| !member.peer.is_cut.load(Ordering::SeqCst))
    }

    fn welcome(&mut self, alias: u16, newcomer: Member, request: u32) {
        let body = JoinedBody {
            member: newcomer.id,
            members: self.present().count() as u32 + 1,
        };
        let mut payload = Vec::new();
        body.encode(&mut payload);
        newcomer.control(frame(&Message::with_id(
            Kind::Reply,
            alias,
            request,
            &payload,
        )));
        for member in self.present() {
            newcomer.control(presence(alias, member, PresenceEvent::Here));
            member.control(presence(alias, &newcomer, PresenceEvent::Joined));
        }
        self.members.push(newcomer);
    }

    fn remove(&mut self, alias: u16, connection: u64) -> Option<()> {
        let index = self
            .members
            .iter()
            .position(|member| member.peer.connection == connection)?;
        let gone = self.members.remove(index);
        for member in self.present() {
            member.control(presence(alias, &gone, PresenceEvent::Left));
        }
        Some(())
    }
}

/// Removes the last byte of a frame's payload, and corrects its length, which is the first field.
fn cut(frame: &mut Vec<u8>, header_bytes: usize) {
    if frame.len() > header_bytes {
        frame.pop();
        let following = (frame.len() - size_of::<u32>()) as u32;
        frame[..size_of::<u32>()].copy_from_slice(&following.to_le_bytes());
    }
}

impl Member {
    /// Sends a message to one receiver, unless a fault is due.
    fn deliver(
        &mut self,
        message: &OutgoingMessage<'_>,
        chooser: &mut Chooser,
        ledger: &mut FaultLedger,
    ) {
        let mut delivery = message.delivery.clone();
        delivery.due += self.lag;
        let sender = delivery.sender;
        let earlier = self.last_unharmed.get(&sender).cloned();
        self.swap.advance();
        match (chooser.next_fault(earlier.is_some()), earlier) {
            (Some(Fault::Drop), _) => {
                ledger.dropped += 1;
                if message.plan.announces_drops {
                    self.control(gap(message.alias));
                }
                return;
            }
            (Some(Fault::Substitute), Some(earlier)) => {
                ledger.dropped += 1;
                ledger.duplicated += 1;
                ledger.substituted += 1;
                delivery.frame = earlier;
            }
            (Some(Fault::Corrupt), _) => {
                ledger.corrupted += 1;
                let mut bytes = delivery.frame.to_vec();
                chooser.corrupt(&mut bytes[message.header_bytes..]);
                delivery.frame = bytes.into();
                delivery.is_intact = false;
            }
            (Some(Fault::Cut), _) => {
                ledger.cut += 1;
                let mut bytes = delivery.frame.to_vec();
                cut(&mut bytes, message.header_bytes);
                delivery.frame = bytes.into();
                delivery.is_intact = false;
            }
            (Some(Fault::Duplicate), _) => {
                ledger.duplicated += 1;
                self.send(delivery.clone(), ledger);
                self.note_unharmed(message);
            }
            (Some(Fault::Substitute) | None, _) => {
                delivery.swap = self.swap.take();
                self.note_unharmed(message);
            }
        }
        self.send(delivery, ledger);
    }

    fn send(&self, delivery: Delivery, ledger: &mut FaultLedger) {
        if self.queue.send(Outgoing::Delivery(delivery)).is_ok() {
            ledger.queued += 1;
        } else {
            ledger.undeliverable += 1;
        }
    }

    /// Sends a notice. A queue without a writer belongs to a connection that is just ending.
    fn control(&self, frame: Vec<u8>) {
        let _ = self.queue.send(Outgoing::Control(frame));
    }

    fn note_unharmed(&mut self, message: &OutgoingMessage<'_>) {
        if message.plan.substitute.is_some() {
            let delivery = &message.delivery;
            self.last_unharmed
                .insert(delivery.sender, Arc::clone(&delivery.frame));
        }
    }
}

fn gap(alias: u16) -> Vec<u8> {
    let mut out = Vec::new();
    Tw1.encode_gap(alias, 1, &mut out)
        .expect("a gap has a fixed size, far below the limit");
    out
}

fn presence(alias: u16, member: &Member, event: PresenceEvent) -> Vec<u8> {
    let presence = Presence {
        channel: alias,
        member: member.id,
        name: &member.name,
        event,
    };
    let mut out = Vec::new();
    Tw1.encode_presence(&presence, &mut out)
        .expect("a validated name fits a presence");
    out
}

pub(super) fn frame(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    Tw1.encode(message, &mut out)
        .expect("payloads come from frames or are far smaller than one");
    out
}
