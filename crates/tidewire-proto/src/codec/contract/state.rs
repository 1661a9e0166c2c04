//! Checks the contract of a codec that keeps a state.

use super::{BrokenContract, encode_all};
use crate::codec::{Codec, ConnectionState, Decoded};
use crate::limits::FRAME_BYTES_MAX;
use crate::message::Message;

/// Sends messages over a connection whose two sides keep a state, `piece_bytes` at a time, and checks that they are
/// decoded unchanged. Returns the bytes on the wire.
///
/// # Errors
/// The codec breaks its contract, or refuses one of the messages.
pub fn check_connection<C: Codec + ?Sized>(
    codec: &C,
    messages: &[Message<'_>],
    piece_bytes: &[usize],
) -> Result<Vec<u8>, BrokenContract> {
    let mut sender = ConnectionState::default();
    let mut stream = Vec::new();
    for message in messages {
        let frame = encode_all(codec, &[*message])?;
        codec.adapt_frame(&mut sender, &frame, &mut stream);
    }
    let mut receiver = ConnectionState::default();
    let mut sizes = piece_bytes.iter().copied().cycle();
    let (mut decoded, mut arrived, mut index) = (0, 0, 0);
    while arrived < stream.len() {
        let before = arrived - decoded;
        arrived += sizes.next().unwrap_or(1).clamp(1, stream.len() - arrived);
        let mut searched = before;
        loop {
            let input = &stream[decoded..arrived];
            let found = codec.decode_next(&mut receiver, input, searched, FRAME_BYTES_MAX);
            let Ok(Decoded::Frame { message, consumed }) = found else {
                if found.is_err() {
                    return Err(BrokenContract::MessageChanged { index });
                }
                break;
            };
            if messages.get(index) != Some(&message) {
                return Err(BrokenContract::MessageChanged { index });
            }
            (decoded, searched, index) = (decoded + consumed, 0, index + 1);
        }
    }
    if decoded < stream.len() || index < messages.len() {
        let messages = messages.len();
        return Err(BrokenContract::Leftover { messages });
    }
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Decoding, Format};
    use crate::error::{DecodeError, EncodeError};
    use crate::message::Kind;

    /// A codec of a length, a sequence number and the payload, with one fault.
    struct Sequenced(Fault);

    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        None,
        CountsPieces,
        RepeatsNumber,
    }

    #[derive(Default)]
    struct Sequences {
        sent: u8,
        received: u8,
    }

    impl Codec for Sequenced {
        fn format(&self) -> &'static Format {
            const FORMAT: Format = Format {
                decoding: Decoding::WithState,
                ..Format::new("sequenced")
            };
            &FORMAT
        }

        fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
            self.decode_next(&mut ConnectionState::default(), input, 0, limit)
        }

        fn decode_next<'a>(
            &self,
            state: &mut ConnectionState,
            input: &'a [u8],
            _: usize,
            _: usize,
        ) -> Result<Decoded<'a>, DecodeError> {
            let state = state.of::<Sequences>();
            if self.0 == Fault::CountsPieces {
                state.received += 1;
            }
            let [length, number, rest @ ..] = input else {
                return Ok(Decoded::Incomplete { frame_bytes: 0 });
            };
            let consumed = 2 + usize::from(*length);
            let Some(payload) = rest.get(..usize::from(*length)) else {
                let frame_bytes = consumed;
                return Ok(Decoded::Incomplete { frame_bytes });
            };
            if *number != state.received {
                return Err(DecodeError::MalformedFrame);
            }
            state.received += 1;
            let message = Message::new(Kind::OneWay, 0, payload);
            Ok(Decoded::Frame { message, consumed })
        }

        fn adapt_frame(&self, state: &mut ConnectionState, frame: &[u8], out: &mut Vec<u8>) {
            let state = state.of::<Sequences>();
            out.extend_from_slice(&[frame[0], state.sent]);
            out.extend_from_slice(&frame[2..]);
            state.sent += u8::from(self.0 != Fault::RepeatsNumber);
        }

        fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
            out.extend_from_slice(&[message.payload.len() as u8, 0]);
            out.extend_from_slice(message.payload);
            Ok(())
        }
    }

    #[test]
    fn both_sides_count_the_same_numbers() {
        let messages = [&b"one"[..], b"", b"three"].map(|it| Message::new(Kind::OneWay, 0, it));
        for pieces in [&[1][..], &[2, 5], &[100]] {
            let stream = check_connection(&Sequenced(Fault::None), &messages, pieces);
            assert_eq!(stream.unwrap(), b"\x03\x00one\x00\x01\x05\x02three");
        }
        let changed = |index| Err(BrokenContract::MessageChanged { index });
        let check = |fault| check_connection(&Sequenced(fault), &messages, &[1]);
        assert_eq!(check(Fault::CountsPieces), changed(0));
        assert_eq!(check(Fault::RepeatsNumber), changed(1));
        // A codec without a state passes, too.
        let raw = crate::codec::LengthField::new(crate::codec::LengthSize::U16Be);
        assert!(check_connection(&raw, &messages, &[1]).is_ok());
    }
}
