//! Names of pollers: on the command line, in a builder, in the environment.

use std::env;
use std::fmt;
use std::str::FromStr;

use super::PollerError;

/// The four backends.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Hash)]
pub enum PollerKind {
    /// `epoll(7)`: the cost grows with the number of ready descriptors, not of registered descriptors.
    Epoll,
    /// `poll(2)`: works everywhere; every wait walks all watched descriptors.
    Poll,
    /// `select(2)`: every wait walks the bit set up to the highest descriptor number.
    Select,
    /// `io_uring(7)` with multishot poll requests.
    Uring,
}

impl PollerKind {
    /// Every backend.
    pub const ALL: [Self; 4] = [Self::Epoll, Self::Poll, Self::Select, Self::Uring];

    /// The name, as flags and builders take it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Epoll => "epoll",
            Self::Poll => "poll",
            Self::Select => "select",
            Self::Uring => "uring",
        }
    }
}

impl fmt::Display for PollerKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for PollerKind {
    type Err = PollerError;

    fn from_str(text: &str) -> Result<Self, PollerError> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| PollerError::UnknownName { text: text.into() })
    }
}

/// One backend, or a choice that [`open`](super::open) makes.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Hash, Default)]
pub enum PollerChoice {
    /// The best one that works; the log says which.
    #[default]
    Auto,
    /// This backend or an error.
    Only(PollerKind),
}

impl PollerChoice {
    /// The choice of the environment variable [`POLLER_VARIABLE`]; `None` when it is unset or empty.
    ///
    /// # Errors
    ///
    /// [`PollerError::Variable`] when its value names no poller.
    pub fn from_env() -> Result<Option<Self>, PollerError> {
        match env::var_os(POLLER_VARIABLE) {
            None => Ok(None),
            Some(value) => Self::from_variable(&value.to_string_lossy()),
        }
    }

    /// Parses the value apart from the environment, which is global to a process and thus hard to test.
    fn from_variable(value: &str) -> Result<Option<Self>, PollerError> {
        if value.is_empty() {
            return Ok(None);
        }
        match value.parse() {
            Ok(choice) => Ok(Some(choice)),
            Err(source) => Err(PollerError::Variable {
                source: Box::new(source),
            }),
        }
    }
}

impl fmt::Display for PollerChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => formatter.pad("auto"),
            Self::Only(kind) => kind.fmt(formatter),
        }
    }
}

impl FromStr for PollerChoice {
    type Err = PollerError;

    fn from_str(text: &str) -> Result<Self, PollerError> {
        if text == "auto" {
            Ok(Self::Auto)
        } else {
            text.parse().map(Self::Only)
        }
    }
}

/// The environment variable that chooses the poller when no flag or builder does.
pub const POLLER_VARIABLE: &str = "TIDEWIRE_POLLER";

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn names_survive_a_round_trip() {
        for kind in PollerKind::ALL {
            assert_eq!(kind.to_string().parse::<PollerKind>().unwrap(), kind);
            let choice = PollerChoice::Only(kind);
            assert_eq!(choice.to_string().parse::<PollerChoice>().unwrap(), choice);
        }
        assert_eq!("auto".parse::<PollerChoice>().unwrap(), PollerChoice::Auto);
        assert_eq!(PollerChoice::default().to_string(), "auto");
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_names() {
        let refused = "kqueue".parse::<PollerChoice>().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "\"kqueue\" is not a poller; choose auto, epoll, poll, select or uring"
        );
        assert!("auto".parse::<PollerKind>().is_err(), "auto is no backend");
    }

    #[test]
    fn the_variable_is_optional_and_a_wrong_value_is_traced_to_it() {
        assert_eq!(PollerChoice::from_variable("").unwrap(), None);
        assert_eq!(
            PollerChoice::from_variable("uring").unwrap(),
            Some(PollerChoice::Only(PollerKind::Uring))
        );
        let refused = PollerChoice::from_variable("Epoll").unwrap_err();
        assert!(refused.to_string().contains(POLLER_VARIABLE));
        assert!(refused.source().unwrap().to_string().contains("\"Epoll\""));
    }
}
