//! Properties of the codecs for random messages, random cuts and random bytes.

pub mod decoders;

use decoders::{TARGETS, decode_all, websocket_head};
use proptest::collection::vec;
use proptest::prelude::*;
use tidewire_proto::body::{ErrorBody, ErrorCode};
use tidewire_proto::codec::{
    AnyCodec, ChatMessage, Codec, Decoded, Delimited, LengthField, LengthSize, Lines, PayloadKind,
    Presence, Raw, Srmp, SrmpRpc, Tw1, Uvrpc, contract,
};
use tidewire_proto::handshake::{Hello, PROTOCOL_VERSION};
use tidewire_proto::limits::{FRAME_BYTES_MAX, LINE_BYTES_MAX};
use tidewire_proto::message::{FLAG_NAMED, Kind, MemberId, Message, PresenceEvent};

/// A message that owns its payload.
#[derive(Clone, Debug)]
struct Owned {
    kind: Kind,
    flags: u8,
    channel: u16,
    id: u32,
    name: String,
    payload: Vec<u8>,
}

/// A hello with any credentials, a message, or any bytes.
fn any_frame_of_a_client() -> impl Strategy<Value = Vec<u8>> {
    let hello = (vec(any::<u8>(), 0..40), any::<bool>()).prop_map(|(credentials, renews)| {
        let mut frame = Vec::new();
        let hello = Hello {
            version: PROTOCOL_VERSION,
            features: u32::from(renews),
            frame_bytes_max: 4_096,
            credentials: &credentials,
            agent: "any",
        };
        hello.encode_frame(&mut frame).expect("a short hello");
        frame
    });
    let message = any_message().prop_map(|owned| {
        let mut frame = Vec::new();
        // Not every kind can have a name.
        let _ = Tw1.encode(&owned.message(), &mut frame);
        frame
    });
    prop_oneof![4 => hello, 2 => message, 1 => vec(any::<u8>(), 0..16)]
}

/// Appends one item with a codec. Returns whether the codec could.
type Step<'a> = &'a dyn Fn(&mut Vec<u8>) -> bool;

impl Owned {
    fn message(&self) -> Message<'_> {
        Message {
            kind: self.kind,
            flags: self.flags,
            channel: self.channel,
            // A kind without an id does not carry one.
            id: if self.kind.has_id() { self.id } else { 0 },
            name: &self.name,
            payload: &self.payload,
        }
    }
}

fn any_message() -> impl Strategy<Value = Owned> {
    let kind = prop::sample::select(Kind::ALL.to_vec());
    let payload = vec(any::<u8>(), 0..200);
    let name = prop_oneof![Just(String::new()), "[a-zé.]{1,40}"];
    (kind, any::<u8>(), any::<u16>(), any::<u32>(), name, payload).prop_map(
        |(kind, flags, channel, id, name, payload)| Owned {
            kind,
            flags: if kind.has_name() {
                flags & !FLAG_NAMED
            } else {
                flags
            },
            channel,
            id,
            name: if kind.has_name() { name } else { String::new() },
            payload,
        },
    )
}

/// A message of the kinds of SRMP frames, as a receiver sees it.
fn any_srmp_message() -> impl Strategy<Value = Owned> {
    let kind = prop::sample::select(vec![Kind::Request, Kind::Reply]);
    let payload = vec(any::<u8>(), 0..200);
    (kind, any::<u8>(), 1..=256_u32, payload).prop_map(|(kind, flags, id, payload)| Owned {
        kind,
        flags: PayloadKind::from_flags(flags).to_flags(),
        channel: 0,
        id,
        name: String::new(),
        payload,
    })
}

fn any_call() -> impl Strategy<Value = Owned> {
    ("[a-zA-Z0-9/é]{0,300}", any_srmp_message()).prop_map(|(name, call)| Owned { name, ..call })
}

/// A call or its answer in UVRPC: answers have no name.
fn any_uvrpc_message() -> impl Strategy<Value = Owned> {
    (any_call(), any::<u32>()).prop_map(|(call, id)| Owned {
        flags: 0,
        id,
        name: if call.kind == Kind::Request {
            call.name
        } else {
            String::new()
        },
        ..call
    })
}

/// A message with only a payload.
fn any_bare_message() -> impl Strategy<Value = Owned> {
    vec(any::<u8>(), 0..200).prop_map(|payload| Owned {
        kind: Kind::OneWay,
        flags: 0,
        channel: 0,
        id: 0,
        name: String::new(),
        payload,
    })
}

fn any_length_field() -> impl Strategy<Value = LengthField> {
    let numbers = vec![1, 2, -2, 4, -4, 0];
    let size = prop::sample::select(numbers).prop_filter_map("a size", LengthSize::from_number);
    (size, 0..4_u8, vec(any::<u8>(), 0..=16)).prop_map(|(size, offset, header)| {
        let codec = LengthField::new(size).with_offset(offset);
        codec.with_header(&header).expect("a short header")
    })
}

fn any_line() -> impl Strategy<Value = Owned> {
    // The bytes contain many CRs, because a line codec is most likely to lose those.
    let byte = prop_oneof![Just(b'\r'), any::<u8>()].prop_filter("no line end", |b| *b != b'\n');
    vec(byte, 0..80).prop_map(|payload| Owned {
        kind: Kind::OneWay,
        flags: 0,
        channel: 0,
        id: 0,
        name: String::new(),
        payload,
    })
}

fn check_round_trip(codec: &impl Codec, messages: &[Owned], sizes: &[usize]) {
    let messages: Vec<Message<'_>> = messages.iter().map(Owned::message).collect();
    assert_eq!(contract::check_messages(codec, &messages, sizes), Ok(()));
}

/// A message that some codecs can carry, and how often it is sent with another id and payload.
fn any_run() -> impl Strategy<Value = (Owned, usize)> {
    let kind = prop::sample::select(vec![
        Kind::Request,
        Kind::Reply,
        Kind::Error,
        Kind::OneWay,
        Kind::Deliver,
    ]);
    let flags = prop_oneof![Just(0), any::<u8>()];
    let channel = prop_oneof![Just(0), any::<u16>()];
    let id = prop_oneof![1..=256_u32, any::<u32>()];
    let name = prop_oneof![Just(String::new()), "[a-zé]{1,9}"];
    let payload = vec(any::<u8>(), 0..40);
    let message = (kind, flags, channel, id, name, payload).prop_map(
        |(kind, flags, channel, id, name, payload)| Owned {
            kind,
            flags,
            channel,
            id,
            name,
            payload,
        },
    );
    (message, 1..6_usize)
}

/// Returns the frames of these runs, as far as the codec has such frames, one behind the other. Ids count up and wrap.
fn frames_of_runs(codec: &AnyCodec, runs: &[(Owned, usize)]) -> Vec<u8> {
    let mut stream = Vec::new();
    for (message, times) in runs {
        for number in 0..*times {
            let mut next = message.clone();
            next.id = match message.id {
                id @ 1..=256 => (id - 1 + number as u32) % 256 + 1,
                id => id.wrapping_add(number as u32),
            };
            for byte in &mut next.payload {
                *byte = byte.wrapping_add(number as u8);
            }
            // A message that the codec refuses is left out.
            let _ = codec.encode(&next.message(), &mut stream);
        }
    }
    stream
}

/// A FlatBuffer of any layout whose parts may overlap, with its length in front.
fn any_flat_frame() -> impl Strategy<Value = Vec<u8>> {
    let positions = (1..8_usize, 0..24_usize, prop::array::uniform4(0..7_u16));
    // Mostly plausible values of a type, a number, a count and a reference.
    let word = prop_oneof![
        0..4_u32,
        prop::sample::select(vec![4, 8, 12, 20, 40]),
        0..60_u32
    ];
    let frame = (vec(word, 24..32), positions).prop_map(|(mut words, (table, vtable, slots))| {
        words[0] = 4 * table as u32;
        let mut flat: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let back = 4 * (table as i32 - vtable as i32);
        flat[4 * table..][..4].copy_from_slice(&back.to_le_bytes());
        let numbers = [12, 28].into_iter().chain(slots.map(|slot| 4 * slot));
        flat.resize(flat.len().max(4 * vtable + 12), 0);
        for (index, number) in numbers.enumerate() {
            flat[4 * vtable + 2 * index..][..2].copy_from_slice(&number.to_le_bytes());
        }
        let mut frame = (flat.len() as u32).to_be_bytes().to_vec();
        frame.extend(flat);
        frame
    });
    frame.prop_filter("a frame", |frame| {
        let decoded = Uvrpc::new().decode(frame, FRAME_BYTES_MAX);
        matches!(decoded, Ok(Decoded::Frame { .. }))
    })
}

/// Every codec, and their variants with other headers.
const SHAPES: [&str; 15] = [
    "tw1",
    "lines",
    "srmp",
    "srmp-rpc",
    "delimited",
    "uvrpc",
    "uvrpc:legacy_unframed",
    "length-field",
    "length-field:size=1",
    "length-field:size=-4",
    "length-field:size=0",
    "length-field:size=2,offset=2",
    "length-field:size=-4,header=00000001",
    "length-field:size=2,offset=3,header=FFFF",
    "length-field:size=-2,header=0102030405060708",
];

proptest! {
    #[test]
    fn no_order_of_hellos_and_answers_breaks_a_handshake(
        answers in vec(any::<u8>(), 0..8),
        frames in vec(any_frame_of_a_client(), 0..12),
    ) {
        let count = u8::try_from(answers.len()).expect("few answers");
        decoders::handshake(&[vec![count], answers, frames.concat()].concat());
    }

    /// The contract compares the frames read by a template with the frames read by the codec.
    #[test]
    fn frames_like_the_last_frames_are_read_as_any_other(
        runs in vec(any_run(), 0..5),
        wrong in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        missing in 0..40_usize,
        limit in prop_oneof![Just(FRAME_BYTES_MAX), 1..60_usize],
        sizes in vec(1..200_usize, 1..8),
    ) {
        for name in SHAPES {
            let codec = AnyCodec::by_name(name).expect("a known codec");
            let whole = frames_of_runs(&codec, &runs);
            let whole_end = contract::check_stream(&codec, &whole, FRAME_BYTES_MAX, &sizes);
            prop_assert!(matches!(whole_end, Ok((_, Ok(())))), "{}: {:?}", name, whole_end);
            let mut stream = whole.clone();
            for (index, byte) in &wrong {
                if !stream.is_empty() {
                    let at = index.index(stream.len());
                    stream[at] = *byte;
                }
            }
            stream.truncate(stream.len().saturating_sub(missing));
            // The contract ignores empty pieces.
            if stream.is_empty() {
                continue;
            }
            // Without lengths, the end of an invalid frame is wherever its offsets happen to reach.
            let checked = if name == "uvrpc:legacy_unframed" {
                contract::decode_all(&codec, &stream, limit)
            } else {
                contract::check_stream(&codec, &stream, limit, &sizes)
            };
            if let Err(broken) = checked {
                prop_assert!(false, "{}: {}", name, broken);
            }
        }
    }

    /// A frame of unusual layout comes again, the last times with one byte changed.
    #[test]
    fn uvrpc_frames_of_any_layout_keep_their_kind(
        frame in any_flat_frame(),
        changes in vec((any::<prop::sample::Index>(), 0..48_u8), 1..12),
    ) {
        let mut stream = frame.repeat(2);
        for (index, byte) in changes {
            let start = stream.len();
            stream.extend_from_slice(&frame);
            // The length stays, or the next frames would be others.
            stream[start + 4 + index.index(frame.len() - 4)] = byte;
        }
        let checked = contract::check_stream(&Uvrpc::new(), &stream, FRAME_BYTES_MAX, &[usize::MAX]);
        prop_assert!(checked.is_ok(), "{:?}", checked);
    }

    #[test]
    fn tw1_frames_survive_any_cut(
        messages in vec(any_message(), 0..20),
        sizes in vec(1..70_usize, 1..8),
    ) {
        check_round_trip(&Tw1, &messages, &sizes);
        check_round_trip(&AnyCodec::default(), &messages, &sizes);
    }

    #[test]
    fn lines_survive_any_cut(
        messages in vec(any_line(), 0..20),
        sizes in vec(1..70_usize, 1..8),
    ) {
        check_round_trip(&Lines, &messages, &sizes);
    }

    #[test]
    fn srmp_frames_survive_any_cut(
        messages in vec(any_srmp_message(), 0..20),
        sizes in vec(1..70_usize, 1..8),
    ) {
        check_round_trip(&Srmp, &messages, &sizes);
    }

    #[test]
    fn srmp_calls_survive_any_cut(
        messages in vec(any_call(), 0..20),
        sizes in vec(1..70_usize, 1..8),
    ) {
        check_round_trip(&SrmpRpc, &messages, &sizes);
    }

    #[test]
    fn length_fields_of_every_shape_survive_any_cut(
        codec in any_length_field(),
        messages in vec(any_bare_message(), 0..20),
        sizes in vec(1..70_usize, 1..8),
    ) {
        check_round_trip(&codec, &messages, &sizes);
    }

    #[test]
    fn delimited_frames_survive_any_cut(
        delimiter in vec(0..3_u8, 1..4),
        payloads in vec(vec(0..4_u8, 0..40), 0..20),
        sizes in vec(1..20_usize, 1..8),
    ) {
        let codec = Delimited::new().with_delimiter(&delimiter).expect("a short delimiter");
        // A payload with a delimiter is refused, so it cannot be sent.
        let messages: Vec<Owned> = payloads
            .into_iter()
            .map(|payload| Owned {
                kind: Kind::OneWay,
                flags: 0,
                channel: 0,
                id: 0,
                name: String::new(),
                payload,
            })
            .filter(|message| codec.encode(&message.message(), &mut Vec::new()).is_ok())
            .collect();
        check_round_trip(&codec, &messages, &sizes);
    }

    #[test]
    fn uvrpc_frames_survive_any_cut(
        messages in vec(any_uvrpc_message(), 0..20),
        sizes in vec(1..70_usize, 1..8),
    ) {
        check_round_trip(&Uvrpc::new(), &messages, &sizes);
        check_round_trip(&Uvrpc::legacy_unframed(), &messages, &sizes);
        for message in &messages {
            check_round_trip(&Uvrpc::for_datagrams(), std::slice::from_ref(message), &[usize::MAX]);
        }
    }

    #[test]
    fn raw_bytes_come_as_they_went(payloads in vec(vec(any::<u8>(), 1..40), 0..20)) {
        let mut stream = Vec::new();
        for payload in &payloads {
            Raw.encode(&Message::new(Kind::OneWay, 0, payload), &mut stream).expect("encodes");
        }
        prop_assert_eq!(&stream, &payloads.concat());
        decoders::raw(&stream);
    }

    #[test]
    fn every_line_of_an_accepted_handshake_was_seen(
        choice in any::<u8>(),
        pieces in vec(prop_oneof![
            3 => Just(&b"X: a"[..]),
            3 => Just(&b"\r\n"[..]),
            1 => Just(&b"\n"[..]),
            1 => Just(&b"\r"[..]),
            1 => Just(&b"Host: b"[..]),
            1 => Just(&b"Origin: https://evil.example"[..]),
            1 => Just(&b"Origin: https://app.example"[..]),
        ], 0..12),
    ) {
        // A request, behind good lines.
        websocket_head(&[&[choice & !2 | 16][..], &pieces.concat()].concat());
    }

    #[test]
    fn no_bytes_break_a_decoder(bytes in vec(any::<u8>(), 0..600)) {
        for (_, target) in TARGETS {
            target(&bytes);
        }
    }

    /// Random bytes rarely form a header, so these start with a nearly right one.
    #[test]
    fn no_nearly_right_frames_break_the_decoder(
        choice in any::<u8>(),
        heads in vec((0..24_u32, 0..22_u8, any::<[u8; 3]>(), vec(any::<u8>(), 0..24)), 0..12),
    ) {
        let mut bytes = vec![choice];
        for (length, kind, rest, payload) in heads {
            bytes.extend(length.to_le_bytes());
            bytes.push(kind);
            bytes.extend(rest);
            bytes.extend(payload);
        }
        decoders::tw1(&bytes);
    }

    /// Small bytes make plausible length fields and codes.
    #[test]
    fn no_plausible_bodies_break_a_decoder(bytes in vec(0..8_u8, 0..40)) {
        decoders::bodies(&bytes);
        decoders::hello(&bytes);
    }

    #[test]
    fn a_refused_message_leaves_the_output_unchanged(
        message in any_message(),
        name_bytes in 0..400_usize,
        payload_bytes in 0..2 * LINE_BYTES_MAX,
    ) {
        let name = "n".repeat(name_bytes);
        let payload = vec![b'x'; payload_bytes];
        let member = MemberId(1);
        let chat = ChatMessage { channel: 1, member, name: &name, private: true, payload: &payload };
        let presence =
            Presence { channel: 1, member, name: &name, event: PresenceEvent::Left };
        for codec in AnyCodec::NAMES.iter().filter_map(|name| AnyCodec::by_name(name).ok()) {
            let refusal = ErrorBody { code: ErrorCode::NotFound, text: &name };
            let steps: [Step<'_>; 4] = [
                &|out| codec.encode(&message.message(), out).is_ok(),
                &|out| codec.encode_chat_message(&chat, out).is_ok(),
                &|out| codec.encode_presence(&presence, out).is_ok(),
                &|out| codec.encode_error(&message.message(), &refusal, out).is_ok(),
            ];
            for step in steps {
                let mut out = b"before".to_vec();
                let written = step(&mut out);
                prop_assert!(out.starts_with(b"before"));
                prop_assert_eq!(written, out.len() > b"before".len());
                // A codec can read what it writes.
                let (frames, end) = decode_all(&codec, &out[6..], FRAME_BYTES_MAX);
                prop_assert_eq!(end, Ok(()));
                prop_assert_eq!(frames.len(), usize::from(written));
            }
        }
    }
}
