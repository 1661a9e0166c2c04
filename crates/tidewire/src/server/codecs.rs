//! The codec of each address of a server.

use tidewire_proto::codec::AnyCodec;
use tidewire_proto::connection::Rules;

use super::ServeError;
use super::bind::{frame, limit_frames};
use crate::address::Address;
use crate::config::{CODECS_MAX, CodecNumber, Codecs};
use crate::limits::ConnectionLimits;

/// The codecs of a server, and the addresses that speak them.
#[derive(Debug)]
pub(crate) struct AddressCodecs {
    main: AnyCodec,
    others: Vec<AnyCodec>,
    numbers: Vec<(Address, CodecNumber)>,
}

impl AddressCodecs {
    /// Finds the codec of each address: that of `?codec=`, or else `usual`, and over UDP the same for datagrams. The main
    /// codec is the usual one. If no address speaks that, it is that of the first. Sets the framing of addresses and
    /// the limits as the codecs need them.
    pub(super) fn choose(
        addresses: &mut [Address],
        usual: &AnyCodec,
        limits: &mut ConnectionLimits,
    ) -> Result<Self, ServeError> {
        let spoken_at = |address: &Address| {
            let codec = address.codec().unwrap_or_else(|| usual.clone());
            match address.is_udp() {
                true => codec.for_datagrams(),
                false => codec,
            }
        };
        let spoken: Vec<AnyCodec> = addresses.iter().map(spoken_at).collect();
        let is_unused = !spoken.is_empty() && !spoken.contains(usual);
        let mut codecs = vec![if is_unused {
            spoken[0].clone()
        } else {
            usual.clone()
        }];
        for codec in &spoken {
            if !codecs.contains(codec) {
                codecs.push(codec.clone());
            }
        }
        if codecs.len() > CODECS_MAX + 1 {
            return Err(ServeError::TooManyCodecs(codecs.len()));
        }
        let is_udp: Vec<bool> = addresses.iter().map(Address::is_udp).collect();
        limit_frames(&is_udp, limits);
        let mut numbers = Vec::new();
        for (index, codec) in codecs.iter_mut().enumerate() {
            let at_addresses = addresses.iter_mut().zip(&spoken);
            let own =
                at_addresses.filter_map(|(address, spoken)| (spoken == codec).then_some(address));
            let mut own: Vec<&mut Address> = own.collect();
            *codec = frame(&mut own, codec.clone())?;
            let number = match index.checked_sub(1) {
                None => CodecNumber::MAIN,
                Some(index) => CodecNumber::of_other(index),
            };
            numbers.extend(own.iter().map(|address| (Address::clone(address), number)));
        }
        let others = codecs.split_off(1);
        let [main] = <[AnyCodec; 1]>::try_from(codecs).expect("the main codec is there");
        Ok(Self {
            main,
            others,
            numbers,
        })
    }

    pub(crate) fn main(&self) -> &AnyCodec {
        &self.main
    }

    /// The number of the codec at an address.
    pub(crate) fn number(&self, address: &Address) -> CodecNumber {
        let mut numbers = self.numbers.iter();
        let found = numbers.find(|(known, _)| known == address);
        found.map_or(CodecNumber::MAIN, |(_, number)| *number)
    }

    /// The codec at an address.
    pub(crate) fn codec(&self, address: &Address) -> &AnyCodec {
        match Codecs::index(self.number(address)).checked_sub(1) {
            None => &self.main,
            Some(index) => &self.others[index],
        }
    }

    /// All codecs, the main one first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &AnyCodec> {
        std::iter::once(&self.main).chain(&self.others)
    }

    /// The codecs for lanes, with the rules of their connections.
    pub(super) fn with_rules(&self, rules_of: impl Fn(&AnyCodec) -> Rules) -> Codecs {
        Codecs::new(&self.main, &self.others, rules_of)
    }
}
