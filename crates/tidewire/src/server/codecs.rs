//! The codec of each address of a server.

use tidewire_proto::codec::AnyCodec;
use tidewire_proto::connection::Rules;

use super::ServeError;
use crate::address::Address;
use crate::config::{CODECS_MAX, CodecNumber, Codecs};

/// The codecs of a server, and the addresses that speak them.
#[derive(Debug)]
pub(crate) struct AddressCodecs {
    /// The main codec comes first.
    codecs: Vec<AnyCodec>,
    /// The place of each address's codec.
    numbers: Vec<(Address, usize)>,
}

impl AddressCodecs {
    /// Finds the codec of each address: that of `?codec=`, or else `usual`, with the framing of the address. The main
    /// codec is the usual one. If no address speaks that, it is that of the first.
    pub(super) fn choose(addresses: &[Address], usual: &AnyCodec) -> Result<Self, ServeError> {
        let mut spoken = Vec::new();
        for address in addresses {
            let codec = address.codec().unwrap_or_else(|| usual.clone());
            spoken.push(framed(address, codec)?);
        }
        let is_unused = !spoken.is_empty() && !spoken.contains(usual);
        let main = if is_unused { &spoken[0] } else { usual };
        let mut codecs = vec![main.clone()];
        let mut numbers = Vec::new();
        for (address, codec) in addresses.iter().zip(spoken) {
            let index = codecs.iter().position(|known| *known == codec);
            let index = index.unwrap_or_else(|| {
                codecs.push(codec);
                codecs.len() - 1
            });
            numbers.push((address.clone(), index));
        }
        if codecs.len() > CODECS_MAX + 1 {
            return Err(ServeError::TooManyCodecs(codecs.len()));
        }
        Ok(Self { codecs, numbers })
    }

    pub(crate) fn main(&self) -> &AnyCodec {
        &self.codecs[0]
    }

    fn index(&self, address: &Address) -> usize {
        let mut numbers = self.numbers.iter();
        let found = numbers.find(|(known, _)| known == address);
        found.map_or(0, |(_, index)| *index)
    }

    /// The number of the codec at an address.
    pub(crate) fn number(&self, address: &Address) -> CodecNumber {
        let other = self.index(address).checked_sub(1);
        other.map_or(CodecNumber::MAIN, CodecNumber::of_other)
    }

    /// The codec at an address.
    pub(crate) fn codec(&self, address: &Address) -> &AnyCodec {
        &self.codecs[self.index(address)]
    }

    /// All codecs, the main one first.
    pub(crate) fn all(&self) -> &[AnyCodec] {
        &self.codecs
    }

    /// The codecs for lanes, with the rules of their connections.
    pub(super) fn with_rules(&self, rules_of: impl Fn(&AnyCodec) -> Rules) -> Codecs {
        Codecs::new(self.main(), &self.codecs[1..], rules_of)
    }
}

/// Returns a codec with the framing of an address, and over UDP with that of datagrams.
pub(crate) fn framed(address: &Address, codec: AnyCodec) -> Result<AnyCodec, ServeError> {
    if address.is_udp() {
        return Ok(codec.for_datagrams());
    }
    let Some(framing) = address.framing() else {
        return Ok(codec);
    };
    let framed = codec.with_stream_framing(framing);
    framed.ok_or(ServeError::Framing {
        codec: codec.name(),
    })
}
