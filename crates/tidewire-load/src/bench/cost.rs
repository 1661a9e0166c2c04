//! What a program has cost so far, its child processes included.
//!
//! The scheduler's own account (`schedstat`) counts nanoseconds, where the usual one has ticks of 10 ms: too coarse for
//! runs of a second. It is kept for each thread and lost with it, so the tick count, which is kept for the process, is
//! taken where the threads' sum falls behind it by more than its own coarseness. A program may be a script that starts
//! the server proper (a rival in another language), so children count as well.

use std::collections::HashMap;
use std::fs;

use crate::process::ProcessSample;

/// One reading of a program's account.
#[derive(Clone, Debug, Default)]
pub(super) struct Cost {
    /// Nanoseconds of each thread by the scheduler's account, by the numbers of process and thread.
    threads_ns: HashMap<(u32, u32), u64>,
    /// Seconds of each process in ticks.
    processes_secs: HashMap<u32, f64>,
    /// Largest resident memory of each process so far, added up, in bytes.
    pub(super) rss_bytes_max: u64,
}

impl Cost {
    /// Reads the account of this process and of those below it. What has just ended is left out.
    pub(super) fn of(pid: u32) -> Self {
        let mut cost = Self::default();
        let mut waiting = vec![pid];
        while let Some(pid) = waiting.pop() {
            let Ok(sample) = ProcessSample::of(pid) else {
                continue;
            };
            cost.rss_bytes_max += sample.rss_bytes_max;
            cost.processes_secs.insert(pid, sample.cpu_secs);
            for thread in threads(pid) {
                let directory = format!("/proc/{pid}/task/{thread}");
                let schedstat = fs::read_to_string(format!("{directory}/schedstat"));
                if let Some(time_ns) = schedstat.ok().as_deref().and_then(first_number) {
                    cost.threads_ns.insert((pid, thread), time_ns);
                }
                let children = fs::read_to_string(format!("{directory}/children"));
                waiting.extend(
                    children
                        .unwrap_or_default()
                        .split_ascii_whitespace()
                        .filter_map(|child| child.parse::<u32>().ok()),
                );
            }
        }
        cost
    }

    /// Processor time since an earlier reading of the same program, in nanoseconds.
    pub(super) fn cpu_ns_since(&self, earlier: &Self) -> f64 {
        let exact: u64 = self
            .threads_ns
            .iter()
            .map(|(thread, now)| {
                let before = earlier.threads_ns.get(thread).copied().unwrap_or(0);
                now.saturating_sub(before)
            })
            .sum();
        let coarse: f64 = self
            .processes_secs
            .iter()
            .map(|(process, now)| now - earlier.processes_secs.get(process).unwrap_or(&0.0))
            .sum::<f64>()
            * 1e9;
        if coarse - exact as f64 > TICKS_NS {
            coarse
        } else {
            exact as f64
        }
    }
}

fn threads(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

fn first_number(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// By how much two readings in ticks of 10 ms may exceed the truth, user and system time apart.
const TICKS_NS: f64 = 40e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_a_child_is_work_of_the_program() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "read go; (while :; do :; done) & read end; kill $!"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let before = Cost::of(shell.id());
        let mut input = shell.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, b"go\n").unwrap();
        // How long 20 ms of processor time take is the machine's affair.
        while Cost::of(shell.id()).cpu_ns_since(&before) < 20e6 {
            std::thread::yield_now();
        }
        assert!(Cost::of(shell.id()).rss_bytes_max > before.rss_bytes_max);
        std::io::Write::write_all(&mut input, b"end\n").unwrap();
        shell.wait().unwrap();
    }

    #[test]
    fn a_thread_that_ended_still_counts_by_its_ticks() {
        let earlier = Cost {
            threads_ns: HashMap::from([((1, 1), 5)]),
            processes_secs: HashMap::from([(1, 1.0)]),
            rss_bytes_max: 0,
        };
        let mut now = earlier.clone();
        now.threads_ns.insert((1, 1), 1_005);
        now.processes_secs.insert(1, 1.02);
        assert_eq!(now.cpu_ns_since(&earlier), 1_000.0);
        now.processes_secs.insert(1, 1.5);
        assert_eq!(now.cpu_ns_since(&earlier), 5e8);
    }
}
