//! Topics and the patterns that subscribe to them.
//!
//! A topic is a name of segments with dots between them, `sensor.7.temperature`. A pattern is a topic with wildcards in
//! place of segments. `*` stands for any one segment, in any place: `sensor.*.temperature`. `>` is only allowed at the
//! end and stands for one or more segments: `sensor.>`. `>` alone is every topic.

mod index;
mod owned;
mod shape;

use std::fmt;

use crate::body::NameError;
use crate::limits::{TOPIC_BYTES_MAX, TOPIC_SEGMENTS_MAX};

pub use index::PatternIndex;
pub use owned::PatternBuf;
pub use shape::Shape;

/// The topics of a subscription. See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pattern<'a> {
    text: &'a str,
    is_wildcard: bool,
}

impl<'a> Pattern<'a> {
    /// Checks a pattern.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn parse(text: &'a str) -> Result<Self, NameError> {
        check(text)?;
        let is_wildcard = text.contains(WILDCARDS);
        if is_wildcard {
            let mut segments = text.split('.');
            let is_last = |rest: &std::str::Split<'_, char>| rest.clone().next().is_none();
            while let Some(segment) = segments.next() {
                let is_allowed = match segment {
                    "*" => true,
                    ">" => is_last(&segments),
                    _ => !segment.contains(WILDCARDS),
                };
                if !is_allowed {
                    return Err(NameError::WildcardMisplaced);
                }
            }
        }
        Ok(Self { text, is_wildcard })
    }

    /// The pattern as it was written.
    #[must_use]
    pub const fn text(&self) -> &'a str {
        self.text
    }

    /// Whether the pattern may match several topics, so that a delivery must contain its topic.
    #[must_use]
    pub const fn is_wildcard(&self) -> bool {
        self.is_wildcard
    }

    /// Where its wildcards stand. `None` if it has none.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        self.is_wildcard.then(|| Shape::of(self.text))
    }

    /// Whether it matches a topic.
    #[must_use]
    pub fn matches(&self, topic: &str) -> bool {
        match self.is_wildcard {
            true => self.covers_text(topic, false),
            false => self.text == topic,
        }
    }

    /// Whether every topic that `other` matches is matched by this pattern, too.
    #[must_use]
    pub fn covers(&self, other: &Pattern<'_>) -> bool {
        self.covers_text(other.text, true)
    }

    /// Whether it matches a name, or every topic of a pattern. In a name, of a method for example, `>` is a segment
    /// like others, and segments may be empty.
    fn covers_text(&self, other: &str, is_pattern: bool) -> bool {
        let mut others = other.split('.');
        for segment in self.text.split('.') {
            let other = others.next();
            let covers = match segment {
                ">" => {
                    return other.is_some_and(|other| !other.is_empty() || others.next().is_some());
                }
                "*" => {
                    other.is_some_and(|other| !other.is_empty() && (other != ">" || !is_pattern))
                }
                _ => other == Some(segment),
            };
            if !covers {
                return false;
            }
        }
        others.next().is_none()
    }

    /// Whether some topic is matched by both patterns.
    #[must_use]
    pub fn overlaps(&self, other: &Pattern<'_>) -> bool {
        let (mut these, mut others) = (self.text.split('.'), other.text.split('.'));
        loop {
            match (these.next(), others.next()) {
                (None, None) | (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
                (None, Some(_)) | (Some(_), None) => return false,
                (Some(this), Some(other)) if this == "*" || other == "*" || this == other => {}
                (Some(_), Some(_)) => return false,
            }
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
            ("*.b", "a.b", true),
            ("*.b", "b", false),
            ("a.*.c", "a.b.c", true),
            ("a.*.c", "a.b.b.c", false),
            ("a.*.c", "a..c", false),
            ("a.*", "a.", false),
            ("a.*", "a.>", true),
            ("*", ">", true),
            ("a.>", "a.", false),
            ("*.*", "a.b", true),
            ("*.*", "a", false),
            ("*.>", "a.b.c", true),
            ("*.>", "a", false),
            ("a.*.>", "a.b.c.d", true),
            ("a.*.>", "a.b", false),
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
        let mut patterns: Vec<String> = ["a", "b", "*"].map(str::to_owned).to_vec();
        for _ in 0..2 {
            let add = |one: &String| ["a", "b", "*"].map(|last| format!("{one}.{last}"));
            let longer: Vec<String> = patterns.iter().flat_map(add).collect();
            patterns.extend(longer);
        }
        let open = patterns.iter().filter(|it| it.split('.').count() < 3);
        let open: Vec<String> = open.map(|it| format!("{it}.>")).collect();
        patterns.extend(open);
        patterns.push(">".to_owned());
        patterns.sort();
        patterns.dedup();
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
        for text in [">.a", "a.>.b", "a.b*", "a.>x", "**", "a.>.>", "*a.b", ">>"] {
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
        for text in ["a.>", "a.*.b", "*.a", "*.*.>"] {
            let pattern = Pattern::parse(text).unwrap();
            assert!(pattern.is_wildcard());
            assert_eq!(pattern.to_string(), text);
        }
    }
}
