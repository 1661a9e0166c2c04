//! The examples of RFC 6455, section 5.7, every rule that a peer can break, and messages cut anywhere.

use fastrand::Rng;
use proptest::prelude::*;

use super::super::frame::header;
use super::super::{Masks, frame_header};
use super::*;

type Message = (MessageKind, Vec<u8>);

fn frames(side: Side) -> Frames {
    Frames::new(side, 1 << 20)
}

/// Passes bytes on in pieces, as a stack does: unused bytes are offered again.
fn read_pieces(
    frames: &mut Frames,
    network: &[u8],
    mut piece: impl FnMut() -> usize,
) -> Result<Vec<Message>, WebSocketFault> {
    let (mut messages, mut payload) = (Vec::new(), Vec::new());
    let (mut start, mut end) = (0, 0);
    while end < network.len() {
        end = (end + piece().max(1)).min(network.len());
        loop {
            let received = frames.receive(&network[start..end], &mut payload)?;
            start += received.used;
            match received.message {
                Some(kind) => messages.push((kind, std::mem::take(&mut payload))),
                None => break,
            }
        }
    }
    Ok(messages)
}

fn read(side: Side, network: &[u8]) -> Result<Vec<Message>, WebSocketFault> {
    let mut frames = frames(side);
    let whole = read_pieces(&mut frames, network, || network.len());
    let bytewise = read_pieces(&mut self::frames(side), network, || 1);
    assert_eq!(whole, bytewise);
    whole
}

fn text(text: &str) -> Message {
    (MessageKind::Text, text.as_bytes().to_vec())
}

fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first, 0x80 | payload.len() as u8, 1, 2, 3, 4];
    let start = frame.len();
    frame.extend_from_slice(payload);
    Mask::new([1, 2, 3, 4]).apply(&mut frame[start..]);
    frame
}

#[test]
fn the_examples_of_the_rfc_are_read() {
    let hello = b"\x81\x05\x48\x65\x6c\x6c\x6f";
    assert_eq!(read(Side::Client, hello), Ok(vec![text("Hello")]));
    let masked = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    assert_eq!(read(Side::Server, masked), Ok(vec![text("Hello")]));
    let fragments = b"\x01\x03\x48\x65\x6c\x80\x02\x6c\x6f";
    assert_eq!(read(Side::Client, fragments), Ok(vec![text("Hello")]));
    for (length, head) in [
        (256_usize, &b"\x82\x7E\x01\x00"[..]),
        (65_536, b"\x82\x7F\0\0\0\0\0\x01\0\0"),
    ] {
        assert_eq!(
            frame_header(MessageKind::Binary, length, None).bytes(),
            head
        );
        let message = [head, &vec![7; length]].concat();
        let expected = vec![(MessageKind::Binary, vec![7; length])];
        let mut frames = frames(Side::Client);
        assert_eq!(read_pieces(&mut frames, &message, || 1_000), Ok(expected));
    }
}

#[test]
fn a_ping_between_fragments_is_answered_with_its_content() {
    let network = b"\x01\x03Hel\x89\x05Hello\x80\x02lo";
    let mut frames = frames(Side::Client);
    let messages = read_pieces(&mut frames, network, || 3).unwrap();
    assert_eq!(messages, [text("Hello")]);
    let mut pong = Vec::new();
    // The example of the RFC: the same content, masked.
    let mask = Mask::new([0x37, 0xfa, 0x21, 0x3d]);
    frames.append_pongs(|| Some(mask), &mut pong);
    assert_eq!(pong, b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58");
    frames.append_pongs(|| Some(mask), &mut pong);
    assert_eq!(pong.len(), 11, "a ping has one answer");
}

/// A flood of pings costs a bounded number of answers, to the newest.
#[test]
fn of_many_pings_only_the_last_are_answered() {
    let mut frames = frames(Side::Client);
    let flood: Vec<u8> = (0..=255_u8).flat_map(|number| [0x89, 1, number]).collect();
    assert_eq!(read_pieces(&mut frames, &flood, || 1_000), Ok(vec![]));
    let mut pongs = Vec::new();
    frames.append_pongs(|| None, &mut pongs);
    let expected: Vec<u8> = (240..=255_u8)
        .flat_map(|number| [0x8A, 1, number])
        .collect();
    assert_eq!(pongs, expected);
}

#[test]
fn broken_rules_are_named() {
    use WebSocketFault as Fault;
    let long_text = [&[0x81, 126, 0x04, 0x01][..], &[b'a'; 1_025]].concat();
    for (side, bytes, fault) in [
        (Side::Server, &b"\x82\x01a"[..], Fault::Unmasked),
        (Side::Client, &masked(0x82, b"a"), Fault::Masked),
        (Side::Client, b"\xC2\x00", Fault::ReservedBits),
        (Side::Client, b"\x8B\x00", Fault::ReservedOpcode),
        (Side::Client, b"\x89\x7E\x00\x7E", Fault::ControlTooLong),
        (Side::Client, b"\x09\x00", Fault::ControlFragmented),
        (
            Side::Client,
            b"\x82\x7F\x80\0\0\0\0\0\0\0",
            Fault::BadLength,
        ),
        (Side::Client, b"\x80\x00", Fault::UnexpectedFragment),
        (Side::Client, b"\x02\x00\x82\x00", Fault::UnfinishedMessage),
        (Side::Client, b"\x88\x01\x03", Fault::BadClose),
        (Side::Client, b"\x88\x02\x03\xED", Fault::BadClose),
        (Side::Client, b"\x88\x03\x03\xE8\xFF", Fault::BadText),
        (Side::Client, b"\x81\x01\xFF", Fault::BadText),
        (Side::Client, b"\x81\x02\xE6\xB0", Fault::BadText),
        // A surrogate that is split across fragments.
        (
            Side::Client,
            b"\x01\x01\xED\x80\x02\xA0\x80",
            Fault::BadText,
        ),
        (Side::Client, &long_text, Fault::MessageTooLong),
    ] {
        let mut frames = Frames::new(side, 1_024);
        let outcome = read_pieces(&mut frames, bytes, || 1);
        assert_eq!(outcome, Err(fault), "{bytes:x?}");
    }
}

#[test]
fn the_limit_of_a_message_counts_all_its_fragments_and_no_memory_is_kept_for_it() {
    let mut frames = Frames::new(Side::Client, 10);
    let mut payload = Vec::new();
    let first = frames.receive(b"\x02\x06abcdef", &mut payload).unwrap();
    assert_eq!((first.used, payload.capacity() < 64), (8, true));
    let second = frames.receive(b"\x80\x05", &mut payload);
    assert_eq!(second, Err(WebSocketFault::MessageTooLong));
    // A length near 2^63 is refused at once, and adds up without an overflow.
    let mut frames = Frames::new(Side::Client, u64::MAX);
    let huge = b"\x02\x7F\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFFabc";
    assert_eq!(frames.receive(huge, &mut payload).unwrap().used, huge.len());
}

#[test]
fn codes_of_close_frames_are_checked() {
    for (code, is_valid) in [
        (0, false),
        (999, false),
        (1000, true),
        (1003, true),
        (1004, false),
        (1005, false),
        (1006, false),
        (1007, true),
        (1014, true),
        (1015, false),
        (2999, false),
        (3000, true),
        (4999, true),
        (5000, false),
        (65_535, false),
    ] {
        let mut frames = frames(Side::Client);
        let [high, low] = u16::to_be_bytes(code);
        let outcome = frames.receive(&[0x88, 2, high, low], &mut Vec::new());
        assert_eq!(outcome.is_ok(), is_valid, "{code}");
        assert_eq!(frames.close_code(), is_valid.then_some(code));
    }
    let mut frames = frames(Side::Client);
    let behind = frames
        .receive(b"\x88\x00\x82\x01a", &mut Vec::new())
        .unwrap();
    assert_eq!((behind.used, frames.close_code()), (2, Some(NO_CODE)));
}

/// Writes a message in fragments of random length, with pings between them.
fn write(message: &Message, masks: &mut Option<Masks>, random: &mut Rng, out: &mut Vec<u8>) {
    let (kind, payload) = message;
    let mut rest = &payload[..];
    let mut opcode = match kind {
        MessageKind::Text => Opcode::Text,
        MessageKind::Binary => Opcode::Binary,
    };
    loop {
        if random.u8(..4) == 0 {
            let mask = masks.as_mut().map(Masks::next_mask);
            append_control(Opcode::Ping, b"ping", mask, out);
        }
        let (part, behind) = rest.split_at(random.usize(..=rest.len()));
        let is_final = behind.is_empty() && random.bool();
        let mask = masks.as_mut().map(Masks::next_mask);
        out.extend_from_slice(header(opcode, is_final, part.len(), mask).bytes());
        let start = out.len();
        out.extend_from_slice(part);
        if let Some(mut mask) = mask {
            mask.apply(&mut out[start..]);
        }
        if is_final {
            return;
        }
        (rest, opcode) = (behind, Opcode::Continuation);
    }
}

proptest! {
    #[test]
    fn any_cuts_give_the_same_messages(
        texts in prop::collection::vec("\\PC{0,40}", 0..5),
        binaries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..5),
        seed in any::<u64>(),
        is_server in any::<bool>(),
    ) {
        let mut random = Rng::with_seed(seed);
        let side = if is_server { Side::Server } else { Side::Client };
        let mut masks = is_server.then(|| Masks::new([seed, 1]));
        let texts = texts.iter().map(|it| text(it));
        let binaries = binaries.into_iter().map(|bytes| (MessageKind::Binary, bytes));
        let mut messages: Vec<Message> = texts.chain(binaries).collect();
        random.shuffle(&mut messages);
        let mut network = Vec::new();
        for message in &messages {
            write(message, &mut masks, &mut random, &mut network);
        }
        let read = read_pieces(&mut frames(side), &network, || random.usize(1..20));
        prop_assert_eq!(read, Ok(messages));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), is_server in any::<bool>()) {
        let side = if is_server { Side::Server } else { Side::Client };
        let whole = read_pieces(&mut frames(side), &bytes, || 1_000).map_err(drop);
        let pieces = read_pieces(&mut frames(side), &bytes, || 1).map_err(drop);
        prop_assert_eq!(whole, pieces);
    }
}

#[test]
fn headers_come_back_as_they_were_written_and_only_whole() {
    for length in [0, 1, 125, 126, 127, 65_535, 65_536, 1 << 40] {
        for mask in [None, Some(Mask::new([1, 2, 3, 4]))] {
            let written = frame_header(MessageKind::Binary, length, mask);
            let bytes = written.bytes();
            let (header, count) = FrameHeader::read(bytes).unwrap().unwrap();
            assert_eq!(count, bytes.len());
            assert_eq!(header.payload_bytes, length as u64);
            assert_eq!(
                (header.mask, header.is_final, header.opcode),
                (mask, true, Opcode::Binary)
            );
            for cut in 0..bytes.len() {
                assert_eq!(FrameHeader::read(&bytes[..cut]), Ok(None));
            }
        }
    }
}

#[test]
fn bad_headers_are_named() {
    use WebSocketFault::{
        BadLength, ControlFragmented, ControlTooLong, ReservedBits, ReservedOpcode,
    };
    for (bytes, fault) in [
        (&[0xC1][..], ReservedBits),
        (&[0x91], ReservedBits),
        (&[0x83], ReservedOpcode),
        (&[0x8F], ReservedOpcode),
        (&[0x09], ControlFragmented),
        (&[0x89, 126], ControlTooLong),
        (&[0x82, 126, 0, 125], BadLength),
        (&[0x82, 127, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF], BadLength),
        (&[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0], BadLength),
    ] {
        assert_eq!(FrameHeader::read(bytes), Err(fault), "{bytes:x?}");
    }
}
