//! The tables of `docs/protocol.md` are test vectors: every example encodes and decodes as documented.

use std::collections::BTreeSet;

use tidewire_proto::body::{
    ErrorBody, ErrorCode, GapBody, GoAwayBody, GoAwayCode, JoinBody, JoinedBody, MovedBody,
    PlacementBody, PositionBody, PresenceBody, Recovery, RecoveryBody, RoomCall, Roster, Since,
    SubscribeBody, split_delivery,
};
use tidewire_proto::codec::{ChatMessage, Codec, Decoded, Lines, Presence, Tw1};
use tidewire_proto::error::DecodeError;
use tidewire_proto::handshake::{FEATURE_LONG_CREDENTIALS, FEATURE_RENEWAL, Hello, Welcome};
use tidewire_proto::limits;
use tidewire_proto::message::{
    FLAG_MOVED, FLAG_POSITION, FLAG_PRIVATE, Kind, MemberId, Message, Position, PresenceEvent,
};
use tidewire_proto::room::Policy;

const PAGE: &str = include_str!("../../../docs/protocol.md");
const ADA: MemberId = MemberId(9);
const BOB: MemberId = MemberId(10);
const ROOM: u16 = 3;

/// Returns the rows of the table whose header line is `header`, with trimmed cells.
fn table(header: &str) -> Vec<Vec<&'static str>> {
    let rows: Vec<Vec<_>> = PAGE
        .lines()
        .skip_while(|line| *line != header)
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(|cell| cell.strip_prefix(' ').unwrap_or(cell))
                .map(|cell| cell.strip_suffix(' ').unwrap_or(cell))
                .collect()
        })
        .collect();
    assert!(!rows.is_empty(), "the page has no table {header:?}");
    rows
}

fn bytes_of(cell: &str) -> Vec<u8> {
    cell.trim_matches('`')
        .split(' ')
        .map(|byte| u8::from_str_radix(byte, 16).expect("a byte in hex"))
        .collect()
}

/// Returns the name of a kind in the spelling of the page.
fn page_name(kind: Kind) -> String {
    let mut name = String::new();
    for letter in format!("{kind:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

/// Returns the content of the page's examples, in its order.
fn examples() -> Vec<(Kind, Vec<u8>)> {
    use Kind as K;
    let presence = PresenceBody {
        event: PresenceEvent::Joined,
        member: BOB,
        name: "bob",
    };
    let joined = JoinedBody {
        member: ADA,
        members: 2,
    };
    let taken = ErrorBody {
        code: ErrorCode::NameTaken,
        text: "ada is taken",
    };
    let join = JoinBody {
        room: "lobby",
        name: "ada",
    };
    let shutdown = GoAwayBody {
        code: GoAwayCode::Shutdown,
        text: "bye",
    };
    let whisper = RoomCall::Whisper {
        to: "bob",
        text: b"psst",
    };
    let private = Message {
        flags: FLAG_PRIVATE,
        ..Message::with_id(K::Deliver, ROOM, ADA.0, b"psst")
    };
    let mut list = vec![
        (K::Hello, hello_frame()),
        (K::Welcome, welcome_frame()),
        frame(K::Request, ROOM, 2, |out| {
            whisper.encode(out).expect("fits");
        }),
        frame(K::Request, ROOM, 5, |out| {
            RoomCall::List.encode(out).expect("fits");
        }),
        named(K::Request, 7, "echo", b"hi"),
        frame(K::Reply, ROOM, 1, |out| joined.encode(out)),
        frame(K::Reply, ROOM, 5, |out| {
            Roster::push_entry(ADA, "ada", out).expect("fits");
            Roster::push_entry(BOB, "bob", out).expect("fits");
        }),
        frame(K::Error, 0, 1, |out| taken.encode(out)),
        frame(K::Cancel, ROOM, 2, |_| ()),
        frame(K::Request, 0, 9, |_| ()),
        frame(K::OneWay, 1, 0, |out| out.extend(b"hi")),
        named(K::OneWay, 0, "log", b"x"),
    ];
    list.extend(topic_examples());
    list.extend([
        frame(K::Deliver, ROOM, ADA.0, |out| out.extend(b"hi")),
        (K::Deliver, encoded(&private)),
        frame(K::Join, 0, 1, |out| join.encode(out).expect("fits")),
        frame(K::Leave, ROOM, 3, |_| ()),
        frame(K::Say, ROOM, 0, |out| out.extend(b"hi")),
        frame(K::Presence, ROOM, 0, |out| {
            presence.encode(out).expect("fits");
        }),
        frame(K::Gap, ROOM, 0, |out| GapBody { lost: 300 }.encode(out)),
        frame(K::Ping, 0, 0, |_| ()),
        frame(K::Pong, 0, 0, |_| ()),
        frame(K::GoAway, 0, 0, |out| shutdown.encode(out)),
    ]);
    list.extend(credential_examples());
    list.extend(position_examples());
    list.extend(placement_examples());
    list
}

fn position_examples() -> Vec<(Kind, Vec<u8>)> {
    use Kind as K;
    const POSITION: Position = Position {
        epoch: 7,
        offset: 300,
    };
    let flagged = |kind, channel, id, body: &dyn Fn(&mut Vec<u8>)| {
        let mut payload = Vec::new();
        body(&mut payload);
        let message = Message::with_id(kind, channel, id, &payload);
        let flags = FLAG_POSITION;
        (kind, encoded(&Message { flags, ..message }))
    };
    let deliver = |offset, message: &Message<'_>| {
        let mut out = Vec::new();
        Tw1.encode_delivery_at(offset, message, &mut out)
            .expect("fits");
        (K::Deliver, out)
    };
    let temp = |out: &mut Vec<u8>| {
        let (policy, pattern) = (None, "temp");
        SubscribeBody {
            policy,
            pattern,
            group: None,
        }
        .encode(out);
    };
    let reply = |offset, recovery, out: &mut Vec<u8>| {
        let position = Position { offset, ..POSITION };
        RecoveryBody { position, recovery }.encode(out);
    };
    vec![
        flagged(K::Join, 0, 1, &|out| {
            Since::Position(POSITION).encode(out);
            let (room, name) = ("lobby", "ada");
            JoinBody { room, name }.encode(out).expect("fits");
        }),
        flagged(K::Reply, ROOM, 1, &|out| {
            let (member, members) = (ADA, 2);
            JoinedBody { member, members }.encode(out);
            reply(300, Recovery::Recovered, out);
        }),
        deliver(
            301,
            &Message::with_id(K::Deliver, ROOM, BOB.0, b"hi").with_name("bob"),
        ),
        deliver(303, &Message::with_id(K::Deliver, ROOM, BOB.0, b"ho")),
        flagged(K::Subscribe, 0, 8, &|out| {
            Since::Position(POSITION).encode(out);
            temp(out);
        }),
        flagged(K::Reply, 6, 8, &|out| {
            reply(302, Recovery::Missing(Some(2)), out);
        }),
        flagged(K::Subscribe, 0, 11, &|out| {
            Since::Last(10).encode(out);
            temp(out);
        }),
        flagged(K::Reply, 6, 11, &|out| reply(292, Recovery::NotAsked, out)),
        deliver(303, &Message::new(K::Deliver, 6, b"21C")),
        frame(K::Position, ROOM, 0, |out| {
            let position = Position {
                epoch: 8,
                offset: 0,
            };
            PositionBody { position }.encode(out);
        }),
    ]
}

fn placement_examples() -> [(Kind, Vec<u8>); 3] {
    let joined = PlacementBody::Joined {
        member: MemberId(9),
        members: 2,
        room: "lobby",
        name: "ada",
    };
    [
        placement(ROOM, joined),
        placement(5, PlacementBody::Subscribed { pattern: "temp.*" }),
        placement(ROOM, PlacementBody::Out),
    ]
}

fn placement(channel: u16, body: PlacementBody<'_>) -> (Kind, Vec<u8>) {
    frame(Kind::Placement, channel, 0, |out| {
        body.encode(out).expect("fits");
    })
}

fn credential_examples() -> Vec<(Kind, Vec<u8>)> {
    use Kind as K;
    let (mut first, mut answer) = (Vec::new(), Vec::new());
    let mut encrypted = Vec::new();
    Hello {
        features: FEATURE_RENEWAL | FEATURE_LONG_CREDENTIALS,
        credentials: b"token",
        ..hello()
    }
    .encode_frame(&mut encrypted)
    .expect("fits");
    Hello {
        features: FEATURE_RENEWAL,
        credentials: b"token",
        ..hello()
    }
    .encode_frame(&mut first)
    .expect("fits");
    Welcome {
        features: FEATURE_RENEWAL,
        expires_in_ms: 3_600_000,
        ..welcome()
    }
    .encode_frame(&mut answer)
    .expect("fits");
    let forbidden = ErrorBody {
        code: ErrorCode::Forbidden,
        text: "no",
    };
    let expired = GoAwayBody {
        code: GoAwayCode::Unauthenticated,
        text: "expired",
    };
    vec![
        (K::Hello, first),
        (K::Hello, encrypted),
        (K::Welcome, answer),
        frame(K::Error, 0, 4, |out| forbidden.encode(out)),
        frame(K::GoAway, 0, 0, |out| expired.encode(out)),
        moved_example(),
    ]
}

fn moved_example() -> (Kind, Vec<u8>) {
    let mut body = Vec::new();
    MovedBody {
        code: GoAwayCode::Shutdown,
        address: "tcp://b:1",
        text: "bye",
    }
    .encode(&mut body)
    .expect("fits");
    let message = Message {
        flags: FLAG_MOVED,
        ..Message::new(Kind::GoAway, 0, &body)
    };
    (Kind::GoAway, encoded(&message))
}

fn topic_examples() -> Vec<(Kind, Vec<u8>)> {
    use Kind as K;
    vec![
        subscribe(4, None, "temp.*"),
        subscribe(8, Some(Policy::DropOldest), "temp"),
        subscribe(10, Some(Policy::ConflateByTopic), "md.>"),
        in_group(12, None, "jobs.*", Some("workers")),
        frame(K::Reply, 5, 4, |_| ()),
        frame(K::Unsubscribe, 5, 6, |_| ()),
        named(K::Publish, 0, "temp.hall", b"21C"),
        (
            K::Deliver,
            encoded(&Message::new(K::Deliver, 5, b"21C").with_name("temp.hall")),
        ),
        frame(K::Deliver, 6, 0, |out| out.extend(b"21C")),
        frame(K::Gap, 5, 0, |out| GapBody { lost: 2 }.encode(out)),
    ]
}

fn hello() -> Hello<'static> {
    Hello {
        version: 1,
        features: 0,
        frame_bytes_max: 1 << 20,
        credentials: b"key",
        agent: "demo/1",
    }
}

fn hello_frame() -> Vec<u8> {
    let mut out = Vec::new();
    hello().encode_frame(&mut out).expect("fits");
    out
}

fn welcome() -> Welcome<'static> {
    Welcome {
        version: 1,
        features: 0,
        frame_bytes_max: 65_536,
        heartbeat_ms: 10_000,
        session: 7,
        agent: "tidewire/0.1",
        expires_in_ms: 0,
    }
}

fn welcome_frame() -> Vec<u8> {
    let mut out = Vec::new();
    welcome().encode_frame(&mut out).expect("fits");
    out
}

fn frame(kind: Kind, channel: u16, id: u32, body: impl FnOnce(&mut Vec<u8>)) -> (Kind, Vec<u8>) {
    let mut payload = Vec::new();
    body(&mut payload);
    (
        kind,
        encoded(&Message::with_id(kind, channel, id, &payload)),
    )
}

fn subscribe(id: u32, policy: Option<Policy>, pattern: &str) -> (Kind, Vec<u8>) {
    in_group(id, policy, pattern, None)
}

fn in_group(
    id: u32,
    policy: Option<Policy>,
    pattern: &str,
    group: Option<&str>,
) -> (Kind, Vec<u8>) {
    frame(Kind::Subscribe, 0, id, |out| {
        SubscribeBody {
            policy,
            pattern,
            group,
        }
        .encode(out);
    })
}

fn named(kind: Kind, id: u32, name: &str, payload: &[u8]) -> (Kind, Vec<u8>) {
    let message = Message::with_id(kind, 0, id, payload).with_name(name);
    (kind, encoded(&message))
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    Tw1.encode(message, &mut out).expect("fits");
    out
}

/// Decodes one whole frame.
fn decoded(frame: &[u8]) -> Message<'_> {
    match Tw1.decode(frame, limits::FRAME_BYTES_MAX) {
        Ok(Decoded::Frame { message, consumed }) => {
            assert_eq!(consumed, frame.len());
            message
        }
        other => panic!("not one frame: {other:?}"),
    }
}

/// Decodes the documented body of this kind, and encodes it again.
fn reencoded_body(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let (since, mut payload) = match message.kind {
        Kind::Join | Kind::Subscribe => Since::split(message).expect("a position"),
        _ => (None, message.payload),
    };
    let mut recovery = None;
    if let Some(since) = since {
        since.encode(&mut out);
    } else if message.kind == Kind::Reply {
        (payload, recovery) = RecoveryBody::split(message).expect("a recovery");
    } else if let (Kind::Deliver, Ok((Some(offset), rest))) =
        (message.kind, split_delivery(message))
    {
        out.extend_from_slice(&offset.to_le_bytes());
        payload = rest;
    }
    reencode_fields(message, payload, recovery.is_none(), &mut out);
    if let Some(recovery) = recovery {
        recovery.encode(&mut out);
    }
    out
}

fn reencode_fields(message: &Message<'_>, payload: &[u8], may_be_roster: bool, out: &mut Vec<u8>) {
    let header_bytes = 8;
    match message.kind {
        Kind::Hello => {
            let hello = Hello::decode(payload).expect("a hello");
            hello.encode_frame(out).expect("fits");
            out.drain(..header_bytes);
        }
        Kind::Welcome => {
            let welcome = Welcome::decode(payload).expect("a welcome");
            welcome.encode_frame(out).expect("fits");
            out.drain(..header_bytes);
        }
        Kind::Request if message.name.is_empty() && !payload.is_empty() => {
            let call = RoomCall::decode(payload).expect("a room call");
            call.encode(out).expect("fits");
        }
        Kind::Reply if message.id == 1 => {
            let joined = JoinedBody::decode(payload).expect("an answer to join");
            joined.encode(out);
        }
        Kind::Reply if may_be_roster => {
            for (member, name) in Roster::decode(payload).expect("a roster").entries() {
                Roster::push_entry(member, name, out).expect("fits");
            }
        }
        Kind::Error => ErrorBody::decode(payload).expect("an error").encode(out),
        Kind::Join => {
            let join = JoinBody::decode(payload).expect("a join");
            join.encode(out).expect("fits");
        }
        Kind::Subscribe => SubscribeBody::decode(payload)
            .expect("a subscription")
            .encode(out),
        Kind::Presence => {
            let presence = PresenceBody::decode(payload).expect("a presence");
            presence.encode(out).expect("fits");
        }
        Kind::Gap => GapBody::decode(payload).expect("a gap").encode(out),
        Kind::GoAway if message.flags & FLAG_MOVED != 0 => MovedBody::of(message)
            .expect("a go-away with an address")
            .encode(out)
            .expect("fits"),
        Kind::Position => PositionBody::decode(payload)
            .expect("a position")
            .encode(out),
        Kind::Placement => PlacementBody::decode(payload)
            .expect("a placement")
            .encode(out)
            .expect("fits"),
        Kind::GoAway => GoAwayBody::decode(payload).expect("a go-away").encode(out),
        _ => out.extend(payload),
    }
}

#[test]
fn every_example_encodes_and_decodes_as_the_page_says() {
    let rows = table("| kind | what it says | frame |");
    let examples = examples();
    assert_eq!(rows.len(), examples.len(), "page and test disagree");
    let mut shown = BTreeSet::new();

    for (row, (kind, expected)) in rows.iter().zip(&examples) {
        let context = format!("{} ({})", row[0], row[1]);
        assert_eq!(row[0], page_name(*kind), "{context}");
        let frame = bytes_of(row[2]);
        assert_eq!(&frame, expected, "encoding of {context}");

        let message = decoded(&frame);
        assert_eq!(message.kind, *kind, "{context}");
        assert_eq!(encoded(&message), frame, "{context}");
        assert_eq!(reencoded_body(&message), message.payload, "{context}");
        shown.insert(message.kind as u8);
    }

    for kind in Kind::ALL {
        assert!(
            shown.contains(&(kind as u8)),
            "no example of {}",
            page_name(kind)
        );
    }
}

#[test]
fn the_handshake_examples_match_the_page() {
    let hello_bytes = hello_frame();
    assert_eq!(Hello::decode(decoded(&hello_bytes).payload), Ok(hello()));
    let welcome_bytes = welcome_frame();
    assert_eq!(
        Welcome::decode(decoded(&welcome_bytes).payload),
        Ok(welcome())
    );
}

#[test]
fn the_table_of_kinds_is_complete() {
    let rows = table("| number | kind | id | direction | channel | payload |");
    assert_eq!(rows.len(), Kind::ALL.len());
    for (row, kind) in rows.iter().zip(Kind::ALL) {
        assert_eq!(row[0], (kind as u8).to_string());
        assert_eq!(row[1], page_name(kind));
        assert_eq!(row[2].starts_with("id"), kind.has_id(), "{kind:?}");
    }
}

#[test]
fn the_tables_of_codes_are_complete() {
    let sections: Vec<_> = PAGE.split("\n### ").collect();
    let codes_in = |title: &str| -> Vec<u16> {
        let section = sections.iter().find(|section| section.starts_with(title));
        section
            .expect("the section")
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok())
            .collect()
    };
    let known = |is_known: fn(u16) -> bool| -> Vec<u16> {
        (0..=u16::MAX).filter(|number| is_known(*number)).collect()
    };
    assert_eq!(
        codes_in("Error codes"),
        known(|number| ErrorCode::from_wire(number) != ErrorCode::Other(number))
    );
    assert_eq!(
        codes_in("Go-away codes"),
        known(|number| GoAwayCode::from_wire(number) != GoAwayCode::Other(number))
    );
}

#[test]
fn the_faults_end_the_connection_as_the_page_says() {
    for row in table("| fault | bytes that suffice |") {
        let bytes = bytes_of(row[1]);
        let error = Tw1.decode(&bytes, 65_536).expect_err("a fault");
        let name = match error {
            DecodeError::FrameTooLarge { .. } => "too large",
            DecodeError::FrameTooShort { .. } => "too short",
            DecodeError::UnknownKind(_) => "unknown kind",
            DecodeError::MalformedPayload { .. } => "broken name",
            _ => "another fault",
        };
        assert_eq!(name, row[0], "{bytes:02X?}");
        let earlier = &bytes[..bytes.len() - 1];
        assert!(
            Tw1.decode(earlier, 65_536).is_ok(),
            "fewer bytes suffice: {earlier:02X?}"
        );
    }
}

#[test]
fn the_limits_are_those_of_the_page() {
    let values: Vec<_> = table("| limit | value | why |")
        .iter()
        .map(|row| row[1])
        .collect();
    let expected = [
        (limits::FRAME_BYTES_MAX, "1 MiB"),
        (limits::FRAME_BYTES_MIN as usize, "512 bytes"),
        (limits::HELLO_BYTES_MAX, "2,048 bytes"),
        (limits::CREDENTIALS_BYTES_MAX, "1,024 bytes"),
        (limits::LONG_HELLO_BYTES_MAX, "9,216 bytes"),
        (limits::LONG_CREDENTIALS_BYTES_MAX, "8,192 bytes"),
        (limits::NAME_BYTES_MAX, "64 bytes"),
        (limits::TEXT_BYTES_MAX, "255 bytes"),
        (usize::from(u8::MAX), "255 bytes"),
        (limits::TOPIC_BYTES_MAX, "255 bytes"),
        (limits::TOPIC_SEGMENTS_MAX, "16 segments"),
    ];
    for (value, (bytes, text)) in values.iter().zip(expected) {
        assert!(value.starts_with(text), "{value} is not {text}");
        let number: usize = text
            .split(' ')
            .next()
            .and_then(|digits| digits.replace(',', "").parse().ok())
            .expect("a number");
        let unit = if text.ends_with("MiB") { 1 << 20 } else { 1 };
        assert_eq!(number * unit, bytes, "{text}");
    }
    assert_eq!(values.len(), expected.len());
    assert!(PAGE.contains("at most 8,192 bytes") && limits::LINE_BYTES_MAX == 8_192);
}

#[test]
fn lines_read_as_the_page_says() {
    for row in table("| event | line |") {
        let expected = row[1].trim_matches('`').replace("\\n", "\n");
        assert_eq!(rendered(row[0]), expected.as_bytes(), "{}", row[0]);
    }
}

/// Renders the event of this name with the lines codec.
fn rendered(event: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let message = |private, payload| ChatMessage {
        channel: ROOM,
        member: ADA,
        name: "ada",
        private,
        payload,
    };
    let presence = |event| Presence {
        channel: ROOM,
        member: ADA,
        name: "ada",
        event,
    };
    match event {
        "prompt" => {
            let prompt = Message::new(Kind::OneWay, 0, b"Enter username: ");
            Lines.encode(&prompt, &mut out).expect("fits");
        }
        "said" => Lines
            .encode_chat_message(&message(false, b"hi all"), &mut out)
            .expect("fits"),
        "whispered" => Lines
            .encode_chat_message(&message(true, b"psst"), &mut out)
            .expect("fits"),
        "announced" => {
            let announced = ChatMessage {
                name: "",
                ..message(false, b"we close soon")
            };
            Lines
                .encode_chat_message(&announced, &mut out)
                .expect("fits");
        }
        "joined" | "left" | "here" => {
            let event = match event {
                "joined" => PresenceEvent::Joined,
                "left" => PresenceEvent::Left,
                _ => PresenceEvent::Here,
            };
            Lines
                .encode_presence(&presence(event), &mut out)
                .expect("fits");
        }
        "lost" => Lines.encode_gap(ROOM, 12, &mut out).expect("fits"),
        "refused" => {
            let (code, text) = (ErrorCode::NameTaken, "");
            let (_, payload) = frame(Kind::Error, 0, 1, |out| {
                ErrorBody { code, text }.encode(out);
            });
            Lines.encode(&decoded(&payload), &mut out).expect("fits");
        }
        "go-away" => {
            let (code, text) = (GoAwayCode::Shutdown, "");
            let (_, payload) = frame(Kind::GoAway, 0, 0, |out| {
                GoAwayBody { code, text }.encode(out);
            });
            Lines.encode(&decoded(&payload), &mut out).expect("fits");
        }
        other => panic!("the test knows no event {other:?}"),
    }
    out
}
