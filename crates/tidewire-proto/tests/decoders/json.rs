//! The guarantees of the codec `json`.

use tidewire_proto::codec::{Codec, Decoded, Json};
use tidewire_proto::error::DecodeError;
use tidewire_proto::limits::FRAME_BYTES_MAX;
use tidewire_proto::message::{Kind, Message};

use super::check_stream;

/// Lines of JSON.
pub fn json(bytes: &[u8]) {
    let Some((choice, stream)) = bytes.split_first() else {
        return;
    };
    let limit = if choice & 1 == 0 {
        FRAME_BYTES_MAX
    } else {
        usize::from(*choice)
    };
    let frames = check_stream(&Json, stream, limit, usize::from(choice >> 4) + 1);
    let mut scratch = Vec::new();
    for (frame, line) in frames {
        match Json.translate(frame, &mut scratch) {
            Ok(message) => check_again(&message, line.len()),
            Err(error) => {
                assert!(matches!(error, DecodeError::Json(_)), "{error:?}");
                let text = error.to_string();
                assert!(!text.contains(char::is_control), "{text:?}");
            }
        }
    }
}

/// Checks that a message can be written, and reads as itself then. Only the body of a hello has no line in some cases:
/// an agent that no log may show.
fn check_again(message: &Message<'_>, line_bytes: usize) {
    let mut again = Vec::new();
    let encoded = Json.encode(message, &mut again);
    if encoded.is_err() {
        assert!(matches!(message.kind, Kind::Hello | Kind::Welcome));
        return assert!(again.is_empty());
    }
    let limit = (line_bytes + 64) * Json.format().payload_growth_max;
    assert!(again.len() <= limit, "{line_bytes} became {}", again.len());
    let decoded = Json.decode(&again, FRAME_BYTES_MAX);
    let Ok(Decoded::Frame {
        message: frame,
        consumed,
    }) = decoded
    else {
        panic!("{decoded:?}");
    };
    assert_eq!(consumed, again.len());
    let mut scratch = Vec::new();
    assert_eq!(Json.translate(frame, &mut scratch), Ok(*message));
}
