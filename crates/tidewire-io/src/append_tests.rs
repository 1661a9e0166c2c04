//! Tests of appending: what is written, where there is room and where not.

use super::*;

const WORD: u64 = 0x0807_0605_0403_0201;
const NEXT: u32 = 0x0C0B_0A09;

#[test]
fn every_shape_is_appended_whole_until_there_is_no_room() {
    let payload: Vec<u8> = (0..100).collect();
    let head: Vec<u8> = (1..=12).collect();
    for header_bytes in 0..=HEADER_BYTES_MAX {
        for length in 0..payload.len() {
            let payload = &payload[..length];
            let bytes = Vec::with_capacity(3 * (HEADER_BYTES_MAX + length));
            let start = bytes.as_ptr();
            let mut appender = Appender::new(bytes).with_shape(
                Header::new(WORD, header_bytes),
                length,
                usize::MAX,
            );
            let mut expected = Vec::new();
            while expected.len() < 200 && appender.append(NEXT, payload) {
                expected.extend_from_slice(&head[..header_bytes]);
                expected.extend_from_slice(payload);
                if header_bytes + length == 0 {
                    break;
                }
            }
            assert!(!appender.append(NEXT, &[0; 101]), "of another length");
            let bytes = appender.into_bytes();
            assert_eq!(bytes.as_ptr(), start, "the vector did not grow");
            assert!(bytes.len() >= 2 * (header_bytes + length));
            assert_eq!(bytes, expected, "{header_bytes} {length}");
        }
    }
}

#[test]
fn nothing_is_appended_without_a_shape_or_beyond_the_longest() {
    let mut appender = Appender::new(Vec::with_capacity(100));
    assert!(!appender.append(0, b"a"));
    appender = appender.with_shape(Header::new(WORD, 2), 1, 3);
    assert!(appender.append(0, b"a") && appender.append(0, b"b"));
    assert!(!appender.append(0, b"c"), "six bytes are more than three");
    assert!(appender.is_for(1) && !appender.is_for(2) && appender.set_length_max(6));
    assert!(appender.append(0, b"c") && !appender.append(0, b"d"));
    assert!(appender.set_length_max(usize::MAX));
    while appender.append(0, b"d") {}
    assert!(appender.bytes().len() > 100 - HEADER_BYTES_MAX - 1);
    appender.bytes.truncate(6);
    assert_eq!(appender.take_bytes(), b"\x01\x02a\x01\x02b");
    assert!(!appender.set_length_max(9), "nothing is left");
    assert!(!appender.append(0, b"a"), "nothing is left");
    assert_eq!(appender.into_bytes(), b"");
}

#[test]
fn a_header_and_a_payload_need_their_room() {
    let payload: Vec<u8> = (0..60).collect();
    for bytes in 0..=HEADER_BYTES_MAX {
        for length in 0..payload.len() {
            let header = Header::new(WORD, bytes);
            let mut out = Vec::with_capacity(HEADER_BYTES_MAX + length);
            let room = out.capacity();
            let mut expected = Vec::new();
            while out.len() + HEADER_BYTES_MAX + length <= room {
                assert!(header.append(NEXT, &payload[..length], &mut out));
                expected.extend((1..=12_u8).take(bytes).chain(payload[..length].to_vec()));
                if bytes + length == 0 {
                    break;
                }
            }
            if bytes + length > 0 {
                assert!(!header.append(NEXT, &payload[..length], &mut out));
            }
            assert_eq!(
                (&out, out.capacity()),
                (&expected, room),
                "{bytes} {length}"
            );
        }
    }
    assert!(!Header::new(WORD, 0).append(NEXT, &[], &mut Vec::new()));
}

#[test]
fn a_sequence_is_the_lowest_byte_of_what_follows() {
    let header = Header::new(WORD & !0xFF00, 4).with_sequence();
    let mut out = Vec::with_capacity(100);
    for number in [1, 255, 256, 0xABCD_EF00, u32::MAX] {
        let before = out.len();
        assert!(header.append(number, b"hi", &mut out));
        let expected = [1, number as u8, 3, 4, b'h', b'i'];
        assert_eq!(out[before..], expected);
    }
    let long = Header::new(WORD & !0xFF00, 12).with_sequence();
    out.clear();
    assert!(long.append(NEXT, b"", &mut out));
    assert_eq!(out, [1, 9, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
}

#[test]
fn a_small_frame_takes_payloads_of_its_length_while_there_is_room() {
    let payload: Vec<u8> = (0..100).collect();
    for bytes in 0..=HEADER_BYTES_MAX {
        for length in 0..payload.len() {
            let header = Header::new(WORD, bytes);
            let Some(frame) = SmallFrame::new(header, length) else {
                assert!(!(16..=32).contains(&length));
                continue;
            };
            assert!((16..=32).contains(&length));
            let mut out = Vec::with_capacity(200);
            let (room, mut expected) = (out.capacity(), Vec::with_capacity(200));
            while frame.append(NEXT, &payload[..length], &mut out) {
                assert!(header.append(NEXT, &payload[..length], &mut expected));
            }
            assert_eq!((&out, out.capacity()), (&expected, room));
            assert!(room - out.len() < 44, "{bytes} {length}");
            out.clear();
            for other in [length - 1, length + 1] {
                assert!(!frame.append(NEXT, &payload[..other], &mut out));
            }
        }
    }
    for length in 0..payload.len() {
        let payload = &payload[..length];
        assert!(!SmallFrame::NONE.append(NEXT, payload, &mut Vec::with_capacity(200)));
    }
}

#[test]
fn what_stands_around_a_payload_is_appended_with_it() {
    let frame: Vec<u8> = (0..100).collect();
    for (id_at, head, tail) in [(0, 4, 0), (3, 7, 16), (16, 28, 15), (28, 32, 1)] {
        for payload in 0..50 {
            let whole = &frame[..head + payload + tail];
            let around = FrameAround::of(whole, id_at, head, payload).unwrap();
            let mut out = Vec::with_capacity(300);
            let (room, mut expected) = (out.capacity(), Vec::new());
            while around.append(NEXT, &frame[..payload], &mut out) {
                let start = expected.len();
                expected.extend_from_slice(whole);
                expected[start + id_at..][..4].copy_from_slice(&NEXT.to_le_bytes());
                expected[start + head..][..payload].copy_from_slice(&frame[..payload]);
            }
            assert_eq!((&out, out.capacity()), (&expected, room));
            assert!(room - out.len() < 48 + payload, "there was room");
            out.clear();
            assert!(!around.append(NEXT, &frame[..payload + 1], &mut out));
        }
    }
    // A head or a tail that is too long, an id beyond the head, a payload beyond the frame.
    for (id_at, head, payload) in [
        (0, 33, 60),
        (0, 30, 53),
        (1, 4, 90),
        (0, 4, 97),
        (0, 101, 0),
    ] {
        assert_eq!(FrameAround::of(&frame, id_at, head, payload), None);
    }
}

#[test]
#[should_panic(expected = "at most 12 bytes")]
fn a_longer_header_is_refused() {
    let _ = Header::new(0, HEADER_BYTES_MAX + 1);
}
