//! Topics and the patterns that subscribe to them.
//!
//! A topic is a name of segments with dots between them, `sensor.7.temperature`. A pattern is a topic, or ends in a
//! wildcard. `sensor.*` is every topic of exactly one more segment, and `sensor.>` every topic of one or more. `*`
//! alone is every topic of one segment, and `>` every topic. A wildcard is only allowed at the end. So one look-up for
//! each prefix of a topic finds its patterns, for any number of patterns.
//!
//! Rejected: wildcards in the middle (`sensor.*.temperature`). Such wildcards need a walk through a tree that branches
//! at every segment, at a cost that depends on the subscriptions of untrusted peers. Topics from the general to the
//! particular seldom need them.

mod index;
mod owned;

use std::fmt;

use thiserror::Error;

use crate::body::ErrorCode;
use crate::limits::{TOPIC_BYTES_MAX, TOPIC_SEGMENTS_MAX};

pub use index::PatternIndex;
pub use owned::PatternBuf;

/// The topics of a subscription. See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pattern<'a> {
    text: &'a str,
    prefix: &'a str,
    reach: Reach,
}

/// How far a pattern reaches below its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reach {
    /// The prefix is the topic.
    Exact,
    /// One more segment.
    One,
    /// One or more segments.
    More,
}

/// The text is not a topic, or not a pattern. Nothing was sent or subscribed; correct the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopicError {
    /// The text is empty.
    #[error("a topic must not be empty")]
    Empty,
    /// The text is longer than the limit.
    #[error("a topic of {bytes} bytes is longer than {limit} bytes")]
    TooLong {
        /// Length in UTF-8 bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The text has more segments than the limit.
    #[error("a topic of more than {limit} segments is too deep")]
    TooManySegments {
        /// The limit.
        limit: usize,
    },
    /// The text starts or ends with a dot, or has two of them in a row.
    #[error("a topic must not have an empty segment")]
    EmptySegment,
    /// The text contains white space or a control character.
    #[error("a topic must not contain {0:?}")]
    Character(char),
    /// The topic contains `*` or `>`, but messages are published to one topic.
    #[error("a message is published to one topic, so wildcards are not allowed")]
    WildcardInTopic,
    /// The wildcard is not the whole last segment.
    #[error("a wildcard must be the whole last segment of a pattern")]
    WildcardMisplaced,
}

impl TopicError {
    /// Returns the code that tells a peer about this refusal.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::Empty => ErrorCode::NameEmpty,
            _ => ErrorCode::NameInvalid,
        }
    }
}

impl<'a> Pattern<'a> {
    /// Checks a pattern.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn parse(text: &'a str) -> Result<Self, TopicError> {
        check(text)?;
        let (prefix, last) = text.rsplit_once('.').unwrap_or(("", text));
        let (prefix, reach) = match last {
            "*" => (prefix, Reach::One),
            ">" => (prefix, Reach::More),
            _ => (text, Reach::Exact),
        };
        if prefix.contains(WILDCARDS) {
            return Err(TopicError::WildcardMisplaced);
        }
        Ok(Self {
            text,
            prefix,
            reach,
        })
    }

    /// The pattern as it was written.
    #[must_use]
    pub const fn text(&self) -> &'a str {
        self.text
    }

    /// Whether the pattern may match several topics, so that a delivery must contain its topic.
    #[must_use]
    pub const fn is_wildcard(&self) -> bool {
        !matches!(self.reach, Reach::Exact)
    }

    /// Whether it matches a topic.
    #[must_use]
    pub fn matches(&self, topic: &str) -> bool {
        let below = match (self.reach, self.prefix) {
            (Reach::Exact, exact) => return topic == exact,
            (_, "") => Some(topic),
            (_, prefix) => topic
                .strip_prefix(prefix)
                .and_then(|rest| rest.strip_prefix('.')),
        };
        below.is_some_and(|below| match self.reach {
            Reach::One => !below.is_empty() && !below.contains('.'),
            _ => !below.is_empty(),
        })
    }
}

impl Pattern<'_> {
    /// Whether every topic that `other` matches is matched by this pattern, too.
    #[must_use]
    pub fn covers(&self, other: &Pattern<'_>) -> bool {
        match (self.reach, other.reach) {
            (_, Reach::Exact) => self.matches(other.text),
            (Reach::Exact, _) => false,
            (Reach::One, reach) => reach == Reach::One && self.prefix == other.prefix,
            (Reach::More, _) => self.prefix == other.prefix || self.is_above(other.prefix),
        }
    }

    /// Whether some topic is matched by both patterns.
    #[must_use]
    pub fn overlaps(&self, other: &Pattern<'_>) -> bool {
        match (self.reach, other.reach) {
            (Reach::Exact, _) => other.matches(self.text),
            (_, Reach::Exact) => self.matches(other.text),
            (Reach::One, Reach::One) => self.prefix == other.prefix,
            (Reach::More, Reach::More) => {
                self.prefix == other.prefix
                    || self.is_above(other.prefix)
                    || other.is_above(self.prefix)
            }
            (Reach::More, Reach::One) => self.prefix == other.prefix || self.is_above(other.prefix),
            (Reach::One, Reach::More) => other.overlaps(self),
        }
    }

    /// Whether this prefix is a prefix of another prefix, by whole segments.
    fn is_above(&self, prefix: &str) -> bool {
        match prefix.strip_prefix(self.prefix) {
            Some(rest) if self.prefix.is_empty() => !rest.is_empty(),
            Some(rest) => rest.starts_with('.'),
            None => false,
        }
    }
}

impl fmt::Display for Pattern<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text)
    }
}

/// Checks a topic that a message is published to.
///
/// # Errors
/// The first rule it breaks.
#[inline]
pub fn validate_topic(topic: &str) -> Result<(), TopicError> {
    check(topic)?;
    if topic.contains(WILDCARDS) {
        return Err(TopicError::WildcardInTopic);
    }
    Ok(())
}

/// Checks the rules that topics and patterns share. Most topics are plain ASCII, which is decided byte by byte.
fn check(text: &str) -> Result<(), TopicError> {
    // The length is checked first, so that the work is bounded for a peer's text of any length.
    if text.len() > TOPIC_BYTES_MAX {
        return Err(TopicError::TooLong {
            bytes: text.len(),
            limit: TOPIC_BYTES_MAX,
        });
    }
    if text.is_empty() {
        return Err(TopicError::Empty);
    }
    let (mut segments, mut last) = (1, '.');
    for character in text.chars() {
        if character == '.' {
            if last == '.' {
                return Err(TopicError::EmptySegment);
            }
            segments += 1;
        } else if character.is_control() || character.is_whitespace() {
            return Err(TopicError::Character(character));
        }
        last = character;
    }
    if last == '.' {
        return Err(TopicError::EmptySegment);
    }
    if segments > TOPIC_SEGMENTS_MAX {
        return Err(TopicError::TooManySegments {
            limit: TOPIC_SEGMENTS_MAX,
        });
    }
    Ok(())
}

const WILDCARDS: [char; 2] = ['*', '>'];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_topics_of_the_table() {
        let table = [
            ("a", "a", true),
            ("a", "a.b", false),
            ("a.b", "a.b", true),
            ("a.b", "a", false),
            ("a.b", "a.bc", false),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.*", "a.b.c", false),
            ("a.*", "ab", false),
            ("a.*", "ab.c", false),
            ("a.>", "a.b", true),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            ("a.>", "ab.c", false),
            ("a.b.*", "a.b.c", true),
            ("a.b.*", "a.c.c", false),
            ("*", "a", true),
            ("*", "a.b", false),
            (">", "a", true),
            (">", "a.b.c", true),
        ];
        for (pattern, topic, expected) in table {
            let pattern = Pattern::parse(pattern).unwrap();
            assert_eq!(pattern.matches(topic), expected, "{pattern} on {topic}");
        }
    }

    /// Compares both relations with the topics that the patterns match.
    #[test]
    fn covering_and_overlapping_agree_with_the_topics_that_match() {
        let names = ["a", "b"];
        let two = |one: &str| names.map(|last| format!("{one}.{last}"));
        let mut topics: Vec<String> = names.map(str::to_owned).to_vec();
        for _ in 0..3 {
            let longer: Vec<String> = topics.iter().flat_map(|topic| two(topic)).collect();
            topics.extend(longer);
        }
        topics.sort();
        topics.dedup();
        // Topics of four segments stand for all longer ones.
        let short = topics.iter().filter(|topic| topic.split('.').count() < 3);
        let mut patterns: Vec<String> = vec!["*".to_owned(), ">".to_owned()];
        for topic in short {
            patterns.extend([topic.clone(), format!("{topic}.*"), format!("{topic}.>")]);
        }
        for one in &patterns {
            for other in &patterns {
                let [a, b] = [one, other].map(|text| Pattern::parse(text).unwrap());
                let both = |topic: &&String| a.matches(topic) && b.matches(topic);
                let covers = topics
                    .iter()
                    .all(|topic| !b.matches(topic) || a.matches(topic));
                assert_eq!(a.covers(&b), covers, "{one} covers {other}");
                let overlaps = topics.iter().any(|topic| both(&topic));
                assert_eq!(a.overlaps(&b), overlaps, "{one} overlaps {other}");
            }
        }
    }

    #[test]
    fn each_broken_rule_is_named() {
        let long = "n".repeat(TOPIC_BYTES_MAX + 1);
        let deep = ["s"; TOPIC_SEGMENTS_MAX + 1].join(".");
        let cases = [
            ("", TopicError::Empty),
            (
                &*long,
                TopicError::TooLong {
                    bytes: 256,
                    limit: 255,
                },
            ),
            (&*deep, TopicError::TooManySegments { limit: 16 }),
            (".a", TopicError::EmptySegment),
            ("a.", TopicError::EmptySegment),
            ("a..b", TopicError::EmptySegment),
            (".", TopicError::EmptySegment),
            ("a b", TopicError::Character(' ')),
            ("a\u{1b}[2J", TopicError::Character('\u{1b}')),
            ("a\u{3000}b", TopicError::Character('\u{3000}')),
        ];
        for (text, expected) in cases {
            assert_eq!(validate_topic(text), Err(expected), "{text:?}");
            assert_eq!(Pattern::parse(text), Err(expected), "{text:?}");
        }
        for text in ["*.a", ">.a", "a.*.b", "a.b*", "a.>x", "**", "a.>.>"] {
            assert_eq!(
                Pattern::parse(text),
                Err(TopicError::WildcardMisplaced),
                "{text}"
            );
        }
        for text in ["*", "a.>", "a*"] {
            assert_eq!(validate_topic(text), Err(TopicError::WildcardInTopic));
        }
        assert_eq!(TopicError::Empty.code(), ErrorCode::NameEmpty);
        assert_eq!(TopicError::EmptySegment.code(), ErrorCode::NameInvalid);
    }

    #[test]
    fn topics_and_patterns_within_the_limits_are_accepted() {
        let long = "n".repeat(TOPIC_BYTES_MAX);
        let deep = ["s"; TOPIC_SEGMENTS_MAX].join(".");
        for topic in ["a", "sensor.7.temperature", "Grüße.王", &long, &deep] {
            assert_eq!(validate_topic(topic), Ok(()), "{topic}");
            assert!(!Pattern::parse(topic).unwrap().is_wildcard());
        }
        let pattern = Pattern::parse("a.>").unwrap();
        assert!(pattern.is_wildcard());
        assert_eq!(pattern.to_string(), "a.>");
    }
}
