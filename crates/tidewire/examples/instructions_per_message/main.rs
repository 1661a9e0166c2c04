//! Moves messages in lock step, to be run under a program that counts the instructions of each thread.
//!
//! Problem: on a shared machine, noise of clocks hides the cost of a change per message. The number of instructions of
//! a lane hardly varies. Approach: one lane and plain sockets that take turns, so that every run does the same work; or
//! both ends on the lane. In each of ROUNDS rounds BATCH messages of 32 bytes are sent in one write:
//!
//! - `echo`: requests; the round ends with the last reply.
//! - `ingest`: messages without an answer, except the last, which requests the count.
//! - `fanout`: messages for a room, with 16 receivers; the round ends when all have all. TW1 only.
//! - `publish`: messages of a topic with one subscriber, which has received all at the end of the round. TW1 only.
//! - `publish-exact`, `publish-wildcards`, `publish-hostile`: as `publish`, of four topics in turn beside 10,000 topics
//!   of other subscribers; of these topics with three wildcards that match, beside 10,000 that do not; of topics that
//!   never repeat, beside 10,000 wildcards of as many shapes as a server has by default.
//! - `publish-group`: as `publish`, with a queue group of eight subscribers. BATCH must be a multiple of eight.
//! - `send`, `send-to`: one session's messages go to another, one by one; by a sender that was found once, or each by
//!   the session's number.
//! - `publish-permitted`: as `publish`, by peers with checked permissions.
//! - `client`: requests of the threaded client, by the main thread; the round ends with the last reply.
//! - `inproc`: round trips over a ring between two sessions of the lane, BATCH in flight, ROUNDS times as many in all.
//! - `datagrams`: messages over UDP from one session of the lane to another; the last of a batch is answered. TW1 only.
//!
//! Two runs with different ROUNDS leave the start out. `.ci/count-instructions` does it, compares commits, and checks
//! that nothing costs more than it did.
//!
//! `instructions_per_message WORK BATCH ROUNDS [CODEC] [SUBSCRIBER]`: any codec, `raw` for `send` only; `tw1` is the
//! default, and `custom` is a custom codec with the format of `length-field`. With the feature `trace` a SUBSCRIBER may
//! be `registry`, which keeps spans, or `fmt`, which also writes a line for every span that ends, to nowhere.

mod datagrams;
mod permitted;
mod topics;

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};

use tidewire::address::Address;
use tidewire::{
    AnyCodec, Client, Context, Endpoint, HandlerResult, Kind, Message, Moment, RoomId, Server,
    ServerBuilder, Service, SessionId,
};
use tidewire_io::poller::{PollerChoice, PollerKind};
use tidewire_proto::codec::{Codec, Decoded, Format, FrameLayout};
use tidewire_proto::error::{DecodeError, EncodeError};
use tidewire_proto::handshake::{Hello, PROTOCOL_VERSION};

use self::permitted::Permitted;
use self::topics::Publications;

type Failure = Box<dyn Error>;

/// The parameters of every kind of work.
struct Plan {
    batch: u32,
    rounds: u32,
    codec: AnyCodec,
    /// Whether the server checks permissions.
    is_permitted: bool,
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |place: usize| arguments.get(place).map_or("", String::as_str);
    install(argument(4))?;
    let plan = Plan {
        batch: argument(1).parse()?,
        rounds: argument(2).parse()?,
        codec: match argument(3) {
            "" => AnyCodec::by_name("tw1")?,
            "custom" => AnyCodec::custom(Own),
            name => AnyCodec::by_name(name)?,
        },
        is_permitted: argument(0).ends_with(PERMITTED),
    };
    match argument(0).trim_end_matches(PERMITTED) {
        "echo" => plan.echo(),
        "ingest" => plan.ingest(),
        "fanout" => plan.fan_out(),
        "publish" => plan.publish(&Publications::one()),
        "publish-exact" => plan.publish(&Publications::exact()),
        "publish-wildcards" => plan.publish(&Publications::wildcards()),
        "publish-group" => plan.publish_to_group(),
        "publish-hostile" => plan.publish(&Publications::hostile()),
        "send" => plan.send(true),
        "send-to" => plan.send(false),
        "client" => plan.client(),
        "inproc" => plan.inproc(),
        "datagrams" => plan.datagrams(),
        other => Err(format!("no work is called {other:?}").into()),
    }
}

impl Plan {
    fn echo(&self) -> Result<(), Failure> {
        let echo = |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload);
        let server = self.listen("tcp://127.0.0.1:0")?.start(|_| echo)?;
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        for id in 1..=self.batch {
            self.push_asking(id, &PAYLOAD, &mut requests)?;
            self.push_answer(id, &PAYLOAD, &mut replies)?;
        }
        let mut peer = self.connect(&server)?;
        let mut received = vec![0; replies.len()];
        for _ in 0..self.rounds {
            peer.write_all(&requests)?;
            peer.read_exact(&mut received)?;
            if received != replies {
                return Err("the replies are not those to the requests".into());
            }
        }
        Ok(())
    }

    fn ingest(&self) -> Result<(), Failure> {
        let server = self.listen("tcp://127.0.0.1:0")?;
        let server = server.start(|_| Taker { taken: 0 })?;
        let mut messages = Vec::new();
        for _ in 1..self.batch {
            self.codec
                .encode(&Message::new(Kind::OneWay, 0, &PAYLOAD), &mut messages)?;
        }
        self.push_asking(1, &[QUESTION; 32], &mut messages)?;
        let mut peer = self.connect(&server)?;
        for round in 1..=u64::from(self.rounds) {
            peer.write_all(&messages)?;
            let taken = round * u64::from(self.batch);
            let mut answer = Vec::new();
            self.push_answer(1, &taken.to_le_bytes(), &mut answer)?;
            let mut received = vec![0; answer.len()];
            peer.read_exact(&mut received)?;
            if received != answer {
                return Err("not all that was sent was taken".into());
            }
        }
        Ok(())
    }

    fn fan_out(&self) -> Result<(), Failure> {
        let server = self.listen("tcp://127.0.0.1:0")?;
        let server = server.start(|_| Speaker {
            members: 0,
            room: RoomId(0),
        })?;
        let mut peers = Vec::new();
        for _ in 0..=RECEIVERS {
            peers.push((self.connect(&server)?, Vec::new()));
        }
        let mut messages = Vec::new();
        for _ in 0..self.batch {
            self.codec
                .encode(&Message::new(Kind::OneWay, 0, &PAYLOAD), &mut messages)?;
        }
        let (speaker, receivers) = peers.split_at_mut(1);
        for _ in 0..self.rounds {
            speaker[0].0.write_all(&messages)?;
            for (peer, rest) in &mut *receivers {
                self.receive(peer, rest)?;
            }
        }
        Ok(())
    }

    fn send(&self, finds_once: bool) -> Result<(), Failure> {
        let server = self.listen("tcp://127.0.0.1:0")?.start(|_| Pusher {
            batch: self.batch,
            finds_once,
            target: SessionId::NONE,
        })?;
        let mut target = self.connect(&server)?;
        let mut request = Vec::new();
        let start = Message::new(Kind::OneWay, 0, &[QUESTION]);
        self.codec.encode(&start, &mut request)?;
        let mut frame = Vec::new();
        self.codec
            .encode(&Message::new(Kind::OneWay, 0, &PAYLOAD), &mut frame)?;
        // The server makes the first client the target and tells it so.
        target.write_all(&request)?;
        target.read_exact(&mut vec![0; request.len()])?;
        let mut asking = self.connect(&server)?;
        let mut received = vec![0; frame.len() * self.batch as usize];
        for _ in 0..self.rounds {
            asking.write_all(&request)?;
            target.read_exact(&mut received)?;
            if !received.ends_with(&frame) {
                return Err("the messages are not those that were sent".into());
            }
        }
        Ok(())
    }

    fn client(&self) -> Result<(), Failure> {
        let echo = |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload);
        let server = self.listen("tcp://127.0.0.1:0")?.start(|_| echo)?;
        let client = Client::builder()
            .poller(PollerChoice::Only(PollerKind::Poll))
            .codec(self.codec.clone())
            .connect(&server.to_string())
            .wait()?;
        let mut waiting = Vec::new();
        for _ in 0..self.rounds {
            for _ in 0..self.batch {
                waiting.push(client.request(&PAYLOAD).send());
            }
            for request in waiting.drain(..) {
                if request.wait()?.payload() != PAYLOAD {
                    return Err("a reply is not that to its request".into());
                }
            }
        }
        Ok(())
    }

    fn inproc(&self) -> Result<(), Failure> {
        let (done, ended) = channel();
        let target = "inproc://instructions".parse::<Address>()?.resolve()?;
        let _server = self.listen("inproc://instructions")?.start(|_| Asker {
            target: Some(target.clone()),
            in_flight: self.batch,
            left: u64::from(self.batch) * u64::from(self.rounds),
            done: done.clone(),
        })?;
        Ok(ended.recv()?)
    }

    fn listen(&self, address: &str) -> Result<ServerBuilder, Failure> {
        let builder = Server::builder()
            .poller(PollerChoice::Only(PollerKind::Poll))
            .codec(self.codec.clone())
            .listen(address)?;
        Ok(match self.is_permitted {
            true => builder.authenticate(Permitted::new()?),
            false => builder,
        })
    }

    /// A connection that the server has welcomed, if its codec knows a welcome.
    fn connect(&self, server: &Server) -> Result<TcpStream, Failure> {
        let mut peer = TcpStream::connect(server.to_string().trim_start_matches("tcp://"))?;
        if self.codec.format().begins_with_hello() && !self.codec.format().hello_is_optional() {
            greet(&mut peer)?;
        }
        Ok(peer)
    }

    /// Appends a message that its receiver answers.
    fn push_asking(&self, id: u32, payload: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let kind = self.kind_or_one_way(Kind::Request);
        self.codec
            .encode(&Message::with_id(kind, 0, id, payload), out)
    }

    fn push_answer(&self, id: u32, payload: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let kind = self.kind_or_one_way(Kind::Reply);
        self.codec
            .encode(&Message::with_id(kind, 0, id, payload), out)
    }

    fn kind_or_one_way(&self, kind: Kind) -> Kind {
        if self.codec.format().has_ids() {
            kind
        } else {
            Kind::OneWay
        }
    }

    /// Reads until a whole batch was delivered, and steps over what else the room says.
    fn receive(&self, peer: &mut TcpStream, rest: &mut Vec<u8>) -> Result<(), Failure> {
        self.receive_some(self.batch, peer, rest)
    }

    /// The same for another number of messages.
    fn receive_some(
        &self,
        count: u32,
        peer: &mut TcpStream,
        rest: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let (mut left, mut used) = (count, 0);
        while left > 0 {
            match self.codec.decode(&rest[used..], usize::MAX)? {
                Decoded::Frame { message, consumed } => {
                    used += consumed;
                    left -= u32::from(message.kind == Kind::Deliver);
                }
                Decoded::Incomplete { .. } => {
                    rest.drain(..used);
                    used = 0;
                    let mut buffer = [0; 16 * 1024];
                    let count = peer.read(&mut buffer)?;
                    if count == 0 {
                        return Err("the server closed a connection".into());
                    }
                    rest.extend_from_slice(&buffer[..count]);
                }
            }
        }
        rest.drain(..used);
        Ok(())
    }
}

/// Counts messages, and replies with the count on request.
struct Taker {
    taken: u64,
}

impl Service for Taker {
    #[inline]
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        self.taken += 1;
        if message.payload.first() == Some(&QUESTION) {
            return cx.reply(&self.taken.to_le_bytes());
        }
        Ok(())
    }
}

/// Sends a batch to the session that spoke first whenever another one speaks.
struct Pusher {
    batch: u32,
    finds_once: bool,
    target: SessionId,
}

impl Service for Pusher {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if self.target == SessionId::NONE {
            self.target = cx.id();
            return cx.reply(message.payload);
        }
        let message = Message::new(Kind::OneWay, 0, &PAYLOAD);
        if self.finds_once {
            let batch = self.batch;
            let sent = cx.with_sender(self.target, |sender| {
                (0..batch).try_for_each(|_| sender.send(&message))
            })?;
            return Ok(sent?);
        }
        for _ in 0..self.batch {
            cx.send_to(self.target, &message)?;
        }
        Ok(())
    }
}

/// Says to the room, in which everybody is, what it is sent.
struct Speaker {
    members: u32,
    room: RoomId,
}

impl Service for Speaker {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        self.members += 1;
        match cx.rooms().join("room", &format!("member{}", self.members)) {
            Ok(joined) => self.room = joined.room,
            // Its peer waits for ever, which a time limit from outside ends.
            Err(error) => tracing::error!(%error, "cannot join"),
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        Ok(cx.rooms().say(self.room, message.payload)?)
    }
}

/// Keeps a number of requests in flight to its own lane until it has seen enough replies.
struct Asker {
    target: Option<Endpoint>,
    in_flight: u32,
    left: u64,
    done: Sender<()>,
}

impl Service for Asker {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if let Some(target) = self.target.take()
            && let Err(error) = cx.connections().connect(&target)
        {
            tracing::error!(%error, "cannot connect");
        }
        None
    }

    fn on_open(&mut self, cx: &mut Context<'_>) {
        if !cx.session().is_outgoing() {
            return;
        }
        for id in 1..=self.in_flight {
            // A refused send would be waited for, which a time limit from outside ends.
            let _ = cx.send(Message::with_id(Kind::Request, 0, id, &PAYLOAD));
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if message.kind == Kind::Request {
            return cx.reply(message.payload);
        }
        self.left -= 1;
        if self.left >= u64::from(self.in_flight) {
            let again = Message::with_id(Kind::Request, 0, message.id, message.payload);
            cx.send(again)?;
        } else if self.left == 0 {
            // The main thread waits for it as long as it can be sent.
            let _ = self.done.send(());
        }
        Ok(())
    }
}

/// A length of two bytes before the payload. Not one of the library's codecs: those would be compiled otherwise if
/// they were reached through a pointer, too.
struct Own;

impl Codec for Own {
    fn format(&self) -> &'static Format {
        const FORMAT: Format = Format {
            repeats_names: false,
            ..Format::new("own")
        };
        &FORMAT
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        let Some((length, rest)) = input.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(Decoded::Incomplete { frame_bytes: 0 });
        };
        let payload_bytes = usize::from(u16::from_le_bytes(*length));
        let frame_bytes = LENGTH_BYTES + payload_bytes;
        if frame_bytes > limit {
            return Err(DecodeError::FrameTooLarge {
                bytes: frame_bytes as u64,
                limit: limit as u64,
            });
        }
        Ok(match rest.get(..payload_bytes) {
            Some(payload) => Decoded::Frame {
                message: Message::new(Kind::OneWay, 0, payload),
                consumed: frame_bytes,
            },
            None => Decoded::Incomplete { frame_bytes },
        })
    }

    fn layout(&self, frame: &[u8], _: &Message<'_>) -> Option<FrameLayout> {
        Some(FrameLayout::new(LENGTH_BYTES..frame.len()))
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let bytes = message.payload.len();
        let length = u16::try_from(bytes).map_err(|_| EncodeError::PayloadTooLarge {
            bytes: bytes as u64,
            limit: u64::from(u16::MAX),
        })?;
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(message.payload);
        Ok(())
    }
}

/// Says hello and reads the welcome, whose length its header begins with.
fn greet(peer: &mut TcpStream) -> Result<(), Box<dyn Error>> {
    let mut hello = Vec::new();
    Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        frame_bytes_max: 1 << 20,
        credentials: &[],
        agent: "",
    }
    .encode_frame(&mut hello)?;
    peer.write_all(&hello)?;
    let mut length = [0; 4];
    peer.read_exact(&mut length)?;
    let mut welcome = vec![0; u32::from_le_bytes(length) as usize];
    Ok(peer.read_exact(&mut welcome)?)
}

#[cfg(not(feature = "trace"))]
fn install(subscriber: &str) -> Result<(), Box<dyn Error>> {
    if subscriber.is_empty() {
        return Ok(());
    }
    Err("a subscriber needs the feature `trace`".into())
}

#[cfg(feature = "trace")]
fn install(subscriber: &str) -> Result<(), Box<dyn Error>> {
    use tracing_subscriber::filter::LevelFilter;
    use tracing_subscriber::fmt::format::FmtSpan;
    use tracing_subscriber::prelude::*;
    let registry = tracing_subscriber::registry();
    match subscriber {
        "" => {}
        "registry" => registry.with(LevelFilter::TRACE).init(),
        "fmt" => {
            let lines = tracing_subscriber::fmt::layer()
                .with_ansi(false)
                .with_span_events(FmtSpan::CLOSE)
                .with_writer(std::io::sink);
            registry.with(lines).with(LevelFilter::TRACE).init();
        }
        other => return Err(format!("no subscriber is called {other:?}").into()),
    }
    Ok(())
}

/// The end of the names of work with permissions.
const PERMITTED: &str = "-permitted";

/// Sessions in the room beside the one that speaks.
const RECEIVERS: usize = 16;

const PAYLOAD: [u8; 32] = [b'x'; 32];

/// Of the codec of one's own.
const LENGTH_BYTES: usize = 2;

/// The first byte of a message that asks for the number of received messages.
const QUESTION: u8 = b'?';
