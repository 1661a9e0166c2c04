//! The framing at every vector and edge.

use super::*;
use crate::limits::FRAME_BYTES_MAX;

const LIMIT: usize = FRAME_BYTES_MAX;

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    Srmp.encode(message, &mut out).unwrap();
    out
}

fn decoded(frame: &[u8]) -> Message<'_> {
    match Srmp.decode(frame, LIMIT) {
        Ok(Decoded::Frame { message, consumed }) => {
            assert_eq!(consumed, frame.len());
            message
        }
        other => panic!("not one frame: {other:?}"),
    }
}

#[test]
fn the_vectors_hold_both_ways() {
    let string = PayloadKind::STRING.to_flags();
    let hi = Message {
        flags: string,
        ..Message::with_id(Kind::OneWay, 0, 5, b"hi")
    };
    let cases: [(Message<'_>, &[u8]); 4] = [
        (
            Message::with_id(Kind::Request, 0, 1, b"Open"),
            b"\x01\x01\x04\x00\x4F\x70\x65\x6E",
        ),
        (
            Message::with_id(Kind::Reply, 0, 1, b"OK"),
            b"\x81\x01\x02\x00\x4F\x4B",
        ),
        (hi, b"\x40\x05\x02\x00\x68\x69"),
        (
            Message::with_id(Kind::Error, 0, 1, b"err"),
            b"\xC1\x01\x03\x00\x65\x72\x72",
        ),
    ];
    for (message, frame) in cases {
        assert_eq!(encoded(&message), frame);
        let mut expected = message;
        if message.kind == Kind::OneWay {
            expected.id |= ONE_WAY_SEQUENCE;
        }
        assert_eq!(decoded(frame), expected);
        assert_eq!(encoded(&decoded(frame)), frame);
        for end in 0..frame.len() {
            let cut = Srmp.decode(&frame[..end], LIMIT);
            assert!(matches!(cut, Ok(Decoded::Incomplete { .. })));
        }
    }
}

#[test]
fn a_payload_of_64_kib_has_the_long_header() {
    let payload = vec![7; 65_536];
    let message = Message::with_id(Kind::Request, 0, 7, &payload);
    let frame = encoded(&message);
    assert_eq!(frame[..8], [0x01, 0x07, 0xFF, 0xFF, 0x00, 0x00, 0x01, 0x00]);
    assert_eq!(decoded(&frame), message);
}

#[test]
fn the_short_header_ends_at_65_534() {
    for (payload_bytes, header_bytes) in [(65_534, 4), (65_535, 8), (65_536, 8)] {
        let payload = vec![3; payload_bytes];
        let message = Message::with_id(Kind::Reply, 0, 9, &payload);
        let frame = encoded(&message);
        assert_eq!(frame.len(), header_bytes + payload_bytes);
        assert_eq!(decoded(&frame), message);
    }
}

#[test]
fn a_long_header_before_a_short_payload_is_read() {
    let frame = b"\x01\x01\xFF\xFF\x02\x00\x00\x00hi";
    assert_eq!(decoded(frame), Message::with_id(Kind::Request, 0, 1, b"hi"));
}

#[test]
fn every_kind_of_payload_and_every_sequence_survives() {
    for first in (0..=u8::MAX).filter(|first| first & 0x3F <= 3) {
        for sequence in [0, 1, 127, 255] {
            let frame = [first, sequence, 1, 0, b'x'];
            let message = decoded(&frame);
            assert_eq!(
                PayloadKind::from_flags(message.flags).to_wire(),
                first & 0x3F
            );
            assert_ne!(message.id, 0);
            assert_eq!(encoded(&message), frame);
        }
    }
    assert_eq!(PayloadKind::PACKET.to_flags(), 0);
    assert_eq!(PayloadKind::from_flags(0), PayloadKind::PACKET);
    assert_eq!(PayloadKind::from_flags(3), PayloadKind::PACKET);
}

/// Regression: the decoder waited, because the third and fourth byte announced some thousands of bytes.
#[test]
fn first_bytes_of_other_programs_are_named_at_once() {
    let first_words: [&[u8]; 8] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\n",
        b"HEAD / HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"PING\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x02\x00\x01",
    ];
    for words in first_words {
        for end in 1..words.len() {
            let decoded = Srmp.decode(&words[..end], LIMIT);
            assert_eq!(decoded, Err(DecodeError::MalformedFrame), "{words:?}");
        }
    }
    for number in 0..=u8::MAX {
        assert_eq!(PayloadKind::from_wire(number).is_some(), number <= 3);
    }
}

#[test]
fn no_answer_to_something_else_can_pass_for_one_to_a_request() {
    let mut out = Vec::new();
    // A refused room message has id 0, a refused one-way message the id of its sequence.
    for id in [0, 257, 5 | ONE_WAY_SEQUENCE, u32::MAX] {
        for kind in [Kind::Request, Kind::Reply, Kind::Error] {
            assert_eq!(
                Srmp.encode(&Message::with_id(kind, 0, id, b"x"), &mut out),
                Err(EncodeError::IdOutOfRange { id, limit: 256 })
            );
        }
    }
    assert!(out.is_empty());
}

#[test]
fn a_delivery_is_a_one_way_packet() {
    let private = Message {
        flags: crate::message::FLAG_PRIVATE,
        ..Message::with_id(Kind::Deliver, 3, 9, b"hi")
    };
    assert_eq!(encoded(&private), b"\x41\x00\x02\x00hi");
}

#[test]
fn kinds_without_srmp_frames_are_refused() {
    let mut out = Vec::new();
    for kind in [
        Kind::Cancel,
        Kind::Ping,
        Kind::Say,
        Kind::Join,
        Kind::GoAway,
    ] {
        assert_eq!(
            Srmp.encode(&Message::new(kind, 0, b""), &mut out),
            Err(unsupported("srmp", kind))
        );
    }
    assert_eq!(
        Srmp.encode_gap(1, 2, &mut out),
        Err(unsupported("srmp", Kind::Gap))
    );
    assert!(out.is_empty());
}

#[test]
fn a_length_over_the_limit_is_refused_as_soon_as_it_is_there() {
    let frame = encoded(&Message::with_id(Kind::Request, 0, 1, &[0; 60]));
    assert!(matches!(
        Srmp.decode(&frame, 64),
        Ok(Decoded::Frame { consumed: 64, .. })
    ));
    let too_large = DecodeError::FrameTooLarge {
        bytes: 64,
        limit: 63,
    };
    for end in 4..=frame.len() {
        assert_eq!(Srmp.decode(&frame[..end], 63), Err(too_large));
    }
    // No limit allows more than 2^31-1.
    let beyond = [1, 1, 0xFF, 0xFF, 0, 0, 0, 0x80];
    assert_eq!(
        Srmp.decode(&beyond, usize::MAX),
        Err(DecodeError::FrameTooLarge {
            bytes: (1 << 31) + 8,
            limit: (1 << 31) - 1 + 8,
        })
    );
    for end in 4..8 {
        assert_eq!(
            Srmp.decode(&beyond[..end], LIMIT),
            Ok(Decoded::Incomplete { frame_bytes: 0 })
        );
    }
}

#[test]
fn errors_are_their_text() {
    let request = Message::with_id(Kind::Request, 0, 1, b"Open");
    let mut out = Vec::new();
    let error = ErrorBody {
        code: ErrorCode::NotFound,
        text: "err",
    };
    Srmp.encode_error(&request, &error, &mut out).unwrap();
    assert_eq!(out, b"\xC0\x01\x03\x00err");
    let body = Srmp.decode_error(&decoded(&out)).unwrap();
    assert_eq!((body.code, body.text), (ErrorCode::UNKNOWN, "err"));

    out.clear();
    let silent = ErrorBody {
        code: ErrorCode::NotFound,
        text: "",
    };
    Srmp.encode_error(&request, &silent, &mut out).unwrap();
    assert!(out.ends_with(b"no such room, member or topic"));

    let broken = Message::with_id(Kind::Error, 0, 1, b"\xFF");
    assert_eq!(
        Srmp.decode_error(&broken),
        Err(DecodeError::MalformedPayload { kind: Kind::Error })
    );
}
