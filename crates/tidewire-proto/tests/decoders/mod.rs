//! What must hold of every decoder for any bytes at all.
//!
//! One function per fuzz target. The targets in `fuzz/` call them with what the fuzzer invents, the corpus
//! replay with what was found before, and the property tests with random bytes, so that all three check the
//! same promises: no panic, no frame of zero bytes or beyond the input, the same frames however the bytes
//! are cut, and what was decoded encodes to the bytes it came from.

mod foreign;

pub use foreign::{delimited, length_field, raw, srmp, srmp_rpc, uvrpc};

use tidewire_proto::body::{
    ErrorBody, GapBody, GoAwayBody, JoinBody, JoinedBody, PresenceBody, RoomCall, Roster,
    SubscribeBody, displayed_name, name_skeleton, validate_name,
};
use tidewire_proto::codec::contract::{self, Found};
use tidewire_proto::codec::{Codec, Decoded, Lines, Tw1};
use tidewire_proto::error::{DecodeError, EncodeError};
use tidewire_proto::handshake::{
    HandshakeError, Hello, PROTOCOL_VERSION, Welcome, classify_garbage,
};
use tidewire_proto::limits::{FRAME_BYTES_MAX, HELLO_BYTES_MAX, LINE_BYTES_MAX};
use tidewire_proto::text::is_hazardous;

/// A decoder's promises, checked on these bytes.
pub type Target = fn(&[u8]);

/// Every target with the name of its corpus under `fuzz/corpus`.
pub const TARGETS: [(&str, Target); 10] = [
    ("tw1", tw1),
    ("lines", lines),
    ("hello", hello),
    ("bodies", bodies),
    ("srmp", srmp),
    ("srmp_rpc", srmp_rpc),
    ("length_field", length_field),
    ("delimited", delimited),
    ("raw", raw),
    ("uvrpc", uvrpc),
];

/// TW1 frames.
pub fn tw1(bytes: &[u8]) {
    // The first byte chooses the limit and the cut, so that the fuzzer can reach every edge of both.
    let Some((choice, stream)) = bytes.split_first() else {
        return;
    };
    let limit = if choice & 1 == 0 {
        FRAME_BYTES_MAX
    } else {
        usize::from(*choice)
    };
    let frames = check_stream(&Tw1, stream, limit, usize::from(choice >> 4) + 1);
    for (message, frame) in frames {
        let mut again = Vec::new();
        Tw1.encode(&message, &mut again)
            .expect("a decoded frame can be encoded");
        assert_eq!(again, frame, "a frame has one spelling");
    }
}

/// Lines.
pub fn lines(bytes: &[u8]) {
    let Some((choice, stream)) = bytes.split_first() else {
        return;
    };
    let limit = if choice & 1 == 0 {
        LINE_BYTES_MAX
    } else {
        usize::from(*choice)
    };
    let frames = check_stream(&Lines, stream, limit, usize::from(choice >> 4) + 1);
    for (message, _) in frames {
        let mut again = Vec::new();
        Lines
            .encode(&message, &mut again)
            .expect("a decoded line can be encoded");
        let consumed = again.len();
        let decoded = Lines.decode(&again, LINE_BYTES_MAX);
        assert_eq!(decoded, Ok(Decoded::Frame { message, consumed }));
    }
    check_rendering(stream);
}

/// The handshake's payloads, and the guess at what else they are.
pub fn hello(bytes: &[u8]) {
    let mut again = Vec::new();
    if let Ok(hello) = Hello::decode(bytes) {
        hello
            .encode_frame(&mut again)
            .expect("a decoded hello can be encoded");
        assert!(again.len() <= HELLO_BYTES_MAX);
        let payload = payload_of(&again);
        // A hello of a later version may have more at its end, which we do not repeat.
        assert!(bytes.starts_with(payload), "a hello has one spelling");
        assert!(bytes == payload || hello.version > PROTOCOL_VERSION);
    }
    again.clear();
    if let Ok(welcome) = Welcome::decode(bytes) {
        welcome
            .encode_frame(&mut again)
            .expect("a decoded welcome can be encoded");
        assert_eq!(payload_of(&again), bytes, "a welcome has one spelling");
    }
    let guess = classify_garbage(bytes);
    assert!(
        !matches!(guess, HandshakeError::Malformed),
        "the guess must help"
    );
    assert!(!guess.to_string().is_empty());
}

/// The bodies of control frames.
pub fn bodies(bytes: &[u8]) {
    check_body(bytes, JoinBody::decode, JoinBody::encode);
    check_body(bytes, SubscribeBody::decode, |body, out| {
        body.encode(out);
        Ok(())
    });
    check_body(bytes, PresenceBody::decode, PresenceBody::encode);
    check_body(bytes, RoomCall::decode, RoomCall::encode);
    check_body(bytes, JoinedBody::decode, |body, out| {
        body.encode(out);
        Ok(())
    });
    check_body(bytes, GapBody::decode, |body, out| {
        body.encode(out);
        Ok(())
    });
    check_body(bytes, ErrorBody::decode, |body, out| {
        body.encode(out);
        Ok(())
    });
    check_body(bytes, GoAwayBody::decode, |body, out| {
        body.encode(out);
        Ok(())
    });
    check_body(bytes, Roster::decode, |roster, out| {
        roster
            .into_iter()
            .try_for_each(|(member, name)| Roster::push_entry(member, name, out))
    });
    if let Ok(text) = str::from_utf8(bytes)
        && validate_name(text).is_ok()
    {
        assert!(!text.is_empty() && !text.contains([' ', '[', ']', '>', '*', '!', ':']));
        assert!(!text.contains(is_hazardous), "{text:?}");
        assert_eq!(displayed_name(text), text);
        let skeleton = name_skeleton(text);
        assert!(skeleton.len() < 2048, "{text:?}");
    }
}

/// The frames at the front of a stream.
///
/// # Panics
/// The codec breaks its contract.
pub fn decode_all<'a>(
    codec: &impl Codec,
    stream: &'a [u8],
    limit: usize,
) -> (Vec<Found<'a>>, Result<(), DecodeError>) {
    contract::decode_all(codec, stream, limit).expect("the contract of a codec")
}

/// The frames of a stream, which are the same when it comes in pieces.
fn check_stream<'a>(
    codec: &impl Codec,
    stream: &'a [u8],
    limit: usize,
    piece_bytes: usize,
) -> Vec<Found<'a>> {
    let checked = contract::check_stream(codec, stream, limit, &[piece_bytes]);
    checked.expect("the contract of a codec").0
}

/// Whatever one person says, another's terminal gets one line without commands in it.
fn check_rendering(text: &[u8]) {
    use tidewire_proto::codec::ChatMessage;
    use tidewire_proto::message::MemberId;
    let message = ChatMessage {
        channel: 1,
        member: MemberId(1),
        name: "ada",
        private: false,
        payload: text,
    };
    let mut out = Vec::new();
    match Lines.encode_chat_message(&message, &mut out) {
        Ok(()) => {
            let line = str::from_utf8(&out).expect("a line is UTF-8");
            let line = line.strip_suffix('\n').expect("a line ends");
            assert!(
                !line.contains(|c: char| is_hazardous(c) && c != '\t'),
                "{line:?}"
            );
        }
        Err(error) => {
            assert!(
                matches!(error, EncodeError::PayloadTooLarge { .. }),
                "{error}"
            );
            assert!(out.is_empty());
        }
    }
}

/// A body that decodes must encode to the bytes it came from.
fn check_body<'a, B>(
    bytes: &'a [u8],
    decode: impl FnOnce(&'a [u8]) -> Result<B, DecodeError>,
    encode: impl FnOnce(&B, &mut Vec<u8>) -> Result<(), EncodeError>,
) {
    if let Ok(body) = decode(bytes) {
        let mut again = Vec::new();
        encode(&body, &mut again).expect("a decoded body can be encoded");
        assert_eq!(again, bytes, "a body has one spelling");
    }
}

fn payload_of(frame: &[u8]) -> &[u8] {
    match Tw1.decode(frame, HELLO_BYTES_MAX) {
        Ok(Decoded::Frame { message, consumed }) if consumed == frame.len() => message.payload,
        other => panic!("not one frame: {other:?}"),
    }
}
