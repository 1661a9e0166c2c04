//! An index of patterns by the topics that they match.
//!
//! Problem: a topic may be matched by any number of patterns of unknown peers, with wildcards in any place. Approach: a
//! topic is matched by at most one pattern of each [`Shape`]. So the index is one table by text, and the list of shapes
//! in use. The cost of a look-up grows with the shapes that fit the topic, and not with the patterns or their
//! subscribers. So a server needs to limit the shapes only. A look-up allocates nothing.
//!
//! To make the text of a pattern and to hash it takes 500 instructions. So the segments of the topic are hashed once,
//! and a shape combines their hashes to the [key](Keys) of its pattern. Only if a pattern has that key, its text is
//! made and looked up. With 255 shapes, of which none matches, a publication takes 44,000 instructions in place of
//! 146,000.
//!
//! Rejected: trying every pattern, because the cost grows with all subscriptions.
//! Rejected: a tree of segments. It visits two branches at each segment, and every peer can add branches: its cost has
//! no other limit than the number of patterns.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use super::Pattern;
use super::shape::{self, Shape, SplitTopic};

/// A value for each pattern, found by topic.
#[derive(Clone, Debug)]
pub struct PatternIndex<T> {
    by_text: HashMap<Box<[u8]>, T>,
    keys: Keys,
    /// The shapes of the patterns with wildcards, each with the number of its patterns.
    shapes: Vec<(Shape, usize)>,
}

impl<T> PatternIndex<T> {
    /// Creates an empty index.
    #[must_use]
    pub fn new() -> Self {
        Self {
            by_text: HashMap::new(),
            keys: Keys::default(),
            shapes: Vec::new(),
        }
    }

    /// Sets the value of a pattern. Returns the former value.
    pub fn insert(&mut self, pattern: &Pattern<'_>, value: T) -> Option<T> {
        let before = self.by_text.insert(pattern.text().as_bytes().into(), value);
        if before.is_none()
            && let Some(shape) = pattern.shape()
        {
            self.keys.add(pattern.text());
            match self.shapes.iter_mut().find(|(it, _)| *it == shape) {
                Some((_, count)) => *count += 1,
                None => self.shapes.push((shape, 1)),
            }
        }
        before
    }

    /// Removes a pattern. Returns the value it had.
    pub fn remove(&mut self, pattern: &Pattern<'_>) -> Option<T> {
        let value = self.by_text.remove(pattern.text().as_bytes())?;
        if let Some(shape) = pattern.shape()
            && let Some(at) = self.shapes.iter().position(|(it, _)| *it == shape)
        {
            self.keys.remove(pattern.text());
            self.shapes[at].1 -= 1;
            if self.shapes[at].1 == 0 {
                self.shapes.swap_remove(at);
            }
        }
        Some(value)
    }

    /// Calls `visit` with the value of every pattern that matches the valid `topic`.
    #[inline]
    pub fn each_match<'a>(&'a self, topic: &str, mut visit: impl FnMut(&'a T)) {
        if let Some(exact) = self.by_text.get(topic.as_bytes()) {
            visit(exact);
        }
        if self.shapes.is_empty() {
            return;
        }
        let Some(mut topic) = SplitTopic::new(topic, |segment| self.keys.of_segment(segment))
        else {
            return;
        };
        for (shape, _) in &self.shapes {
            if topic.key_of(shape).is_some_and(|key| self.keys.has(key))
                && let Some(value) = self.by_text.get(topic.pattern_of(shape))
            {
                visit(value);
            }
        }
    }
}

/// The keys of the patterns with wildcards, each with the number of its patterns.
#[derive(Clone, Debug, Default)]
struct Keys {
    counts: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    /// Its secret keeps peers from making equal keys.
    segments: RandomState,
}

impl Keys {
    fn of_segment(&self, segment: &[u8]) -> u64 {
        self.segments.hash_one(segment)
    }

    fn of(&self, pattern: &str) -> u64 {
        let of = |segment: &str| match segment {
            "*" => shape::STAR_KEY,
            ">" => shape::OPEN_KEY,
            _ => self.of_segment(segment.as_bytes()),
        };
        let segments = pattern.split('.').map(of);
        segments.fold(0, shape::combine)
    }

    fn add(&mut self, pattern: &str) {
        *self.counts.entry(self.of(pattern)).or_default() += 1;
    }

    fn remove(&mut self, pattern: &str) {
        let key = self.of(pattern);
        if let Some(count) = self.counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key);
            }
        }
    }

    #[inline]
    fn has(&self, key: u64) -> bool {
        self.counts.contains_key(&key)
    }
}

/// Uses a key as its own hash, because keys are hashes.
#[derive(Clone, Copy, Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = shape::combine(self.0, u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

impl<T> Default for PatternIndex<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// A text that is no topic is matched by no wildcard, and makes no look-up panic.
    #[test]
    fn a_text_that_is_too_long_or_too_deep_is_no_topic() {
        let mut index = PatternIndex::new();
        index.insert(&Pattern::parse(">").unwrap(), 1);
        assert_eq!(matched(&index, &"n".repeat(255)), [1]);
        assert!(matched(&index, &"n".repeat(256)).is_empty());
        assert!(matched(&index, &["n"; 17].join(".")).is_empty());
        for text in ["*.n", "n.>", "n.*"] {
            index.insert(&Pattern::parse(text).unwrap(), 2);
        }
        let long = "n".repeat(254);
        for text in [format!("{long}."), format!(".{long}"), String::new()] {
            assert!(matched(&index, &text).is_empty());
        }
    }

    fn matched(index: &PatternIndex<usize>, topic: &str) -> Vec<usize> {
        let mut found = Vec::new();
        index.each_match(topic, |value| found.push(*value));
        found.sort_unstable();
        found
    }

    /// Matches segment by segment, as the rules describe it.
    fn naive(pattern: &str, topic: &str) -> bool {
        let pattern: Vec<_> = pattern.split('.').collect();
        let topic: Vec<_> = topic.split('.').collect();
        let is_open = pattern.last() == Some(&">");
        let fixed = pattern.len() - usize::from(is_open);
        let fits = match is_open {
            true => topic.len() > fixed,
            false => topic.len() == fixed,
        };
        let mut pairs = pattern[..fixed].iter().zip(&topic);
        fits && pairs.all(|(wanted, segment)| *wanted == "*" || wanted == segment)
    }

    fn any_topic() -> impl Strategy<Value = String> {
        vec("[ab]{1,2}", 1..5).prop_map(|segments| segments.join("."))
    }

    fn any_pattern() -> impl Strategy<Value = String> {
        let segment = prop_oneof![2 => "[ab]{1,2}", 1 => Just("*".to_owned())];
        let last = prop_oneof!["[ab]{1,2}", Just("*".to_owned()), Just(">".to_owned())];
        (vec(segment, 0..4), last).prop_map(|(mut segments, last)| {
            segments.push(last);
            segments.join(".")
        })
    }

    proptest! {
        #[test]
        fn the_index_and_the_pattern_agree_with_a_naive_matcher(
            patterns in vec(any_pattern(), 0..30),
            removed in vec(any::<prop::sample::Index>(), 0..10),
            topics in vec(any_topic(), 1..20),
        ) {
            let mut patterns = patterns;
            patterns.sort();
            patterns.dedup();
            let mut index = PatternIndex::new();
            let mut present = vec![true; patterns.len()];
            for (number, text) in patterns.iter().enumerate() {
                prop_assert_eq!(index.insert(&Pattern::parse(text).unwrap(), number), None);
            }
            for at in removed.iter().filter(|_| !patterns.is_empty()) {
                let number = at.index(patterns.len());
                let expected = std::mem::take(&mut present[number]).then_some(number);
                let pattern = Pattern::parse(&patterns[number]).unwrap();
                prop_assert_eq!(index.remove(&pattern), expected);
            }
            for topic in &topics {
                let expected: Vec<usize> = (0..patterns.len())
                    .filter(|number| present[*number] && naive(&patterns[*number], topic))
                    .collect();
                prop_assert_eq!(matched(&index, topic), expected, "{}", topic);
                for text in &patterns {
                    let pattern = Pattern::parse(text).unwrap();
                    prop_assert_eq!(pattern.matches(topic), naive(text, topic), "{} on {}", text, topic);
                }
            }
        }
    }

    #[test]
    fn an_emptied_index_keeps_nothing() {
        let mut index = PatternIndex::new();
        let pattern = Pattern::parse("a.*").unwrap();
        assert_eq!(index.insert(&pattern, 1), None);
        assert_eq!(index.insert(&pattern, 2), Some(1));
        assert_eq!(index.remove(&pattern), Some(2));
        assert_eq!(index.remove(&pattern), None);
        assert!(index.by_text.is_empty() && index.shapes.is_empty());
        assert!(index.keys.counts.is_empty());
    }
}
