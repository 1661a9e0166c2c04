//! Tests of appending: the bytes that are written, with and without room.

use super::*;

const ID: u32 = 0xFEFD_FCFB;
const KEY: u32 = 5;

/// The ranges of id and payload in a frame, and the frame's length.
type Layout = (Range<usize>, Range<usize>, usize);

/// Frames of every form, with payloads of every length up to 60.
fn layouts() -> Vec<Layout> {
    let ends = [
        (0..0, 0, 0),
        (0..0, 1, 0),
        (0..0, 8, 0),
        (0..4, 4, 0),
        (1..2, 4, 0),
        (7..8, 8, 0),
        (4..8, 8, 0),
        (8..12, 12, 0),
        (0..0, 9, 0),
        (0..0, 32, 16),
        (0..0, 3, 1),
        (0..4, 4, 2),
        (3..7, 7, 16),
        (8..12, 12, 1),
        (8..12, 13, 0),
        (16..20, 28, 15),
        (28..32, 32, 1),
        (31..32, 32, 16),
        (2..3, 3, 1),
    ];
    let layouts = ends.into_iter().flat_map(|(id, start, tail)| {
        (0..60).map(move |length| (id.clone(), start..start + length, start + length + tail))
    });
    layouts.collect()
}

fn frame_with((id_at, payload_at, count): &Layout, id: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame: Vec<u8> = (100..).take(*count).collect();
    frame[id_at.clone()].copy_from_slice(&id.to_le_bytes()[..id_at.len()]);
    frame[payload_at.clone()].copy_from_slice(payload);
    frame
}

/// Learns the pattern of such frames from another frame.
fn pattern_of(layout: &Layout) -> FramePattern {
    let (id, payload, _) = layout;
    let frame = frame_with(layout, 77, &vec![0xEE; payload.len()]);
    FramePattern::of(&frame, id, ID & !0xFF, payload).unwrap()
}

fn appender_of(pattern: &FramePattern, payload_bytes: usize, room: usize) -> Appender {
    let mut appender = Appender::new(Vec::new());
    appender.set_pattern(Some(pattern), KEY, payload_bytes);
    appender.resume(Vec::with_capacity(room), ID, usize::MAX);
    appender
}

#[test]
fn every_form_of_frame_is_appended_whole_until_there_is_no_room() {
    let payload: Vec<u8> = (0..60).collect();
    for layout in layouts() {
        let payload = &payload[..layout.1.len()];
        let frame = frame_with(&layout, ID, payload);
        let pattern = pattern_of(&layout);
        let is_short = pattern.short_payload_bytes == payload.len();
        let is_small = is_short && (16..=32).contains(&payload.len());
        let mut out = Vec::with_capacity(300);
        let room = out.capacity();
        let mut appender = appender_of(&pattern, payload.len(), 300);
        let (mut small, mut expected) = (Vec::with_capacity(400), Vec::new());
        while pattern.append(ID, payload, &mut out) {
            expected.extend_from_slice(&frame);
            assert_eq!(appender.append(KEY, ID, payload), is_short, "{layout:?}");
            assert_eq!(pattern.append_small(ID, payload, &mut small), is_small);
            assert!(!is_small || small == out);
            assert!(out == expected && (!is_short || appender.bytes() == expected));
            if frame.is_empty() {
                break;
            }
        }
        assert_eq!(out.capacity(), room, "the vector did not grow");
        assert!(frame.is_empty() || room - out.len() < 48 + payload.len());
        assert!(frame.is_empty() || !appender.append(KEY, ID, payload));
        out.clear();
        for wrong in [payload.len() + 1, payload.len().wrapping_sub(1)] {
            let Some(wrong) = frame.get(..wrong) else {
                continue;
            };
            assert!(!pattern.append(ID, wrong, &mut out));
            assert!(!pattern.append_small(ID, wrong, &mut out));
        }
    }
}

#[test]
fn an_id_of_one_byte_is_one_of_256() {
    let frame = [9; 20];
    for payload in [4..20, 10..20] {
        let pattern = FramePattern::of(&frame, &(1..2), 1, &payload).unwrap();
        let payload = &frame[payload];
        for (id, byte) in [
            (1, Some(1)),
            (255, Some(255)),
            (256, Some(0)),
            (0, None),
            (257, None),
        ] {
            let mut out = Vec::with_capacity(100);
            let is_appended = pattern.append(id, payload, &mut out);
            assert_eq!(is_appended.then(|| out[1]), byte, "{id}");
            let mut appender = appender_of(&pattern, payload.len(), 100);
            assert!(!appender.append(KEY, id, payload), "not the last id");
            if is_appended && payload.len() == 16 {
                let bytes = appender.take_bytes();
                appender.resume(bytes, id, usize::MAX);
                assert!(appender.append(KEY, id, payload));
                assert_eq!(appender.bytes(), out);
            }
        }
    }
}

#[test]
fn nothing_is_appended_without_a_pattern_or_beyond_the_longest() {
    let mut appender = Appender::new(Vec::with_capacity(100));
    assert!(!appender.append(0, 0, b"a") && !appender.set_length_max(9));
    let pattern = FramePattern::of(b"\x01\x02x", &(0..0), 0, &(2..3)).unwrap();
    appender.set_pattern(Some(&pattern), KEY, 1);
    assert!(!appender.append(KEY, 0, b"a"), "no bytes were given");
    let bytes = appender.take_bytes();
    appender.resume(bytes, 0, 3);
    assert!(appender.append(KEY, 0, b"a") && appender.append(KEY, 0, b"b"));
    assert!(
        !appender.append(KEY, 0, b"c"),
        "six bytes are more than three"
    );
    assert!(appender.is_for(KEY, 1) && !appender.is_for(KEY, 2) && !appender.is_for(0, 1));
    assert!(appender.set_length_max(6));
    assert!(appender.append(KEY, 0, b"c") && !appender.append(KEY, 0, b"d"));
    assert!(!appender.append(KEY + 1, 0, b"c"), "another key");
    assert!(appender.set_length_max(usize::MAX));
    while appender.append(KEY, 0, b"d") {}
    assert!(appender.bytes().len() > 100 - HEADER_BYTES_MAX - 1);
    assert!(appender.take_bytes().starts_with(b"\x01\x02a\x01\x02b"));
    assert!(!appender.set_length_max(9), "nothing is left");
    assert!(!appender.append(KEY, 0, b"a"), "nothing is left");
    appender.resume(Vec::with_capacity(100), 0, 100);
    assert!(appender.append(KEY, 0, b"a"));
    assert_eq!(appender.take().take_bytes(), b"\x01\x02a");
    assert!(!appender.append(KEY, 0, b"a") && !appender.is_for(KEY, 1));
    appender.set_pattern(None, KEY, 1);
    appender.resume(Vec::with_capacity(100), 0, 100);
    assert!(
        appender.is_for(KEY, 1) && !appender.append(KEY, 0, b"a"),
        "there is no pattern"
    );

    let none = FramePattern::NONE;
    for length in 0..60 {
        let (payload, mut out) = (vec![0; length], Vec::with_capacity(200));
        assert!(!none.append(0, &payload, &mut out) && !none.append_small(0, &payload, &mut out));
    }
    let mut crowded = appender_of(&pattern, 1, 10);
    assert!(!crowded.append(KEY, ID, b"a"), "there is no room for any");
}

/// `FramePattern::of` refuses wrong ranges.
#[test]
fn ranges_outside_the_frame_are_refused() {
    let frame: Vec<u8> = (0..100).collect();
    #[expect(clippy::reversed_empty_ranges, reason = "what a caller may say")]
    let wrong = [
        // The head or the tail is too long.
        (0..4, 33..93),
        (0..4, 30..83),
        // The id lies beyond the head, or has another length.
        (1..5, 4..94),
        (4..5, 4..94),
        (0..2, 4..94),
        (0..5, 8..94),
        (3..1, 4..94),
        (usize::MAX - 1..usize::MAX, 4..94),
        // The payload lies beyond the frame.
        (0..4, 4..101),
        (0..0, 101..101),
        (0..0, usize::MAX..usize::MAX),
    ];
    for (id, payload) in wrong {
        assert_eq!(
            FramePattern::of(&frame, &id, 0, &payload),
            None,
            "{id:?} {payload:?}"
        );
    }
}
