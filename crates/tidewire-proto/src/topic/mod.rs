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

use crate::body::NameError;
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

impl<'a> Pattern<'a> {
    /// Checks a pattern.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn parse(text: &'a str) -> Result<Self, NameError> {
        check(text)?;
        let (prefix, last) = text.rsplit_once('.').unwrap_or(("", text));
        let (prefix, reach) = match last {
            "*" => (prefix, Reach::One),
            ">" => (prefix, Reach::More),
            _ => (text, Reach::Exact),
        };
        if prefix.contains(WILDCARDS) {
            return Err(NameError::WildcardMisplaced);
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
pub fn validate_topic(topic: &str) -> Result<(), NameError> {
    check(topic)?;
    if topic.contains(WILDCARDS) {
        return Err(NameError::WildcardInTopic);
    }
    Ok(())
}

/// Checks the rules that topics and patterns share. Most topics are plain ASCII, which is decided byte by byte.
fn check(text: &str) -> Result<(), NameError> {
    // The length is checked first, so that the work is bounded for a peer's text of any length.
    if text.len() > TOPIC_BYTES_MAX {
        return Err(NameError::LongTopic {
            bytes: text.len(),
            limit: TOPIC_BYTES_MAX,
        });
    }
    if text.is_empty() {
        return Err(NameError::EmptyTopic);
    }
    let (mut segments, mut last) = (1, '.');
    for character in text.chars() {
        if character == '.' {
            if last == '.' {
                return Err(NameError::EmptySegment);
            }
            segments += 1;
        } else if character.is_control() || character.is_whitespace() {
            return Err(NameError::TopicCharacter(character));
        }
        last = character;
    }
    if last == '.' {
        return Err(NameError::EmptySegment);
    }
    if segments > TOPIC_SEGMENTS_MAX {
        return Err(NameError::DeepTopic {
            limit: TOPIC_SEGMENTS_MAX,
        });
    }
    Ok(())
}

const WILDCARDS: [char; 2] = ['*', '>'];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::ErrorCode;

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
            ("", NameError::EmptyTopic),
            (
                &*long,
                NameError::LongTopic {
                    bytes: 256,
                    limit: 255,
                },
            ),
            (&*deep, NameError::DeepTopic { limit: 16 }),
            (".a", NameError::EmptySegment),
            ("a.", NameError::EmptySegment),
            ("a..b", NameError::EmptySegment),
            (".", NameError::EmptySegment),
            ("a b", NameError::TopicCharacter(' ')),
            ("a\u{1b}[2J", NameError::TopicCharacter('\u{1b}')),
            ("a\u{3000}b", NameError::TopicCharacter('\u{3000}')),
        ];
        for (text, expected) in cases {
            assert_eq!(validate_topic(text), Err(expected), "{text:?}");
            assert_eq!(Pattern::parse(text), Err(expected), "{text:?}");
        }
        for text in ["*.a", ">.a", "a.*.b", "a.b*", "a.>x", "**", "a.>.>"] {
            assert_eq!(
                Pattern::parse(text),
                Err(NameError::WildcardMisplaced),
                "{text}"
            );
        }
        for text in ["*", "a.>", "a*"] {
            assert_eq!(validate_topic(text), Err(NameError::WildcardInTopic));
        }
        assert_eq!(NameError::EmptyTopic.code(), ErrorCode::NameEmpty);
        assert_eq!(NameError::EmptySegment.code(), ErrorCode::NameInvalid);
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
