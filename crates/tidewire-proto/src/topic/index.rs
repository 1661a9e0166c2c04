//! An index of patterns by the topics that they match.
//!
//! Problem: a topic may be matched by any number of patterns of unknown peers, with wildcards in any place. Approach: a
//! topic is matched by at most one pattern of each [`Shape`]. So the index is one table by text, and the list of shapes
//! in use. A look-up makes one text for each shape that fits the topic, and allocates nothing. Its cost grows with the
//! shapes, and not with the patterns or their subscribers. So a server needs to limit the shapes only.
//!
//! Rejected: trying every pattern, because the cost grows with all subscriptions.
//! Rejected: a tree of segments. It visits two branches at each segment, and every peer can add branches: its cost has
//! no other limit than the number of patterns.

use std::collections::HashMap;

use super::Pattern;
use super::shape::{Shape, SplitTopic};

/// A value for each pattern, found by topic.
#[derive(Clone, Debug)]
pub struct PatternIndex<T> {
    by_text: HashMap<Box<[u8]>, T>,
    /// The shapes of the patterns with wildcards, each with the number of its patterns.
    shapes: Vec<(Shape, usize)>,
}

impl<T> PatternIndex<T> {
    /// Creates an empty index.
    #[must_use]
    pub fn new() -> Self {
        Self {
            by_text: HashMap::new(),
            shapes: Vec::new(),
        }
    }

    /// Sets the value of a pattern. Returns the former value.
    pub fn insert(&mut self, pattern: &Pattern<'_>, value: T) -> Option<T> {
        let before = self.by_text.insert(pattern.text().as_bytes().into(), value);
        if before.is_none() && pattern.is_wildcard() {
            let shape = pattern.shape();
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
        if pattern.is_wildcard() {
            let shape = pattern.shape();
            if let Some(at) = self.shapes.iter().position(|(it, _)| *it == shape) {
                self.shapes[at].1 -= 1;
                if self.shapes[at].1 == 0 {
                    self.shapes.swap_remove(at);
                }
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
        let Some(mut topic) = SplitTopic::new(topic) else {
            return;
        };
        for (shape, _) in &self.shapes {
            let pattern = topic.pattern_of(shape);
            if let Some(value) = pattern.and_then(|pattern| self.by_text.get(pattern)) {
                visit(value);
            }
        }
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
    }
}
