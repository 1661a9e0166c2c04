//! What a program has cost so far, its child processes included.
//!
//! Processor time is that of each process's own clock: nanoseconds, of threads that have ended as well. A program may be
//! a script that starts the server proper (a rival in another language), so children count as well; what a child has
//! used that ended meanwhile is lost. Rejected: the scheduler's account of each thread (`schedstat`), which is lost with
//! the thread, and the usual one of the process, whose ticks of 10 ms are too coarse for runs of a second.

use std::collections::HashMap;
use std::fs;

use tidewire::io::clock::process_cpu_ns;

use crate::process::ProcessSample;

/// One reading of a program's account.
#[derive(Clone, Debug, Default)]
pub(super) struct Cost {
    /// Nanoseconds of processor time that each process has used.
    cpu_ns: HashMap<u32, u64>,
    /// Largest resident memory of each process so far, added up, in bytes.
    pub(super) rss_bytes_max: u64,
}

impl Cost {
    /// Reads the account of this process and of those below it. What has just ended is left out.
    pub(super) fn of(pid: u32) -> Self {
        let mut cost = Self::default();
        let mut waiting = vec![pid];
        while let Some(pid) = waiting.pop() {
            let Ok(cpu_ns) = process_cpu_ns(pid) else {
                continue;
            };
            cost.cpu_ns.insert(pid, cpu_ns);
            cost.rss_bytes_max += ProcessSample::of(pid).map_or(0, |sample| sample.rss_bytes_max);
            for thread in threads(pid) {
                let children = fs::read_to_string(format!("/proc/{pid}/task/{thread}/children"));
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
        let since = |(process, now): (&u32, &u64)| {
            now.saturating_sub(earlier.cpu_ns.get(process).copied().unwrap_or(0))
        };
        self.cpu_ns.iter().map(since).sum::<u64>() as f64
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write, stdin, stdout};
    use std::process::{Command, Stdio};

    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    #[test]
    fn work_of_a_child_is_work_of_the_program() {
        let mut shell = Command::new("sh")
            .args(["-c", "read go; (while :; do :; done) & read end; kill $!"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let before = Cost::of(shell.id());
        let mut input = shell.stdin.take().unwrap();
        input.write_all(b"go\n").unwrap();
        // How long 20 ms of processor time take is the machine's affair.
        while Cost::of(shell.id()).cpu_ns_since(&before) < 20e6 {
            std::thread::yield_now();
        }
        assert!(Cost::of(shell.id()).rss_bytes_max > before.rss_bytes_max);
        input.write_all(b"end\n").unwrap();
        shell.wait().unwrap();
    }

    /// Plays both parts: the program whose thread works and ends, and who reads its account.
    #[test]
    fn the_work_of_a_thread_that_has_ended_counts() {
        if std::env::var_os(PART).is_some() {
            return work_on_a_thread_that_ends();
        }
        let name = "the_work_of_a_thread_that_has_ended_counts";
        let mut program = Command::new(std::env::current_exe().unwrap())
            .args([name, "--nocapture", "--test-threads", "1"])
            .env(PART, "program")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let mut hear = |expected: &str| lines.any(|line| line.unwrap().ends_with(expected));
        assert!(hear("ready"));
        let before = Cost::of(program.id());
        program.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        assert!(hear("done"));
        let cost_ns = Cost::of(program.id()).cpu_ns_since(&before);
        assert!(cost_ns >= THREAD_NS as f64, "{cost_ns}");
        drop(program.stdin.take());
        assert!(program.wait().unwrap().success());
    }

    fn work_on_a_thread_that_ends() {
        let say = |line: &str| writeln!(stdout(), "{line}").unwrap();
        let hear = || stdin().read_line(&mut String::new()).unwrap();
        say("ready");
        hear();
        let work = || {
            let used_ns = || {
                let used = clock_gettime(ClockId::ThreadCPUTime);
                used.tv_sec * 1_000_000_000 + used.tv_nsec
            };
            while used_ns() < THREAD_NS {}
        };
        std::thread::spawn(work).join().unwrap();
        say("done");
        hear();
    }

    /// Says that this process is the program.
    const PART: &str = "TIDEWIRE_TEST_OF_COST";

    const THREAD_NS: i64 = 30_000_000;
}
