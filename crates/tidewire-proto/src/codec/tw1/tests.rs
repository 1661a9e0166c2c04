//! The framing at every kind and edge.

use super::*;
use crate::codec::FrameTemplate;

const LIMIT: usize = 64;

fn error_of(input: &[u8]) -> DecodeError {
    Tw1.decode(input, LIMIT).unwrap_err()
}

#[test]
fn every_kind_has_the_header_its_id_asks_for() {
    for kind in Kind::ALL {
        let message = Message {
            kind,
            flags: 0xA5,
            channel: 0x1234,
            id: if kind.has_id() { 0x89AB_CDEF } else { 0 },
            name: "",
            payload: b"tide",
        };
        let mut out = Vec::new();
        Tw1.encode(&message, &mut out).unwrap();

        let header_bytes = out.len() - message.payload.len();
        assert_eq!(header_bytes == ID_HEADER_BYTES, kind.has_id());
        let consumed = out.len();
        assert_eq!(
            Tw1.decode(&out, LIMIT),
            Ok(Decoded::Frame { message, consumed })
        );
    }
}

#[test]
fn an_unfinished_frame_says_how_long_it_will_be() {
    let mut out = Vec::new();
    Tw1.encode(&Message::with_id(Kind::Request, 1, 2, b"abc"), &mut out)
        .unwrap();
    for end in 0..out.len() {
        let frame_bytes = if end < LENGTH_BYTES { 0 } else { out.len() };
        assert_eq!(
            Tw1.decode(&out[..end], LIMIT),
            Ok(Decoded::Incomplete { frame_bytes })
        );
    }
}

#[test]
fn a_frame_may_fill_the_limit_and_no_more() {
    let message = Message::new(Kind::OneWay, 0, &[0; LIMIT - ONE_WAY_HEADER_BYTES]);
    let mut out = Vec::new();
    Tw1.encode(&message, &mut out).unwrap();
    assert!(Tw1.decode(&out, LIMIT).is_ok());

    let too_large = DecodeError::FrameTooLarge {
        bytes: 64,
        limit: 63,
    };
    for end in LENGTH_BYTES..out.len() {
        assert_eq!(Tw1.decode(&out[..end], LIMIT - 1), Err(too_large));
    }
    let endless = [0xFF; 12];
    let bytes = u64::from(u32::MAX) + 4;
    let limit = LIMIT as u64;
    assert_eq!(
        error_of(&endless),
        DecodeError::FrameTooLarge { bytes, limit }
    );
}

#[test]
fn a_length_below_the_header_is_refused() {
    let with_id = Kind::Request as u8;
    let without = Kind::Say as u8;
    assert_eq!(
        error_of(&[3, 0, 0, 0, without, 0, 0, 0]),
        DecodeError::FrameTooShort { bytes: 7 }
    );
    assert_eq!(
        error_of(&[7, 0, 0, 0, with_id, 0, 0, 0, 1, 0, 0, 0]),
        DecodeError::FrameTooShort { bytes: 11 }
    );
}

#[test]
fn a_name_stands_in_front_of_the_payload() {
    for kind in [Kind::Request, Kind::OneWay, Kind::Publish, Kind::Deliver] {
        let id = if kind.has_id() { 7 } else { 0 };
        let message = Message::with_id(kind, 0, id, b"hi").with_name("echo");
        let mut out = Vec::new();
        Tw1.encode(&message, &mut out).unwrap();
        assert!(out.ends_with(b"\x04echohi"));
        let consumed = out.len();
        assert_eq!(
            Tw1.decode(&out, LIMIT),
            Ok(Decoded::Frame { message, consumed })
        );
    }
    let long = "n".repeat(256);
    let mut out = b"before".to_vec();
    assert_eq!(
        Tw1.encode(
            &Message::new(Kind::OneWay, 0, b"").with_name(&long),
            &mut out
        ),
        Err(EncodeError::TextTooLong {
            bytes: 256,
            limit: 255
        })
    );
    assert_eq!(out, b"before");
}

#[test]
fn a_broken_name_is_malformed_and_the_bit_means_nothing_elsewhere() {
    for payload in [&b""[..], b"\0", b"\x02a", b"\x01\xFF"] {
        let head = [4 + payload.len() as u8, 0, 0, 0, 7, FLAG_NAMED, 0, 0];
        assert_eq!(
            error_of(&[&head, payload].concat()),
            DecodeError::MalformedPayload { kind: Kind::OneWay }
        );
    }
    let say = [5, 0, 0, 0, Kind::Say as u8, FLAG_NAMED, 0, 0, b'x'];
    let message = Message {
        flags: FLAG_NAMED,
        ..Message::new(Kind::Say, 0, b"x")
    };
    assert_eq!(
        Tw1.decode(&say, LIMIT),
        Ok(Decoded::Frame {
            message,
            consumed: 9
        })
    );
    let mut out = Vec::new();
    Tw1.encode(&message, &mut out).unwrap();
    assert_eq!(out, say);
    // The name of the message counts, not its flags.
    out.clear();
    let stray = Message {
        flags: FLAG_NAMED,
        ..Message::new(Kind::OneWay, 0, b"x")
    };
    Tw1.encode(&stray, &mut out).unwrap();
    assert_eq!(out, [5, 0, 0, 0, 7, 0, 0, 0, b'x']);
}

#[test]
fn kinds_outside_the_table_are_refused() {
    for number in (0..=u8::MAX).filter(|number| Kind::from_wire(*number).is_none()) {
        let whole = [4, 0, 0, 0, number, 0, 0, 0];
        for end in LENGTH_BYTES + 1..=whole.len() {
            assert_eq!(error_of(&whole[..end]), DecodeError::UnknownKind(number));
        }
    }
}

#[test]
fn a_failed_body_leaves_the_output_unchanged() {
    let presence = Presence {
        channel: 1,
        member: crate::message::MemberId(1),
        name: &"n".repeat(256),
        event: crate::message::PresenceEvent::Joined,
    };
    let mut out = b"before".to_vec();
    assert!(Tw1.encode_presence(&presence, &mut out).is_err());
    assert_eq!(out, b"before");
}

#[test]
fn a_template_reads_frames_like_its_own() {
    let frame_of = |message: &Message<'_>| {
        let mut frame = Vec::new();
        Tw1.encode(message, &mut frame).unwrap();
        frame
    };
    fn learn(frame: &[u8]) -> Option<FrameTemplate<'_>> {
        let Ok(Decoded::Frame { message, .. }) = Tw1.decode(frame, LIMIT) else {
            panic!("no frame");
        };
        FrameTemplate::expect(&Tw1, frame, &message)
    }
    for kind in [Kind::OneWay, Kind::Request] {
        let message = |id, payload| Message {
            flags: 4,
            id: if kind.has_id() { id } else { 0 },
            ..Message::new(kind, 7, payload)
        };
        let first = frame_of(&message(1, b"once"));
        let template = learn(&first).unwrap();
        let third = message(3, b"more");
        let mut frame = frame_of(&third);
        frame.extend_from_slice(b"rest");
        assert_eq!(template.read(&frame), Some((third, &b"rest"[..])));
        frame.truncate(frame.len() - 4);
        for end in 0..frame.len() {
            assert_eq!(template.read(&frame[..end]), None);
        }
        let others = [
            message(4, b"longer"),
            message(4, b"some").with_name("x"),
            Message::new(kind, 8, b"some"),
        ];
        for other in &others {
            assert_eq!(template.read(&frame_of(other)), None);
        }
        let named = frame_of(&others[1]);
        let template = learn(&named).unwrap();
        for (name, is_read) in [("x", true), ("y", false), ("xx", false), ("", false)] {
            let next = message(5, b"next").with_name(name);
            let frame = frame_of(&next);
            let read = template.read(&frame);
            assert_eq!(read, is_read.then_some((next, &b""[..])), "{name}");
        }
    }
}
