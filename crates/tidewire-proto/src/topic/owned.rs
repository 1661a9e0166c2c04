//! A pattern that owns its text.

use super::{NameError, Pattern, Reach};

/// A [`Pattern`] that owns its text, for lists that live long.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PatternBuf {
    text: Box<str>,
    prefix_bytes: usize,
    reach: Reach,
}

impl PatternBuf {
    /// Checks a pattern and copies it.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        Pattern::parse(text).map(|pattern| Self {
            text: text.into(),
            prefix_bytes: pattern.prefix.len(),
            reach: pattern.reach,
        })
    }

    /// The pattern of every topic.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            text: ">".into(),
            prefix_bytes: 0,
            reach: Reach::More,
        }
    }

    /// The pattern. This does not check the text again.
    #[must_use]
    pub fn as_pattern(&self) -> Pattern<'_> {
        Pattern {
            text: &self.text,
            prefix: &self.text[..self.prefix_bytes],
            reach: self.reach,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owned_pattern_is_the_borrowed_one() {
        for text in ["a", "a.b", "a.*", "a.>", "*", ">"] {
            let owned = PatternBuf::parse(text).unwrap();
            assert_eq!(owned.as_pattern(), Pattern::parse(text).unwrap());
        }
        assert_eq!(Ok(PatternBuf::everything()), PatternBuf::parse(">"));
        assert!(PatternBuf::parse("*.a").is_err());
    }
}
