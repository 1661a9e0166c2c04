//! Clocks that mean the same in every process: the time of the machine, and the processor time of any process.
//!
//! Latency is measured from the intended send time in one process to the decoding in another. The clock must therefore
//! be monotonic, comparable between processes, and cheap. `CLOCK_MONOTONIC` counts from the machine's start, and the
//! vDSO reads it without a system call. `std::time::Instant` reads the same clock but hides its value; the wall clock
//! is comparable but jumps.
//!
//! The processor time of a process comes from its own clock, which counts all of its threads in nanoseconds, including
//! those that have ended. The texts in `/proc` give only one of the two. `stat` counts ended threads, but in ticks of
//! usually 10 ms. `schedstat` counts nanoseconds, but only of threads that live.

use std::io;
use std::ops::{Add, Sub};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_getres, clock_gettime};

/// Returns the nanoseconds since the machine started, without the time it was asleep. The value never decreases, and
/// means the same in every process of the machine.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither part of a monotonic time is negative, and 64 bits of nanoseconds last 584 years.
    now.tv_sec.cast_unsigned() * NS_PER_SEC + now.tv_nsec.cast_unsigned()
}

/// A time on the clock of [`now_ns`], which means the same in every process of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Returns the present time.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        Self(now_ns())
    }

    /// The moment that is so many nanoseconds after the machine's start.
    #[inline]
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// The nanoseconds from the machine's start to this moment.
    #[inline]
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// The moment that is later by this duration, at most the clock's last moment.
    #[inline]
    fn add(self, later: Duration) -> Self {
        let later_ns = u64::try_from(later.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(later_ns))
    }
}

impl Sub for Moment {
    type Output = Duration;

    /// The time since an earlier moment; zero if `earlier` is later.
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Returns the time of [`now_ns`] at the system's last timer tick: at most [`coarse_tick_ns`] ago, and never later than
/// now. It costs a sixth of the exact time, because the kernel keeps it in memory and no processor counter is read.
#[inline]
#[must_use]
pub fn coarse_now_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec.cast_unsigned() * NS_PER_SEC + now.tv_nsec.cast_unsigned()
}

/// Returns the largest lag of [`coarse_now_ns`] in nanoseconds: 1 to 10 ms, depending on the kernel's build.
#[must_use]
pub fn coarse_tick_ns() -> u64 {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    tick.tv_sec.cast_unsigned() * NS_PER_SEC + tick.tv_nsec.cast_unsigned()
}

/// Returns the processor time that the calling thread has used since it began, in nanoseconds. It costs a system call.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec.cast_unsigned() * NS_PER_SEC + used.tv_nsec.cast_unsigned()
}

/// Returns the processor time that this process has used since it began, in nanoseconds: user and system time of all
/// its threads, including ended ones, without its child processes. Processes of other users can be queried, too.
///
/// # Errors
///
/// `EINVAL` or `ESRCH` when the process does not exist.
#[expect(
    unsafe_code,
    reason = "the clocks of other processes have no safe call"
)]
pub fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    let pid = libc::pid_t::try_from(pid).map_err(|_too_large| Errno::SRCH)?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: the call writes one clock's number to the address it is given, which outlives it.
    let refused = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if refused != 0 {
        return Err(io::Error::from_raw_os_error(refused));
    }
    read(clock)
}

/// The processor-time clock of one thread. Any thread of this process may read the clock.
#[derive(Clone, Copy, Debug)]
pub struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// The clock of the calling thread.
    #[must_use]
    pub fn of_this_thread() -> Self {
        // The clock's number is a part of the kernel's interface: the inverted number of the thread, and three bits for
        // "one thread, in nanoseconds".
        Self((!gettid().as_raw_nonzero().get() << 3) | 0b110)
    }

    /// Returns the processor time that the thread has used since it began, in nanoseconds. It costs a system call.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the thread has ended.
    pub fn used_ns(self) -> io::Result<u64> {
        read(self.0)
    }
}

/// Reads a clock that has only a number.
#[expect(
    unsafe_code,
    reason = "the clocks of other processes and threads have no safe call"
)]
fn read(clock: libc::clockid_t) -> io::Result<u64> {
    let mut used = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one time to the address it is given, which outlives it; the number of a clock that does
    // not exist is an error.
    if unsafe { libc::clock_gettime(clock, &raw mut used) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(used.tv_sec.cast_unsigned() * NS_PER_SEC + used.tv_nsec.cast_unsigned())
}

const NS_PER_SEC: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back() {
        let mut last_ns = now_ns();
        for _ in 0..10_000 {
            let next_ns = now_ns();
            assert!(next_ns >= last_ns);
            last_ns = next_ns;
        }
    }

    #[test]
    fn moments_move_by_durations_and_never_pass_an_end() {
        let (second, moment) = (Duration::from_secs(1), Moment::from_ns(5));
        assert_eq!((moment + second).as_ns(), 1_000_000_005);
        assert_eq!((moment + second) - moment, second);
        assert_eq!(moment - (moment + second), Duration::ZERO);
        assert_eq!(moment + Duration::MAX, Moment::from_ns(u64::MAX));
        let before_ns = now_ns();
        assert!(Moment::now() >= Moment::from_ns(before_ns));
    }

    #[test]
    fn the_coarse_time_is_not_ahead() {
        assert!(coarse_tick_ns() > 0);
        let mut last_ns = coarse_now_ns();
        for _ in 0..10_000 {
            let coarse_ns = coarse_now_ns();
            assert!(coarse_ns >= last_ns && coarse_ns <= now_ns());
            last_ns = coarse_ns;
        }
        while coarse_now_ns() == last_ns {}
    }

    #[test]
    fn it_counts_from_the_start_of_the_machine_like_every_process_sees_it() {
        let now_secs = now_ns() as f64 / 1e9;
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime_secs: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        // The file was written later, counts the time asleep as well, and is cut to hundredths of a second.
        assert!(now_secs <= uptime_secs + 0.01);
    }

    /// Works until the thread's own clock shows so much processor time.
    fn work_for_ns(time_ns: u64) {
        let until_ns = thread_cpu_ns() + time_ns;
        while thread_cpu_ns() < until_ns {}
    }

    #[test]
    fn the_work_of_a_thread_counts_when_the_thread_has_ended() {
        let own = std::process::id();
        let before_ns = process_cpu_ns(own).unwrap();
        std::thread::spawn(|| work_for_ns(30_000_000))
            .join()
            .unwrap();
        let between_ns = process_cpu_ns(own).unwrap();
        assert!(between_ns - before_ns >= 30_000_000);
        // The clock is finer than the ticks of other accounts.
        work_for_ns(100_000);
        assert!(process_cpu_ns(own).unwrap() - between_ns >= 100_000);
    }

    #[test]
    fn the_clock_of_a_thread_tells_other_threads_how_long_it_has_worked() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::spawn(move || {
            work_for_ns(5_000_000);
            tell.send((ThreadClock::of_this_thread(), thread_cpu_ns()))
                .unwrap();
            // The thread lives until the test has read its clock.
            ended.recv().unwrap_err();
        });
        let (clock, before_ns) = told.recv().unwrap();
        assert!(clock.used_ns().unwrap() >= before_ns);
        assert!(before_ns >= 5_000_000);
        let own = ThreadClock::of_this_thread().used_ns().unwrap();
        assert!(own <= thread_cpu_ns());
        drop(end);
        worker.join().unwrap();
    }

    #[test]
    fn another_process_can_be_asked_about_as_long_as_it_is_there() {
        let mut other = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        // The test does not know how long the machine takes for 5 ms of processor time.
        while process_cpu_ns(other.id()).unwrap() < 5_000_000 {
            std::thread::yield_now();
        }
        other.kill().unwrap();
        other.wait().unwrap();
        let gone = process_cpu_ns(other.id()).unwrap_err();
        assert!(matches!(gone.raw_os_error(), Some(3 | 22)), "{gone}");
        assert!(process_cpu_ns(u32::MAX).is_err());
    }
}
