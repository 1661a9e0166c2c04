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
    /// The places of each address's codecs. An address has several only if its clients choose.
    numbers: Vec<(Address, Vec<usize>)>,
}

impl AddressCodecs {
    /// Finds the codecs of each address: those of `?codec=`, or else `usual`, with the framing of the address. The main
    /// codec is the usual one. If no address speaks that, it is the first of the first address.
    pub(super) fn choose(addresses: &[Address], usual: &AnyCodec) -> Result<Self, ServeError> {
        let mut spoken = Vec::new();
        for address in addresses {
            let own: Vec<_> = address.codecs().collect();
            let own = if own.is_empty() {
                vec![usual.clone()]
            } else {
                own
            };
            let framed = own.into_iter().map(|codec| framed(address, codec));
            spoken.push(framed.collect::<Result<Vec<_>, _>>()?);
        }
        let is_unused = !spoken.is_empty() && !spoken.iter().flatten().any(|it| it == usual);
        let main = if is_unused { &spoken[0][0] } else { usual };
        let mut codecs = vec![main.clone()];
        let mut place_of = |codec| {
            let known = codecs.iter().position(|known| *known == codec);
            known.unwrap_or_else(|| {
                codecs.push(codec);
                codecs.len() - 1
            })
        };
        let mut numbers = Vec::new();
        for (address, spoken) in addresses.iter().zip(spoken) {
            let places = spoken.into_iter().map(&mut place_of).collect();
            numbers.push((address.clone(), places));
        }
        if codecs.len() > CODECS_MAX + 1 {
            return Err(ServeError::TooManyCodecs(codecs.len()));
        }
        Ok(Self { codecs, numbers })
    }

    pub(crate) fn main(&self) -> &AnyCodec {
        &self.codecs[0]
    }

    fn places(&self, address: &Address) -> &[usize] {
        let mut numbers = self.numbers.iter();
        let found = numbers.find(|(known, _)| known == address);
        found.map_or(&[0], |(_, places)| places)
    }

    /// The numbers of the codecs at an address, in its order.
    pub(crate) fn numbers(&self, address: &Address) -> Box<[CodecNumber]> {
        let number = |place: &usize| match place.checked_sub(1) {
            Some(other) => CodecNumber::of_other(other),
            None => CodecNumber::MAIN,
        };
        self.places(address).iter().map(number).collect()
    }

    /// The codecs at an address. A client gets the first, unless it chooses another.
    pub(crate) fn at<'a>(
        &'a self,
        address: &Address,
    ) -> impl Iterator<Item = &'a AnyCodec> + use<'a> {
        self.places(address)
            .iter()
            .map(|place| &self.codecs[*place])
    }

    /// The first codec at an address.
    pub(crate) fn codec(&self, address: &Address) -> &AnyCodec {
        self.at(address).next().unwrap_or(self.main())
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
