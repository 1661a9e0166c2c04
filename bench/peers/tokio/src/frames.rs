//! The ends of frames, in the formats that the benchmark's client sends.

use anyhow::{Result, bail, ensure};
use peer_common::Work;

/// How to find the end of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frames {
    /// By size: every frame has the same number of bytes.
    Raw { message_bytes: usize },
    /// TW1: u32 LE length of the rest of the frame.
    Tw1,
    /// SRMP: u16 LE length of the payload at byte 2 of 4.
    Srmp,
    /// Length-field: u16 LE length of the payload.
    LengthField,
}

impl Frames {
    pub(crate) fn of(work: &Work) -> Result<Self> {
        Ok(match work.codec.as_str() {
            "tw1" => Self::Tw1,
            "srmp" => Self::Srmp,
            "length-field" => Self::LengthField,
            "raw" | "" => {
                let message_bytes = work.message_bytes;
                ensure!(message_bytes > 0, "messages of 0 bytes cannot be counted");
                Self::Raw { message_bytes }
            }
            codec => bail!("codec '{codec}' is not offered; tw1, srmp, length-field and raw are"),
        })
    }

    /// Counts the complete frames at the front of `bytes`. Returns their number and their size in bytes.
    pub(crate) fn count(self, bytes: &[u8]) -> (u64, usize) {
        match self {
            Self::Raw { message_bytes } => {
                let frames = bytes.len() / message_bytes;
                (frames as u64, frames * message_bytes)
            }
            Self::Tw1 => walk(bytes, |&[a, b, c, d]: &[u8; 4]| {
                4 + u32::from_le_bytes([a, b, c, d]) as usize
            }),
            Self::Srmp => walk(bytes, |&[_, _, low, high]: &[u8; 4]| {
                4 + usize::from(u16::from_le_bytes([low, high]))
            }),
            Self::LengthField => walk(bytes, |&[low, high]: &[u8; 2]| {
                2 + usize::from(u16::from_le_bytes([low, high]))
            }),
        }
    }
}

fn walk<const HEADER: usize>(
    bytes: &[u8],
    frame_bytes: impl Fn(&[u8; HEADER]) -> usize,
) -> (u64, usize) {
    let (mut frames, mut at) = (0, 0);
    while let Some(header) = bytes[at..].first_chunk::<HEADER>() {
        let next = at + frame_bytes(header);
        if next > bytes.len() {
            break;
        }
        frames += 1;
        at = next;
    }
    (frames, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_frames_are_counted_and_half_ones_left() {
        for (frames, frame) in [
            (Frames::Tw1, &[6, 0, 0, 0, 7, 0, 0, 0, b'h', b'i'][..]),
            (Frames::Srmp, &[0x41, 0, 2, 0, b'h', b'i']),
            (Frames::LengthField, &[2, 0, b'h', b'i']),
            (Frames::Raw { message_bytes: 2 }, b"hi"),
        ] {
            let stream = frame.repeat(3);
            assert_eq!(frames.count(&stream), (3, stream.len()), "{frames:?}");
            let cut = &stream[..stream.len() - 1];
            assert_eq!(frames.count(cut), (2, 2 * frame.len()), "{frames:?}");
            assert_eq!(frames.count(&[]), (0, 0), "{frames:?}");
        }
    }
}
