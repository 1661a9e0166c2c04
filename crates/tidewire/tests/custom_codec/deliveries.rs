//! A codec with deliveries that begin with the number of their subscription. The log has the part that all subscribers
//! share.

use tidewire::{
    AnyCodec, Context, HandlerError, HandlerResult, Kind, Limits, Message, OwnedMessage, Policy,
    Server,
};
use tidewire_proto::codec::{
    ChatMessage, Codec, Decoded, Format, Presence, RequestIds, Subscription, contract,
};
use tidewire_proto::error::{DecodeError, EncodeError};
use tidewire_testkit::{Peer, TestServer};

/// The frame: the length of kind and payload (u16), an id or the number of the subscription (u32), the kind, the
/// payload. Deliveries share the last two.
struct Topical;

const KINDS: [Kind; 9] = [
    Kind::OneWay,
    Kind::Request,
    Kind::Reply,
    Kind::Subscribe,
    Kind::Publish,
    Kind::Join,
    Kind::Deliver,
    Kind::Presence,
    Kind::Gap,
];

const HEADER_BYTES: usize = 6;

fn push_header(number: u32, shared: &[u8], out: &mut Vec<u8>) {
    let bytes = u16::try_from(shared.len()).expect("short messages");
    out.extend_from_slice(&bytes.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
}

fn push_shared(kind: Kind, payload: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let codec = "topical";
    let number = KINDS.iter().position(|it| *it == kind);
    out.push(number.ok_or(EncodeError::Unsupported { codec, kind })? as u8);
    out.extend_from_slice(payload);
    Ok(())
}

impl Codec for Topical {
    fn format(&self) -> &'static Format {
        const FORMAT: Format = Format {
            ids: RequestIds::Bits32,
            has_room_frames: true,
            delivery_header_bytes_max: HEADER_BYTES,
            ..Format::new("topical")
        };
        &FORMAT
    }

    fn decode<'a>(&self, input: &'a [u8], _: usize) -> Result<Decoded<'a>, DecodeError> {
        let Some(([l0, l1, number @ ..], rest)) = input.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(Decoded::Incomplete { frame_bytes: 0 });
        };
        let bytes = usize::from(u16::from_le_bytes([*l0, *l1]));
        let consumed = HEADER_BYTES + bytes;
        let Some(shared) = rest.get(..bytes) else {
            let frame_bytes = consumed;
            return Ok(Decoded::Incomplete { frame_bytes });
        };
        let (kind, payload) = shared.split_first().ok_or(DecodeError::MalformedFrame)?;
        let kind = KINDS.get(usize::from(*kind));
        let kind = *kind.ok_or(DecodeError::MalformedFrame)?;
        let message = Message::with_id(kind, 0, u32::from_le_bytes(*number), payload);
        Ok(Decoded::Frame { message, consumed })
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let mut shared = Vec::new();
        push_shared(message.kind, message.payload, &mut shared)?;
        if message.kind != Kind::Deliver {
            push_header(message.id, &shared, out);
        }
        out.extend_from_slice(&shared);
        Ok(())
    }

    fn encode_chat_message(
        &self,
        message: &ChatMessage<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let mut shared = Vec::new();
        push_shared(Kind::Deliver, message.payload, &mut shared)?;
        if message.private {
            // The message is for one member, so it is in no log.
            push_header(PRIVATE, &shared, out);
        }
        out.extend_from_slice(&shared);
        Ok(())
    }

    fn encode_presence(
        &self,
        presence: &Presence<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        push_shared(Kind::Presence, presence.name.as_bytes(), out)
    }

    fn encode_gap(&self, _: u16, lost: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        push_shared(Kind::Gap, &lost.to_le_bytes(), out)
    }

    fn delivery_header(&self, subscription: Subscription, shared: &[u8], out: &mut Vec<u8>) {
        push_header(subscription.number, shared, out);
    }
}

const PRIVATE: u32 = u32::MAX;

/// Subscribes to a pattern with a policy, publishes to a topic, joins a room, and sends to it.
fn serve(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    let text = String::from_utf8_lossy(message.payload);
    let (first, second) = text.split_once(' ').unwrap_or((&text, ""));
    match message.kind {
        Kind::Subscribe => {
            let policy = first.parse::<Policy>().expect("a policy");
            cx.topics().policy(policy).subscribe(second)?;
            cx.reply(&[])
        }
        Kind::Publish => Ok(cx.topics().publish(first, message.payload)?),
        Kind::Join => {
            let joined = cx.rooms().join("room", first)?;
            cx.set_state(joined.room);
            cx.reply(&[])?;
            cx.rooms().push_members(&joined);
            Ok(())
        }
        Kind::OneWay if first == "whisper" => {
            let room = *cx.state().expect("a member");
            Ok(cx.rooms().whisper(room, second, b"in private")?)
        }
        Kind::OneWay => {
            let room = *cx.state().expect("a member");
            Ok(cx.rooms().say(room, message.payload)?)
        }
        Kind::Request => cx.reply(message.payload),
        kind => panic!("{kind:?} from a peer"),
    }
}

type Serve = fn(&mut Context<'_>, Message<'_>) -> Result<(), HandlerError>;

fn subscribe(peer: &mut Peer, number: u32, subscription: &str) {
    let payload = subscription.as_bytes();
    peer.send(&Message::with_id(Kind::Subscribe, 0, number, payload));
    assert_eq!(peer.answer().id, number);
}

/// Publishes, and returns when the server has handled all.
fn publish(peer: &mut Peer, payloads: &[Vec<u8>]) {
    for payload in payloads {
        peer.send(&Message::new(Kind::Publish, 0, payload));
    }
    peer.ask(b"handled?");
    assert_eq!(peer.answer().payload, b"handled?");
}

/// Returns messages for a topic, from 10 to 300 bytes long.
fn news(topic: &str, numbers: std::ops::Range<usize>) -> Vec<Vec<u8>> {
    let text = |number: usize| format!("{topic} {number:07} {}", "x".repeat(number * 7 % 290));
    numbers.map(|number| text(number).into_bytes()).collect()
}

fn next(peer: &mut Peer) -> OwnedMessage {
    peer.receive().expect("a delivery, not the end")
}

#[test]
fn the_contract_knows_headers_of_deliveries() {
    let subscriptions = [1, 70_000].map(|number| Subscription { number, channel: 3 });
    let messages = [&b"x"[..], b"", &[0xFF; 300]].map(|it| Message::new(Kind::Deliver, 3, it));
    for piece_bytes in [1, 5, 1_000] {
        let checked =
            contract::check_deliveries(&Topical, &subscriptions, &messages, &[piece_bytes]);
        assert_eq!(checked.map(|stream| stream.len()), Ok(2 * (3 * 7 + 301)));
    }
}

/// Two subscribers of one pattern, one of them with a second pattern, over every kind of transport.
#[test]
fn each_subscriber_gets_its_number_before_the_shared_part() {
    const ROUNDS: usize = 20;
    const MESSAGES: usize = 50;
    let codec = AnyCodec::custom(Topical);
    let builder = || Server::builder().trust_datagram_peers(true);
    let serve: Serve = serve;
    for server in [
        TestServer::over_tcp(builder(), &codec, |_| serve),
        TestServer::over_ipc(builder(), &codec, |_| serve),
        TestServer::over_inproc(builder(), &codec, |_| serve),
        TestServer::over_udp(builder(), &codec, |_| serve),
        TestServer::over_tcp(builder().lanes(2), &codec, |_| serve),
    ] {
        let [mut one, mut both, mut publisher] = [(); 3].map(|()| server.peer());
        subscribe(&mut one, 7, "disconnect a");
        subscribe(&mut both, 70_000, "disconnect a");
        subscribe(&mut both, 70_001, "disconnect b");
        for round in 0..ROUNDS {
            let numbers = round * MESSAGES..(round + 1) * MESSAGES;
            let [a, b] = ["a", "b"].map(|topic| news(topic, numbers.clone()));
            publish(&mut publisher, &a);
            publish(&mut publisher, &b);
            for payload in &a {
                let heard = next(&mut one);
                assert_eq!((heard.kind, heard.id), (Kind::Deliver, 7));
                assert_eq!(heard.payload, *payload);
            }
            let mut expected = [(70_000, a.iter()), (70_001, b.iter())];
            for _ in 0..2 * MESSAGES {
                let heard = next(&mut both);
                let mut own = expected
                    .iter_mut()
                    .filter(|(number, _)| *number == heard.id);
                let (_, payloads) = own.next().expect("a number of its own");
                assert_eq!(Some(&heard.payload), payloads.next());
            }
        }
        drop((one, both, publisher));
        let metrics = server.stop();
        let offered = 3 * ROUNDS * MESSAGES;
        assert_eq!(metrics.room_offered, offered as u64);
        assert_eq!(metrics.room_delivered, offered as u64);
    }
}

/// The slow subscriber reads nothing until messages were dropped. The fast subscriber receives all.
#[test]
fn a_slow_subscriber_gets_its_number_in_the_rest_and_in_gaps() {
    let mut limits = Limits::default();
    limits.rooms.set_lag_bytes_max(16 * 1024);
    let codec = AnyCodec::custom(Topical);
    for policy in ["drop_oldest", "drop_newest", "conflate"] {
        let builder = Server::builder().limits(limits);
        let server = TestServer::over_tcp(builder, &codec, |_| serve);
        let (mut slow, mut fast) = (server.narrow_peer(), server.peer());
        let mut publisher = server.peer();
        subscribe(&mut slow, 5, &format!("{policy} a"));
        subscribe(&mut fast, 6, "disconnect a");
        let mut published = 0_usize;
        while server.metrics().room_dropped_total() == 0 || !published.is_multiple_of(1_000) {
            let news = news("a", published..published + 50);
            publish(&mut publisher, &news);
            for payload in &news {
                let heard = next(&mut fast);
                assert_eq!((heard.id, &heard.payload), (6, payload));
            }
            published += 50;
        }
        let (mut passed, mut lost) = (0, 0);
        while passed < published {
            let heard = slow.receive_in_pieces(1_777).expect("a delivery");
            assert_eq!(heard.id, 5, "{policy}");
            if heard.kind == Kind::Gap {
                let count = u64::from_le_bytes(heard.payload[..].try_into().unwrap());
                lost += count;
                passed += count as usize;
            } else {
                assert_eq!(heard.payload, news("a", passed..passed + 1)[0], "{policy}");
                passed += 1;
            }
        }
        drop((slow, fast, publisher));
        let metrics = server.stop();
        assert_eq!(metrics.room_offered, 2 * published as u64);
        assert_eq!(metrics.room_dropped_total(), lost, "{policy}");
    }
}

/// The messages fill the socket's buffer many times, so writes end at any byte.
#[test]
fn bytes_that_wait_for_a_full_socket_arrive_in_order() {
    const MESSAGES: usize = 10_000;
    let codec = AnyCodec::custom(Topical);
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| serve);
    let (mut slow, mut publisher) = (server.narrow_peer(), server.peer());
    subscribe(&mut slow, 9, "disconnect a");
    let news = news("a", 0..MESSAGES);
    publish(&mut publisher, &news);
    for payload in &news {
        let heard = slow.receive_in_pieces(4_099).expect("a delivery");
        assert_eq!((heard.id, &heard.payload), (9, payload));
    }
    drop((slow, publisher));
    let metrics = server.stop();
    assert_eq!(metrics.room_delivered, MESSAGES as u64);
}

#[test]
fn members_of_a_room_hear_the_number_of_their_join() {
    let codec = AnyCodec::custom(Topical);
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| serve);
    let [mut ada, mut bob] = [(); 2].map(|()| server.peer());
    for (peer, number, name) in [(&mut ada, 11, "ada"), (&mut bob, 12, "bob")] {
        peer.send(&Message::with_id(Kind::Join, 0, number, name.as_bytes()));
        assert_eq!(peer.answer().id, number);
    }
    let heard = |peer: &mut Peer| {
        let heard = next(peer);
        let text = String::from_utf8_lossy(&heard.payload).into_owned();
        (heard.kind, heard.id, text)
    };
    assert_eq!(heard(&mut bob), (Kind::Presence, 12, "ada".to_owned()));
    assert_eq!(heard(&mut ada), (Kind::Presence, 11, "bob".to_owned()));
    bob.send(&Message::new(Kind::OneWay, 0, b"hello"));
    assert_eq!(heard(&mut ada), (Kind::Deliver, 11, "hello".to_owned()));
    bob.send(&Message::new(Kind::OneWay, 0, b"whisper ada"));
    assert_eq!(
        heard(&mut ada),
        (Kind::Deliver, PRIVATE, "in private".to_owned())
    );
    drop((ada, bob));
    server.stop();
}
