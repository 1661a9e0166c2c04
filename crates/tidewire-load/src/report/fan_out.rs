//! The notes by which the parts of a fan-out close their accounts when they are put together.
//!
//! A receiver hears senders of other parts and cannot know how much they sent. It knows everything up to the last
//! message that anybody of its part heard of a sender: what is missing before that is lost. What comes after it is
//! known to the sender's own part. So each part accounts for what was heard, and says how far that was and how much its
//! own agents sent; merging subtracts. That is two numbers an agent, where the accounts of all pairs would be a
//! million.

use serde::{Deserialize, Serialize};

/// One part's side of a fan-out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FanOutShare {
    /// Receivers of this part.
    pub receivers: u64,
    /// How many messages each agent of this part sent: its number and the count.
    pub sent: Vec<(u32, u64)>,
    /// The last message that arrived here of each agent of the other parts: its number and that of the message, 0 if
    /// none came.
    pub heard: Vec<(u32, u64)>,
    /// Agents of this part whose last messages may still have been on their way at the end.
    #[serde(default, rename = "unsettled")]
    pub under_way: Vec<u32>,
    /// Messages still arrived here at the end.
    #[serde(default)]
    pub is_cut_off: bool,
}

/// The counts that no part could know by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unheard {
    /// Deliveries lost after the last message that a part heard of a sender.
    pub(super) lost: u64,
    /// Deliveries that may still have been on their way.
    pub(super) unconfirmed: u64,
    /// Messages that parts heard and that nobody sent.
    pub(super) invented: u64,
}

impl Unheard {
    /// Compares what was heard with what was sent.
    pub(super) fn of(shares: &[&FanOutShare]) -> Self {
        let mut unheard = Self::default();
        for share in shares {
            for (sender, heard) in &share.heard {
                let mut all_sent = shares.iter().flat_map(|share| &share.sent);
                let sent = all_sent.find(|(agent, _)| agent == sender);
                let sent = sent.map_or(0, |(_, sent)| *sent);
                let behind = sent.saturating_sub(*heard);
                let behind = behind.saturating_mul(share.receivers);
                let mut under_way = shares.iter().flat_map(|share| &share.under_way);
                let is_open = share.is_cut_off || under_way.any(|agent| agent == sender);
                let fate = if is_open {
                    &mut unheard.unconfirmed
                } else {
                    &mut unheard.lost
                };
                *fate = fate.saturating_add(behind);
                let invented = heard.saturating_sub(sent);
                unheard.invented = unheard.invented.saturating_add(invented);
            }
        }
        unheard
    }

    /// Deliveries that were owed and that no part has.
    pub(super) fn all(self) -> u64 {
        self.lost.saturating_add(self.unconfirmed)
    }

    /// The counts that make a step fail.
    pub(super) fn problems(self, allows_loss: bool) -> Vec<String> {
        let (lost, unconfirmed) = if allows_loss {
            (0, 0)
        } else {
            (self.lost, self.unconfirmed)
        };
        crate::format::counted(&[
            (
                lost,
                "deliveries were lost at the end of what other parts sent",
            ),
            (
                unconfirmed,
                "deliveries at the end of what other parts sent are unconfirmed",
            ),
            (
                self.invented,
                "messages arrived from other parts that were never sent, so the losses are not exact",
            ),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(receivers: u64, sent: &[(u32, u64)], heard: &[(u32, u64)]) -> FanOutShare {
        FanOutShare {
            receivers,
            sent: sent.to_vec(),
            heard: heard.to_vec(),
            ..FanOutShare::default()
        }
    }

    #[test]
    fn what_was_heard_to_the_end_leaves_nothing_open() {
        let shares = [
            share(2, &[(0, 10), (2, 5)], &[(1, 7), (3, 0)]),
            share(2, &[(1, 7), (3, 0)], &[(0, 10), (2, 5)]),
        ];
        let unheard = Unheard::of(&[&shares[0], &shares[1]]);
        assert_eq!(unheard, Unheard::default());
        assert_eq!(unheard.problems(false), Vec::<String>::new());
    }

    #[test]
    fn what_nobody_heard_is_lost_by_every_receiver_and_more_than_was_sent_is_invented() {
        let shares = [
            share(3, &[(0, 10)], &[(1, 4)]),
            share(2, &[(1, 6)], &[(0, 12)]),
        ];
        let unheard = Unheard::of(&[&shares[0], &shares[1]]);
        assert_eq!((unheard.lost, unheard.invented), (3 * 2, 2));
        let problems = unheard.problems(false);
        assert!(
            problems[0].starts_with("6 deliveries were lost"),
            "{problems:?}"
        );
        assert!(
            problems[1].starts_with("2 messages arrived"),
            "{problems:?}"
        );
        assert_eq!(unheard.problems(true).len(), 1);
        let [mut backed_up, other] = shares;
        backed_up.under_way = vec![0];
        let heard_some = share(2, &[(1, 6)], &[(0, 7)]);
        let unheard = Unheard::of(&[&backed_up, &heard_some]);
        assert_eq!((unheard.lost, unheard.unconfirmed), (3 * 2, 2 * 3));
        backed_up.is_cut_off = true;
        let unheard = Unheard::of(&[&backed_up, &other]);
        assert_eq!((unheard.lost, unheard.unconfirmed), (0, 3 * 2));
        // A file that was altered cannot make it overflow.
        let vast = share(u64::MAX, &[(0, u64::MAX)], &[]);
        let deaf = share(u64::MAX, &[], &[(0, 0)]);
        assert_eq!(Unheard::of(&[&vast, &deaf]).lost, u64::MAX);
    }
}
