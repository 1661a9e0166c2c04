//! A raw peer: the wire formats over a blocking socket, with only the codecs of the library.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};

use tidewire::OwnedMessage;
use tidewire_proto::body::{ErrorBody, GapBody, JoinBody, JoinedBody, PresenceBody, RoomCall};
use tidewire_proto::codec::{AnyCodec, Codec, ConnectionState, Decoded, RequestIds, Tw1};
use tidewire_proto::handshake::{Hello, PROTOCOL_VERSION};
use tidewire_proto::limits::FRAME_BYTES_MAX;
use tidewire_proto::message::{FLAG_PRIVATE, Kind, Message, PresenceEvent};

use crate::wire::Wire;

/// A foreign program, as far as the server can tell.
#[derive(Debug)]
pub struct Peer {
    wire: Wire,
    codec: AnyCodec,
    input: Vec<u8>,
    used: usize,
    /// The buffer of one read. It is filled with zeros once, because that takes long without optimisation.
    piece: Vec<u8>,
    names: HashMap<u32, String>,
    last_id: u32,
    room: u16,
}

/// An event that a member of a room receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomEvent {
    /// A member sent a message.
    Message {
        /// The author; `#number` if the native protocol never sent the name, in presence or in the message itself.
        from: String,
        /// The message.
        payload: Vec<u8>,
        /// Whether only this member received it.
        private: bool,
    },
    /// A member is here, came or left.
    Presence(PresenceEvent, String),
    /// Messages were lost here.
    Gap(u64),
    /// A message or request was refused.
    Refused(String),
    /// The server goes away.
    GoingAway,
    /// Any other message.
    Other(OwnedMessage),
}

impl Peer {
    /// Takes a connection and sends a hello, if the codec's connections begin with one.
    #[must_use]
    pub fn greet(wire: Wire, codec: &AnyCodec) -> Self {
        let mut peer = Self::silent(wire, codec);
        if codec.format().begins_with_hello() {
            let mut body = Vec::new();
            hello()
                .encode(&mut body)
                .expect("a hello within its limits");
            peer.send(&Message::new(Kind::Hello, 0, &body));
            let mut welcome = peer.receive().expect("a welcome, not the end");
            if welcome.kind == Kind::Ping && peer.wire.preserves_boundaries() {
                peer.wire
                    .write_all(&challenge_answer(&welcome.payload))
                    .expect("the server takes what is written");
                welcome = peer.receive().expect("a welcome, not the end");
            }
            assert_eq!(welcome.kind, Kind::Welcome, "{welcome:?}");
        }
        peer
    }

    /// Takes a connection and sends nothing.
    #[must_use]
    pub fn silent(wire: Wire, codec: &AnyCodec) -> Self {
        Self {
            wire,
            codec: codec.clone(),
            input: Vec::new(),
            used: 0,
            piece: vec![0; READ_BYTES],
            names: HashMap::new(),
            last_id: 0,
            room: 0,
        }
    }

    /// The connection.
    #[must_use]
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Gives the connection up.
    #[must_use]
    pub fn into_wire(self) -> Wire {
        self.wire
    }

    /// Alias of the room joined last.
    #[must_use]
    pub fn room(&self) -> u16 {
        self.room
    }

    /// Writes bytes unchanged; over UDP as many datagrams as their frames need.
    pub fn write(&mut self, bytes: &[u8]) {
        if self.wire.preserves_boundaries() {
            return self.write_datagrams(bytes);
        }
        self.wire
            .write_all(bytes)
            .expect("the server takes what is written");
    }

    fn write_datagrams(&mut self, bytes: &[u8]) {
        let (mut start, mut end) = (0, 0);
        while end < bytes.len() {
            let consumed = match self.codec.decode(&bytes[end..], FRAME_BYTES_MAX) {
                Ok(Decoded::Frame { consumed, .. }) => consumed,
                _ => bytes.len() - end,
            };
            if end > start && end + consumed - start > DATAGRAM_BYTES {
                self.write_datagram(&bytes[start..end]);
                start = end;
            }
            end += consumed;
        }
        self.write_datagram(&bytes[start..]);
    }

    fn write_datagram(&mut self, bytes: &[u8]) {
        self.wire.write_all(bytes).expect("a datagram that is sent");
    }

    /// Writes bytes to a server that may close at the same time.
    ///
    /// # Errors
    /// The server did not take all of them.
    pub fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.wire.write_all(bytes)
    }

    /// Sends one frame.
    pub fn send(&mut self, message: &Message<'_>) {
        let frame = self.frame(message);
        self.write(&frame);
    }

    fn frame(&self, message: &Message<'_>) -> Vec<u8> {
        let mut frame = Vec::new();
        let encoded = self.codec.encode(message, &mut frame);
        encoded.expect("a message of this codec");
        frame
    }

    fn next_id(&mut self) -> u32 {
        self.last_id += 1;
        if self.codec.format().ids == RequestIds::Bits8 && self.last_id > 255 {
            self.last_id = 1;
        }
        self.last_id
    }

    /// The bytes of a request, with the next id if the codec has ids.
    pub fn request_frame(&mut self, payload: &[u8]) -> Vec<u8> {
        if !self.codec.format().has_ids() {
            return self.frame(&Message::new(Kind::OneWay, 0, payload));
        }
        let id = self.next_id();
        self.frame(&Message::with_id(Kind::Request, 0, id, payload))
    }

    /// Sends a request.
    pub fn ask(&mut self, payload: &[u8]) {
        let frame = self.request_frame(payload);
        self.write(&frame);
    }

    /// The next frame, or `None` when the server closed the connection, in order or not.
    pub fn receive(&mut self) -> Option<OwnedMessage> {
        self.receive_in_pieces(READ_BYTES)
    }

    /// As [`Peer::receive`], reading at most `piece_bytes` at a time.
    pub fn receive_in_pieces(&mut self, piece_bytes: usize) -> Option<OwnedMessage> {
        let mut searched = 0;
        loop {
            let input = &self.input[self.used..];
            let decoded = match searched {
                0 => self.codec.decode(input, FRAME_BYTES_MAX),
                _ => {
                    let state = &mut ConnectionState::default();
                    self.codec
                        .decode_next(state, input, searched, FRAME_BYTES_MAX)
                }
            };
            match decoded {
                Ok(Decoded::Frame { message, consumed }) => {
                    let mut scratch = Vec::new();
                    let message = self.codec.translate(message, &mut scratch);
                    let message = message.expect("a message of the codec");
                    let message = OwnedMessage::from(message);
                    self.used += consumed;
                    return Some(message);
                }
                Ok(Decoded::Incomplete { .. }) => searched = input.len(),
                Err(error) => panic!("the server sent no frame: {error}"),
            }
            if !self.read_more(piece_bytes) {
                return None;
            }
        }
    }

    /// Reads exactly this text, which need not be a whole frame: a prompt.
    pub fn expect_text(&mut self, text: &str) {
        while self.input.len() - self.used < text.len() {
            assert!(
                self.read_more(READ_BYTES),
                "the end came instead of {text:?}"
            );
        }
        let found = &self.input[self.used..self.used + text.len()];
        assert_eq!(String::from_utf8_lossy(found), text);
        self.used += text.len();
    }

    /// Returns the answer to a request: the next frame that is no ping. A server pings a peer that a busy machine keeps
    /// from writing.
    pub fn answer(&mut self) -> OwnedMessage {
        let message = std::iter::from_fn(|| self.receive())
            .find(|message| message.kind != Kind::Ping)
            .expect("an answer, not the end");
        let expected = if self.codec.format().has_ids() {
            Kind::Reply
        } else {
            Kind::OneWay
        };
        assert_eq!(message.kind, expected, "{message:?}");
        message
    }

    /// Joins a room under a name. Over lines the room is the server's lobby.
    ///
    /// # Errors
    /// The refusal, as text.
    pub fn join(&mut self, room: &str, name: &str) -> Result<(), String> {
        if self.codec.format().has_ids() {
            let mut body = Vec::new();
            JoinBody { room, name }
                .encode(&mut body)
                .expect("names that fit");
            let id = self.next_id();
            self.send(&Message::with_id(Kind::Join, 0, id, &body));
            let answer = self.reply_to(id)?;
            let joined = JoinedBody::decode(&answer.payload).expect("the body of a joined reply");
            self.names.insert(joined.member.0, name.to_owned());
            self.room = answer.channel;
            return Ok(());
        }
        let name = Message::new(Kind::OneWay, 0, name.as_bytes());
        if self.wire.preserves_boundaries() {
            // Over UDP a peer exists only after its first datagram.
            self.send(&name);
            self.expect_text(PROMPT);
        } else {
            self.expect_text(PROMPT);
            self.send(&name);
        }
        let line = self.receive().expect("a word of welcome, not the end");
        let text = String::from_utf8_lossy(&line.payload).into_owned();
        match text.strip_prefix("! ") {
            Some(refusal) => Err(refusal.to_owned()),
            None if text.starts_with("Welcome, ") => Ok(()),
            None => panic!("neither welcome nor refusal: {text}"),
        }
    }

    /// Leaves the room joined last, with the native protocol.
    ///
    /// # Errors
    /// The refusal, as text.
    pub fn leave(&mut self) -> Result<(), String> {
        let id = self.next_id();
        self.send(&Message::with_id(Kind::Leave, self.room, id, &[]));
        self.reply_to(id).map(drop)
    }

    /// Makes a room call in the room joined last, with the native protocol.
    ///
    /// # Errors
    /// The refusal, as text.
    pub fn call(&mut self, call: &RoomCall<'_>) -> Result<OwnedMessage, String> {
        let mut body = Vec::new();
        call.encode(&mut body).expect("a name that fits");
        let id = self.next_id();
        self.send(&Message::with_id(Kind::Request, self.room, id, &body));
        self.reply_to(id)
    }

    /// Sends a message to the room joined last.
    pub fn say(&mut self, payload: &[u8]) {
        let frame = self.say_frame(payload);
        self.write(&frame);
    }

    /// Returns the frame of a message to the room joined last.
    #[must_use]
    pub fn say_frame(&self, payload: &[u8]) -> Vec<u8> {
        let kind = if self.codec.format().has_ids() {
            Kind::Say
        } else {
            Kind::OneWay
        };
        self.frame(&Message::new(kind, self.room, payload))
    }

    /// Returns the next event of a room; `None` at the end.
    pub fn hear(&mut self) -> Option<RoomEvent> {
        let message = self.receive()?;
        Some(if self.codec.format().has_ids() {
            self.understand_tw1(message)
        } else {
            understand_line(message)
        })
    }

    /// Returns the next public message, and skips presence.
    pub fn next_message(&mut self) -> (String, Vec<u8>) {
        loop {
            match self.hear() {
                Some(RoomEvent::Message {
                    from,
                    payload,
                    private: false,
                }) => return (from, payload),
                Some(RoomEvent::Presence(..)) => {}
                other => panic!("not a message of the room: {other:?}"),
            }
        }
    }

    /// Waits until this member has learnt that `name` came into the room or was there before.
    pub fn hear_of(&mut self, name: &str) {
        loop {
            match self.hear() {
                Some(RoomEvent::Presence(PresenceEvent::Left, _)) => {}
                Some(RoomEvent::Presence(_, who)) if who == name => return,
                Some(RoomEvent::Presence(..)) => {}
                // Pings are spread over their interval, so a ping may come soon.
                Some(RoomEvent::Other(message)) if message.kind == Kind::Ping => {}
                other => panic!("waiting to hear of {name}: {other:?}"),
            }
        }
    }

    /// Reads to the end and returns the frames on the way.
    pub fn drain(&mut self) -> Vec<OwnedMessage> {
        std::iter::from_fn(|| self.receive()).collect()
    }

    /// Announces that nothing more will be written.
    pub fn finish_writing(&self) {
        self.wire.finish_writing().expect("an open connection");
    }

    fn reply_to(&mut self, id: u32) -> Result<OwnedMessage, String> {
        loop {
            let message = self.receive().expect("an answer, not the end");
            match message.kind {
                Kind::Reply if message.id == id => return Ok(message),
                Kind::Error if message.id == id => {
                    let body = ErrorBody::decode(&message.payload).expect("the body of an error");
                    return Err(format!("{}: {}", body.code, body.text));
                }
                // Presence may come in between.
                _ => drop(self.understand_tw1(message)),
            }
        }
    }

    fn understand_tw1(&mut self, message: OwnedMessage) -> RoomEvent {
        match message.kind {
            Kind::Deliver => RoomEvent::Message {
                from: match self.names.get(&message.id) {
                    Some(name) => name.clone(),
                    None if message.name.is_empty() => format!("#{}", message.id),
                    // Members of rooms that are too large for presence have their names in their messages.
                    None => message.name.clone(),
                },
                private: message.flags & FLAG_PRIVATE != 0,
                payload: message.payload,
            },
            Kind::Presence => {
                let body = PresenceBody::decode(&message.payload).expect("the body of presence");
                self.names.insert(body.member.0, body.name.to_owned());
                RoomEvent::Presence(body.event, body.name.to_owned())
            }
            Kind::Gap => RoomEvent::Gap(
                GapBody::decode(&message.payload)
                    .expect("the body of a gap")
                    .lost,
            ),
            Kind::Error => {
                let body = ErrorBody::decode(&message.payload).expect("the body of an error");
                RoomEvent::Refused(format!("{}: {}", body.code, body.text))
            }
            Kind::GoAway => RoomEvent::GoingAway,
            _ => RoomEvent::Other(message),
        }
    }

    fn read_more(&mut self, piece_bytes: usize) -> bool {
        if self.used > 0 && self.used * 2 >= self.input.len() {
            self.input.drain(..self.used);
            self.used = 0;
        }
        let read = loop {
            match self.wire.read(&mut self.piece[..piece_bytes]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let count = match read {
            Ok(count) => count,
            // A server that closes with unread input resets the connection; that is an end too.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("nothing came within the deadline: {error}"),
        };
        self.input.extend_from_slice(&self.piece[..count]);
        count > 0
    }
}

/// The first frame of a native client.
#[must_use]
pub fn hello_frame() -> Vec<u8> {
    let mut frame = Vec::new();
    let encoded = hello().encode_frame(&mut frame);
    encoded.expect("a hello within its limits");
    frame
}

fn hello() -> Hello<'static> {
    Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        frame_bytes_max: u32::try_from(FRAME_BYTES_MAX).unwrap_or(u32::MAX),
        credentials: &[],
        agent: "testkit",
    }
}

/// Returns a native client's answer to the challenge of a server over UDP: a pong and its hello once more, in one
/// datagram.
#[must_use]
pub fn challenge_answer(cookie: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    Tw1.encode(&Message::new(Kind::Pong, 0, cookie), &mut datagram)
        .expect("a pong of this codec");
    datagram.extend(hello_frame());
    datagram
}

fn understand_line(message: OwnedMessage) -> RoomEvent {
    let text = String::from_utf8_lossy(&message.payload).into_owned();
    let presence = [
        (" joined", PresenceEvent::Joined),
        (" left", PresenceEvent::Left),
        (" is here", PresenceEvent::Here),
    ];
    if let Some(rest) = text.strip_prefix("* ") {
        if let Some(count) = rest.strip_suffix(" messages were lost here") {
            return RoomEvent::Gap(count.parse().expect("a number of messages"));
        }
        for (suffix, event) in presence {
            if let Some(name) = rest.strip_suffix(suffix) {
                return RoomEvent::Presence(event, name.to_owned());
            }
        }
    }
    if let Some(refusal) = text.strip_prefix("! ") {
        return RoomEvent::Refused(refusal.to_owned());
    }
    if let Some((from, said)) = text
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "))
    {
        let name = from.strip_suffix(" -> you");
        return RoomEvent::Message {
            from: name.unwrap_or(from).to_owned(),
            payload: said.as_bytes().to_vec(),
            private: name.is_some(),
        };
    }
    RoomEvent::Other(message)
}

/// The first line of the lines chat.
const PROMPT: &str = "Enter username: \n";

/// Maximum bytes of one datagram, unless a frame is larger.
const DATAGRAM_BYTES: usize = 1_400;

/// Maximum bytes of one read.
const READ_BYTES: usize = 64 * 1024;
