//! The codec of a step, and the size of its messages.

use tidewire::limits::DATAGRAM_FRAME_BYTES_MAX;
use tidewire::{AnyCodec, Kind, Message};
use tidewire_proto::codec::Codec;
use tidewire_proto::limits::FRAME_BYTES_MAX;

use super::PlanError;
use crate::scenario::{Pattern, Step};

/// The step's codec as it is spoken to the servers: some frame datagrams in another way than streams.
pub(super) fn codec_of(step: &Step, is_datagrams: bool) -> Result<AnyCodec, PlanError> {
    let codec = AnyCodec::by_name(&step.codec)
        .map_err(|source| PlanError::Codec(step.name.clone(), source))?;
    Ok(match is_datagrams {
        true => codec.for_datagrams(),
        false => codec,
    })
}

/// Whether the codec can carry the step's messages to this address, and its replies can be told apart.
pub(super) fn check_frames(
    step: &Step,
    codec: &AnyCodec,
    is_datagrams: bool,
) -> Result<(), PlanError> {
    let name = step.name.clone();
    if is_datagrams && step.pattern == Pattern::Request && !codec.format().has_ids() {
        return Err(PlanError::Unmatched(name, codec.name()));
    }
    let payload = vec![0; step.payload_bytes as usize];
    let message = match step.pattern {
        Pattern::Chat => Message::new(Kind::Say, 0, &payload),
        Pattern::PubSub => Message::new(Kind::Publish, 0, &payload).with_name(LONGEST_TOPIC),
        Pattern::Ingest | Pattern::Echo => Message::new(Kind::OneWay, 0, &payload),
        Pattern::Request => Message::with_id(Kind::Request, 0, 1, &payload),
    };
    let mut frame = Vec::new();
    let encoded = codec.encode(&message, &mut frame);
    let bytes = frame.len().max(payload.len());
    if is_datagrams && (encoded.is_err() || bytes > DATAGRAM_FRAME_BYTES_MAX) {
        return Err(PlanError::TooLarge { step: name, bytes });
    }
    let cause = match encoded {
        Err(error) => error.to_string(),
        Ok(()) if bytes <= FRAME_BYTES_MAX => return Ok(()),
        Ok(()) => format!("a frame of {bytes} bytes is longer than {FRAME_BYTES_MAX}"),
    };
    Err(PlanError::Unencodable {
        step: name,
        codec: codec.name(),
        payload_bytes: step.payload_bytes,
        cause,
    })
}

/// A topic as long as any of a run.
const LONGEST_TOPIC: &str = "load.ffff.255";
