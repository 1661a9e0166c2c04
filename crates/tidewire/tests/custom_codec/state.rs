//! A codec that numbers every frame of a connection, in both directions, and ends the connection if a number is
//! missing.

use std::thread;
use std::time::Duration;

use tidewire::{
    AnyCodec, Client, Context, Event, HandlerResult, Kind, Limits, Message, Policy, PubSub, Server,
    Service, TopicEvent,
};
use tidewire_proto::codec::{
    Codec, ConnectionState, Decoded, Decoding, Format, RequestIds, Subscription, Tw1, contract,
};
use tidewire_proto::error::{DecodeError, EncodeError};
use tidewire_testkit::{TestServer, XorLayer, layers_of};

/// Frames: a number of four bytes, then a frame of the native protocol.
#[derive(Clone, Copy)]
struct Sequenced {
    /// Whether the number of a delivery is in the header of its subscriber.
    has_headers: bool,
}

const PLAIN: Sequenced = Sequenced { has_headers: false };
const WITH_HEADERS: Sequenced = Sequenced { has_headers: true };

#[derive(Default)]
struct Sequences {
    sent: u32,
    received: u32,
}

const NUMBER_BYTES: usize = 4;

/// Writes a frame with the first number of a connection.
fn numbered(
    out: &mut Vec<u8>,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let before = out.len();
    out.extend_from_slice(&[0; NUMBER_BYTES]);
    let result = encode(out);
    if result.is_err() {
        out.truncate(before);
    }
    result
}

/// Returns the number and the frame at the front of the input.
fn split(input: &[u8], limit: usize) -> Result<(u32, Decoded<'_>), DecodeError> {
    let Some((number, frame)) = input.split_first_chunk::<NUMBER_BYTES>() else {
        return Ok((0, Decoded::Incomplete { frame_bytes: 0 }));
    };
    let decoded = match Tw1.decode(frame, limit - NUMBER_BYTES)? {
        Decoded::Frame { message, consumed } => Decoded::Frame {
            message,
            consumed: consumed + NUMBER_BYTES,
        },
        Decoded::Incomplete { frame_bytes: 0 } => Decoded::Incomplete { frame_bytes: 0 },
        Decoded::Incomplete { frame_bytes } => Decoded::Incomplete {
            frame_bytes: frame_bytes + NUMBER_BYTES,
        },
    };
    Ok((u32::from_le_bytes(*number), decoded))
}

impl Codec for Sequenced {
    fn format(&self) -> &'static Format {
        const PLAIN: Format = Format {
            ids: RequestIds::Bits32,
            decoding: Decoding::WithState,
            repeats_names: false,
            has_pings: true,
            has_go_away: true,
            has_room_frames: true,
            ..Format::new("sequenced")
        };
        const WITH_HEADERS: Format = Format {
            delivery_header_bytes_max: NUMBER_BYTES,
            ..PLAIN
        };
        match self.has_headers {
            true => &WITH_HEADERS,
            false => &PLAIN,
        }
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        split(input, limit).map(|(_, decoded)| decoded)
    }

    fn decode_next<'a>(
        &self,
        state: &mut ConnectionState,
        input: &'a [u8],
        _: usize,
        limit: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        let (number, decoded) = split(input, limit)?;
        let state = state.of::<Sequences>();
        if matches!(decoded, Decoded::Frame { .. }) {
            if number != state.received {
                return Err(DecodeError::MalformedFrame);
            }
            state.received += 1;
        }
        Ok(decoded)
    }

    fn adapt_frame(&self, state: &mut ConnectionState, frame: &[u8], out: &mut Vec<u8>) {
        let state = state.of::<Sequences>();
        assert_eq!(frame[..NUMBER_BYTES], [0; NUMBER_BYTES], "adapted twice");
        out.extend_from_slice(&state.sent.to_le_bytes());
        out.extend_from_slice(&frame[NUMBER_BYTES..]);
        state.sent += 1;
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if self.has_headers && message.kind == Kind::Deliver {
            return Tw1.encode(message, out);
        }
        numbered(out, |out| Tw1.encode(message, out))
    }

    fn encode_gap(&self, channel: u16, lost: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if self.has_headers {
            return Tw1.encode_gap(channel, lost, out);
        }
        numbered(out, |out| Tw1.encode_gap(channel, lost, out))
    }

    fn delivery_topic<'a>(&self, shared: &'a [u8]) -> &'a str {
        let number_bytes = if self.has_headers { 0 } else { NUMBER_BYTES };
        Tw1.delivery_topic(&shared[number_bytes..])
    }

    fn delivery_header(&self, _: Subscription, _: &[u8], out: &mut Vec<u8>) {
        if self.has_headers {
            out.extend_from_slice(&[0; NUMBER_BYTES]);
        }
    }
}

#[test]
fn the_contract_knows_codecs_with_a_state() {
    let messages = [&b"one"[..], b"", &[7; 300]];
    let messages = messages.map(|payload| Message::with_id(Kind::Request, 0, 9, payload));
    for piece_bytes in [1, 7, 1_000] {
        let checked = contract::check_connection(&PLAIN, &messages, &[piece_bytes]);
        assert!(checked.is_ok(), "{checked:?}");
    }
    assert_eq!(contract::check_every_cut(&PLAIN, &messages), Ok(()));
}

/// Answers at once, later, and with a sender. Publishes the payloads of requests.
#[derive(Default)]
struct Everything(PubSub);

impl Service for Everything {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match (message.kind, message.payload) {
            (Kind::Request, b"later") => {
                let deferred = cx.defer();
                thread::spawn(move || {
                    // The session is open until the answer has come.
                    let _ = deferred.reply(b"later");
                });
                Ok(())
            }
            (Kind::Request, b"by sender") => {
                let id = cx.id();
                cx.with_sender(id, |sender| {
                    (0..100_u8).try_for_each(|number| {
                        sender.send(&Message::new(Kind::OneWay, 0, &[number; 16]))
                    })
                })??;
                cx.flush(id);
                cx.reply(b"by sender")
            }
            (Kind::Request, b"malformed") => Err(tidewire::HandlerError::new(
                tidewire_proto::body::ErrorCode::MalformedBody,
                "told to",
            )),
            (Kind::Request, payload) if !payload.is_empty() => cx.reply(payload),
            _ => self.0.on_message(cx, message),
        }
    }
}

/// Uses every way by which a frame gets into an output. A missing, doubled or late number ends the connection.
#[test]
fn every_frame_of_a_connection_passes_its_state_once_and_in_order() {
    let codec = AnyCodec::custom(PLAIN);
    let with_headers = AnyCodec::custom(WITH_HEADERS);
    let mut limits = Limits::default();
    limits.connections.set_heartbeat(Duration::from_millis(5));
    let builder = || Server::builder().limits(limits).lanes(2);
    for server in [
        TestServer::over_tcp(builder(), &codec, |_| Everything::default()),
        TestServer::over_inproc(builder(), &codec, |_| Everything::default()),
        TestServer::over_tcp(builder(), &with_headers, |_| Everything::default()),
    ] {
        let clients = [(); 3].map(|()| {
            let builder = Client::builder()
                .codec(codec.clone())
                .limits(limits.connections);
            builder.connect(&server.url()).wait().unwrap()
        });
        let subscriptions = clients
            .each_ref()
            .map(|client| client.subscribe("news").wait().unwrap());
        let sessions = server.server().sessions();
        for round in 0..50_u32 {
            let payload = round.to_le_bytes();
            for client in &clients {
                // Equal requests, for which a lane would use a template.
                let requests = [(); 50].map(|()| client.request(&payload).send());
                let later = [(); 5].map(|()| client.request(b"later").send());
                let by_sender = client.request(b"by sender").send();
                client.publish("news", &payload).unwrap();
                for request in requests {
                    assert_eq!(request.wait().unwrap().payload(), payload);
                }
                for request in later {
                    assert_eq!(request.wait().unwrap().payload(), b"later");
                }
                assert_eq!(by_sender.wait().unwrap().payload(), b"by sender");
                assert!(client.request(b"malformed").wait().is_err());
            }
            let message = Message::new(Kind::OneWay, 0, b"from another thread");
            for session in sessions.list() {
                session.send(message).unwrap();
            }
            let broadcast = sessions.broadcast_where(|_| true, message).unwrap();
            assert_eq!(broadcast.wait().queued, 3);
            for subscription in &subscriptions {
                for _ in 0..3 {
                    let TopicEvent::Message(message) = subscription.next_event().wait() else {
                        panic!("no message");
                    };
                    assert_eq!(message.payload, payload);
                }
            }
        }
        for client in &clients {
            let mut messages = 0;
            while messages < 50 * 102 {
                match client.next_event().wait() {
                    Event::Message(_) => messages += 1,
                    Event::Opened { .. } => {}
                    event => panic!("{event:?} after {messages}"),
                }
            }
            client.close().wait();
        }
        let metrics = server.stop();
        assert_eq!(metrics.closed_by("decode"), 0);
        assert_eq!(metrics.room_delivered, 3 * 3 * 50);
    }
}

/// Messages that a policy drops get no number, and a write that ends inside a frame continues after it.
#[test]
fn a_slow_subscriber_misses_messages_and_no_number() {
    let codec = AnyCodec::custom(WITH_HEADERS);
    let mut limits = Limits::default();
    limits.rooms.set_lag_bytes_max(16 * 1024);
    for (policy, layers) in [
        (Policy::DropOldest, 0),
        (Policy::DropNewest, 0),
        (Policy::Conflate, 0),
        (Policy::DropOldest, 1),
    ] {
        let builder = Server::builder().limits(limits);
        let builder = builder.layers(move |_| layers_of(layers, XorLayer::accepting));
        let server = TestServer::over_tcp(builder, &codec, |_| Everything::default());
        let server = server.with_layers(layers);
        let mut slow = server.narrow_peer();
        let mut body = Vec::new();
        let subscribe = tidewire_proto::body::SubscribeBody {
            pattern: "news",
            policy: Some(policy),
            group: None,
        };
        subscribe.encode(&mut body);
        slow.send(&Message::with_id(Kind::Subscribe, 0, 1, &body));
        let publisher = Client::builder().codec(codec.clone());
        let publisher = publisher.layers(move |_| layers_of(layers, XorLayer::connecting));
        let publisher = publisher.connect(&server.url()).wait().unwrap();
        let mut published = 0_u64;
        while server.metrics().room_dropped_total() == 0 || !published.is_multiple_of(1_000) {
            let mut payload = published.to_le_bytes().to_vec();
            payload.resize(8 + (published * 7 % 290) as usize, b'x');
            publisher.publish("news", &payload).unwrap();
            published += 1;
            if published.is_multiple_of(50) {
                publisher.flush().wait().unwrap();
            }
        }
        // The test peer keeps no codec state, so this code checks the numbers itself.
        let mut wire = slow.into_wire();
        let (mut state, mut input) = (ConnectionState::default(), Vec::new());
        let (mut passed, mut lost) = (0, 0);
        while passed < published {
            let decoded = WITH_HEADERS.decode_next(&mut state, &input, 0, 1 << 20);
            let Decoded::Frame { message, consumed } = decoded.expect("the next number") else {
                let mut piece = [0; 1_777];
                let count = std::io::Read::read(&mut wire, &mut piece).unwrap();
                assert!(count > 0, "the end");
                input.extend_from_slice(&piece[..count]);
                continue;
            };
            match message.kind {
                Kind::Gap => {
                    let count = u64::from_le_bytes(message.payload[..8].try_into().unwrap());
                    (passed, lost) = (passed + count, lost + count);
                }
                Kind::Deliver => {
                    assert_eq!(message.payload[..8], passed.to_le_bytes(), "{policy}");
                    passed += 1;
                }
                _ => {}
            }
            input.drain(..consumed);
        }
        drop(wire);
        publisher.close().wait();
        let metrics = server.stop();
        assert_eq!(metrics.room_dropped_total(), lost, "{policy}");
    }
}

/// The farewell of a session that is closed at once is written apart from all other output.
#[test]
fn the_last_words_of_a_server_have_their_number_too() {
    let codec = AnyCodec::custom(PLAIN);
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| Everything::default());
    let mut peer = server.peer();
    peer.ask(b"the first");
    assert_eq!(peer.answer().payload, b"the first");
    // This request reuses the number of the first request.
    peer.ask(b"the second");
    let mut rest = Vec::new();
    let mut wire = peer.into_wire();
    std::io::Read::read_to_end(&mut wire, &mut rest).unwrap();
    let (number, decoded) = split(&rest, 1 << 20).unwrap();
    let Decoded::Frame { message, .. } = decoded else {
        panic!("no farewell");
    };
    assert_eq!((number, message.kind), (1, Kind::GoAway));
    assert_eq!(server.stop().closed_by("decode"), 1);
}

/// The latest messages of topics are copied into the output and numbered there as everything else.
#[test]
fn a_conflated_subscriber_hears_the_newest_of_each_topic_under_the_next_numbers() {
    const TOPICS: u64 = 50;
    for kind in [PLAIN, WITH_HEADERS] {
        let codec = AnyCodec::custom(kind);
        let server = TestServer::over_tcp(Server::builder(), &codec, |_| Everything::default());
        let mut slow = server.narrow_peer();
        let mut body = Vec::new();
        let subscribe = tidewire_proto::body::SubscribeBody {
            pattern: "md.>",
            policy: Some(Policy::ConflateByTopic),
            group: None,
        };
        subscribe.encode(&mut body);
        slow.send(&Message::with_id(Kind::Subscribe, 0, 1, &body));
        let publisher = Client::builder().codec(codec.clone());
        let publisher = publisher.connect(&server.url()).wait().unwrap();
        // More bytes than the buffers of both ends take, however much they grow.
        let published = 20_000_u64;
        for number in 0..published {
            let topic = format!("md.{}", number % TOPICS);
            let mut payload = number.to_le_bytes().to_vec();
            payload.resize(500, b'x');
            publisher.publish(&topic, &payload).unwrap();
            if number % 50 == 49 {
                publisher.flush().wait().unwrap();
            }
        }
        let mut wire = slow.into_wire();
        let (mut state, mut input) = (ConnectionState::default(), Vec::new());
        let (mut heard, mut lost, mut newest) = (0, 0, std::collections::BTreeMap::new());
        while heard + lost < published {
            let decoded = kind.decode_next(&mut state, &input, 0, 1 << 20);
            let Decoded::Frame { message, consumed } = decoded.expect("the next number") else {
                let mut piece = [0; 1_777];
                let count = std::io::Read::read(&mut wire, &mut piece).unwrap();
                assert!(count > 0, "the end");
                input.extend_from_slice(&piece[..count]);
                continue;
            };
            let number = message.payload.first_chunk().copied();
            match (message.kind, number.map(u64::from_le_bytes)) {
                (Kind::Gap, Some(count)) => lost += count,
                (Kind::Deliver, Some(number)) => {
                    assert_eq!(message.name, format!("md.{}", number % TOPICS));
                    assert!(newest.insert(number % TOPICS, number) < Some(number));
                    heard += 1;
                }
                _ => {}
            }
            input.drain(..consumed);
        }
        assert!(lost > 0, "it was behind");
        let last = (0..TOPICS).map(|topic| (topic, published - TOPICS + topic));
        assert!(newest.into_iter().eq(last));
        publisher.close().wait();
        drop(wire);
        let metrics = server.stop();
        assert_eq!(metrics.room_offered, published);
        assert_eq!(metrics.room_delivered, heard);
        assert_eq!(metrics.room_dropped_total(), lost);
    }
}
