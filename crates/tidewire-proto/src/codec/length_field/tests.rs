//! The framing at every size, vector and edge.

use super::*;
use crate::limits::FRAME_BYTES_MAX;

const LIMIT: usize = FRAME_BYTES_MAX;

fn encoded(codec: LengthField, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    codec
        .encode(&Message::new(Kind::OneWay, 0, payload), &mut out)
        .unwrap();
    out
}

fn payload_of(codec: LengthField, input: &[u8]) -> (&[u8], usize) {
    match codec.decode(input, LIMIT) {
        Ok(Decoded::Frame { message, consumed }) => {
            assert_eq!((message.kind, message.id), (Kind::OneWay, 0));
            (message.payload, consumed)
        }
        other => panic!("no frame: {other:?}"),
    }
}

fn sized(number: i32) -> LengthField {
    LengthField::new(LengthSize::from_number(number).unwrap())
}

#[test]
fn the_vectors_of_every_size_hold_both_ways() {
    let netbox = sized(-4).with_header(&[0, 0, 0, 1]).unwrap();
    let cases: [(LengthField, &[u8], &[u8]); 11] = [
        (sized(1), b"hello", b"\x05hello"),
        (sized(-1), b"hello", b"\x05hello"),
        (sized(2), b"hello", b"\x05\0hello"),
        (LengthField::default(), b"hello", b"\x05\0hello"),
        (sized(-2), b"hello", b"\0\x05hello"),
        (sized(4), b"hello", b"\x05\0\0\0hello"),
        (sized(-4), b"hello", b"\0\0\0\x05hello"),
        (sized(0), b"hello", b"\x05hello"),
        (sized(2).with_offset(2), b"hello", b"\0\0\x05\0hello"),
        (netbox, b"hi", b"\0\0\0\x01\0\0\0\x02hi"),
        (netbox.with_offset(1), b"hi", b"\0\0\0\x01\0\0\0\0\x02hi"),
    ];
    for (codec, payload, frame) in cases {
        assert_eq!(encoded(codec, payload), frame, "{codec:?}");
        assert_eq!(payload_of(codec, frame), (payload, frame.len()));
        for end in 0..frame.len() {
            let cut = codec.decode(&frame[..end], LIMIT);
            assert!(matches!(cut, Ok(Decoded::Incomplete { .. })), "{codec:?}");
        }
        let more = [frame, b"more"].concat();
        assert_eq!(payload_of(codec, &more), (payload, frame.len()));
    }
}

#[test]
fn a_length_of_300_is_ac_02_as_a_varint() {
    let payload = [7; 300];
    let frame = encoded(sized(0), &payload);
    assert_eq!(frame[..2], [0xAC, 0x02]);
    assert_eq!(payload_of(sized(0), &frame), (&payload[..], 302));
}

#[test]
fn varints_use_as_few_bytes_as_they_need_and_any_width_is_read() {
    let cases: [(u32, &[u8]); 7] = [
        (0, &[0]),
        (127, &[0x7F]),
        (128, &[0x80, 0x01]),
        (16_383, &[0xFF, 0x7F]),
        (16_384, &[0x80, 0x80, 0x01]),
        (i32::MAX as u32, &[0xFF, 0xFF, 0xFF, 0xFF, 0x07]),
        (u32::MAX, &[0xFF, 0xFF, 0xFF, 0xFF, 0x0F]),
    ];
    for (value, bytes) in cases {
        let mut out = Vec::new();
        push_varint(value, &mut out);
        assert_eq!(out, bytes);
        assert_eq!(
            read_varint(bytes),
            Some(Some((u64::from(value), bytes.len())))
        );
        assert_eq!(read_varint(&bytes[..bytes.len() - 1]), Some(None));
    }
    // A writer that reserves a fixed width pads with empty groups.
    assert_eq!(payload_of(sized(0), b"\x82\x80\0hi"), (&b"hi"[..], 5));
}

#[test]
fn a_varint_without_end_is_malformed_at_its_fifth_byte() {
    let endless = [0xFF; 8];
    for end in 0..5 {
        assert_eq!(
            sized(0).decode(&endless[..end], LIMIT),
            Ok(Decoded::Incomplete { frame_bytes: 0 })
        );
    }
    for end in 5..8 {
        assert_eq!(
            sized(0).decode(&endless[..end], LIMIT),
            Err(DecodeError::MalformedFrame)
        );
    }
    assert_eq!(read_varint(&[0x80, 0x80, 0x80, 0x80, 0x10]), None);
}

#[test]
fn a_payload_that_does_not_fit_the_field_is_an_error_of_the_sender() {
    for (number, limit) in [(1, 255), (2, 65_535), (-2, 65_535)] {
        let fits = vec![1; limit];
        let frame = encoded(sized(number), &fits);
        assert_eq!(payload_of(sized(number), &frame).0, fits);
        let over = vec![1; limit + 1];
        let mut out = b"before".to_vec();
        assert_eq!(
            sized(number).encode(&Message::new(Kind::OneWay, 0, &over), &mut out),
            Err(EncodeError::PayloadTooLarge {
                bytes: limit as u64 + 1,
                limit: limit as u64
            })
        );
        assert_eq!(out, b"before");
    }
}

#[test]
fn a_frame_over_the_limit_is_refused_as_soon_as_its_length_is_there() {
    // The limit counts the whole frame: 4 bytes in front of 60 are 64.
    let frame = encoded(sized(4), &[0; 60]);
    assert!(matches!(
        sized(4).decode(&frame, 64),
        Ok(Decoded::Frame { consumed: 64, .. })
    ));
    let too_large = DecodeError::FrameTooLarge {
        bytes: 64,
        limit: 63,
    };
    for end in 4..=frame.len() {
        assert_eq!(sized(4).decode(&frame[..end], 63), Err(too_large));
    }
    assert_eq!(
        sized(-4).decode(&[0xFF; 4], LIMIT),
        Err(DecodeError::FrameTooLarge {
            bytes: u64::from(u32::MAX) + 4,
            limit: LIMIT as u64
        })
    );
}

#[test]
fn another_header_is_refused_at_its_first_wrong_byte() {
    let codec = sized(-4).with_header(&[0, 0, 0, 1]).unwrap();
    let frame = [0, 0, 0, 2, 0, 0, 0, 0];
    for end in 0..4 {
        assert_eq!(
            codec.decode(&frame[..end], LIMIT),
            Ok(Decoded::Incomplete { frame_bytes: 0 })
        );
    }
    for end in 4..=frame.len() {
        assert_eq!(
            codec.decode(&frame[..end], LIMIT),
            Err(DecodeError::HeaderMismatch { at: 3 })
        );
    }
    assert!(sized(1).with_header(&[0; 17]).is_err());
}

#[test]
fn the_bytes_of_the_offset_may_be_anything() {
    let codec = sized(1).with_offset(2);
    assert_eq!(payload_of(codec, b"ab\x02hi"), (&b"hi"[..], 5));
}

#[test]
fn unknown_sizes_and_kinds_are_refused() {
    for number in [3, -3, 8, 5, i32::MIN] {
        assert_eq!(LengthSize::from_number(number), None);
    }
    let mut out = Vec::new();
    for kind in [Kind::Error, Kind::Ping, Kind::Join, Kind::Cancel] {
        assert_eq!(
            sized(2).encode(&Message::new(kind, 0, b"x"), &mut out),
            Err(unsupported("length-field", kind))
        );
    }
    assert!(out.is_empty());
}
