//! The guarantees of the codecs for foreign formats.

use tidewire_proto::codec::uvrpc::{BroadcastMessage, ErrorParams, REGISTRATION, RpcFrame, Uvrpc};
use tidewire_proto::codec::{
    Codec, Decoded, Delimited, LengthField, LengthSize, Raw, RpcPayload, Srmp, SrmpRpc,
};
use tidewire_proto::limits::FRAME_BYTES_MAX;
use tidewire_proto::message::{Kind, Message};

use super::{Found, check_stream, decode_all};

/// SRMP frames.
pub fn srmp(bytes: &[u8]) {
    let Some((choice, stream)) = bytes.split_first() else {
        return;
    };
    for (message, frame) in check_choice(&Srmp, *choice, stream) {
        let again = check_again(&Srmp, &message);
        // A long header in front of a short payload is read, and written as a short one.
        assert!(again == frame || frame[2..4] == [0xFF, 0xFF]);
        if message.kind == Kind::Error && Srmp.decode_error(&message).is_err() {
            assert!(str::from_utf8(message.payload).is_err());
        }
    }
}

/// SRMP frames with remote calls in them.
pub fn srmp_rpc(bytes: &[u8]) {
    let Some((choice, stream)) = bytes.split_first() else {
        return;
    };
    for (message, frame) in check_choice(&SrmpRpc, *choice, stream) {
        check_again(&SrmpRpc, &message);
        let header_bytes = if frame[2..4] == [0xFF, 0xFF] { 8 } else { 4 };
        let body = RpcPayload::decode(message.kind, &frame[header_bytes..]);
        let body = body.expect("the payload of a decoded frame");
        assert_eq!(body.action, message.name);
        assert_eq!(body.code.is_some(), message.kind == Kind::Error);
        if message.kind == Kind::Error && SrmpRpc.decode_error(&message).is_err() {
            assert!(str::from_utf8(body.value).is_err());
        }
    }
}

/// Frames with a length in front, in every form.
pub fn length_field(bytes: &[u8]) {
    let [choice, shape, stream @ ..] = bytes else {
        return;
    };
    let sizes = [
        LengthSize::U8,
        LengthSize::U16Le,
        LengthSize::U16Be,
        LengthSize::U32Le,
        LengthSize::U32Be,
        LengthSize::Varint,
    ];
    let size = sizes[usize::from(shape & 7) % sizes.len()];
    let header = &[0, 0, 0, 1][..usize::from(shape >> 3 & 3)];
    let codec = LengthField::new(size)
        .with_offset(shape >> 5 & 3)
        .with_header(header)
        .expect("a short header");
    for (message, frame) in check_choice(&codec, *choice, stream) {
        assert!(frame.starts_with(header));
        let again = check_again(&codec, &message);
        if size != LengthSize::Varint && shape >> 5 & 3 == 0 {
            assert_eq!(again, frame, "a frame has one spelling");
        }
    }
}

/// Frames that end with a delimiter.
pub fn delimited(bytes: &[u8]) {
    let [choice, shape, stream @ ..] = bytes else {
        return;
    };
    let delimiters: [&[u8]; 4] = [b"\r\n", b"\0", b"aa", b"aba"];
    let delimiter = delimiters[usize::from(shape & 3)];
    let keep = shape & 4 != 0;
    let codec = Delimited::new()
        .with_delimiter(delimiter)
        .expect("a short delimiter")
        .keep_delimiter(keep);
    for (message, frame) in check_choice(&codec, *choice, stream) {
        assert_eq!(check_again(&codec, &message), frame);
        assert_eq!(message.payload.ends_with(delimiter) && keep, keep);
    }
}

/// Unframed bytes.
pub fn raw(bytes: &[u8]) {
    let Some((choice, stream)) = bytes.split_first() else {
        return;
    };
    let limit = usize::from(*choice) + 1;
    let (frames, end) = decode_all(&Raw, stream, limit);
    assert_eq!(end, Ok(()));
    let joined: Vec<u8> = frames
        .iter()
        .flat_map(|(message, _)| message.payload)
        .copied()
        .collect();
    assert_eq!(joined, stream, "nothing is lost and nothing added");
}

/// UVRPC frames over streams and in datagrams, published messages and the parameters of errors.
pub fn uvrpc(bytes: &[u8]) {
    let Some((choice, stream)) = bytes.split_first() else {
        return;
    };
    for (message, frame) in check_choice(&Uvrpc::new(), *choice, stream) {
        check_uvrpc_message(&message, &frame[4..]);
    }
    if let Ok(Decoded::Frame { message, consumed }) =
        Uvrpc::for_datagrams().decode(stream, FRAME_BYTES_MAX)
    {
        assert_eq!(consumed, stream.len());
        match message.kind {
            Kind::Subscribe => assert_eq!(stream, REGISTRATION),
            Kind::Deliver => {
                let (topic, data) = (message.name, message.payload);
                let broadcast = BroadcastMessage { topic, data };
                assert_eq!(BroadcastMessage::decode(stream), Ok(broadcast));
            }
            _ => check_uvrpc_message(&message, stream),
        }
    }
    // Without lengths a frame ends at the reach of its offsets. A frame that was cut out must decode to the same
    // message alone.
    let (frames, _) = decode_all(&Uvrpc::legacy_unframed(), stream, FRAME_BYTES_MAX);
    for (message, frame) in frames {
        check_uvrpc_message(&message, frame);
    }
    if let Ok(broadcast) = BroadcastMessage::decode(stream) {
        let mut again = Vec::new();
        broadcast.encode(&mut again).expect("what was read fits");
        assert_eq!(BroadcastMessage::decode(&again), Ok(broadcast));
    }
    if let Ok(params) = ErrorParams::decode(stream) {
        let mut again = Vec::new();
        params.encode(&mut again);
        assert_eq!(ErrorParams::decode(&again), Ok(params));
    }
}

fn check_uvrpc_message(message: &Message<'_>, flat: &[u8]) {
    let frame = RpcFrame::decode(flat).expect("the frame of a message");
    assert_eq!(
        (frame.method, frame.params),
        (message.name, message.payload)
    );
    let mut again = Vec::new();
    frame.encode(&mut again).expect("what was read fits");
    assert_eq!(RpcFrame::decode(&again), Ok(frame));
    if message.kind == Kind::Error {
        let said = Uvrpc::new().decode_error(message);
        assert_eq!(said.is_ok(), ErrorParams::decode(message.payload).is_ok());
    }
}

/// Decodes a stream. The first byte chooses its limit and its cut.
fn check_choice<'a>(codec: &impl Codec, choice: u8, stream: &'a [u8]) -> Vec<Found<'a>> {
    let limit = if choice & 1 == 0 {
        FRAME_BYTES_MAX
    } else {
        usize::from(choice)
    };
    check_stream(codec, stream, limit, usize::from(choice >> 4) + 1)
}

/// Encodes a decoded message, decodes the result, and returns the frame.
fn check_again(codec: &impl Codec, message: &Message<'_>) -> Vec<u8> {
    let mut again = Vec::new();
    codec
        .encode(message, &mut again)
        .expect("a decoded frame can be encoded");
    let decoded = codec.decode(&again, FRAME_BYTES_MAX);
    let (message, consumed) = (*message, again.len());
    assert_eq!(decoded, Ok(Decoded::Frame { message, consumed }));
    again
}
