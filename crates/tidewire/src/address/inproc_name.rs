//! Names of servers within a process.

use std::fmt;
use std::sync::Arc;

/// The name in `inproc://NAME`: 1 to 100 letters, digits, or any of `-._/`, all ASCII.
///
/// Names belong to the process: two processes may have servers of the same name.
///
/// ```
/// use tidewire::address::InprocName;
///
/// let name = InprocName::new("orders/eu-1").expect("a valid name");
/// assert_eq!(name.to_string(), "inproc://orders/eu-1");
/// assert!(InprocName::new("two words").is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InprocName(Arc<str>);

impl InprocName {
    /// Checks a name. `None` if it is empty, too long, or has other characters.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
        let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
        (fits && name.bytes().all(is_allowed)).then(|| Self(name.into()))
    }

    /// The name without its transport.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InprocName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "inproc://{}", self.0)
    }
}

/// Long enough for a path-like name, short enough for a log line.
pub(crate) const NAME_BYTES_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for name in ["a", "orders/eu-1.v2", &"x".repeat(NAME_BYTES_MAX)] {
            let parsed = InprocName::new(name).unwrap();
            assert_eq!(parsed.as_str(), name);
            assert_eq!(parsed.to_string(), format!("inproc://{name}"));
        }
        let too_long = "x".repeat(NAME_BYTES_MAX + 1);
        for name in ["", "two words", "tab\t", "ümlaut", "a:b", &too_long] {
            assert_eq!(InprocName::new(name), None, "{name:?}");
        }
    }
}
