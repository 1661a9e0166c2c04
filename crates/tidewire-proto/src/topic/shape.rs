//! The shape of a pattern: where its wildcards stand.

use crate::limits::{TOPIC_BYTES_MAX, TOPIC_SEGMENTS_MAX};

/// Where the wildcards of a pattern stand. `a.*.c` and `x.*.z` have the same shape, `a.*` and `a.>` have others.
///
/// A topic is matched by at most one pattern of each shape: the one with the topic's own segments in place of all that
/// are no wildcards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The number of segments, without a `>` at the end.
    segments: usize,
    /// Bit `n` is set if segment `n` is `*`.
    stars: u16,
    /// Whether the pattern ends with `>`.
    is_open: bool,
}

// A bit for each segment.
const _: () = assert!(TOPIC_SEGMENTS_MAX <= u16::BITS as usize);

impl Shape {
    /// The shape of a text that is a valid pattern.
    pub(super) fn of(pattern: &str) -> Self {
        let mut shape = Self {
            segments: 0,
            stars: 0,
            is_open: false,
        };
        for segment in pattern.split('.') {
            match segment {
                ">" => {
                    shape.is_open = true;
                    return shape;
                }
                "*" => shape.stars |= 1 << shape.segments,
                _ => {}
            }
            shape.segments += 1;
        }
        shape
    }

    /// Whether a segment before the last one is a wildcard, as in `a.*.c` and `*.>`.
    #[must_use]
    pub const fn has_inner_wildcard(&self) -> bool {
        let last = match self.is_open {
            true => 0,
            false => 1 << (self.segments - 1),
        };
        self.stars & !last != 0
    }

    /// Whether topics of this many segments are matched by patterns of this shape.
    #[inline]
    const fn fits(&self, segments: usize) -> bool {
        match self.is_open {
            true => segments > self.segments,
            false => segments == self.segments,
        }
    }
}

/// A topic that is split at its dots once, for all shapes.
pub(super) struct SplitTopic<'a> {
    topic: &'a [u8],
    /// Where each segment ends.
    ends: [u8; TOPIC_SEGMENTS_MAX],
    /// The key of each segment.
    keys: [u64; TOPIC_SEGMENTS_MAX],
    segments: usize,
    /// The last pattern that was made.
    pattern: [u8; TOPIC_BYTES_MAX],
}

impl<'a> SplitTopic<'a> {
    /// Returns `None` for a text that is too long to be a topic, has too many segments, or has an empty one.
    pub(super) fn new(topic: &'a str, key: impl Fn(&[u8]) -> u64) -> Option<Self> {
        let topic = topic.as_bytes();
        let mut split = Self {
            topic,
            ends: [0; TOPIC_SEGMENTS_MAX],
            keys: [0; TOPIC_SEGMENTS_MAX],
            segments: 0,
            pattern: [0; TOPIC_BYTES_MAX],
        };
        let length = u8::try_from(topic.len()).ok()?;
        let mut start = 0;
        for (at, byte) in (0..=length).zip(topic.iter().chain(b".")) {
            if *byte == b'.' {
                // A pattern with a wildcard in place of an empty segment would be longer than the topic.
                (usize::from(at) > start).then_some(())?;
                *split.ends.get_mut(split.segments)? = at;
                split.keys[split.segments] = key(&topic[start..usize::from(at)]);
                split.segments += 1;
                start = usize::from(at) + 1;
            }
        }
        Some(split)
    }

    /// The key of the only pattern of this shape that matches the topic. `None` if no pattern of this shape does.
    #[inline]
    pub(super) fn key_of(&self, shape: &Shape) -> Option<u64> {
        if !shape.fits(self.segments) {
            return None;
        }
        let (mut key, mut stars) = (0, shape.stars);
        for segment in &self.keys[..shape.segments] {
            let is_star = stars & 1 != 0;
            key = combine(key, if is_star { STAR_KEY } else { *segment });
            stars >>= 1;
        }
        Some(if shape.is_open {
            combine(key, OPEN_KEY)
        } else {
            key
        })
    }

    /// The text of the only pattern of this shape that matches the topic. The shape fits.
    pub(super) fn pattern_of(&mut self, shape: &Shape) -> &[u8] {
        // Segments without a wildcard are copied together, with the dots between them.
        let (mut copied, mut length) = (0, 0);
        let mut stars = shape.stars;
        while stars != 0 {
            let star = stars.trailing_zeros() as usize;
            stars &= stars - 1;
            let start = self.start_of(star);
            length = self.copy(copied, start, length);
            self.pattern[length] = b'*';
            length += 1;
            copied = usize::from(self.ends[star]);
        }
        if shape.is_open {
            length = self.copy(copied, self.start_of(shape.segments), length);
            self.pattern[length] = b'>';
            length += 1;
        } else {
            length = self.copy(copied, self.topic.len(), length);
        }
        &self.pattern[..length]
    }

    /// Where a segment starts.
    fn start_of(&self, segment: usize) -> usize {
        match segment {
            0 => 0,
            _ => usize::from(self.ends[segment - 1]) + 1,
        }
    }

    /// Adds a part of the topic to the pattern, which has `length` bytes. Returns its new length.
    fn copy(&mut self, from: usize, to: usize, length: usize) -> usize {
        let part = &self.topic[from..to];
        let end = length + part.len();
        self.pattern[length..end].copy_from_slice(part);
        end
    }
}

/// Adds the key of a segment to those before it.
#[inline]
pub(super) const fn combine(before: u64, segment: u64) -> u64 {
    (before.rotate_left(5) ^ segment).wrapping_mul(ODD)
}

/// The keys of the wildcards.
pub(super) const STAR_KEY: u64 = 0x9E37_79B9_7F4A_7C15;
pub(super) const OPEN_KEY: u64 = 0xC2B2_AE3D_27D4_EB4F;

/// An odd number with bits of both kinds in all places.
const ODD: u64 = 0xF135_7AEA_2E62_A9C5;

#[cfg(test)]
mod tests {
    use super::*;

    fn split(topic: &str) -> Option<SplitTopic<'_>> {
        SplitTopic::new(topic, |segment| segment.len() as u64)
    }

    fn pattern_of(pattern: &str, topic: &str) -> Option<String> {
        let mut topic = split(topic)?;
        topic.key_of(&Shape::of(pattern))?;
        let text = topic.pattern_of(&Shape::of(pattern));
        Some(String::from_utf8(text.to_vec()).unwrap())
    }

    #[test]
    fn a_shape_makes_the_pattern_of_a_topic() {
        let table = [
            ("x.*", "a.b", Some("a.*")),
            ("*.x", "a.b", Some("*.b")),
            ("*.*", "a.b", Some("*.*")),
            ("x.*.x", "a.b.c", Some("a.*.c")),
            ("x.>", "a.b.c", Some("a.>")),
            ("x.*.>", "aa.bb.cc.dd", Some("aa.*.>")),
            (">", "a.b", Some(">")),
            ("x.*", "a.b.c", None),
            ("x.x.>", "a.b", None),
            ("x", "a", Some("a")),
        ];
        for (pattern, topic, expected) in table {
            let made = pattern_of(pattern, topic);
            assert_eq!(made.as_deref(), expected, "{pattern} of {topic}");
        }
    }

    #[test]
    fn the_longest_and_the_deepest_topic_fit_and_others_are_no_topics() {
        let long = "n".repeat(TOPIC_BYTES_MAX);
        assert_eq!(pattern_of("x", &long), Some(long.clone()));
        let deep = ["s"; TOPIC_SEGMENTS_MAX].join(".");
        let stars = ["*"; TOPIC_SEGMENTS_MAX].join(".");
        assert_eq!(pattern_of(&stars, &deep), Some(stars.clone()));
        assert!(split(&format!("{long}n")).is_none());
        assert!(split(&format!("{deep}.s")).is_none());
        for text in ["", ".", "a.", ".a", "a..b"] {
            assert!(split(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn only_a_wildcard_before_the_last_segment_is_an_inner_one() {
        for pattern in ["a.*.c", "*.b", "*.>", "a.*.*", "*.*"] {
            assert!(Shape::of(pattern).has_inner_wildcard(), "{pattern}");
        }
        for pattern in ["a", "a.b", "a.*", "*", ">", "a.>", "a.b.>"] {
            assert!(!Shape::of(pattern).has_inner_wildcard(), "{pattern}");
        }
    }
}
