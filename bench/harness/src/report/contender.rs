//! Everybody who took part in a row.

use super::{Figures, RowResult};

/// One of them.
pub(super) struct Contender<'a> {
    pub(super) name: String,
    /// How pages draw it.
    pub(super) class: &'static str,
    pub(super) figures: &'a Figures,
    /// How Tidewire stands to it, where that is known.
    pub(super) ratio: Option<f64>,
}

impl RowResult {
    /// The limit, the bare loops that are not the limit, Tidewire, and the peers.
    pub(super) fn contenders(&self) -> impl Iterator<Item = Contender<'_>> {
        let one = |name, class, figures, ratio| Contender {
            name,
            class,
            figures,
            ratio,
        };
        let limit = self.limit.iter();
        let limit = limit.map(move |limit| one(self.limit_name(), "s0", limit, self.limit_ratio));
        let others = self.other_limits.iter();
        let others =
            others.map(move |(name, other)| one(format!("bare loop, {name}"), "s0", other, None));
        let ours = one("Tidewire".to_owned(), "s1", &self.tidewire, None);
        let peers = self.peers.iter();
        let peers =
            peers.map(move |(name, peer)| one(name.clone(), "s2", &peer.figures, peer.ratio));
        limit.chain(others).chain([ours]).chain(peers)
    }
}
