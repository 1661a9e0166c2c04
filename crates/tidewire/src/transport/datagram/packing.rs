//! The ends of the datagrams in an output.
//!
//! Problem: frames share datagrams, because a datagram costs far more than a frame, but no frame is split, because
//! datagrams get lost. Approach: an output is filled frame by frame as for a stream. The packing keeps the offsets at
//! which a datagram must end because the next frame would not fit, as segment runs (GSO): neighbouring datagrams of one
//! size, which the kernel takes with one call. Frames of one size need not be noted one by one: the sender asks once
//! how far it may append ([`Packing::appendable`]), and notes afterwards how far it went ([`Packing::end_appending`]).
//!
//! Rejected: keeping the end of every frame and packing at the send, because that needs a list of all frames. Rejected:
//! finding the ends by decoding, because that does not work for frames that only the datagram ends.

use tidewire_proto::codec::{AnyCodec, Codec, Decoded};

/// The ends of the datagrams in an output, as offsets in its bytes.
#[derive(Debug)]
pub(crate) struct Packing {
    /// Largest datagram that several frames share, in bytes.
    bytes_max: usize,
    /// Every frame has a datagram of its own.
    is_single: bool,
    /// Full datagrams in order. Each run begins where the one before ends.
    full: Vec<SegmentRun>,
    /// The index of the first run that was not sent whole.
    next: usize,
    /// The offset at which the open datagram begins.
    start: usize,
    /// The end of the last frame that was noted.
    end: usize,
    /// The size of the frames that [`Packing::appendable`] allows after `end`. They are not noted one by one.
    appended_frame_bytes: usize,
}

/// Neighbouring datagrams of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SegmentRun {
    datagram_bytes: usize,
    /// The end of the last one.
    end: usize,
}

/// Datagrams to send with one call. All have the same size, but the last may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Its end in the output. It begins where the unsent part begins.
    end: usize,
    segment_bytes: usize,
}

impl Run {
    /// The end in the output. The run begins where the unsent part begins.
    pub(crate) fn end(self) -> usize {
        self.end
    }

    pub(crate) fn segment_bytes(self) -> usize {
        self.segment_bytes
    }
}

impl Packing {
    pub(crate) fn new(codec: &AnyCodec, bytes_max: usize) -> Self {
        Self {
            bytes_max,
            is_single: codec.format().fills_datagrams(),
            full: Vec::new(),
            next: 0,
            start: 0,
            end: 0,
            appended_frame_bytes: 0,
        }
    }

    /// Notes that one or several whole frames were appended to the output.
    #[inline(never)]
    pub(crate) fn handle_appended(&mut self, output: &[u8], codec: &AnyCodec) {
        if output.len() - self.end > self.bytes_max && !self.is_single {
            self.take_apart(output, codec);
        }
        self.handle_frame(output.len());
    }

    /// Bytes that the datagram at the end has room for. A frame that has more begins another one.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        match self.is_single {
            true => 0,
            false => self.bytes_max.saturating_sub(self.end - self.start),
        }
    }

    /// Notes a frame that was appended up to `end`, or several that share a datagram.
    #[inline]
    pub(crate) fn handle_frame(&mut self, end: usize) {
        if end == self.end {
            return;
        }
        if self.is_single {
            self.fill(end - self.end, end);
        } else if end - self.start > self.bytes_max && self.end > self.start {
            self.fill(self.end - self.start, self.end);
        }
        self.end = end;
    }

    /// Allows frames of this size to be appended without notes. Returns the largest length of the output at which one
    /// more may be appended. `None` if each frame must be noted. Call [`Packing::end_appending`] afterwards.
    pub(crate) fn appendable(&mut self, frame_bytes: usize) -> Option<usize> {
        if frame_bytes == 0 {
            return None;
        }
        self.appended_frame_bytes = frame_bytes;
        if self.is_single {
            return Some(usize::MAX);
        }
        let filled_max = self.bytes_max.checked_sub(frame_bytes)?;
        Some(self.start + filled_max)
    }

    /// Ends the frames that [`Packing::appendable`] allowed, and begins the next datagram if another frame of their
    /// size does not fit. Returns the next largest length, as `appendable` does.
    pub(crate) fn next_appendable(&mut self, end: usize) -> Option<usize> {
        self.end_appending(end);
        if end > self.start && end - self.start + self.appended_frame_bytes > self.bytes_max {
            self.fill(end - self.start, end);
        }
        self.appendable(self.appended_frame_bytes)
    }

    /// Notes that frames were appended up to `end`, as [`Packing::appendable`] allows.
    pub(crate) fn end_appending(&mut self, end: usize) {
        if self.is_single && end > self.end {
            self.fill(self.appended_frame_bytes, end);
        }
        self.end = end;
    }

    /// Finds the frames in bytes that are too many for one datagram. The caller notes the last one.
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

    /// Notes that the datagrams of this size are full up to `end`.
    fn fill(&mut self, datagram_bytes: usize, end: usize) {
        self.start = end;
        match self.full[self.next..].last_mut() {
            Some(last) if last.datagram_bytes == datagram_bytes => last.end = end,
            _ => self.full.push(SegmentRun {
                datagram_bytes,
                end,
            }),
        }
    }

    /// The next datagrams to send after the first `sent` bytes of the output. `None` if the output is empty.
    #[inline]
    pub(crate) fn run(&self, sent: usize) -> Option<Run> {
        let open = (self.end > self.start).then(|| SegmentRun {
            datagram_bytes: self.end - self.start,
            end: self.end,
        });
        let mut runs = self.full[self.next..].iter().copied().chain(open);
        let first = runs.next()?;
        let (segment_bytes, mut end) = (first.datagram_bytes, first.end);
        debug_assert!((end - sent).is_multiple_of(segment_bytes));
        // One more datagram may be smaller, or may still be filled; all others of this size are in the run.
        if let Some(next) = runs.next()
            && next.datagram_bytes <= segment_bytes
        {
            end += next.datagram_bytes;
        }
        Some(Run { end, segment_bytes })
    }

    /// Notes that this many datagrams after the first `sent` bytes were sent. Returns the offset of the next one.
    pub(crate) fn consume(&mut self, mut sent: usize, mut datagrams: usize) -> usize {
        while let Some(run) = self.full.get(self.next) {
            let count = (run.end - sent) / run.datagram_bytes;
            if datagrams < count {
                return sent + datagrams * run.datagram_bytes;
            }
            datagrams -= count;
            sent = run.end;
            self.next += 1;
        }
        if datagrams > 0 {
            self.start = self.end;
        }
        self.start
    }

    /// Shifts all offsets after the first `bytes` of the output were removed.
    pub(crate) fn shift(&mut self, bytes: usize) {
        self.full.drain(..self.next);
        self.next = 0;
        for run in &mut self.full {
            run.end -= bytes;
        }
        self.start -= bytes;
        self.end -= bytes;
    }

    /// Resets the offsets of an output that is empty.
    pub(crate) fn clear(&mut self) {
        self.full.clear();
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
            sent = packing.consume(sent, taken);
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
        assert_eq!(packing.consume(0, 2), 20);
        packing.shift(20);
        assert_eq!(packing.run(0), run(25));
        assert_eq!(packing.consume(0, 3), 25);
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
    fn frames_that_are_not_noted_share_datagrams_as_if_they_were() {
        let mut random = fastrand::Rng::with_seed(3);
        for (name, at_once) in [("tw1", 1), ("tw1", 3), ("raw", 1), ("raw", 3)] {
            let (_, mut noted) = packing(name, 40);
            let (_, mut by_size) = packing(name, 40);
            let (mut length, mut sent, mut unnoted) = (0, 0, 0);
            for _ in 0..2_000 {
                let (frame_bytes, count) = (random.usize(0..50), random.usize(1..10));
                let mut length_max = None;
                for _ in 0..count {
                    let before = length;
                    length += frame_bytes;
                    noted.handle_frame(length);
                    // Whether it fits is asked when the output has no room, too.
                    if length_max.is_some() && random.bool() {
                        length_max = by_size.next_appendable(before);
                    }
                    if length_max.is_some_and(|max| before <= max) {
                        unnoted += 1;
                        continue;
                    }
                    by_size.end_appending(before);
                    by_size.handle_frame(length);
                    length_max = by_size.appendable(frame_bytes);
                }
                by_size.end_appending(length);
                while random.bool()
                    && let Some(run) = noted.run(sent)
                {
                    assert_eq!(by_size.run(sent), Some(run));
                    let datagrams = (run.end - sent).div_ceil(run.segment_bytes);
                    let taken = datagrams.min(at_once);
                    let next = noted.consume(sent, taken);
                    assert_eq!(by_size.consume(sent, taken), next);
                    assert_eq!(next, run.end.min(sent + taken * run.segment_bytes));
                    sent = next;
                }
                if random.u8(..) < 30 {
                    noted.shift(sent);
                    by_size.shift(sent);
                    (length, sent) = (length - sent, 0);
                }
            }
            assert!(unnoted > 1_000);
        }
    }

    #[test]
    fn frames_appended_after_a_partial_send_follow_the_rest() {
        let (_, mut packing) = packing("tw1", 10);
        packing.handle_frame(8);
        packing.handle_frame(16);
        assert_eq!(packing.consume(0, 1), 8);
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
