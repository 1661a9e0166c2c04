//! Tests of the log.

use super::*;

fn append(log: &mut RoomLog, frame: &[u8]) {
    log.append_with::<()>(frame.len(), |out| {
        out.extend_from_slice(frame);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_failed_encode_leaves_the_log_unchanged() {
    let mut log = RoomLog::new();
    append(&mut log, b"one");
    let result = log.append_with(3, |out| {
        out.extend_from_slice(b"hal");
        Err("no")
    });
    assert_eq!(result, Err("no"));
    assert_eq!((log.head_position(), log.head_message()), (3, 1));
}

#[test]
fn segments_are_recycled_when_the_last_cursor_leaves_them() {
    let mut log = RoomLog::new();
    let slow = log.attach();
    let mut fast = log.attach();
    let frame = vec![7; 1000];
    for _ in 0..1000 {
        append(&mut log, &frame);
        let (position, message) = (log.head_position(), log.head_message());
        log.seek(&mut fast, position, message);
    }
    let held = log.segments.len();
    assert!(
        held > 10,
        "the slow cursor holds everything, {held} segments"
    );
    log.detach(slow);
    assert_eq!(log.segments.len(), 1);
    assert!(log.held_bytes() <= (SPARE_SEGMENTS_MAX + 1) * 2 * SEGMENT_BYTES);
    log.release_spare();
    assert!(log.held_bytes() <= 2 * SEGMENT_BYTES);
    log.detach(fast);
}

/// Regression: a log held a buffer as large as its last message until the next message, although all subscribers had
/// read it.
#[test]
fn a_log_that_all_have_read_frees_its_buffers_and_positions_continue() {
    let mut log = RoomLog::new();
    let (mut slow, mut fast) = (log.attach(), log.attach());
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..200_usize {
        let before = log.head_position();
        let frame = vec![round as u8; random.usize(1..3 * SEGMENT_BYTES)];
        append(&mut log, &frame);
        let (position, message) = (log.head_position(), log.head_message());
        log.seek(&mut fast, position, message);
        assert!(!log.release_drained(1), "the slow one needs it");
        assert_eq!(log.contiguous(&slow, before, position), frame);
        log.seek(&mut slow, position, message);
        assert!(log.held_bytes() >= frame.len());
        assert!(log.release_drained(2));
        assert_eq!(log.held_bytes(), 0);
        assert!(log.must_grow_for(1));
    }
    log.detach(slow);
    log.detach(fast);
    assert!(log.release_drained(0));
}

#[test]
fn held_memory_is_the_capacity_of_all_segments() {
    let mut log = RoomLog::new();
    let mut random = 7_u32;
    let (mut slow, mut cursors) = (log.attach(), Vec::new());
    for step in 0..4_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let before = log.held_bytes();
        let bytes = (random >> 16) as usize % 2_000;
        let must_grow = log.must_grow_for(bytes);
        append(&mut log, &vec![1; bytes]);
        assert!(must_grow || log.held_bytes() <= before, "step {step}");
        match random >> 28 {
            0 => cursors.push(log.attach()),
            1 => cursors.drain(..).for_each(|cursor| log.detach(cursor)),
            2 if step % 9 == 0 => {
                let (position, message) = (log.head_position(), log.head_message());
                log.seek(&mut slow, position, message);
            }
            3 if step % 5 == 0 => log.release_spare(),
            _ => {}
        }
        let segments = log.segments.iter().chain(&log.spare);
        let held: usize = segments.map(Segment::held_bytes).sum();
        assert_eq!(log.held_bytes(), held, "step {step}");
    }
    log.detach(slow);
}

#[test]
fn boundaries_and_positions_agree_across_segments() {
    let mut log = RoomLog::new();
    let cursor = log.attach();
    let mut starts = Vec::new();
    for number in 0..5000_usize {
        starts.push(log.head_position());
        append(&mut log, &vec![1; 1 + number % 97]);
    }
    for (message, start) in starts.iter().enumerate() {
        assert_eq!(log.position_of(&cursor, message as u64), *start);
        assert_eq!(log.boundary_from(&cursor, *start), (*start, message as u64));
        let next = starts
            .get(message + 1)
            .copied()
            .unwrap_or(log.head_position());
        assert_eq!(
            log.boundary_from(&cursor, start + 1),
            (next, message as u64 + 1)
        );
    }
    log.detach(cursor);
}

#[test]
fn a_frame_larger_than_a_segment_has_a_segment_of_its_own() {
    let mut log = RoomLog::new();
    let cursor = log.attach();
    append(&mut log, b"small");
    append(&mut log, &vec![9; 3 * SEGMENT_BYTES]);
    append(&mut log, b"small");
    assert_eq!(log.segments.len(), 3);
    assert_eq!(
        log.contiguous(&cursor, 5, log.head_position()).len(),
        3 * SEGMENT_BYTES
    );
    log.detach(cursor);
}

#[test]
fn pieces_are_whole_frames_within_their_limit() {
    let mut log = RoomLog::new();
    let cursor = log.attach();
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let mut random = fastrand::Rng::with_seed(5);
    for number in 0..5_000_u32 {
        let frame = vec![number as u8; random.usize(1..300)];
        append(&mut log, &frame);
        frames.push(frame);
    }
    let end = log.head_position();
    for bytes_max in [0, 1, 299, 300, 1_400, SEGMENT_BYTES, usize::MAX] {
        let (mut position, mut rest) = (cursor.position(), frames.iter());
        while position < end {
            let piece = log.frames_from(&cursor, position, end, bytes_max);
            position += piece.len() as u64;
            let (mut behind, mut count) = (piece, 0);
            while !behind.is_empty() {
                let frame = rest.next().unwrap();
                behind = behind.strip_prefix(&frame[..]).unwrap();
                count += 1;
            }
            assert!(count == 1 || piece.len() <= bytes_max, "{bytes_max}");
        }
        assert!(rest.next().is_none(), "{bytes_max}");
    }
    log.detach(cursor);
}
