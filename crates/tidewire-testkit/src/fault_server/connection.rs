//! One connection: its handshake, its requests, and its end.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use tidewire_proto::body::{ErrorBody, ErrorCode, GoAwayBody, GoAwayCode, JoinBody, RoomCall};
use tidewire_proto::codec::{Codec, Decoded, Tw1};
use tidewire_proto::handshake::{Hello, Offer, Welcome, accept};
use tidewire_proto::limits::FRAME_BYTES_MAX;
use tidewire_proto::message::{Kind, Message};

use super::rooms::frame;
use super::shared::{Peer, Shared};
use super::writer::{Outgoing, Writer};

/// Serves a connection until either side ends it.
pub(super) fn serve(stream: TcpStream, shared: &Arc<Shared>) {
    let Some(number) = shared.register(&stream) else {
        return;
    };
    let peer = Peer::new(number);
    if let Ok(writing) = stream.try_clone() {
        // A server that measures nothing itself must not add the kernel's batching delay to the measurements of others.
        let _ = stream.set_nodelay(true);
        let (queue, outgoing) = channel();
        let writer = Writer::new(Arc::clone(shared), Arc::clone(&peer), writing, outgoing);
        let spawned = thread::Builder::new()
            .name("fault-writer".to_owned())
            .spawn(move || writer.run());
        let mut connection = Connection {
            shared,
            peer: Arc::clone(&peer),
            queue,
            is_open: false,
        };
        if let Ok(writer) = spawned {
            connection.read(stream);
            shared.rooms().vanish(&peer, shared.is_stopped());
            drop(connection);
            if writer.join().is_err() {
                shared.note_panic();
            }
        }
    }
    shared.forget(number);
}

struct Connection<'s> {
    shared: &'s Arc<Shared>,
    peer: Arc<Peer>,
    queue: Sender<Outgoing>,
    is_open: bool,
}

/// Whether the message lists the members of a room. A client may send it only to learn whether there are rooms.
fn is_list(message: &Message<'_>) -> bool {
    matches!(RoomCall::decode(message.payload), Ok(RoomCall::List))
}

/// Whether a connection continues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Read,
    End,
}

impl Connection<'_> {
    fn read(&mut self, mut stream: TcpStream) {
        let mut input = Vec::new();
        let mut chunk = [0; 16 << 10];
        loop {
            let Ok(count @ 1..) = stream.read(&mut chunk) else {
                return;
            };
            input.extend_from_slice(&chunk[..count]);
            if self.handle_all(&mut input) == Next::End {
                // The peer's further input is not read. The writer sends the farewell and closes.
                let _ = stream.shutdown(Shutdown::Read);
                return;
            }
        }
    }

    /// Handles every whole frame of `input` and leaves the rest in it.
    fn handle_all(&mut self, input: &mut Vec<u8>) -> Next {
        let mut used = 0;
        let mut next = Next::Read;
        while next == Next::Read {
            self.shared.wait_while_stalled();
            if self.shared.is_stopped() {
                return Next::End;
            }
            match Tw1.decode(&input[used..], FRAME_BYTES_MAX) {
                Ok(Decoded::Incomplete { .. }) => break,
                Ok(Decoded::Frame { message, consumed }) => {
                    next = self.handle(&message);
                    used += consumed;
                }
                Err(error) => next = self.refuse_protocol(&error.to_string()),
            }
        }
        input.drain(..used);
        next
    }

    fn handle(&mut self, message: &Message<'_>) -> Next {
        if !self.is_open {
            return self.greet(message);
        }
        match message.kind {
            Kind::Say | Kind::OneWay => return self.take(message),
            // On a room's channel it is a call about the room; otherwise the answer is its own payload.
            Kind::Request if message.channel == 0 && !is_list(message) => {
                return self.take(message);
            }
            Kind::Join => self.join(message),
            Kind::Leave => {
                let left = self.shared.rooms().leave(&self.peer, message.channel);
                self.answer(message, left.map(|()| Vec::new()));
            }
            Kind::Request => self.call(message),
            Kind::Ping => self.send(&Message::new(Kind::Pong, 0, message.payload)),
            Kind::Pong | Kind::Cancel => {}
            Kind::GoAway => return Next::End,
            Kind::Hello | Kind::Welcome => return self.refuse_protocol("a second handshake"),
            _ => self.answer(message, Err(ErrorCode::Unsupported)),
        }
        Next::Read
    }

    fn greet(&mut self, message: &Message<'_>) -> Next {
        if message.kind != Kind::Hello {
            return self.refuse_protocol("the first frame is no hello");
        }
        let offer = Offer {
            features: 0,
            frame_bytes_max: FRAME_BYTES_MAX as u32,
            heartbeat_ms: 0,
        };
        let agreed = match Hello::decode(message.payload).and_then(|hello| accept(&hello, &offer)) {
            Ok(agreed) => agreed,
            Err(error) => return self.refuse_protocol(&error.to_string()),
        };
        let welcome = Welcome {
            version: agreed.version,
            features: agreed.features,
            frame_bytes_max: agreed.frame_bytes_max,
            heartbeat_ms: offer.heartbeat_ms,
            session: self.peer.connection,
            agent: "fault-server",
            expires_in_ms: 0,
        };
        let mut out = Vec::new();
        welcome
            .encode_frame(&mut out)
            .expect("a constant agent fits a welcome");
        self.push(out);
        self.is_open = true;
        Next::Read
    }

    fn join(&mut self, message: &Message<'_>) {
        let joined = match JoinBody::decode(message.payload) {
            Ok(body) => {
                let mut rooms = self.shared.rooms();
                let mut ledger = self.shared.ledger();
                rooms.join(&self.peer, &self.queue, message.id, &body, &mut ledger)
            }
            Err(_) => Err(ErrorCode::MalformedBody),
        };
        if let Err(code) = joined {
            self.answer(message, Err(code));
        }
    }

    /// Takes a message and delivers it: to all other members of the room, or back to the sender.
    fn take(&mut self, message: &Message<'_>) -> Next {
        let plan = self.shared.plan();
        let mut rooms = self.shared.rooms();
        let mut ledger = self.shared.ledger();
        let is_last = |messages: u64| plan.die_after_messages.is_some_and(|last| messages >= last);
        if is_last(ledger.messages) {
            return Next::End;
        }
        // The pause begins before the message is delivered, so that the whole pause delays at least this message.
        if let Some(stall) = plan.stall
            && ledger.stalls == 0
            && stall.at_message == ledger.messages + 1
        {
            ledger.stalls += 1;
            self.shared.stall(stall.duration);
        }
        let said = match message.kind {
            Kind::Say => rooms.say(&self.peer, message.channel, message.payload, &mut ledger),
            _ => {
                rooms.send_back(&self.peer, &self.queue, message, &mut ledger);
                Ok(())
            }
        };
        let dies = is_last(ledger.messages);
        drop(ledger);
        drop(rooms);
        if dies {
            self.shared.stop();
            return Next::End;
        }
        if let Err(code) = said {
            self.answer(message, Err(code));
        }
        Next::Read
    }

    fn call(&mut self, message: &Message<'_>) {
        let result = match RoomCall::decode(message.payload) {
            Ok(RoomCall::List) => self.shared.rooms().list(&self.peer, message.channel),
            Ok(_) => Err(ErrorCode::Unsupported),
            Err(_) => Err(ErrorCode::MalformedBody),
        };
        self.answer(message, result);
    }

    fn answer(&self, to: &Message<'_>, result: Result<Vec<u8>, ErrorCode>) {
        let id = if to.kind.has_id() { to.id } else { 0 };
        match result {
            Ok(payload) => self.send(&Message::with_id(Kind::Reply, to.channel, id, &payload)),
            Err(code) => {
                let mut payload = Vec::new();
                let text = code.to_string();
                ErrorBody { code, text: &text }.encode(&mut payload);
                self.send(&Message::with_id(Kind::Error, to.channel, id, &payload));
            }
        }
    }

    fn refuse_protocol(&self, text: &str) -> Next {
        let mut payload = Vec::new();
        let code = GoAwayCode::ProtocolError;
        GoAwayBody { code, text }.encode(&mut payload);
        self.send(&Message::new(Kind::GoAway, 0, &payload));
        Next::End
    }

    fn send(&self, message: &Message<'_>) {
        self.push(frame(message));
    }

    /// A connection without a writer is just ending.
    fn push(&self, frame: Vec<u8>) {
        let _ = self.queue.send(Outgoing::Control(frame));
    }
}
