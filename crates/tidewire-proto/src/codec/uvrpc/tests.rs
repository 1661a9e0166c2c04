//! The vectors, other layouts of the same table, and every wrong offset.

use super::*;
use crate::body::ErrorCode;
use crate::limits::FRAME_BYTES_MAX;

const LIMIT: usize = FRAME_BYTES_MAX;

/// Bytes of hex, with spaces where they help.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect()
}

fn request_vector() -> Vec<u8> {
    hex(
        "00 00 00 34 04000000 DCFFFFFF 01000000 08000000 10000000 04000000 6563686F 00000000 \
         02000000 68690000 0C001000 00000400 08000C00",
    )
}

fn response_vector() -> Vec<u8> {
    hex(
        "00 00 00 28 04000000 E8FFFFFF 01000000 01000000 04000000 02000000 68690000 \
         0C001000 04000800 00000C00",
    )
}

fn echo() -> Message<'static> {
    Message::with_id(Kind::Request, 0, 1, b"hi").with_name("echo")
}

fn encoded(codec: Uvrpc, message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    codec.encode(message, &mut out).unwrap();
    out
}

fn decoded(codec: Uvrpc, frame: &[u8]) -> Message<'_> {
    match codec.decode(frame, LIMIT) {
        Ok(Decoded::Frame { message, consumed }) => {
            assert_eq!(consumed, frame.len());
            message
        }
        other => panic!("not one frame: {other:?}"),
    }
}

#[test]
fn the_vectors_hold_both_ways() {
    let reply = Message::with_id(Kind::Reply, 0, 1, b"hi");
    for (message, frame) in [(echo(), request_vector()), (reply, response_vector())] {
        assert_eq!(encoded(Uvrpc::new(), &message), frame);
        assert_eq!(decoded(Uvrpc::new(), &frame), message);
        for end in 0..frame.len() {
            let cut = Uvrpc::new().decode(&frame[..end], LIMIT);
            assert!(matches!(cut, Ok(Decoded::Incomplete { .. })));
        }
        let datagram = &frame[4..];
        for codec in [Uvrpc::for_datagrams(), Uvrpc::legacy_unframed()] {
            assert_eq!(encoded(codec, &message), datagram);
            assert_eq!(decoded(codec, datagram), message);
        }
    }
}

#[test]
fn the_broadcast_vector_holds_both_ways() {
    let bytes = hex(
        "04000000 E4FFFFFF 08000000 0C000000 01000000 74000000 02000000 68690000 08000C00 04000800",
    );
    let message = BroadcastMessage {
        topic: "t",
        data: b"hi",
    };
    let mut out = Vec::new();
    message.encode(&mut out).unwrap();
    assert_eq!(out, bytes);
    assert_eq!(BroadcastMessage::decode(&bytes), Ok(message));
    for end in 0..bytes.len() {
        assert_eq!(
            BroadcastMessage::decode(&bytes[..end]),
            Err(DecodeError::MalformedFrame)
        );
    }
    assert_eq!(REGISTRATION, b"UVRPC_REG");
}

#[test]
fn every_length_of_name_and_payload_survives() {
    let (name, payload) = ("n".repeat(9), vec![0xEE; 9]);
    for name_bytes in 0..name.len() {
        for payload_bytes in 0..payload.len() {
            let (name, payload) = (&name[..name_bytes], &payload[..payload_bytes]);
            let message = Message::with_id(Kind::Request, 0, 7, payload).with_name(name);
            let frame = encoded(Uvrpc::new(), &message);
            assert_eq!(frame.len() % 4, 0);
            assert_eq!(decoded(Uvrpc::new(), &frame), message);
            let broadcast = BroadcastMessage {
                topic: name,
                data: payload,
            };
            let mut out = Vec::new();
            broadcast.encode(&mut out).unwrap();
            assert_eq!(BroadcastMessage::decode(&out), Ok(broadcast));
        }
    }
}

#[test]
fn every_type_survives_with_and_without_a_method() {
    for frame_type in [
        RpcFrameType::Request,
        RpcFrameType::Response,
        RpcFrameType::Notification,
        RpcFrameType::Error,
    ] {
        for method in ["", "m", "method"] {
            let frame = RpcFrame {
                frame_type,
                msgid: u32::MAX,
                method,
                params: b"params",
            };
            let mut out = Vec::new();
            frame.encode(&mut out).unwrap();
            assert_eq!(frame.encoded_bytes(), Ok(out.len()));
            assert_eq!(RpcFrame::decode(&out), Ok(frame));
        }
    }
}

#[test]
fn a_layout_built_back_to_front_is_read() {
    // The usual builders make this: the vtable before the table, children after it in another order, and the default
    // type written out at an unusual position.
    let bytes = hex(
        "10000000 0C001400 13000400 08000C00 0C000000 02000000 14000000 08000000 00000000 \
         01000000 78000000 03000000 61646400",
    );
    let frame = RpcFrame::decode(&bytes).unwrap();
    assert_eq!(
        frame,
        RpcFrame {
            frame_type: RpcFrameType::Request,
            msgid: 2,
            method: "add",
            params: b"x",
        }
    );
}

#[test]
fn fields_left_out_have_their_defaults() {
    // An empty table, with a vtable without slots.
    let bytes = hex("04000000 FCFFFFFF 04000400");
    let frame = RpcFrame::decode(&bytes).unwrap();
    assert_eq!(
        frame,
        RpcFrame {
            frame_type: RpcFrameType::Request,
            msgid: 0,
            method: "",
            params: b"",
        }
    );
}

#[test]
fn no_byte_set_wrong_is_read_out_of_bounds() {
    for vector in [request_vector(), response_vector()] {
        let frame = &vector[4..];
        for at in 0..frame.len() {
            for byte in 0..=u8::MAX {
                let mut broken = frame.to_vec();
                broken[at] = byte;
                if let Ok(found) = RpcFrame::decode(&broken) {
                    assert!(found.method.len() + found.params.len() <= frame.len());
                }
            }
        }
        for end in 0..frame.len() {
            assert_eq!(
                RpcFrame::decode(&frame[..end]),
                Err(DecodeError::MalformedFrame)
            );
        }
    }
}

#[test]
fn invalid_frames_are_refused() {
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = request_vector().split_off(4);
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        RpcFrame::decode(&frame).map(|frame| frame.msgid)
    };
    let malformed = Err(DecodeError::MalformedFrame);
    assert_eq!(with(0, &[0xFF; 4]), malformed, "root outside");
    assert_eq!(with(0, &[0; 4]), malformed, "root on itself");
    assert_eq!(with(4, &[0x7F; 4]), malformed, "vtable before the buffer");
    assert_eq!(with(40, &[3, 0]), malformed, "vtable too small");
    assert_eq!(with(42, &[0xFF; 2]), malformed, "table outside");
    assert_eq!(with(42, &[3, 0]), malformed, "table too small");
    assert_eq!(
        with(46, &[15, 0]),
        malformed,
        "field across the table's end"
    );
    assert_eq!(
        with(46, &[2, 0]),
        malformed,
        "field in the vtable's distance"
    );
    assert_eq!(with(12, &[0xFF; 4]), malformed, "method outside");
    assert_eq!(with(20, &[0xFF; 4]), malformed, "method too long");
    assert_eq!(with(28, &[1]), malformed, "method without NUL");
    assert_eq!(with(24, &[0xFF]), malformed, "method not UTF-8");
    assert_eq!(with(32, &[0x20]), malformed, "params too long");
    let mut response = response_vector().split_off(4);
    response[8] = 4;
    assert_eq!(
        RpcFrame::decode(&response),
        Err(DecodeError::UnknownKind(4))
    );
}

#[test]
fn one_way_messages_are_requests_with_id_0() {
    let message = Message::new(Kind::OneWay, 0, b"x").with_name("log");
    let frame = encoded(Uvrpc::new(), &message);
    let received = decoded(Uvrpc::new(), &frame);
    assert_eq!(
        (received.kind, received.id, received.name),
        (Kind::Request, 0, "log")
    );
    let notification = RpcFrame {
        frame_type: RpcFrameType::Notification,
        msgid: 9,
        method: "log",
        params: b"x",
    };
    let mut datagram = Vec::new();
    notification.encode(&mut datagram).unwrap();
    assert_eq!(decoded(Uvrpc::for_datagrams(), &datagram), message);
    let delivery = Message::with_id(Kind::Deliver, 3, 9, b"hi");
    let frame = encoded(Uvrpc::new(), &delivery);
    assert_eq!(
        decoded(Uvrpc::new(), &frame),
        Message::new(Kind::OneWay, 0, b"hi")
    );
}

#[test]
fn errors_have_a_code_and_a_text() {
    let error = ErrorBody {
        code: ErrorCode::MethodNotFound,
        text: "no such method",
    };
    let mut out = Vec::new();
    Uvrpc::new()
        .encode_error(&echo(), &error, &mut out)
        .unwrap();
    let message = decoded(Uvrpc::new(), &out);
    assert_eq!((message.kind, message.id), (Kind::Error, 1));
    assert_eq!(message.payload, b"\0\0\0\x02no such method\0");
    assert_eq!(Uvrpc::new().decode_error(&message), Ok(error));
    assert_eq!(encoded(Uvrpc::new(), &message), out);

    out.clear();
    let silent = ErrorBody {
        code: ErrorCode::NameTaken,
        text: "",
    };
    Uvrpc::new()
        .encode_error(&echo(), &silent, &mut out)
        .unwrap();
    let message = decoded(Uvrpc::new(), &out);
    assert_eq!(message.payload, b"\0\0\0\x07the name is taken\0");
    assert_eq!(Uvrpc::new().error_number(&message), 7);
}

#[test]
fn the_original_numbers_of_failures_are_told_apart() {
    for number in [4, 5, 7, -3] {
        let mut params = Vec::new();
        ErrorParams {
            code: number,
            text: "x",
        }
        .encode(&mut params);
        let message = Message::with_id(Kind::Error, 0, 1, &params);
        assert_eq!(Uvrpc::new().error_number(&message), number);
    }
    let broken = Message::with_id(Kind::Error, 0, 1, b"\0");
    assert_eq!(Uvrpc::new().error_number(&broken), 0);
}

#[test]
fn method_names_compare_in_lower_case() {
    assert!(Uvrpc::new().format().ignores_method_case);
}

#[test]
fn frames_that_arrive_together_without_lengths_are_told_apart() {
    let codec = Uvrpc::legacy_unframed();
    let (request, reply) = (request_vector(), response_vector());
    let stream = [&request[4..], &reply[4..], &request[4..]].concat();
    let mut rest = &stream[..];
    for expected in [Kind::Request, Kind::Reply, Kind::Request] {
        for end in 0..rest.len().min(36) {
            let cut = codec.decode(&rest[..end], LIMIT);
            assert_eq!(cut, Ok(Decoded::Incomplete { frame_bytes: 0 }));
        }
        let Ok(Decoded::Frame { message, consumed }) = codec.decode(rest, LIMIT) else {
            panic!("no frame");
        };
        assert_eq!((message.kind, message.payload), (expected, &b"hi"[..]));
        rest = &rest[consumed..];
    }
    assert!(rest.is_empty());
}

#[test]
fn every_framing_keeps_the_limit() {
    let frame = request_vector();
    let too_large = |bytes, limit| Err(DecodeError::FrameTooLarge { bytes, limit });
    assert!(Uvrpc::new().decode(&frame, 56).is_ok());
    assert_eq!(Uvrpc::new().decode(&frame[..4], 55), too_large(56, 55));
    let datagram = &frame[4..];
    assert!(Uvrpc::for_datagrams().decode(datagram, 52).is_ok());
    assert_eq!(
        Uvrpc::for_datagrams().decode(datagram, 51),
        too_large(52, 51)
    );
    assert!(Uvrpc::legacy_unframed().decode(datagram, 52).is_ok());
    assert_eq!(
        Uvrpc::legacy_unframed().decode(datagram, 51),
        too_large(52, 51)
    );
    assert_eq!(
        Uvrpc::for_datagrams().decode(b"", 52),
        Ok(Decoded::Incomplete { frame_bytes: 0 })
    );
}

#[test]
fn kinds_without_uvrpc_frames_are_refused() {
    let mut out = Vec::new();
    for kind in [Kind::Cancel, Kind::Ping, Kind::Say, Kind::Join] {
        assert_eq!(
            Uvrpc::new().encode(&Message::new(kind, 0, b""), &mut out),
            Err(unsupported("uvrpc", kind))
        );
    }
    assert!(out.is_empty());
}

#[test]
fn a_datagram_registers_or_publishes_and_calls_are_not_taken_for_that() {
    let codec = Uvrpc::for_datagrams();
    let decoded = |bytes: &[u8]| match codec.decode(bytes, 1 << 16) {
        Ok(Decoded::Frame { message, consumed }) => {
            assert_eq!(consumed, bytes.len());
            (
                message.kind,
                message.name.to_owned(),
                message.payload.to_vec(),
            )
        }
        other => panic!("{other:?}"),
    };
    let (kind, _, body) = decoded(REGISTRATION);
    let everything = crate::body::SubscribeBody::decode(&body).unwrap();
    assert_eq!((kind, everything.pattern), (Kind::Subscribe, ">"));
    let mut out = Vec::new();
    let subscribe = Message::new(Kind::Subscribe, 0, &body);
    codec.encode(&subscribe, &mut out).unwrap();
    assert_eq!(out, REGISTRATION);

    for topic in ["t", "a.topic.of.some.length"] {
        for data in [&b""[..], b"hi", &[0; 5000]] {
            let mut out = Vec::new();
            let delivery = Message::new(Kind::Deliver, 3, data).with_name(topic);
            codec.encode(&delivery, &mut out).unwrap();
            assert_eq!(BroadcastMessage::decode(&out).unwrap().topic, topic);
            let expected = (Kind::Deliver, topic.to_owned(), data.to_vec());
            assert_eq!(decoded(&out), expected);
        }
    }
    for frame_type in [
        RpcFrameType::Request,
        RpcFrameType::Response,
        RpcFrameType::Notification,
        RpcFrameType::Error,
    ] {
        for msgid in (0..200).chain([1 << 20, u32::MAX]) {
            for params in [&b""[..], b"hi", &[4; 64]] {
                let frame = RpcFrame {
                    frame_type,
                    msgid,
                    method: "",
                    params,
                };
                let mut out = Vec::new();
                frame.encode(&mut out).unwrap();
                assert_ne!(decoded(&out).0, Kind::Deliver, "{frame:?}");
            }
        }
    }
    // The smallest answer of another builder: two slots, for the type and the number.
    for msgid in 0..200_u8 {
        let answer = [
            12, 0, 0, 0, 8, 0, 12, 0, 8, 0, 4, 0, 8, 0, 0, 0, msgid, 0, 0, 0, 1, 0, 0, 0,
        ];
        assert_eq!(decoded(&answer).0, Kind::Reply, "{msgid}");
    }
}

#[test]
fn streams_neither_register_nor_publish() {
    let codec = Uvrpc::new();
    let mut out = Vec::new();
    let subscribe = Message::new(Kind::Subscribe, 0, b"\0>");
    assert!(codec.encode(&subscribe, &mut out).is_err() && out.is_empty());
    assert!(!codec.format().registers_subscribers && !codec.format().fills_datagrams());
}
