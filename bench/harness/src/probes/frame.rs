//! The frames that probes send: one template, numbered.

/// One frame as it travels, with a place for a running number by which replies are checked.
///
/// The number finds replies that are lost, doubled or swapped, and a copy of the reply those with a changed byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    request: Vec<u8>,
    number_at: usize,
    reply: Vec<u8>,
    reply_number_at: usize,
}

/// How a receiver finds the end of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parse {
    /// It does not: bytes are counted.
    Bytes,
    /// TW1: u32 LE length of what follows.
    Tw1,
    /// SRMP: u16 LE length at byte 2, behind it the payload. The long header is not used at these sizes.
    Srmp,
    /// Length-field: u16 LE length, behind it the payload.
    LengthField,
}

impl Frame {
    /// A frame of `frame_bytes` in the given format: a one-way message, which an echo server answers with the same
    /// bytes. Without a format it is bare bytes.
    pub(crate) fn one_way(parse: Parse, frame_bytes: usize) -> Self {
        let mut request = match parse {
            Parse::Bytes => Vec::new(),
            Parse::Tw1 => {
                let mut header = (frame_bytes as u32 - 4).to_le_bytes().to_vec();
                header.extend_from_slice(&[TW1_ONE_WAY, 0, 0, 0]);
                header
            }
            Parse::Srmp => {
                let [low, high] = (frame_bytes as u16 - 4).to_le_bytes();
                vec![SRMP_ONE_WAY, 0, low, high]
            }
            Parse::LengthField => (frame_bytes as u16 - 2).to_le_bytes().to_vec(),
        };
        let number_at = request.len();
        assert!(
            number_at + 8 <= frame_bytes && frame_bytes < usize::from(u16::MAX),
            "a frame of {frame_bytes} bytes has no room for its number or its length"
        );
        request.resize(frame_bytes, b'.');
        Self::new(request, number_at)
    }

    /// A frame given byte by byte, with the place of its running number of 8 bytes. The reply must have the same length
    /// and repeat the number at the same place.
    pub(crate) fn new(request: Vec<u8>, number_at: usize) -> Self {
        assert!(
            number_at + 8 <= request.len(),
            "the number is not within the frame"
        );
        Self {
            reply: request.clone(),
            reply_number_at: number_at,
            request,
            number_at,
        }
    }

    /// The same with replies of other bytes and with the number at another place.
    pub(crate) fn with_reply(self, reply: Vec<u8>, reply_number_at: usize) -> Self {
        assert!(
            reply_number_at + 8 <= reply.len(),
            "the number is not within the reply"
        );
        Self {
            reply,
            reply_number_at,
            ..self
        }
    }

    /// Size on the wire in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.request.len()
    }

    /// Size of a reply on the wire in bytes.
    pub(super) fn reply_bytes(&self) -> usize {
        self.reply.len()
    }

    /// Appends `count` frames with the numbers from `first`.
    pub(super) fn append(&self, out: &mut Vec<u8>, first: u64, count: u64) {
        for number in first..first + count {
            let at = out.len() + self.number_at;
            out.extend_from_slice(&self.request);
            out[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
    }

    /// The number of a whole reply; nothing if any other byte is not that of a reply.
    #[inline]
    pub(super) fn number_of(&self, reply: &[u8]) -> Option<u64> {
        let at = self.reply_number_at;
        let (number, rest) = reply.get(at..)?.split_first_chunk()?;
        let is_whole = reply[..at] == self.reply[..at] && *rest == self.reply[at + 8..];
        is_whole.then(|| u64::from_le_bytes(*number))
    }
}

impl Parse {
    /// The format of a codec of Tidewire by its name; nothing where there is none here.
    pub(crate) fn by_name(codec: &str) -> Option<Self> {
        Some(match codec {
            "raw" => Self::Bytes,
            "tw1" => Self::Tw1,
            "srmp" => Self::Srmp,
            "length-field" => Self::LengthField,
            _ => return None,
        })
    }

    /// Counts the whole frames at the front of `bytes`. Returns how many, and how many bytes they are.
    #[inline]
    pub(super) fn count(self, bytes: &[u8]) -> (u64, usize) {
        match self {
            Self::Bytes => (0, bytes.len()),
            Self::Tw1 => count_by(bytes, 4, |header| {
                4 + u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize
            }),
            Self::Srmp => count_by(bytes, 4, |header| {
                4 + usize::from(u16::from_le_bytes([header[2], header[3]]))
            }),
            Self::LengthField => count_by(bytes, 2, |header| {
                2 + usize::from(u16::from_le_bytes([header[0], header[1]]))
            }),
        }
    }
}

#[inline]
fn count_by(
    bytes: &[u8],
    header_bytes: usize,
    frame_bytes: impl Fn(&[u8]) -> usize,
) -> (u64, usize) {
    let (mut frames, mut at) = (0, 0);
    while bytes.len() - at >= header_bytes {
        let next = at + frame_bytes(&bytes[at..]);
        if next > bytes.len() {
            break;
        }
        frames += 1;
        at = next;
    }
    (frames, at)
}

/// Kind of a one-way message in TW1, see docs/protocol.md.
const TW1_ONE_WAY: u8 = 7;

/// A one-way message with a packet as payload in SRMP.
const SRMP_ONE_WAY: u8 = 0x41;

#[cfg(test)]
mod tests {
    use tidewire::Kind;
    use tidewire_proto::codec::{AnyCodec, Codec, Decoded};

    use super::*;

    #[test]
    fn a_reply_with_one_changed_byte_has_no_number() {
        let frame = Frame::one_way(Parse::Tw1, 32);
        let mut reply = Vec::new();
        frame.append(&mut reply, 7, 1);
        assert_eq!(frame.number_of(&reply), Some(7));
        for at in (0..8).chain(16..32) {
            let mut changed = reply.clone();
            changed[at] ^= 1;
            assert_eq!(frame.number_of(&changed), None, "byte {at}");
        }
        for other in [&reply[..31], &[reply.as_slice(), b"."].concat()] {
            assert_eq!(frame.number_of(other), None);
        }
    }

    #[test]
    fn frames_are_those_of_the_codecs() {
        for (parse, name) in [
            (Parse::Tw1, "tw1"),
            (Parse::Srmp, "srmp"),
            (Parse::LengthField, "length-field"),
        ] {
            let mut bytes = Vec::new();
            Frame::one_way(parse, 32).append(&mut bytes, 5, 3);
            assert_eq!(parse.count(&bytes), (3, 96));
            assert_eq!(parse.count(&bytes[..95]), (2, 64));
            let codec = AnyCodec::by_name(name).unwrap();
            let mut at = 0;
            for number in 5_u64..8 {
                let Decoded::Frame { message, consumed } =
                    codec.decode(&bytes[at..], 1_000).unwrap()
                else {
                    panic!("{name}: no message");
                };
                assert_eq!(message.kind, Kind::OneWay, "{name}");
                assert_eq!(message.payload[..8], number.to_le_bytes());
                at += consumed;
            }
            assert_eq!(at, bytes.len());
        }
    }
}
