//! The parameters of an address, which follow a question mark.

use std::fmt;

use tidewire_proto::codec::{AnyCodec, StreamFraming};

use super::AddressError;

/// The parameters of an address: `?framing=none&codec=uvrpc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Parameters {
    pub(super) framing: Option<StreamFraming>,
    /// Names that [`AnyCodec::by_name`] knows, with their parameters. Only a WebSocket has several.
    codecs: Vec<Box<str>>,
}

impl Parameters {
    /// Splits the parameters from the rest of an address. Its clients may `choose` among several codecs, or not.
    pub(super) fn split(rest: &str, choose: bool) -> Result<(&str, Self), AddressError> {
        let mut parameters = Self::default();
        let Some((location, text)) = rest.rsplit_once('?') else {
            return Ok((rest, parameters));
        };
        for parameter in text.split('&') {
            let set_before = parameters.framing;
            match parameter.split_once('=') {
                Some(("framing", "none")) => parameters.framing = Some(StreamFraming::None),
                Some(("framing", "length")) => parameters.framing = Some(StreamFraming::Length),
                Some(("codec", name)) => {
                    parameters.add_codec(name, choose)?;
                    continue;
                }
                _ => return Err(bad(parameter)),
            }
            if set_before.is_some() {
                return Err(bad(parameter));
            }
        }
        Ok((location, parameters))
    }

    fn add_codec(&mut self, name: &str, choose: bool) -> Result<(), AddressError> {
        let codec = AnyCodec::by_name(name).map_err(|error| AddressError::Codec {
            codec: name.to_owned(),
            detail: error.to_string(),
        })?;
        // A client chooses by the name alone.
        let is_same = self.codecs().any(|known| known.name() == codec.name());
        if is_same || !(choose || self.codecs.is_empty()) {
            return Err(bad(&format!("codec={name}")));
        }
        self.codecs.push(name.into());
        Ok(())
    }

    /// The codecs that are set.
    pub(super) fn codecs(&self) -> impl Iterator<Item = AnyCodec> {
        // The names were checked when the address was parsed.
        self.codecs
            .iter()
            .filter_map(|it| AnyCodec::by_name(it).ok())
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut mark = '?';
        for codec in &self.codecs {
            write!(formatter, "{mark}codec={codec}")?;
            mark = '&';
        }
        match self.framing {
            Some(StreamFraming::None) => write!(formatter, "{mark}framing=none"),
            Some(StreamFraming::Length) => write!(formatter, "{mark}framing=length"),
            None => Ok(()),
        }
    }
}

fn bad(parameter: &str) -> AddressError {
    AddressError::BadParameter {
        parameter: parameter.to_owned(),
    }
}
