//! Deadlines by the thousand: a hierarchical timer wheel.
//!
//! Every session has an idle timeout, every request a deadline, and nearly all are cancelled before they fire.
//! Inserting and cancelling must therefore be O(1). A heap needs O(log n) for both, and keeps cancelled timers. Time is
//! cut into ticks. Level 0 has a slot for each of the 64 ticks of the present span, level 1 a slot for each span of 64
//! ticks, and so on. The level of a deadline is the position of the highest base-64 digit in which its tick differs
//! from the present tick. Its slot is that digit. When time enters a slot of a higher level, its timers move down; each
//! timer moves at most once per level.
//!
//! ```text
//!  present tick   .. 2 | 17 | 40          deadline .. 2 | 17 | 55  ─▶ level 0, slot 55
//!                                         deadline .. 2 | 30 |  1  ─▶ level 1, slot 30
//! ```
//!
//! Eleven levels cover all of a u64, so there is no longest timeout and no overflow list. Slots are doubly linked lists
//! through one vector of entries, and a bit mask per level finds the next occupied slot. Entries are reused with a new
//! generation, which makes an outdated [`TimerId`] harmless.
//!
//! Deadlines are rounded *up* to a tick: a timer never fires early, and at most one tick (plus the caller's own delay)
//! late. The clock is an argument, so tests need no waiting.

/// Timers that carry a value each. Times are nanoseconds of one clock, such as [`now_ns`](crate::clock::now_ns).
#[derive(Debug)]
pub struct TimerWheel<T> {
    entries: Vec<Entry<T>>,
    /// The first unused entry. Unused entries are linked through `next`.
    free: Link,
    slots: Vec<Slot>,
    /// The slots of each level that hold timers.
    occupied: [u64; LEVELS],
    /// The tick up to which everything has fired.
    tick: u64,
    origin_ns: u64,
    tick_ns: u64,
    count: usize,
}

/// Identifies one timer of one wheel. The id is harmless after the timer fired or was cancelled, even if its entry is
/// used again.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Hash)]
pub struct TimerId {
    index: u32,
    generation: u32,
}

impl<T> TimerWheel<T> {
    /// An empty wheel that begins at `now_ns` and divides time into ticks of `tick_ns` (at least 1).
    #[must_use]
    pub fn new(now_ns: u64, tick_ns: u64) -> Self {
        Self {
            entries: Vec::new(),
            free: None,
            slots: vec![Slot::default(); DUE + 1],
            occupied: [0; LEVELS],
            tick: 0,
            origin_ns: now_ns,
            tick_ns: tick_ns.max(1),
            count: 0,
        }
    }

    /// Starts a timer that fires at the first [`advance`](Self::advance) to `deadline_ns` or later, rounded up to a
    /// tick. A deadline in the past fires at the next call. O(1); allocates only when more timers are pending than ever
    /// before.
    ///
    /// # Panics
    ///
    /// With more than 2³² − 1 pending timers.
    pub fn insert(&mut self, deadline_ns: u64, value: T) -> TimerId {
        let deadline = deadline_ns
            .saturating_sub(self.origin_ns)
            .div_ceil(self.tick_ns);
        let index = match self.free {
            Some(index) => {
                self.free = self.entries[index as usize].next;
                index
            }
            None => {
                let index = u32::try_from(self.entries.len()).expect("fewer than 2^32 timers");
                self.entries.push(Entry::unused());
                index
            }
        };
        let entry = &mut self.entries[index as usize];
        entry.deadline = deadline;
        entry.value = Some(value);
        let generation = entry.generation;
        self.count += 1;
        self.link(index);
        TimerId { index, generation }
    }

    /// Stops a timer and returns its value; `None` when it has fired or been cancelled already. O(1).
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let entry = self.entries.get(id.index as usize)?;
        if entry.generation != id.generation || entry.value.is_none() {
            return None;
        }
        self.unlink(id.index);
        self.release(id.index)
    }

    /// The time at which to call [`advance`](Self::advance) next; `None` when no timer is pending.
    ///
    /// For a timer within the present span of 64 ticks this is its deadline rounded up to a tick. For a later timer the
    /// time may be earlier than the deadline, never later: advancing then moves timers to lower levels and fires
    /// nothing. For a due timer the time is in the past. O(levels).
    #[must_use]
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        let tick = if self.slots[DUE].first.is_some() {
            self.tick
        } else {
            self.next_occupied()?.start
        };
        Some(
            tick.saturating_mul(self.tick_ns)
                .saturating_add(self.origin_ns),
        )
    }

    /// Moves time on to `now_ns` and appends the values of the timers that fire, in the order of their ticks and in no
    /// particular order within one tick. Time never moves back: an earlier `now_ns` fires only timers that were
    /// inserted already due.
    pub fn advance(&mut self, now_ns: u64, expired: &mut Vec<T>) {
        let target = now_ns.saturating_sub(self.origin_ns) / self.tick_ns;
        self.fire(DUE, expired);
        while let Some(next) = self.next_occupied() {
            if next.start > target {
                break;
            }
            self.tick = next.start;
            if next.level == 0 {
                self.fire(next.slot, expired);
            } else {
                self.cascade(next.slot);
                // Timers due at the very start of the span are on the due list.
                self.fire(DUE, expired);
            }
        }
        self.tick = self.tick.max(target);
    }

    /// The number of pending timers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no timer is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the first occupied slot in the order of time. A lower level always comes before a higher one. Within a
    /// level the slots of the present span come in the order of their digits, because all of them lie ahead.
    fn next_occupied(&self) -> Option<Occupied> {
        let level = self.occupied.iter().position(|&mask| mask != 0)?;
        let digit = u64::from(self.occupied[level].trailing_zeros());
        let shift = level * DIGIT_BITS;
        // The digits above this digit are those of the present tick, and the digits below are zero.
        let above = (u128::from(self.tick) >> (shift + DIGIT_BITS)) << (shift + DIGIT_BITS);
        let start = above | (u128::from(digit) << shift);
        Some(Occupied {
            level,
            slot: level * SLOTS + digit as usize,
            start: u64::try_from(start).unwrap_or(u64::MAX),
        })
    }

    /// Takes every timer off a slot, with its value.
    fn fire(&mut self, slot: usize, expired: &mut Vec<T>) {
        while let Some(index) = self.slots[slot].first {
            self.unlink(index);
            expired.extend(self.release(index));
        }
    }

    /// Moves every timer of a slot to the level it belongs to at the present tick.
    fn cascade(&mut self, slot: usize) {
        while let Some(index) = self.slots[slot].first {
            self.unlink(index);
            self.link(index);
        }
    }

    /// Puts an entry at the end of the slot its deadline belongs to.
    fn link(&mut self, index: u32) {
        let slot = self.slot_of(self.entries[index as usize].deadline);
        let previous = self.slots[slot].last.replace(index);
        let entry = &mut self.entries[index as usize];
        entry.slot = slot;
        entry.previous = previous;
        entry.next = None;
        match previous {
            Some(previous) => self.entries[previous as usize].next = Some(index),
            None => self.slots[slot].first = Some(index),
        }
        if slot != DUE {
            self.occupied[slot / SLOTS] |= 1 << (slot % SLOTS);
        }
    }

    fn unlink(&mut self, index: u32) {
        let Entry {
            slot,
            previous,
            next,
            ..
        } = self.entries[index as usize];
        match previous {
            Some(previous) => self.entries[previous as usize].next = next,
            None => self.slots[slot].first = next,
        }
        match next {
            Some(next) => self.entries[next as usize].previous = previous,
            None => self.slots[slot].last = previous,
        }
        if slot != DUE && self.slots[slot].first.is_none() {
            self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
        }
    }

    fn slot_of(&self, deadline: u64) -> usize {
        if deadline <= self.tick {
            return DUE;
        }
        let highest_bit = (deadline ^ self.tick).ilog2() as usize;
        let level = highest_bit / DIGIT_BITS;
        let digit = (deadline >> (level * DIGIT_BITS)) as usize % SLOTS;
        level * SLOTS + digit
    }

    /// Returns an unlinked entry to the free list.
    fn release(&mut self, index: u32) -> Option<T> {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = self.free;
        self.free = Some(index);
        self.count -= 1;
        entry.value.take()
    }
}

type Link = Option<u32>;

#[derive(Debug)]
struct Entry<T> {
    /// The deadline in ticks since the origin.
    deadline: u64,
    generation: u32,
    previous: Link,
    next: Link,
    slot: usize,
    /// `None` while the entry is unused.
    value: Option<T>,
}

impl<T> Entry<T> {
    const fn unused() -> Self {
        Self {
            deadline: 0,
            generation: 0,
            previous: None,
            next: None,
            slot: DUE,
            value: None,
        }
    }
}

#[derive(Copy, Clone, Default, Debug)]
struct Slot {
    first: Link,
    last: Link,
}

struct Occupied {
    level: usize,
    slot: usize,
    /// The first tick of the slot.
    start: u64,
}

/// A level has 64 slots, so that one word tells which are occupied.
const DIGIT_BITS: usize = 6;
const SLOTS: usize = 1 << DIGIT_BITS;

/// 11 × 6 bits cover the 64 bits of a tick.
const LEVELS: usize = 11;

/// The slot of timers that fire at the next advance.
const DUE: usize = LEVELS * SLOTS;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const TICK_NS: u64 = 1_000_000;

    const NOTHING: [u32; 0] = [];

    fn advance(wheel: &mut TimerWheel<u32>, now_ns: u64) -> Vec<u32> {
        let mut expired = Vec::new();
        wheel.advance(now_ns, &mut expired);
        expired
    }

    #[test]
    fn a_timer_fires_at_its_deadline_rounded_up_and_not_before() {
        let origin_ns = 77;
        let mut wheel = TimerWheel::new(origin_ns, TICK_NS);
        wheel.insert(origin_ns + 1, 1);
        assert_eq!(wheel.next_deadline(), Some(origin_ns + TICK_NS));
        assert_eq!(advance(&mut wheel, origin_ns + TICK_NS - 1), NOTHING);
        assert_eq!(advance(&mut wheel, origin_ns + TICK_NS), [1]);
        assert_eq!(wheel.next_deadline(), None);
        assert!(wheel.is_empty());
    }

    #[test]
    fn the_past_is_due_at_once_and_time_does_not_move_back() {
        let mut wheel = TimerWheel::new(1_000 * TICK_NS, TICK_NS);
        assert_eq!(advance(&mut wheel, 1_005 * TICK_NS), NOTHING);
        wheel.insert(0, 1);
        wheel.insert(1_005 * TICK_NS, 2);
        wheel.insert(1_006 * TICK_NS, 3);
        assert!(wheel.next_deadline().unwrap() <= 1_005 * TICK_NS);
        assert_eq!(advance(&mut wheel, 0), [1, 2]);
        assert_eq!(advance(&mut wheel, 1_006 * TICK_NS), [3]);
    }

    #[test]
    fn an_outdated_id_cancels_nothing() {
        let mut wheel = TimerWheel::new(0, TICK_NS);
        let first = wheel.insert(TICK_NS, 1);
        assert_eq!(advance(&mut wheel, TICK_NS), [1]);
        let second = wheel.insert(9 * TICK_NS, 2);
        assert_eq!(first.index, second.index, "the slot is used again");
        assert_eq!(wheel.cancel(first), None);
        assert_eq!(wheel.cancel(second), Some(2));
        assert_eq!(wheel.cancel(second), None);
        assert_eq!(wheel.len(), 0);
        let foreign = TimerId {
            index: 9,
            generation: 0,
        };
        assert_eq!(wheel.cancel(foreign), None);
    }

    #[test]
    fn the_ends_of_time_are_representable() {
        let mut wheel = TimerWheel::new(0, 1);
        wheel.insert(u64::MAX, 1);
        wheel.insert(u64::MAX - 1, 2);
        assert!(wheel.next_deadline().unwrap() < u64::MAX);
        assert_eq!(advance(&mut wheel, u64::MAX - 2), NOTHING);
        assert_eq!(wheel.next_deadline(), Some(u64::MAX - 1));
        assert_eq!(advance(&mut wheel, u64::MAX - 1), [2]);
        assert_eq!(advance(&mut wheel, u64::MAX), [1]);

        let mut coarse = TimerWheel::new(5, u64::MAX);
        coarse.insert(u64::MAX, 3);
        assert_eq!(coarse.next_deadline(), Some(u64::MAX), "saturates");
    }

    #[test]
    fn sleeping_until_each_next_deadline_meets_every_timer_in_few_steps() {
        let mut wheel = TimerWheel::new(0, TICK_NS);
        // A day in milliseconds lies four levels up: four moves down and one firing at most.
        wheel.insert(86_400_000 * TICK_NS, 1);
        let mut steps = 0;
        while let Some(next_ns) = wheel.next_deadline() {
            let fired = advance(&mut wheel, next_ns);
            assert_eq!(fired.is_empty(), next_ns < 86_400_000 * TICK_NS);
            steps += 1;
            assert!(steps <= 5, "each level moves a timer once");
        }
    }

    /// The oracle that the wheel must agree with: deadlines in a sorted map.
    struct Oracle {
        pending: BTreeMap<(u64, u32), TimerId>,
        tick_ns: u64,
        origin_ns: u64,
    }

    impl Oracle {
        fn tick_of(&self, deadline_ns: u64) -> u64 {
            deadline_ns
                .saturating_sub(self.origin_ns)
                .div_ceil(self.tick_ns)
        }

        fn due(&mut self, now_ns: u64) -> Vec<(u64, u32)> {
            let now = (now_ns - self.origin_ns) / self.tick_ns;
            let later = self.pending.split_off(&(now + 1, 0));
            std::mem::replace(&mut self.pending, later)
                .into_keys()
                .collect()
        }
    }

    fn agrees_with_the_oracle(seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let origin_ns = random.u64(0..1_000_000_000);
        let tick_ns = 1 << random.u32(0..21);
        let mut wheel = TimerWheel::new(origin_ns, tick_ns);
        let mut oracle = Oracle {
            pending: BTreeMap::new(),
            tick_ns,
            origin_ns,
        };
        let mut now_ns = origin_ns;
        let mut stale = Vec::new();
        for value in 0..2_000 {
            match random.u32(0..10) {
                0..=4 => {
                    // Delays of every magnitude, so that every level is used.
                    let delay_ns = random.u64(..) >> random.u32(8..64);
                    let deadline_ns = now_ns.saturating_add(delay_ns);
                    let id = wheel.insert(deadline_ns, value);
                    oracle
                        .pending
                        .insert((oracle.tick_of(deadline_ns), value), id);
                }
                5..=6 => {
                    let index = random.usize(..oracle.pending.len().max(1));
                    if let Some((&key, &id)) = oracle.pending.iter().nth(index) {
                        oracle.pending.remove(&key);
                        assert_eq!(wheel.cancel(id), Some(key.1), "seed {seed}");
                        stale.push(id);
                    }
                }
                7 => {
                    for &id in &stale {
                        assert_eq!(wheel.cancel(id), None, "seed {seed}");
                    }
                }
                _ => {
                    now_ns += match wheel.next_deadline() {
                        Some(next_ns) if random.bool() => next_ns.saturating_sub(now_ns),
                        _ => random.u64(..) >> random.u32(24..64),
                    };
                    let mut expired = Vec::new();
                    wheel.advance(now_ns, &mut expired);
                    let due = oracle.due(now_ns);
                    let ticks: BTreeMap<_, _> =
                        due.iter().map(|&(tick, value)| (value, tick)).collect();
                    assert!(
                        expired.iter().map(|value| ticks[value]).is_sorted(),
                        "fires in the order of ticks, seed {seed}"
                    );
                    expired.sort_unstable();
                    assert!(expired.iter().eq(ticks.keys()), "seed {seed}");
                }
            }
            assert_eq!(wheel.len(), oracle.pending.len(), "seed {seed}");
            let first = oracle
                .pending
                .keys()
                .next()
                .map(|&(tick, _)| tick.saturating_mul(tick_ns).saturating_add(origin_ns));
            match (wheel.next_deadline(), first) {
                (Some(next_ns), Some(first_ns)) => {
                    assert!(next_ns <= first_ns, "never later, seed {seed}");
                }
                (next, first) => assert_eq!(next, first, "seed {seed}"),
            }
        }
    }

    #[test]
    fn random_histories_agree_with_a_sorted_map() {
        for seed in 0..50 {
            agrees_with_the_oracle(seed);
        }
    }
}
