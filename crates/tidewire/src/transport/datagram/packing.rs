//! Where the datagrams of an output end.
//!
//! Problem: frames share datagrams, because a datagram costs far more than a frame, but none is cut in two, since
//! datagrams get lost. Approach: an output is filled frame by frame as for a stream, and beside it the places are kept
//! where a datagram must end because the next frame would not fit. Neighbours of equal size are handed to the kernel in
//! one piece, which is why nothing may lie between them.
//!
//! Rejected: keeping the end of every frame and packing when it is sent, which costs a list as long as there are
//! frames for the same result; and finding the ends by decoding, which does not work for frames that only the datagram
//! ends.

use tidewire_proto::codec::{AnyCodec, Codec, Decoded};

/// The ends of the datagrams in an output, as places in its bytes.
#[derive(Debug)]
pub(crate) struct Packing {
    /// Largest datagram that is filled up with several frames, in bytes.
    bytes_max: usize,
    /// Every frame is a datagram of its own.
    is_single: bool,
    /// Ends of datagrams that are full, in order.
    ends: Vec<usize>,
    /// Those before this one were sent.
    next: usize,
    /// Where the datagram begins that may still be filled up.
    start: usize,
    /// Where the last frame ends.
    end: usize,
}

/// Datagrams to send in one piece: all of the same size, but for the last, which may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Where it ends in the output; it begins where the unsent part does.
    pub(crate) end: usize,
    /// Bytes of each datagram.
    pub(crate) segment_bytes: usize,
}

impl Packing {
    pub(crate) fn new(codec: &AnyCodec, bytes_max: usize) -> Self {
        Self {
            bytes_max,
            is_single: codec.fills_datagrams(),
            ends: Vec::new(),
            next: 0,
            start: 0,
            end: 0,
        }
    }

    /// Something was appended to the output: a whole frame, or several.
    #[inline(never)]
    pub(crate) fn handle_appended(&mut self, output: &[u8], codec: &AnyCodec) {
        if output.len() - self.end > self.bytes_max && !self.is_single {
            self.take_apart(output, codec);
        }
        self.handle_frame(output.len());
    }

    /// A frame was appended, up to here, or several that may not be parted.
    #[inline]
    pub(crate) fn handle_frame(&mut self, end: usize) {
        if end == self.end {
            return;
        }
        let is_full = self.is_single || end - self.start > self.bytes_max;
        if is_full && self.end > self.start {
            self.ends.push(self.end);
            self.start = self.end;
        }
        self.end = end;
    }

    /// Finds the frames in what is too much for one datagram. The last one is left to the caller.
    #[cold]
    fn take_apart(&mut self, output: &[u8], codec: &AnyCodec) {
        let mut at = self.end;
        while let Ok(Decoded::Frame { consumed, .. }) = codec.decode(&output[at..], usize::MAX) {
            at += consumed;
            if at >= output.len() {
                return;
            }
            self.handle_frame(at);
        }
    }

    /// What to send next, if `sent` bytes of the output went and it is not empty.
    pub(crate) fn run(&self, sent: usize) -> Option<Run> {
        let last = (self.end > self.start).then_some(self.end);
        let mut ends = self.ends[self.next..].iter().copied().chain(last);
        let mut end = ends.next()?;
        let segment_bytes = end - sent;
        for next in ends {
            let bytes = next - end;
            if bytes > segment_bytes {
                break;
            }
            end = next;
            if bytes < segment_bytes {
                break;
            }
        }
        Some(Run { end, segment_bytes })
    }

    /// So many datagrams went. Returns where the next one begins.
    pub(crate) fn consume(&mut self, datagrams: usize) -> usize {
        let full = datagrams.min(self.ends.len() - self.next);
        self.next += full;
        if datagrams > full {
            self.start = self.end;
            return self.end;
        }
        self.ends[..self.next].last().copied().unwrap_or_default()
    }

    /// The first `bytes` of the output, which were sent, are gone.
    pub(crate) fn shift(&mut self, bytes: usize) {
        self.ends.drain(..self.next);
        self.next = 0;
        for end in &mut self.ends {
            *end -= bytes;
        }
        self.start -= bytes;
        self.end -= bytes;
    }

    /// The output is empty.
    pub(crate) fn clear(&mut self) {
        self.ends.clear();
        (self.next, self.start, self.end) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewire_proto::message::{Kind, Message};

    fn packing(name: &str, bytes_max: usize) -> (AnyCodec, Packing) {
        let codec = AnyCodec::by_name(name).unwrap();
        let packing = Packing::new(&codec, bytes_max);
        (codec, packing)
    }

    /// The datagrams that go, when the kernel takes `at_once` of each run.
    fn sent(packing: &mut Packing, output: &[u8], at_once: usize) -> Vec<Vec<u8>> {
        let (mut sent, mut datagrams) = (0, Vec::new());
        while let Some(run) = packing.run(sent) {
            let pieces: Vec<_> = output[sent..run.end].chunks(run.segment_bytes).collect();
            let taken = pieces.len().min(at_once);
            datagrams.extend(pieces[..taken].iter().map(|piece| piece.to_vec()));
            sent = packing.consume(taken);
            assert_eq!(datagrams.iter().map(Vec::len).sum::<usize>(), sent);
        }
        assert_eq!(sent, output.len());
        datagrams
    }

    #[test]
    fn frames_share_datagrams_and_none_is_cut() {
        for at_once in [1, 2, 100] {
            let (_, mut packing) = packing("tw1", 10);
            let (mut output, mut expected) = (Vec::new(), Vec::<Vec<u8>>::new());
            for (number, bytes) in [4_usize, 4, 4, 4, 4, 10, 3, 25, 1, 9, 1].iter().enumerate() {
                let frame = vec![number as u8; *bytes];
                output.extend_from_slice(&frame);
                packing.handle_frame(output.len());
                match expected.last_mut() {
                    Some(last) if last.len() + bytes <= 10 => last.extend(frame),
                    _ => expected.push(frame),
                }
            }
            assert_eq!(
                expected.iter().map(Vec::len).max(),
                Some(25),
                "alone, but whole"
            );
            assert_eq!(sent(&mut packing, &output, at_once), expected);
        }
    }

    #[test]
    fn equal_datagrams_go_in_one_piece() {
        let (_, mut packing) = packing("tw1", 10);
        for end in (5..=45).step_by(5) {
            packing.handle_frame(end);
        }
        let run = |end| {
            Some(Run {
                end,
                segment_bytes: 10,
            })
        };
        assert_eq!(packing.run(0), run(45));
        assert_eq!(packing.consume(2), 20);
        packing.shift(20);
        assert_eq!(packing.run(0), run(25));
        assert_eq!(packing.consume(3), 25);
        assert_eq!(packing.run(25), None);
    }

    #[test]
    fn frames_that_only_a_datagram_ends_travel_alone() {
        let (codec, mut packing) = packing("raw", 1_000);
        let mut output = Vec::new();
        for payload in [b"one".as_slice(), b"two", b"three", b"of"] {
            let message = Message::new(Kind::OneWay, 0, payload);
            codec.encode(&message, &mut output).unwrap();
            packing.handle_appended(&output, &codec);
        }
        let expected = [
            b"one".to_vec(),
            b"two".to_vec(),
            b"three".to_vec(),
            b"of".to_vec(),
        ];
        assert_eq!(sent(&mut packing, &output, 1), expected);
    }

    #[test]
    fn frames_appended_together_are_parted_when_they_are_too_many() {
        let (codec, mut packing) = packing("tw1", 60);
        let mut output = Vec::new();
        for number in 0..10 {
            let message = Message::with_id(Kind::Request, 0, number, b"twelve bytes");
            codec.encode(&message, &mut output).unwrap();
        }
        packing.handle_appended(&output, &codec);
        let lengths: Vec<_> = sent(&mut packing, &output, 3)
            .iter()
            .map(Vec::len)
            .collect();
        assert_eq!(lengths, [48; 5]);
    }

    #[test]
    fn what_is_appended_after_a_part_went_follows_it() {
        let (_, mut packing) = packing("tw1", 10);
        packing.handle_frame(8);
        packing.handle_frame(16);
        assert_eq!(packing.consume(1), 8);
        packing.handle_frame(18);
        assert_eq!(
            packing.run(8),
            Some(Run {
                end: 18,
                segment_bytes: 10
            })
        );
        packing.clear();
        assert_eq!(packing.run(0), None);
    }
}
