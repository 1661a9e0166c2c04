//! The parameters of an address, which follow a question mark.

use std::fmt;

use tidewire_proto::codec::{AnyCodec, StreamFraming};

use super::AddressError;

/// The parameters of an address: `?framing=none&codec=uvrpc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Parameters {
    pub(super) framing: Option<StreamFraming>,
    /// A name that [`AnyCodec::by_name`] knows, with its parameters.
    codec: Option<Box<str>>,
}

impl Parameters {
    /// Splits the parameters from the rest of an address.
    pub(super) fn split(rest: &str) -> Result<(&str, Self), AddressError> {
        let mut parameters = Self::default();
        let Some((location, text)) = rest.rsplit_once('?') else {
            return Ok((rest, parameters));
        };
        let mut known: Vec<&str> = Vec::new();
        for parameter in text.split('&') {
            let key = parameter.split_once('=').map_or(parameter, |(key, _)| key);
            if known.contains(&key) {
                let parameter = parameter.to_owned();
                return Err(AddressError::BadParameter { parameter });
            }
            known.push(key);
            match parameter.split_once('=') {
                Some(("framing", "none")) => parameters.framing = Some(StreamFraming::None),
                Some(("framing", "length")) => parameters.framing = Some(StreamFraming::Length),
                Some(("codec", name)) => {
                    AnyCodec::by_name(name).map_err(|error| AddressError::Codec {
                        codec: name.to_owned(),
                        detail: error.to_string(),
                    })?;
                    parameters.codec = Some(name.into());
                }
                _ => {
                    return Err(AddressError::BadParameter {
                        parameter: parameter.to_owned(),
                    });
                }
            }
        }
        Ok((location, parameters))
    }

    /// The codec, if one is set.
    pub(super) fn codec(&self) -> Option<AnyCodec> {
        // The name was checked when the address was parsed.
        self.codec
            .as_deref()
            .and_then(|it| AnyCodec::by_name(it).ok())
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut mark = '?';
        if let Some(codec) = &self.codec {
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
