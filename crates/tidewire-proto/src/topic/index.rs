//! An index of patterns by the topics that they match.
//!
//! A topic has at most one prefix for each of its segments, and a pattern is a prefix with one of three reaches. A
//! table by prefix therefore needs as many lookups as the topic has segments, without allocating, and a single lookup
//! while no pattern has a wildcard. Rejected: trying every pattern (its cost grows with all subscriptions) and a cache
//! of topics (untrusted peers fill it with topics, and each change empties it).

use std::collections::HashMap;

use super::{Pattern, Reach};

/// A value for each pattern, found by topic.
#[derive(Clone, Debug)]
pub struct PatternIndex<T> {
    by_prefix: HashMap<Box<str>, Reaches<T>>,
    /// The number of patterns with a wildcard. If it is 0, only the topic itself is looked up.
    wildcards: usize,
}

/// The values of the patterns that share a prefix.
#[derive(Clone, Debug)]
struct Reaches<T> {
    exact: Option<T>,
    one: Option<T>,
    more: Option<T>,
}

impl<T> PatternIndex<T> {
    /// Creates an empty index.
    #[must_use]
    pub fn new() -> Self {
        Self {
            by_prefix: HashMap::new(),
            wildcards: 0,
        }
    }

    /// Sets the value of a pattern. Returns the former value.
    pub fn insert(&mut self, pattern: &Pattern<'_>, value: T) -> Option<T> {
        let reaches = match self.by_prefix.get_mut(pattern.prefix) {
            Some(reaches) => reaches,
            None => self.by_prefix.entry(pattern.prefix.into()).or_default(),
        };
        let before = reaches.of(pattern.reach).replace(value);
        if before.is_none() && pattern.is_wildcard() {
            self.wildcards += 1;
        }
        before
    }

    /// Removes a pattern. Returns the value it had.
    pub fn remove(&mut self, pattern: &Pattern<'_>) -> Option<T> {
        let reaches = self.by_prefix.get_mut(pattern.prefix)?;
        let value = reaches.of(pattern.reach).take()?;
        if reaches.is_empty() {
            self.by_prefix.remove(pattern.prefix);
        }
        if pattern.is_wildcard() {
            self.wildcards -= 1;
        }
        Some(value)
    }

    /// Calls `visit` with the value of every pattern that matches the valid `topic`.
    #[inline]
    pub fn each_match<'a>(&'a self, topic: &str, mut visit: impl FnMut(&'a T)) {
        if let Some(exact) = self.by_prefix.get(topic).and_then(|at| at.exact.as_ref()) {
            visit(exact);
        }
        if self.wildcards == 0 {
            return;
        }
        let (mut end, mut is_parent) = (topic.len(), true);
        loop {
            let dot = topic[..end].rfind('.');
            let prefix = dot.map_or("", |dot| &topic[..dot]);
            if let Some(reaches) = self.by_prefix.get(prefix) {
                if is_parent && let Some(one) = &reaches.one {
                    visit(one);
                }
                if let Some(more) = &reaches.more {
                    visit(more);
                }
            }
            match dot {
                Some(dot) => (end, is_parent) = (dot, false),
                None => return,
            }
        }
    }
}

impl<T> Reaches<T> {
    fn of(&mut self, reach: Reach) -> &mut Option<T> {
        match reach {
            Reach::Exact => &mut self.exact,
            Reach::One => &mut self.one,
            Reach::More => &mut self.more,
        }
    }

    fn is_empty(&self) -> bool {
        self.exact.is_none() && self.one.is_none() && self.more.is_none()
    }
}

impl<T> Default for PatternIndex<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Default for Reaches<T> {
    fn default() -> Self {
        Self {
            exact: None,
            one: None,
            more: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

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
        let fixed = pattern.len() - 1;
        match pattern[fixed] {
            "*" => topic.len() == fixed + 1 && pattern[..fixed] == topic[..fixed],
            ">" => topic.len() > fixed && pattern[..fixed] == topic[..fixed],
            _ => pattern == topic,
        }
    }

    fn any_topic() -> impl Strategy<Value = String> {
        vec("[ab]{1,2}", 1..5).prop_map(|segments| segments.join("."))
    }

    fn any_pattern() -> impl Strategy<Value = String> {
        let last = prop::sample::select(vec!["", "*", ">"]);
        (vec("[ab]{1,2}", 0..4), last).prop_map(|(mut segments, last)| {
            if !last.is_empty() || segments.is_empty() {
                segments.push(if last.is_empty() { "a" } else { last }.to_owned());
            }
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
        assert!(index.by_prefix.is_empty());
        assert_eq!(index.wildcards, 0);
    }
}
