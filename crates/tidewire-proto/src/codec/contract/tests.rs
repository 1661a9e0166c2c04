//! Each test breaks the contract in one way and expects the check to find it.

use super::*;
use crate::codec::{Delimited, Format, FrameLayout, Tw1};
use crate::message::Kind;

/// A length of one byte in front of the payload, with one fault.
struct Faulty(Fault);

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    FrameOfNothing,
    ReadsBeyond,
    TakesAnyLength,
    ForgetsPieces,
    ForgetsGrowth,
    HidesItsLength,
    HidesItsHeader,
    InventsAnId,
    ClearsOutput,
    LosesLastByte,
    SaysIncomplete,
    Refuses,
    WritesTwice,
}

impl Codec for Faulty {
    fn format(&self) -> &'static Format {
        const FORMAT: Format = Format::new("faulty");
        &FORMAT
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        let Some((length, rest)) = input.split_first() else {
            return Ok(Decoded::Incomplete { frame_bytes: 0 });
        };
        let bytes = usize::from(*length);
        if bytes + 1 > limit && self.0 != Fault::TakesAnyLength {
            return Err(DecodeError::FrameTooLarge {
                bytes: bytes as u64 + 1,
                limit: limit as u64,
            });
        }
        let payload = match rest.get(..bytes) {
            Some(payload) => payload,
            // The fault: it returns the available bytes as a whole frame.
            None if self.0 == Fault::ForgetsPieces => rest,
            None if self.0 == Fault::ReadsBeyond => rest,
            None if self.0 == Fault::SaysIncomplete => {
                return Ok(Decoded::Incomplete { frame_bytes: 1 });
            }
            None => {
                let frame_bytes = bytes + 1;
                return Ok(Decoded::Incomplete { frame_bytes });
            }
        };
        let shown = match self.0 {
            Fault::LosesLastByte => &payload[..payload.len().saturating_sub(1)],
            _ => payload,
        };
        let consumed = match self.0 {
            Fault::FrameOfNothing => 0,
            Fault::ReadsBeyond => bytes + 1,
            _ => payload.len() + 1,
        };
        let message = Message::new(Kind::OneWay, 0, shown);
        Ok(Decoded::Frame { message, consumed })
    }

    fn decode_next<'a>(
        &self,
        _: &mut ConnectionState,
        input: &'a [u8],
        searched: usize,
        limit: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        match self.0 {
            // The fault: it looks only at the new bytes.
            Fault::ForgetsGrowth => self.decode(&input[searched..], limit),
            _ => self.decode(input, limit),
        }
    }

    fn layout(&self, frame: &[u8], _: &Message<'_>) -> Option<FrameLayout> {
        let layout = FrameLayout::new(1..frame.len());
        Some(match self.0 {
            Fault::HidesItsLength => layout.with_ignored(0..1),
            Fault::HidesItsHeader => FrameLayout::new(0..frame.len() - 1),
            Fault::InventsAnId => layout.with_id_byte(0, 0),
            _ => layout,
        })
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self.0 {
            Fault::ClearsOutput => out.clear(),
            Fault::Refuses => return Err(EncodeError::EmptyFrame { codec: "faulty" }),
            Fault::WritesTwice => {
                out.push(message.payload.len() as u8);
                out.extend_from_slice(message.payload);
            }
            _ => {}
        }
        out.push(message.payload.len() as u8);
        out.extend_from_slice(message.payload);
        Ok(())
    }
}

fn broken(fault: Fault) -> BrokenContract {
    let messages =
        [&b"hello, hello"[..], b"to", b"you"].map(|it| Message::new(Kind::OneWay, 0, it));
    check_every_cut(&Faulty(fault), &messages).unwrap_err()
}

#[test]
fn every_fault_is_found_and_named() {
    use BrokenContract as Broken;
    let messages = [Message::new(Kind::OneWay, 0, b"hello")];
    assert_eq!(check_every_cut(&Faulty(Fault::None), &messages), Ok(()));
    assert_eq!(broken(Fault::FrameOfNothing), Broken::EmptyFrame { at: 0 });
    let beyond = Broken::BeyondInput {
        at: 0,
        consumed: 13,
        available: 1,
    };
    assert_eq!(broken(Fault::ReadsBeyond), beyond);
    let differs = Broken::PiecesDiffer { at: 0 };
    assert_eq!(broken(Fault::ForgetsPieces), differs);
    let grown = Broken::GrownDiffers { at: 0, searched: 1 };
    assert_eq!(broken(Fault::ForgetsGrowth), grown);
    let reads = Broken::LayoutReads { at: 0 };
    assert_eq!(broken(Fault::HidesItsLength), reads);
    let writes = Broken::LayoutWrites { index: 0 };
    assert_eq!(broken(Fault::HidesItsHeader), writes);
    assert_eq!(broken(Fault::InventsAnId), writes);
    let output = Broken::OutputChanged { index: 1 };
    assert_eq!(broken(Fault::ClearsOutput), output);
    let changed = Broken::MessageChanged { index: 0 };
    assert_eq!(broken(Fault::LosesLastByte), changed);
    let complete = Broken::IsComplete {
        at: 0,
        frame_bytes: 1,
    };
    assert_eq!(broken(Fault::SaysIncomplete), complete);
    let error = EncodeError::EmptyFrame { codec: "faulty" };
    assert_eq!(broken(Fault::Refuses), Broken::Refused { index: 0, error });
    let twice = broken(Fault::WritesTwice);
    assert_eq!(twice, Broken::MessageChanged { index: 1 });
    let one = check_messages(&Faulty(Fault::WritesTwice), &messages, &[1]);
    assert_eq!(one, Err(Broken::Leftover { messages: 1 }));
    let long = check_stream(&Faulty(Fault::TakesAnyLength), &[200], 100, &[1]);
    let over = Broken::OverLimit {
        at: 0,
        bytes: 201,
        limit: 100,
    };
    assert_eq!(long, Err(over));
}

#[test]
fn bytes_that_are_no_frames_end_the_stream() {
    let limit = DecodeError::FrameTooLarge {
        bytes: 201,
        limit: 100,
    };
    let stream = [2, b'h', b'i', 200, 1];
    let (frames, end) = check_stream(&Faulty(Fault::None), &stream, 100, &[1]).unwrap();
    assert_eq!((frames.len(), end), (1, Err(limit)));
    let (frames, end) = check_stream(&Tw1, b"", 100, &[]).unwrap();
    assert_eq!((frames.len(), end), (0, Ok(())));
}

/// A codec with shared bytes that are a payload. The header has the payload's length and the number of the
/// subscription, with one fault.
struct Headed(HeaderFault);

#[derive(Clone, Copy, PartialEq)]
enum HeaderFault {
    None,
    LongerThanSaid,
    LengthWithoutNumber,
    ClearsOutput,
}

impl Codec for Headed {
    fn format(&self) -> &'static Format {
        const LONG: Format = Format {
            delivery_header_bytes_max: 2,
            ..Format::new("headed")
        };
        const SHORT: Format = Format {
            delivery_header_bytes_max: 1,
            ..LONG
        };
        match self.0 {
            HeaderFault::LongerThanSaid => &SHORT,
            _ => &LONG,
        }
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        Faulty(Fault::None).decode(input, limit)
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(message.payload);
        Ok(())
    }

    fn delivery_header(&self, subscription: Subscription, shared: &[u8], out: &mut Vec<u8>) {
        if self.0 == HeaderFault::ClearsOutput {
            out.clear();
        }
        let counted = shared.len() + usize::from(self.0 != HeaderFault::LengthWithoutNumber);
        out.extend_from_slice(&[counted as u8, subscription.number as u8]);
    }
}

#[test]
fn a_header_of_a_delivery_is_part_of_its_frame() {
    let subscriptions = [7, 8].map(|number| Subscription { number, channel: 1 });
    let messages = [&b"hello"[..], b"you"].map(|it| Message::new(Kind::Deliver, 1, it));
    let check = |fault| check_deliveries(&Headed(fault), &subscriptions, &messages, &[1, 3]);
    let stream = check(HeaderFault::None).unwrap();
    assert_eq!(stream, b"\x06\x07hello\x06\x08hello\x04\x07you\x04\x08you");
    let broken = |index| Err(BrokenContract::DeliveryHeader { index });
    assert_eq!(check(HeaderFault::LongerThanSaid), broken(0));
    assert_eq!(check(HeaderFault::LengthWithoutNumber), broken(0));
    assert_eq!(check(HeaderFault::ClearsOutput), broken(1));
    // A codec without headers has deliveries, too.
    let without = check_deliveries(&Tw1, &subscriptions, &messages, &[1]).unwrap();
    assert_eq!(
        check_deliveries(&Tw1, &[subscriptions[0]], &messages, &[1])
            .unwrap()
            .len()
            * 2,
        without.len()
    );
}

/// The check accepts a codec behind a pointer.
#[test]
fn any_codec_can_be_checked() {
    let codec: &dyn Codec = &Delimited::new();
    let messages = [&b"a\rb"[..], b""].map(|it| Message::new(Kind::OneWay, 0, it));
    assert_eq!(check_every_cut(codec, &messages), Ok(()));
}
