//! The frames of messages with an offset, and of positions.

use tidewire_proto::body::PositionBody;
use tidewire_proto::codec::{AnyCodec, ChatMessage, Codec};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, MemberId, Message};

use super::Record;
use crate::broker::Position;

/// Frames a live chat message, with its offset if the codec has offsets.
pub(crate) fn encode_chat_at(
    codec: &AnyCodec,
    offset: Option<u64>,
    chat: &ChatMessage<'_>,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    match offset.filter(|_| codec.format().has_positions) {
        None => codec.encode_chat_message(chat, out),
        Some(offset) => {
            let message =
                Message::with_id(Kind::Deliver, chat.channel, chat.member.0, chat.payload);
            codec.encode_delivery_at(offset, &message, out)
        }
    }
}

/// Frames a live message of a history whose messages the carrier numbers: in a room with its author's name, unless the
/// members were told of the author.
pub(crate) fn encode_live(
    codec: &AnyCodec,
    (alias, is_topic): (u16, bool),
    offset: u64,
    (member, name, is_listed): (MemberId, &str, bool),
    payload: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    if is_listed && !is_topic {
        let chat = ChatMessage {
            channel: alias,
            member,
            name,
            private: false,
            payload,
        };
        return encode_chat_at(codec, Some(offset), &chat, out);
    }
    let record = Record::by(member, name, payload);
    encode_record(codec, alias, is_topic, offset, &record, out)
}

/// Frames a message of a history. Its author may have left, so the frame has the author's name if the codec has names.
pub(crate) fn encode_record(
    codec: &AnyCodec,
    alias: u16,
    is_topic: bool,
    offset: u64,
    record: &Record<'_>,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let Record {
        member,
        name,
        payload,
    } = *record;
    let message = Message::with_id(Kind::Deliver, alias, member.0, payload).with_name(name);
    if codec.format().has_positions {
        return codec.encode_delivery_at(offset, &message, out);
    }
    if is_topic {
        return codec.encode(&message, out);
    }
    encode_by_absent(codec, &message, out)
}

/// Frames a chat message whose author no member knows: as a delivery with the author's name, if the codec has names.
pub(crate) fn encode_by_absent(
    codec: &AnyCodec,
    delivery: &Message<'_>,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let has_name = codec.format().has_room_frames && !delivery.name.is_empty();
    if has_name && codec.encode(delivery, out).is_ok() {
        return Ok(());
    }
    let chat = ChatMessage {
        channel: delivery.channel,
        member: MemberId(delivery.id),
        name: delivery.name,
        private: false,
        payload: delivery.payload,
    };
    codec.encode_chat_message(&chat, out)
}

/// Frames the position that the next message follows.
pub(crate) fn encode_position(
    codec: &AnyCodec,
    alias: u16,
    position: Position,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let mut body = Vec::new();
    PositionBody { position }.encode(&mut body);
    codec.encode(&Message::new(Kind::Position, alias, &body), out)
}
