use super::*;
use crate::body::{JoinedBody, Roster, SubscribeBody};
use crate::codec::contract;
use crate::json::LineFault;
use crate::limits::FRAME_BYTES_MAX;
use crate::message::{MemberId, PresenceEvent};

/// Returns why a line is no message.
fn fault(line: &[u8]) -> LineFault {
    match Json.translate(Message::new(Kind::OneWay, 0, line), &mut Vec::new()) {
        Err(DecodeError::Json(fault)) => fault.kind(),
        other => panic!("{}: {other:?}", line.escape_ascii()),
    }
}

fn check(line: &str, expected: Message<'_>) {
    let mut scratch = b"from before".to_vec();
    let frame = Message::new(Kind::OneWay, 0, line.as_bytes());
    assert_eq!(Json.translate(frame, &mut scratch), Ok(expected), "{line}");
}

fn written(message: &Message<'_>) -> String {
    let mut out = Vec::new();
    Json.encode(message, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn messages_survive_any_cut() {
    let all: Vec<u8> = (0..=255).collect();
    let text = "a \"quoted\" \\ text\r\n\0\u{1b}[2J\u{9b}\u{202e} 王 𝄞";
    let messages = [
        Message::with_id(Kind::Request, 3, u32::MAX, text.as_bytes()),
        Message::with_id(Kind::Request, 0, 1, b"x").with_name(text),
        Message::with_id(Kind::Reply, u16::MAX, 1, &all),
        Message::new(Kind::OneWay, 1, b""),
        Message::new(Kind::Say, 1, b"{\"kind\":\"ping\"}"),
        Message::new(Kind::Publish, 0, b"21C").with_name("temp.hall"),
        Message {
            flags: FLAG_PRIVATE,
            ..Message::with_id(Kind::Deliver, 3, 9, b"psst").with_name("ada")
        },
        Message::new(Kind::Deliver, 3, &all[..1]).with_name("temp.hall"),
        Message::with_id(Kind::Cancel, 3, 2, b""),
        Message::new(Kind::Pong, 0, &all[200..]),
    ];
    contract::check_every_cut(&Json, &messages).unwrap();
}

#[test]
fn fields_come_in_any_order_and_spaces_do_not_matter() {
    let expected = Message::with_id(Kind::Request, 3, 7, b"a\tb").with_name("echo");
    check(
        r#"{"kind":"request","id":7,"channel":3,"method":"echo","data":"a\tb"}"#,
        expected,
    );
    check(
        "\t { \"data64\" : \"YQli\" ,\"method\":\"ech\\u006F\", \"channel\":3,\"id\":7,\"kind\":\"request\" } \r",
        expected,
    );
}

#[test]
fn a_json_payload_is_passed_on_unchanged() {
    let line = r#"{"kind":"request","json": {"a": [1, 2.50, "é\u00e9"]} ,"id":1}"#;
    let payload = r#"{"a": [1, 2.50, "é\u00e9"]}"#;
    check(
        line,
        Message::with_id(Kind::Request, 0, 1, payload.as_bytes()),
    );
    check(
        r#"{"kind":"say","json":null}"#,
        Message::new(Kind::Say, 0, b"null"),
    );
    // These are no values that this program could hold.
    for json in ["1e999", &"9".repeat(400), r#""\ud800""#, r#""[\"[{""#] {
        check(
            &format!(r#"{{"kind":"say","json":{json}}}"#),
            Message::new(Kind::Say, 0, json.as_bytes()),
        );
    }
    let levels = |count| {
        let (open, close) = ("[".repeat(count), "]".repeat(count));
        format!(r#"{{"kind":"say","json":{open}{close}}}"#)
    };
    let deepest = levels(127);
    check(
        &deepest,
        Message::new(Kind::Say, 0, &deepest.as_bytes()[21..21 + 254]),
    );
    let field = JsonField::Json;
    for count in [128, 100_000] {
        assert_eq!(
            fault(levels(count).as_bytes()),
            LineFault::BadValue { field }
        );
    }
}

#[test]
fn a_text_cannot_command_the_terminal_of_its_reader() {
    let line = written(&Message::new(
        Kind::Say,
        0,
        "a\u{1b}[2J\u{9b}\u{202e}\u{7f}é".as_bytes(),
    ));
    assert_eq!(
        line,
        "{\"kind\":\"say\",\"data\":\"a\\u001b[2J\\u009b\\u202e\\u007fé\"}\n"
    );
}

#[test]
fn a_message_that_has_no_line_is_refused_and_nothing_is_written() {
    let cases = [
        Message::with_id(Kind::Join, 0, 1, b"\x09short"),
        Message::with_id(Kind::Error, 0, 1, b""),
        Message::with_id(Kind::Leave, 3, 1, b"x"),
        Message::new(Kind::Ping, 1, b""),
        Message::new(Kind::Hello, 0, b"GET / HTTP/1.1"),
    ];
    for message in cases {
        let mut out = b"before".to_vec();
        let kind = message.kind;
        let refused = Err(EncodeError::InvalidBody { kind });
        assert_eq!(Json.encode(&message, &mut out), refused);
        assert_eq!(out, b"before");
    }
}

#[test]
fn lines_end_in_time_or_are_too_long() {
    let line = br#"{"kind":"ping"}"#;
    let limit = line.len() + 1;
    let unfinished = Decoded::Incomplete { frame_bytes: 0 };
    assert_eq!(Json.decode(line, limit), Ok(unfinished));
    let error = DecodeError::FrameTooLarge {
        bytes: limit as u64,
        limit: limit as u64 - 1,
    };
    assert_eq!(Json.decode(line, limit - 1), Err(error));
}

#[test]
fn a_line_that_is_not_json_is_refused_at_its_byte() {
    let cases: [(&[u8], u32); 12] = [
        (b"", 0),
        (b"hello", 1),
        (br#"{"kind":"ping""#, 14),
        (br#"{"kind":"ping"} x"#, 17),
        (br#"{"kind":"ping",}"#, 16),
        (br#"{"kind":"say","data":"\ud800"}"#, 29),
        (br#"{"kind":"say","data":"\udc00x"}"#, 28),
        (br#"{"kind":"say","data":"\x"}"#, 24),
        (b"{\"kind\":\"say\",\"data\":\"a\tb\"}", 24),
        (b"{\"kind\":\"say\",\"data\":\"\xFF\"}", 23),
        (b"{\"kind\":\"say\",\"data\":\"\xED\xA0\x80\"}", 23),
        (b"{\"kind\":\"say\",\"json\":[1,2}", 26),
    ];
    for (line, at) in cases {
        assert_eq!(
            fault(line),
            LineFault::Syntax { at },
            "{}",
            line.escape_ascii()
        );
    }
}

#[test]
fn a_fault_says_what_to_change() {
    let no_object = "a message is a JSON object, such as {\"kind\":\"ping\"}";
    let cases = [
        ("[1]", no_object),
        ("7", no_object),
        (
            r#"{"channel":1}"#,
            "field \"kind\" is missing; it must be a kind of message, such as \"join\", \"say\", \"request\", \
             \"subscribe\" or \"publish\"",
        ),
        (
            r#"{"kind":"jion"}"#,
            "field \"kind\" must be a kind of message, such as \"join\", \"say\", \"request\", \"subscribe\" or \
             \"publish\"",
        ),
        (
            r#"{"kind":"join","nmae":"ada"}"#,
            "unknown field \"nmae\"; check its spelling",
        ),
        (
            "{\"kind\":\"join\",\"a\\u001b[2J, and more of it\":1}",
            "unknown field \"a\\u{1b}[2J, and more\"; check its spelling",
        ),
        (
            r#"{"kind":"join","room":"lobby","data":"x"}"#,
            "kind \"join\" has no field \"data\"; it has id, room, name",
        ),
        (
            r#"{"id":1,"kind":"leave","id":1}"#,
            "field \"id\" comes twice; send it once",
        ),
        (
            r#"{"kind":"say","data":"a","data64":"YQ=="}"#,
            "\"data\", \"data64\" and \"json\" are spellings of one payload; send one of them",
        ),
        (
            r#"{"kind":"deliver","topic":"a","name":"ada"}"#,
            "a delivery has a \"topic\" or the \"name\" of its author; send one of them",
        ),
        (
            r#"{"kind":"say","data":7}"#,
            "field \"data\" must be a text in quotation marks",
        ),
        (
            r#"{"kind":"deliver","private":1}"#,
            "field \"private\" must be true or false",
        ),
        (
            r#"{"kind":"presence"}"#,
            "field \"event\" must be one of \"here\", \"joined\" and \"left\"",
        ),
        (
            r#"{"kind":"subscribe","policy":"drop"}"#,
            "field \"policy\" must be one of \"disconnect\", \"drop_oldest\", \"drop_newest\", \"conflate\", \"block\" \
             and \"conflate_by_topic\"",
        ),
        (
            r#"{"kind":"say","data64":"YQ"}"#,
            "field \"data64\" must be bytes in base64 with its padding",
        ),
        (
            r#"{"kind":"error","number":4,"code":"not-found"}"#,
            "field \"code\" must be the word of the reason that \"number\" gives, or be left out",
        ),
    ];
    for (line, text) in cases {
        assert_eq!(fault(line.as_bytes()).to_string(), text, "{line}");
    }
}

#[test]
fn numbers_are_whole_and_within_their_bounds() {
    for (field, most) in [("id", "4294967295"), ("channel", "65535")] {
        for number in [
            "-1",
            "1.0",
            "1e2",
            "\"1\"",
            "true",
            "null",
            "99999999999999999999",
        ] {
            let line = format!(r#"{{"kind":"request","{field}":{number}}}"#);
            let text = format!("field \"{field}\" must be a whole number from 0 to {most}");
            assert_eq!(fault(line.as_bytes()).to_string(), text, "{line}");
        }
        let line = format!(r#"{{"kind":"request","{field}":{most}0}}"#);
        assert!(matches!(fault(line.as_bytes()), LineFault::BadValue { .. }));
    }
    check(
        r#"{"kind":"gap","channel":65535,"lost":18446744073709551615}"#,
        Message::new(Kind::Gap, u16::MAX, &[0xFF; 8]),
    );
}

#[test]
fn texts_are_within_their_bounds() {
    let long = "é".repeat(128);
    let token = "t".repeat(8_193);
    let cases = [
        ("join", "room", &long),
        ("join", "name", &long),
        ("whisper", "to", &long),
        ("hello", "agent", &long),
        ("hello", "token", &token),
        ("request", "method", &long),
        ("publish", "topic", &long),
        ("error", "text", &long),
    ];
    for (kind, field, text) in cases {
        let line = format!(r#"{{"kind":"{kind}","{field}":"{text}"}}"#);
        let field = JsonField::named(field).unwrap();
        assert_eq!(fault(line.as_bytes()), LineFault::BadValue { field });
    }
}

#[test]
fn a_message_that_reads_as_the_same_text_needs_no_memory() {
    let mut scratch = Vec::new();
    let line = br#"{"kind":"request","id":1,"method":"echo","data":"hi"}"#;
    let frame = Message::new(Kind::OneWay, 0, line);
    Json.translate(frame, &mut scratch).unwrap();
    assert_eq!(scratch.capacity(), 0);
}

#[test]
fn replies_about_rooms_have_words() {
    let mut out = Vec::new();
    let joined = JoinedBody {
        member: MemberId(9),
        members: 2,
    };
    let mut roster = Vec::new();
    Roster::push_entry(MemberId(9), "ada", &mut roster).unwrap();
    Roster::push_entry(MemberId(10), "o'neil", &mut roster).unwrap();
    let joined = joined.to_bytes();
    for (request, body) in [(Kind::Join, &joined[..]), (Kind::Request, &roster)] {
        let reply = Message::with_id(Kind::Reply, 3, 5, body);
        Json.encode_room_reply(request, &reply, &mut out).unwrap();
        let malformed = Json.encode_room_reply(
            request,
            &Message {
                payload: b"?",
                ..reply
            },
            &mut out,
        );
        assert_eq!(
            malformed,
            Err(EncodeError::InvalidBody { kind: Kind::Reply })
        );
    }
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            r#"{"kind":"joined","id":5,"channel":3,"member":9,"count":2}"#,
            "{\"kind\":\"members\",\"id\":5,\"channel\":3,\"members\":\
             [{\"member\":9,\"name\":\"ada\"},{\"member\":10,\"name\":\"o'neil\"}]}",
        ]
    );
    check(lines[0], Message::with_id(Kind::Reply, 3, 5, &joined));
    check(lines[1], Message::with_id(Kind::Reply, 3, 5, &roster));
    let field = JsonField::Members;
    for members in [
        "7",
        "[7]",
        r#"[{"member":1}]"#,
        r#"[{"member":1,"name":"a","x":1}]"#,
    ] {
        let line = format!(r#"{{"kind":"members","members":{members}}}"#);
        assert_eq!(
            fault(line.as_bytes()),
            LineFault::BadValue { field },
            "{line}"
        );
    }
}

#[test]
fn a_delivery_tells_its_topic_to_the_log() {
    for topic in ["temp.hall", "a\"b\\", "\u{202e}x"] {
        let mut out = Vec::new();
        let message = Message::new(Kind::Deliver, 3, b"x").with_name(topic);
        Json.encode(&message, &mut out).unwrap();
        let found = Json.delivery_topic(&out);
        assert!(!found.is_empty());
        assert_eq!(found == topic, topic == "temp.hall", "{found}");
    }
    let mut out = Vec::new();
    Json.encode_gap(3, 7, &mut out).unwrap();
    assert_eq!(Json.delivery_topic(&out), "");
}

#[test]
fn a_payload_grows_by_the_promised_factor_at_most() {
    for byte in 0..=255_u8 {
        let payload = vec![byte; FRAME_BYTES_MAX / 16];
        let line = written(&Message::new(Kind::Say, 0, &payload));
        let around = written(&Message::new(Kind::Say, 0, b"")).len() + ",\"data64\":\"\"==".len();
        assert!(line.len() <= payload.len() * Json.format().payload_growth_max + around);
    }
}

#[test]
fn a_members_events_are_told_with_the_members_name() {
    let mut out = Vec::new();
    let presence = Presence {
        channel: 3,
        member: MemberId(10),
        name: "bob",
        event: PresenceEvent::Joined,
    };
    Json.encode_presence(&presence, &mut out).unwrap();
    let chat = ChatMessage {
        channel: 3,
        member: MemberId(9),
        name: "ada",
        private: true,
        payload: b"psst",
    };
    Json.encode_chat_message(&chat, &mut out).unwrap();
    let announced = ChatMessage {
        member: MemberId(0),
        name: "",
        private: false,
        ..chat
    };
    Json.encode_chat_message(&announced, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            r#"{"kind":"presence","channel":3,"event":"joined","member":10,"name":"bob"}"#,
            r#"{"kind":"deliver","channel":3,"member":9,"name":"ada","private":true,"data":"psst"}"#,
            r#"{"kind":"deliver","channel":3,"data":"psst"}"#,
        ]
    );
}

/// A pattern with a space is no pattern and a group. The server refuses it, and the connection stays.
#[test]
fn a_space_in_a_pattern_makes_no_group_of_its_end() {
    for (line, expected) in [
        (r#"{"kind":"subscribe","id":1,"pattern":"a"}"#, None),
        (
            r#"{"kind":"subscribe","id":1,"pattern":"a","group":"b"}"#,
            Some("b"),
        ),
        (r#"{"kind":"subscribe","id":1,"pattern":"a b"}"#, Some("b ")),
        (
            r#"{"kind":"subscribe","id":1,"pattern":"a b","group":"c"}"#,
            Some("b c"),
        ),
    ] {
        let (mut scratch, frame) = (Vec::new(), Message::new(Kind::OneWay, 0, line.as_bytes()));
        let message = Json.translate(frame, &mut scratch).unwrap();
        let body = SubscribeBody::decode(message.payload).unwrap();
        assert_eq!((body.pattern, body.group), ("a", expected), "{line}");
    }
}
