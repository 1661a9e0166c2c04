//! A pattern that owns its text.

use super::{NameError, Pattern};

/// A [`Pattern`] that owns its text, for lists that live long.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PatternBuf {
    text: Box<str>,
    is_wildcard: bool,
}

impl PatternBuf {
    /// Checks a pattern and copies it.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        Pattern::parse(text).map(|pattern| Self {
            text: text.into(),
            is_wildcard: pattern.is_wildcard,
        })
    }

    /// The pattern of every topic.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            text: ">".into(),
            is_wildcard: true,
        }
    }

    /// The pattern. This does not check the text again.
    #[must_use]
    pub fn as_pattern(&self) -> Pattern<'_> {
        Pattern {
            text: &self.text,
            is_wildcard: self.is_wildcard,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owned_pattern_is_the_borrowed_one() {
        for text in ["a", "a.b", "a.*", "a.>", "*", ">", "*.a"] {
            let owned = PatternBuf::parse(text).unwrap();
            assert_eq!(owned.as_pattern(), Pattern::parse(text).unwrap());
        }
        assert_eq!(Ok(PatternBuf::everything()), PatternBuf::parse(">"));
        assert!(PatternBuf::parse(">.a").is_err());
    }
}
