//! The memory account of a server: the bytes that its lanes hold, and the pressure near the limit.
//!
//! Problem: limits bound the memory of one session, and the product of all limits is more than any machine has.
//! Approach: each lane counts its bytes in a plain integer, and adds the difference to one shared number in steps of 64
//! KiB, so no message costs an atomic operation. The lane that adds a difference also updates the
//! [`Pressure`]: a level with hysteresis that says how near the limit is. Every lane reads it once a turn, and where it
//! wants to grow.
//!
//! The account counts the capacity of buffers and not their length, because the capacity is their cost. The fixed costs
//! of the process (code, stacks, one receive buffer a lane) and the kernel's socket buffers are not counted.
//!
//! Rejected: counts of the allocator, because they include the memory of the application, and only a counting allocator
//! has them. Also rejected: a share of the limit for each lane, which would refuse a busy lane the memory that idle
//! lanes do not need.

mod shares;

use std::collections::HashMap;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

pub(crate) use shares::{Holder, MemoryShares};

/// The pressure on a server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Pressure {
    /// Less than the thresholds below is held.
    Normal,
    /// Three quarters of the limit are held: new connections are refused, and some sessions are closed to release
    /// memory.
    High,
    /// Fifteen sixteenths are held: nothing may grow.
    Full,
}

impl Pressure {
    /// Returns the next level when this many sixteenths of the limit are held. The level falls later than it rises, so
    /// that it does not change all the time near a threshold.
    fn next(self, sixteenths: usize) -> Self {
        match self {
            _ if sixteenths >= FULL_AT => Self::Full,
            Self::Full if sixteenths >= FULL_UNTIL => Self::Full,
            Self::Full | Self::High if sixteenths >= RELIEVED_BELOW => Self::High,
            Self::Normal if sixteenths >= HIGH_AT => Self::High,
            _ => Self::Normal,
        }
    }

    fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Normal,
            1 => Self::High,
            _ => Self::Full,
        }
    }
}

/// The bytes that all lanes of a server hold together.
#[derive(Debug)]
pub(crate) struct MemoryAccount {
    /// The limit, which may change while the server runs.
    bytes_max: AtomicUsize,
    bytes: CachePadded<AtomicUsize>,
    /// The part of `bytes` that no lane holds: the tables of the authenticator.
    table_bytes: AtomicUsize,
    pressure: AtomicU8,
    pressure_changes: AtomicU64,
    shares: MemoryShares,
    /// Makes the numbers of lanes.
    lanes: AtomicU64,
}

impl MemoryAccount {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max: AtomicUsize::new(bytes_max.max(BYTES_MAX_MIN)),
            bytes: CachePadded::default(),
            table_bytes: AtomicUsize::new(0),
            pressure: AtomicU8::new(Pressure::Normal as u8),
            pressure_changes: AtomicU64::new(0),
            shares: MemoryShares::default(),
            lanes: AtomicU64::new(0),
        }
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Sets another limit. The lanes follow in their next turns.
    pub(crate) fn set_bytes_max(&self, bytes_max: usize) {
        let bytes_max = bytes_max.max(BYTES_MAX_MIN);
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        self.update_pressure();
    }

    /// Sets the bytes of the tables that all lanes use.
    pub(crate) fn set_tables(&self, bytes: usize) {
        let before = self.table_bytes.swap(bytes, Ordering::SeqCst);
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        self.bytes.fetch_sub(before, Ordering::SeqCst);
        self.update_pressure();
    }

    /// Bytes of the tables, and those that the lanes have added. Each lane holds up to 64 KiB more or less.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }

    pub(crate) fn pressure_changes(&self) -> u64 {
        self.pressure_changes.load(Ordering::Relaxed)
    }

    /// Returns the level. A normal level costs one read.
    #[inline]
    pub(crate) fn pressure(&self) -> Pressure {
        match self.pressure.load(Ordering::SeqCst) {
            0 => Pressure::Normal,
            _ => self.update_pressure(),
        }
    }

    /// Updates the level. Another lane may add bytes at the same time, so this repeats until the level is right.
    #[cold]
    fn update_pressure(&self) -> Pressure {
        loop {
            let found = self.pressure.load(Ordering::SeqCst);
            let pressure = Pressure::from_number(found);
            let next = pressure.next(self.bytes() / (self.bytes_max() / SIXTEENTHS));
            if next == pressure {
                return next;
            }
            let changed = self.pressure.compare_exchange(
                found,
                next as u8,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            if changed.is_ok() {
                self.pressure_changes.fetch_add(1, Ordering::Relaxed);
                if next == Pressure::Normal {
                    self.shares.clear();
                }
            }
        }
    }

    /// Bytes that must be released until fewer than this many sixteenths are held.
    fn excess(&self, sixteenths: usize) -> usize {
        let relieved = self.bytes_max() / SIXTEENTHS * sixteenths;
        // The level changes below a threshold, and not at it.
        (self.bytes() + 1).saturating_sub(relieved)
    }
}

/// The bytes that one lane holds. Only the lane counts them.
#[derive(Debug)]
pub(crate) struct LaneMemory {
    account: Arc<MemoryAccount>,
    /// The number of the lane in the account.
    number: u64,
    bytes: usize,
    /// The part of `bytes` that was added to the account.
    settled: usize,
    /// The least fall after which memory goes back to the system.
    fall_bytes: usize,
    /// The most bytes since memory last went back to the system.
    peak: usize,
    /// The level when it was last read.
    pressure: Pressure,
}

impl LaneMemory {
    /// The limit in force, in bytes.
    pub(crate) fn bytes_max(&self) -> usize {
        self.account.bytes_max()
    }

    pub(crate) fn new(account: Arc<MemoryAccount>) -> Self {
        let fall_bytes = (account.bytes_max() / FALL_PARTS).max(FALL_BYTES_MIN);
        Self {
            number: account.lanes.fetch_add(1, Ordering::Relaxed),
            account,
            fall_bytes,
            bytes: 0,
            settled: 0,
            peak: 0,
            pressure: Pressure::Normal,
        }
    }

    /// Counts a buffer that had `before` bytes and has `after` bytes now.
    #[inline]
    pub(crate) fn resize(&mut self, before: usize, after: usize) {
        if before != after {
            self.change(before, after);
        }
    }

    #[cold]
    fn change(&mut self, before: usize, after: usize) {
        debug_assert!(self.bytes + after >= before, "more given back than held");
        self.bytes = (self.bytes + after).saturating_sub(before);
        self.peak = self.peak.max(self.bytes);
        if self.bytes.abs_diff(self.settled) >= STEP_BYTES {
            self.settle();
        }
    }

    /// Adds the difference to the account, and reads the level.
    pub(crate) fn settle(&mut self) -> Pressure {
        let account = &self.account;
        if self.bytes > self.settled {
            let more = self.bytes - self.settled;
            account.bytes.fetch_add(more, Ordering::SeqCst);
        } else if self.bytes < self.settled {
            let less = self.settled - self.bytes;
            account.bytes.fetch_sub(less, Ordering::SeqCst);
        }
        self.settled = self.bytes;
        self.pressure = self.account.update_pressure();
        self.pressure
    }

    #[inline]
    pub(crate) fn refresh(&mut self) -> Pressure {
        self.pressure = self.account.pressure();
        self.pressure
    }

    /// Returns the level that was last read.
    #[inline]
    pub(crate) fn pressure(&self) -> Pressure {
        self.pressure
    }

    /// Whether memory needs no action: there is no pressure, and the lane holds about as much as at its peak.
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        self.pressure == Pressure::Normal
            && self.bytes + self.fall_bytes >= self.peak
            && self.account.pressure.load(Ordering::SeqCst) == Pressure::Normal as u8
    }

    /// Whether the lane holds so much less than at its peak that memory should go back to the system. If so, the peak
    /// is reset.
    pub(crate) fn has_fallen(&mut self) -> bool {
        let has_fallen = self.bytes < self.peak / 2 && self.bytes + self.fall_bytes <= self.peak;
        if has_fallen {
            self.peak = self.bytes;
        }
        has_fallen
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes that this lane should release for a normal pressure, in proportion to its held bytes.
    pub(crate) fn excess_share(&self) -> usize {
        self.part_of(self.account.excess(RELIEVED_BELOW))
    }

    /// As [`Self::excess_share`], until things may grow again.
    pub(crate) fn full_share(&self) -> usize {
        self.part_of(self.account.excess(FULL_UNTIL))
    }

    fn part_of(&self, excess: usize) -> usize {
        // Lanes cannot release the tables, so they release as much as if they held all.
        let tables = self.account.table_bytes.load(Ordering::SeqCst);
        let total = self.account.bytes().saturating_sub(tables).max(1);
        let share = excess as u128 * self.bytes as u128 / total as u128;
        // Rounded up, so that a small share is released, too.
        share as usize + 1
    }

    /// Whether the limit itself is passed.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.account.bytes() >= self.account.bytes_max()
    }

    /// The memory that the addresses and users of the server hold.
    pub(crate) fn shares(&self) -> &MemoryShares {
        &self.account.shares
    }

    pub(crate) fn note_shares(&self, held: HashMap<Holder, usize>) {
        let account = &self.account;
        let sixteenth = account.bytes_max() / SIXTEENTHS;
        let (bytes, bytes_max) = (account.bytes(), sixteenth * RELIEVED_BELOW);
        // Memory that belongs to no session takes its part first.
        let bytes_max = |shared: usize| bytes_max.saturating_sub(bytes.saturating_sub(shared));
        let share_min = account.bytes_max() / SHARE_PARTS_MAX;
        account.shares.note(self.number, held, bytes_max, share_min);
    }
}

impl Drop for LaneMemory {
    fn drop(&mut self) {
        self.bytes = 0;
        self.settle();
        self.account.shares.forget(self.number);
    }
}

/// The difference at which a lane updates the account. A smaller difference is not worth an atomic operation.
const STEP_BYTES: usize = 64 * 1024;

/// Memory goes back to the system after a fall of this many bytes, or of this part of the limit. The allocator may keep
/// less for later use.
const FALL_BYTES_MIN: usize = 8 << 20;
const FALL_PARTS: usize = 64;

/// The least limit. A smaller limit would be less than the buffers that a lane keeps for reuse.
const BYTES_MAX_MIN: usize = 1 << 20;

/// This part of the limit is never above a share: 64 KiB of a limit of 64 MiB.
const SHARE_PARTS_MAX: usize = 1_024;

const SIXTEENTHS: usize = 16;
const FULL_AT: usize = 15;
const FULL_UNTIL: usize = 13;
const HIGH_AT: usize = 12;
const RELIEVED_BELOW: usize = 10;

#[cfg(all(test, tidewire_model))]
mod model;
#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const SIXTEENTH: usize = 1 << 20;

    fn account() -> Arc<MemoryAccount> {
        Arc::new(MemoryAccount::new(SIXTEENTHS * SIXTEENTH))
    }

    #[test]
    fn pressure_rises_at_its_borders_and_falls_later() {
        let mut lane = LaneMemory::new(account());
        let mut held = 0;
        let mut hold = |lane: &mut LaneMemory, sixteenths: usize| {
            lane.resize(held, sixteenths * SIXTEENTH);
            held = sixteenths * SIXTEENTH;
            lane.pressure()
        };
        use Pressure::{Full, High, Normal};
        for (sixteenths, expected) in [
            (11, Normal),
            (12, High),
            (11, High),
            (10, High),
            (9, Normal),
            (11, Normal),
            (15, Full),
            (14, Full),
            (13, Full),
            (12, High),
            (15, Full),
            (9, Normal),
        ] {
            assert_eq!(hold(&mut lane, sixteenths), expected, "{sixteenths}");
        }
        assert_eq!(lane.account.pressure_changes(), 6);
    }

    #[test]
    fn a_small_change_stays_with_the_lane_until_it_settles() {
        let account = account();
        let mut lane = LaneMemory::new(Arc::clone(&account));
        lane.resize(0, STEP_BYTES - 1);
        assert_eq!(account.bytes(), 0);
        lane.resize(0, 1);
        assert_eq!(account.bytes(), STEP_BYTES);
        lane.resize(10, 0);
        assert_eq!(account.bytes(), STEP_BYTES);
        lane.settle();
        assert_eq!(account.bytes(), STEP_BYTES - 10);
    }

    #[test]
    fn memory_goes_back_after_a_peak_and_once() {
        let mut lane = LaneMemory::new(account());
        lane.resize(0, 12 << 20);
        assert!(!lane.has_fallen());
        lane.resize(5 << 20, 0);
        assert!(!lane.has_fallen(), "more than half is left");
        lane.resize(6 << 20, 0);
        assert!(lane.has_fallen());
        assert!(!lane.has_fallen());
        lane.resize(0, 6 << 20);
        lane.resize(6 << 20, 0);
        assert!(!lane.has_fallen(), "not worth it");
    }

    #[test]
    fn the_excess_is_shared_in_proportion() {
        let account = account();
        let mut lanes = [(); 2].map(|()| LaneMemory::new(Arc::clone(&account)));
        lanes[0].resize(0, 9 * SIXTEENTH);
        lanes[1].resize(0, 3 * SIXTEENTH);
        assert_eq!(account.excess(RELIEVED_BELOW), 2 * SIXTEENTH + 1);
        let shares = lanes.each_ref().map(LaneMemory::excess_share);
        assert!(shares[0] >= 3 * shares[1] - 3 && shares[1] > SIXTEENTH / 3);
        lanes[0].resize(2 * SIXTEENTH + 1, 0);
        assert_eq!(account.excess(RELIEVED_BELOW), 0);
        assert_eq!(account.pressure(), Pressure::Normal);
    }

    /// Regression: the tables of a configuration were not counted. Lanes cannot release them, so they release more
    /// themselves.
    #[test]
    fn tables_count_and_lanes_release_the_excess() {
        let account = account();
        let mut lane = LaneMemory::new(Arc::clone(&account));
        lane.resize(0, 6 * SIXTEENTH);
        account.set_tables(8 * SIXTEENTH);
        assert_eq!(account.bytes(), 14 * SIXTEENTH);
        assert_eq!(account.pressure(), Pressure::High);
        assert!(lane.excess_share() > 4 * SIXTEENTH);
        account.set_tables(3 * SIXTEENTH);
        assert_eq!(account.bytes(), 9 * SIXTEENTH);
        assert_eq!(account.pressure(), Pressure::Normal);
        account.set_tables(0);
        assert_eq!(account.bytes(), 6 * SIXTEENTH);
    }

    /// Checks that a limit of 0 bytes does not divide by zero.
    #[test]
    fn a_limit_of_nothing_is_the_least_one() {
        assert_eq!(MemoryAccount::new(0).bytes_max(), BYTES_MAX_MIN);
        assert_eq!(MemoryAccount::new(0).pressure(), Pressure::Normal);
    }

    #[test]
    fn the_sum_is_right_when_all_have_settled() {
        const LANES: usize = 4;
        const CHANGES: usize = 20_000;
        let account = account();
        let left: usize = thread::scope(|scope| {
            let lanes: Vec<_> = (0..LANES)
                .map(|seed| {
                    let mut lane = LaneMemory::new(Arc::clone(&account));
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(seed as u64);
                        let mut held = [0; 16];
                        for _ in 0..CHANGES {
                            let entry = &mut held[random.usize(..16)];
                            let next = random.usize(..SIXTEENTH / 8);
                            lane.resize(*entry, next);
                            *entry = next;
                        }
                        lane.settle();
                        assert_eq!(lane.bytes(), held.iter().sum::<usize>());
                        lane
                    })
                })
                .collect();
            let lanes: Vec<_> = lanes.into_iter().map(|lane| lane.join().unwrap()).collect();
            let held = lanes.iter().map(LaneMemory::bytes).sum();
            assert_eq!(account.bytes(), held);
            held
        });
        assert!(left > 0);
        assert_eq!(
            account.bytes(),
            0,
            "lanes that ended have given everything back"
        );
    }
}
