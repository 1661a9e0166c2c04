//! Flags whose values have names. Completions of a shell, manual pages and `--help` offer the names.
//!
//! Problem: a parser that is a function does not tell its names, so that a shell completes with the names of files.
//! Approach: the names stand beside the parser, which may take more than them: a codec has settings. Rejected: an enum
//! for clap beside each type of the libraries, which would have to be kept equal by hand.

use std::error::Error;
use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};
use tidewire::AnyCodec;
use tidewire_io::poller::{PollerChoice, PollerKind};
use tidewire_proto::room::Policy;

/// A parser with the names that are offered for its values.
#[derive(Clone, Debug)]
pub(crate) struct NamedValues<P> {
    names: Vec<&'static str>,
    parser: P,
}

/// Offers these names for what a function parses.
pub(crate) fn offered<T, E, P>(names: &[&'static str], parser: P) -> NamedValues<P>
where
    P: Fn(&str) -> Result<T, E> + Clone + Send + Sync + 'static,
    E: Into<Box<dyn Error + Send + Sync + 'static>>,
    T: Clone + Send + Sync + 'static,
{
    let names = names.to_vec();
    NamedValues { names, parser }
}

impl<P: TypedValueParser> TypedValueParser for NamedValues<P> {
    type Value = P::Value;

    fn parse_ref(
        &self,
        command: &Command,
        flag: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        self.parser.parse_ref(command, flag, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(PossibleValue::new)))
    }
}

pub(crate) fn policies() -> impl TypedValueParser<Value = Policy> {
    offered(&Policy::ALL.map(Policy::name), |name: &str| {
        name.parse::<Policy>()
    })
}

/// The parser of pollers. An empty variable counts as unset.
pub(crate) fn pollers() -> impl TypedValueParser<Value = PollerChoice> {
    let mut names = vec!["auto"];
    names.extend(PollerKind::ALL.map(PollerKind::name));
    offered(&names, |name: &str| match name {
        "" => Ok(PollerChoice::Auto),
        name => name.parse::<PollerChoice>(),
    })
}

/// The parser of codecs, which may have settings after their names.
pub(crate) fn codecs() -> impl TypedValueParser<Value = AnyCodec> {
    offered(&AnyCodec::NAMES, |text: &str| text.parse::<AnyCodec>())
}

#[cfg(test)]
mod tests {

    use super::*;

    fn parse<T: Clone + Send + Sync + 'static>(
        parser: &impl TypedValueParser<Value = T>,
        value: &str,
    ) -> Result<T, clap::Error> {
        parser.parse_ref(&Command::new("test"), None, OsStr::new(value))
    }

    #[test]
    fn an_empty_poller_variable_is_as_good_as_unset() {
        assert_eq!(parse(&pollers(), "").unwrap(), PollerChoice::Auto);
        assert!(parse(&pollers(), "kqueue").is_err());
    }

    #[test]
    fn every_name_that_is_offered_is_taken() {
        fn names<P: TypedValueParser>(parser: &P) -> Vec<String> {
            let values = parser.possible_values().into_iter().flatten();
            values.map(|value| value.get_name().to_owned()).collect()
        }
        for name in names(&pollers()) {
            assert_eq!(parse(&pollers(), &name).unwrap().to_string(), name);
        }
        for name in names(&policies()) {
            assert_eq!(parse(&policies(), &name).unwrap().name(), name);
        }
        for name in names(&codecs()) {
            assert_eq!(parse(&codecs(), &name).unwrap().name(), name);
        }
        let settings = parse(&codecs(), "length-field:size=4").unwrap();
        assert_eq!(settings.name(), "length-field");
    }
}
