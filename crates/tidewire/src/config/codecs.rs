//! The codecs of a server, by number.
//!
//! Problem: each listener may have a codec of its own, but most servers have one, and every message needs the codec of
//! its session. Approach: a session, its output and the call of its handler hold the number of the codec, which is a
//! byte. The main codec has the number 0, and is found without a list. Rejected: the codec itself in each session,
//! which takes 24 bytes there and again in the output.

use tidewire_proto::codec::AnyCodec;
use tidewire_proto::connection::Rules;

use super::Policies;

/// The number of a codec among those of its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CodecNumber(u8);

/// The codecs of a server. See the module.
#[derive(Debug)]
pub(crate) struct Codecs {
    main: CodecRules,
    /// The codecs of listeners that have another one.
    others: Box<[CodecRules]>,
}

/// A codec, and how connections with it are run.
#[derive(Debug)]
struct CodecRules {
    codec: AnyCodec,
    rules: Rules,
    /// The policies for slow subscribers that the codec can serve.
    policies: Policies,
}

impl CodecNumber {
    /// The main codec: that of listeners without a codec of their own, and of connections without a listener.
    pub(crate) const MAIN: Self = Self(0);

    /// The number of the codec at this place of the list of other codecs.
    pub(crate) fn of_other(index: usize) -> Self {
        debug_assert!(index < CODECS_MAX, "the builder bounds the codecs");
        Self(index as u8 + 1)
    }

    pub(crate) fn to_byte(self) -> u8 {
        self.0
    }

    pub(crate) fn from_byte(byte: u8) -> Self {
        Self(byte)
    }

    /// The place of the codec in the list of other codecs. `None` for the main one.
    #[inline(always)]
    pub(crate) fn other_index(self) -> Option<usize> {
        match self.is_main() {
            true => None,
            false => Some(usize::from(self.0) - 1),
        }
    }

    #[inline(always)]
    pub(crate) fn is_main(self) -> bool {
        self == Self::MAIN
    }
}

impl Codecs {
    pub(crate) fn new(
        main: &AnyCodec,
        others: &[AnyCodec],
        rules_of: impl Fn(&AnyCodec) -> Rules,
    ) -> Self {
        let with_rules = |codec: &AnyCodec| CodecRules {
            codec: codec.clone(),
            rules: rules_of(codec),
            policies: Policies::of(codec),
        };
        Self {
            main: with_rules(main),
            others: others.iter().map(with_rules).collect(),
        }
    }

    #[inline(always)]
    pub(crate) fn main(&self) -> &AnyCodec {
        &self.main.codec
    }

    #[inline(always)]
    pub(crate) fn get(&self, number: CodecNumber) -> &AnyCodec {
        &self.find(number).codec
    }

    #[inline(always)]
    pub(crate) fn rules(&self, number: CodecNumber) -> &Rules {
        &self.find(number).rules
    }

    pub(crate) fn policies(&self, number: CodecNumber) -> Policies {
        self.find(number).policies
    }

    /// The numbers of all codecs.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = CodecNumber> + use<> {
        let others = (0..self.others.len()).map(CodecNumber::of_other);
        std::iter::once(CodecNumber::MAIN).chain(others)
    }

    /// Whether the server has one codec only.
    #[inline]
    pub(crate) fn is_one(&self) -> bool {
        self.others.is_empty()
    }

    /// All codecs, in the order of their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = &AnyCodec> {
        let others = self.others.iter().map(|it| &it.codec);
        std::iter::once(&self.main.codec).chain(others)
    }

    /// The place of a codec in [`all`](Self::all).
    pub(crate) fn index(number: CodecNumber) -> usize {
        usize::from(number.0)
    }

    #[inline(always)]
    fn find(&self, number: CodecNumber) -> &CodecRules {
        match number.is_main() {
            true => &self.main,
            false => self.find_other(number),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_other(&self, number: CodecNumber) -> &CodecRules {
        self.others
            .get(usize::from(number.0) - 1)
            .unwrap_or(&self.main)
    }
}

/// Most codecs of a server beside its main one.
pub(crate) const CODECS_MAX: usize = 32;
