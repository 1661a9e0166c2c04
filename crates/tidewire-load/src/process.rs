//! The cost of a process up to now: processor time and memory, read from `/proc`.
//!
//! The server under test runs in another process, so the only honest source is the kernel's own account of
//! it. Two samples and a subtraction give the cost of a step. Processor time has the kernel's tick of
//! usually 10 ms, enough for steps of seconds. A crate for this was rejected: it is two small files of text.

use std::fs;
use std::io;

use crate::environment::bytes_of;

/// One reading of a process's account.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessSample {
    /// Processor time of all its threads since it started, user and system, in seconds.
    pub cpu_secs: f64,
    /// Resident memory now, in bytes.
    pub rss_bytes: u64,
    /// Largest resident memory since it started, in bytes.
    pub rss_bytes_max: u64,
}

impl ProcessSample {
    /// Reads the account of the process with this id.
    ///
    /// # Errors
    /// The process is gone, `/proc` cannot be read, or the kernel's text is not as documented: a zombie has no memory
    /// lines, for example.
    pub fn of(pid: u32) -> io::Result<Self> {
        Self::read(&format!("/proc/{pid}"))
    }

    /// Reads the account of this process.
    pub fn of_self() -> io::Result<Self> {
        Self::read("/proc/self")
    }

    /// This one, with what an earlier process has used in its place.
    #[must_use]
    pub fn after(&self, earlier: &Self) -> Self {
        Self {
            cpu_secs: self.cpu_secs + earlier.cpu_secs,
            rss_bytes_max: self.rss_bytes_max.max(earlier.rss_bytes_max),
            ..*self
        }
    }

    /// Processor time spent between an earlier sample of the same process and this one, in seconds.
    pub fn cpu_secs_since(&self, earlier: &Self) -> f64 {
        self.cpu_secs - earlier.cpu_secs
    }

    fn read(directory: &str) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("{directory}/stat"))?;
        let status = fs::read_to_string(format!("{directory}/status"))?;
        Self::parse(&stat, &status).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(stat: &str, status: &str) -> Option<Self> {
        let ticks_per_sec = rustix::param::clock_ticks_per_second();
        Some(Self {
            cpu_secs: cpu_ticks(stat)? as f64 / ticks_per_sec as f64,
            rss_bytes: bytes_of(status, "VmRSS")?,
            rss_bytes_max: bytes_of(status, "VmHWM")?,
        })
    }
}

/// One reading of what the whole machine did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineSample {
    /// Ticks of all processors since the machine started.
    pub ticks: u64,
    /// Ticks of `ticks` in which the host of a virtual machine ran others.
    pub stolen_ticks: u64,
}

impl MachineSample {
    /// Reads the machine's account; nothing where there is none.
    pub fn read() -> Option<Self> {
        machine_ticks(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Time stolen since an earlier sample, in percent; nothing when no tick passed.
    pub fn stolen_pct_since(&self, earlier: &Self) -> Option<f64> {
        let ticks = self.ticks.checked_sub(earlier.ticks)?;
        let stolen = self.stolen_ticks.checked_sub(earlier.stolen_ticks)?;
        (ticks > 0).then(|| stolen as f64 / ticks as f64 * 100.0)
    }
}

/// User plus system ticks. The command name, second field, may hold spaces and parentheses, so the fields
/// are counted from the last closing one: state is then the first, user time the twelfth, system the next.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

/// The first line has the ticks of all processors: user, nice, system, idle, waiting, two kinds of interrupts, stolen;
/// what follows is contained in the first ones.
fn machine_ticks(stat: &str) -> Option<MachineSample> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .take(8)
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    Some(MachineSample {
        ticks: ticks.iter().sum(),
        stolen_ticks: *ticks.get(7)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_command_name_does_not_shift_the_fields() {
        let stat = "42 (a) R 1 (b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 100\n";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("42 (a) S 1 2"), None);
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn stolen_time_is_the_eighth_number_of_the_machine() {
        let stat = "cpu  10 20 30 40 0 0 0 25 7 7\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        let sample = machine_ticks(stat).unwrap();
        assert_eq!((sample.ticks, sample.stolen_ticks), (125, 25));
        let earlier = MachineSample {
            ticks: 25,
            stolen_ticks: 0,
        };
        assert_eq!(sample.stolen_pct_since(&earlier), Some(25.0));
        assert_eq!(earlier.stolen_pct_since(&sample), None);
        assert_eq!(sample.stolen_pct_since(&sample), None);
        assert_eq!(machine_ticks("cpu0 1 2 3 4 5 6 7 8"), None);
        assert_eq!(machine_ticks("cpu  1 2 3"), None);
        assert_eq!(machine_ticks("cpu  1 2 x"), None);
    }

    #[test]
    fn memory_lines_are_kibibytes() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t     4 kB\n";
        assert_eq!(bytes_of(status, "VmHWM"), Some(2 << 20));
        assert_eq!(bytes_of(status, "VmRSS"), Some(4096));
        assert_eq!(bytes_of(status, "VmSwap"), None);
    }

    #[test]
    fn own_account_grows_with_work() {
        let before = ProcessSample::of_self().unwrap();
        let mut value = 1_u64;
        // Work until the account moves: how long that takes is the machine's affair.
        let after = loop {
            for round in 0..1_000_000_u64 {
                value = std::hint::black_box(value.wrapping_mul(round | 1));
            }
            let now = ProcessSample::of_self().unwrap();
            if now.cpu_secs_since(&before) > 0.0 {
                break now;
            }
        };
        assert!(after.rss_bytes > 0);
        assert!(after.rss_bytes_max >= before.rss_bytes);
        let by_id = ProcessSample::of(std::process::id()).unwrap();
        assert!(by_id.cpu_secs >= after.cpu_secs);
    }

    #[test]
    fn a_process_that_does_not_exist_is_an_error() {
        // Above the largest process id a kernel can be configured for (2^22).
        let error = ProcessSample::of(u32::MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
