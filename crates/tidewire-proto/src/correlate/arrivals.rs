//! Detects lost requests by the ids of requests that arrive.
//!
//! Problem: datagrams are lost and reordered without notice. Approach: ids are assigned in turn, so a receiver sees
//! which are missing. An id of 8 bits counts from 1 to 255. The upper half of an id of 32 bits counts, from 1 to
//! 65,535; see [`super::Correlator`]. A window of the last 64 ids distinguishes late requests from repeated requests. A
//! request that comes after a later request is both missing and late. The difference of the two counts is the number of
//! lost requests.
//!
//! Requests of a peer that counts in another way are not counted: the upper half of a plain 32-bit counter rarely
//! changes. A peer may skip ids that are still in use. With 8 bits, this library skips ids of replies that are pending
//! for long, and the skipped ids look missing.
//!
//! Rejected: a list of the missing ids, which a peer could make arbitrarily long.

use crate::codec::RequestIds;

/// The order of one session's requests, as far as their ids show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// The highest so far; 0 before the first.
    highest: u32,
    /// A bit for each of the 64 ids up to the highest, the highest in the lowest bit: whether it came.
    seen: u64,
}

/// The information in one request's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The request is the next, the first, or from a peer that does not count.
    InTurn,
    /// Ids are missing before the request.
    After {
        /// The number of missing ids.
        missing: u32,
    },
    /// The request comes after later requests.
    Late,
    /// The request came before.
    Again,
}

impl Arrivals {
    /// Takes note of a request's id.
    #[inline]
    pub fn note(&mut self, ids: RequestIds, id: u32) -> Arrival {
        let (number, count) = match ids {
            RequestIds::None => return Arrival::InTurn,
            RequestIds::Bits8 => (id & 0xFF, 0xFF),
            RequestIds::Bits32 => (id >> 16, 0xFFFF),
        };
        if number == 0 {
            return Arrival::InTurn;
        }
        if self.highest == 0 {
            (self.highest, self.seen) = (number, 1);
            return Arrival::InTurn;
        }
        // The distance forward around the circle, from the highest.
        let ahead = (number + count - self.highest) % count;
        if ahead > 0 && ahead <= count / 2 {
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0) | 1;
            self.highest = number;
            return match ahead - 1 {
                0 => Arrival::InTurn,
                missing => Arrival::After { missing },
            };
        }
        let behind = (self.highest + count - number) % count;
        let bit = 1_u64.checked_shl(behind).unwrap_or(0);
        if self.seen & bit != 0 {
            return Arrival::Again;
        }
        self.seen |= bit;
        Arrival::Late
    }
}

/// The ids of the last requests of a peer that counts them in the upper half, to know a copy that the network made.
///
/// Each of the last [`RecentIds::COUNT`] counts has a place. Only an equal id is a copy: a peer that counts in another
/// way may use a place again with another id. Ids with an upper half of 0 prove nothing, because their peer may use
/// them again after the answer.
#[derive(Clone, Debug)]
pub struct RecentIds([u32; Self::COUNT]);

impl RecentIds {
    /// The number of requests after which a copy is not known any more: the window of [`Arrivals`].
    pub const COUNT: usize = 64;

    /// Takes note of a request's id. Returns whether the request is a copy.
    #[inline]
    pub fn note(&mut self, id: u32) -> bool {
        let number = (id >> 16) as usize;
        number != 0 && std::mem::replace(&mut self.0[number % Self::COUNT], id) == id
    }
}

impl Default for RecentIds {
    fn default() -> Self {
        Self([0; Self::COUNT])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlate::Correlator;

    #[test]
    fn copies_are_known_within_the_window_and_nothing_else_is_taken_for_one() {
        let mut recent = RecentIds::default();
        let mut correlator = Correlator::for_ids(RequestIds::Bits32, 10);
        let mut given = Vec::new();
        for value in 0..200_000 {
            let id = correlator.insert(value).unwrap();
            correlator.answer(id);
            assert!(!recent.note(id), "{id:x}");
            given.push(id);
        }
        for id in given.iter().rev().take(RecentIds::COUNT) {
            assert!(recent.note(*id), "{id:x}");
        }
        // Plain counters, and peers that use an answered id again.
        let mut recent = RecentIds::default();
        assert!((1..200_000).all(|id| !recent.note(id)));
        assert!([7, 7, 7].into_iter().all(|id| !recent.note(id)));
    }

    fn note_all(ids: RequestIds, numbers: impl IntoIterator<Item = u32>) -> (u32, u32, u32) {
        let mut arrivals = Arrivals::default();
        let (mut missing, mut late, mut again) = (0, 0, 0);
        for id in numbers {
            match arrivals.note(ids, id) {
                Arrival::InTurn => {}
                Arrival::After { missing: more } => missing += more,
                Arrival::Late => late += 1,
                Arrival::Again => again += 1,
            }
        }
        (missing, late, again)
    }

    #[test]
    fn ids_of_our_tables_arrive_in_turn_after_any_number_of_rounds() {
        for ids in [RequestIds::Bits8, RequestIds::Bits32] {
            let mut correlator = Correlator::for_ids(ids, 10);
            let given = (0..200_000).map(|value| {
                let id = correlator.insert(value).unwrap();
                correlator.answer(id);
                id
            });
            assert_eq!(note_all(ids, given), (0, 0, 0), "{ids:?}");
        }
    }

    #[test]
    fn missing_late_and_repeated_requests_are_distinguished() {
        let ids = RequestIds::Bits8;
        assert_eq!(note_all(ids, [1, 2, 5, 6]), (2, 0, 0));
        assert_eq!(note_all(ids, [1, 2, 5, 4, 3, 6]), (2, 2, 0));
        assert_eq!(note_all(ids, [1, 2, 2, 5, 4, 4]), (2, 1, 2));
        assert_eq!(note_all(ids, [254, 255, 2, 1]), (1, 1, 0));
        // Beyond the window it is unknown whether the id came before.
        assert_eq!(note_all(ids, [1, 101, 2]), (99, 1, 0));
        let wide = RequestIds::Bits32;
        assert_eq!(note_all(wide, [1 << 16, (4 << 16) | 9]), (2, 0, 0));
    }

    #[test]
    fn peers_that_do_not_count_like_this_are_left_alone() {
        assert_eq!(note_all(RequestIds::Bits32, 1..60_000), (0, 0, 0));
        assert_eq!(note_all(RequestIds::None, [9, 3, 70]), (0, 0, 0));
    }
}
