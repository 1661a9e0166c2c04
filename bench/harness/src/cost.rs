//! The cost of a program so far, with its child processes.
//! Processor time is that of each process's own clock, in nanoseconds; it includes threads that have ended. A program
//! may be a script that starts the real server (a rival in another language), so children count as well; the time of
//! a child that has ended is lost. Rejected: the scheduler's account of each thread (`schedstat`), which is lost with
//! the thread, and the usual account of a process, whose ticks of 10 ms are too coarse for runs of a second.
//! `schedstat` also has the time for which a thread was ready and had no core. It shows that other programs use the
//! machine. Threads of one program wait for each other as well, so the time that they may have used is subtracted.
//! The rest was used by other programs.

use std::collections::HashMap;
use std::fs;

use tidewire_io::clock::process_cpu_ns;
use tidewire_load::process::ProcessSample;

/// One reading of a program's account.
#[derive(Clone, Debug, Default)]
pub(super) struct Cost {
    /// Nanoseconds of processor time that each process has used.
    cpu_ns: HashMap<u32, u64>,
    /// The scheduler's account of each thread, by the numbers of process and thread.
    threads: HashMap<(u32, u32), Thread>,
    /// The sum of the largest resident memory of each process so far, in bytes.
    pub(super) rss_bytes_max: u64,
}

/// The scheduler's account of a thread.
#[derive(Clone, Debug, Default)]
struct Thread {
    /// Nanoseconds on a core.
    ran_ns: u64,
    /// Nanoseconds for which it was ready to run and had no core.
    waited_ns: u64,
    /// The one core that it may run on, if there is only one.
    core: Option<usize>,
}

impl Cost {
    /// Reads the account of this process and of its descendants. Processes that have just ended are left out.
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
                let directory = format!("/proc/{pid}/task/{thread}");
                if let Some(account) = Thread::read(&directory) {
                    cost.threads.insert((pid, thread), account);
                }
                let children =
                    fs::read_to_string(format!("{directory}/children")).unwrap_or_default();
                let children = children.split_ascii_whitespace();
                waiting.extend(children.filter_map(|child| child.parse::<u32>().ok()));
            }
        }
        cost
    }

    /// Returns the processor time since an earlier reading of the same program, in nanoseconds.
    pub(super) fn cpu_ns_since(&self, earlier: &Self) -> f64 {
        let since = |(process, now): (&u32, &u64)| {
            now.saturating_sub(earlier.cpu_ns.get(process).copied().unwrap_or(0))
        };
        self.cpu_ns.iter().map(since).sum::<u64>() as f64
    }

    /// Returns the time for which a thread of the program waited for a core that another program used, since an
    /// earlier reading, in nanoseconds. It is that of the thread that waited longest, and a lower bound.
    pub(super) fn waited_ns_since(&self, earlier: &Self) -> f64 {
        let spent: Vec<(&Thread, u64, u64)> = self
            .threads
            .iter()
            .map(|(id, now)| {
                let before = earlier.threads.get(id).cloned().unwrap_or_default();
                let ran_ns = now.ran_ns.saturating_sub(before.ran_ns);
                (now, ran_ns, now.waited_ns.saturating_sub(before.waited_ns))
            })
            .collect();
        let all_ran_ns: u64 = spent.iter().map(|(_, ran_ns, _)| ran_ns).sum();
        let ended_ns = (self.cpu_ns_since(earlier) - all_ran_ns as f64).max(0.0);
        let waited = spent.iter().map(|(thread, own_ns, waited_ns)| {
            let beside = spent.iter().filter(|(other, ..)| thread.may_meet(other));
            let beside_ns = beside.map(|(_, ran_ns, _)| ran_ns).sum::<u64>() - own_ns;
            *waited_ns as f64 - beside_ns as f64 - ended_ns
        });
        waited.fold(0.0, f64::max)
    }
}

impl Thread {
    fn read(directory: &str) -> Option<Self> {
        let schedstat = fs::read_to_string(format!("{directory}/schedstat")).ok()?;
        let mut numbers = schedstat.split_ascii_whitespace();
        let status = fs::read_to_string(format!("{directory}/status")).ok()?;
        let cores = status.lines().find_map(|line| line.strip_prefix(CORES));
        Some(Self {
            ran_ns: numbers.next()?.parse().ok()?,
            waited_ns: numbers.next()?.parse().ok()?,
            // A list or a range is no number.
            core: cores.and_then(|cores| cores.trim().parse().ok()),
        })
    }

    /// Whether both threads may run on the same core.
    fn may_meet(&self, other: &Self) -> bool {
        self.core == other.core || self.core.is_none() || other.core.is_none()
    }
}

fn threads(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// The key before the list of cores that a thread may run on.
const CORES: &str = "Cpus_allowed_list:";

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
        // The wall-clock time of 20 ms of processor time depends on the machine.
        while Cost::of(shell.id()).cpu_ns_since(&before) < 20e6 {
            std::thread::yield_now();
        }
        assert!(Cost::of(shell.id()).rss_bytes_max > before.rss_bytes_max);
        input.write_all(b"end\n").unwrap();
        shell.wait().unwrap();
    }

    fn thread(ran_ns: u64, waited_ns: u64, core: Option<usize>) -> Thread {
        Thread {
            ran_ns,
            waited_ns,
            core,
        }
    }

    /// Returns a program that has used this much since its begin, a fifth of it in threads that have ended.
    fn waited_ns(threads: &[Thread]) -> f64 {
        let ran_ns: u64 = threads.iter().map(|thread| thread.ran_ns).sum();
        let ids = (1..).map(|thread| (1, thread));
        let now = Cost {
            cpu_ns: HashMap::from([(1, ran_ns + 20)]),
            threads: ids.zip(threads.iter().cloned()).collect(),
            rss_bytes_max: 0,
        };
        now.waited_ns_since(&Cost::default())
    }

    #[test]
    fn only_what_own_threads_cannot_have_taken_was_somebody_elses() {
        assert_eq!(waited_ns(&[thread(80, 100, None)]), 80.0);
        assert_eq!(waited_ns(&[thread(80, 10, None)]), 0.0);
        let beside = thread(50, 0, None);
        assert_eq!(waited_ns(&[thread(30, 100, None), beside]), 30.0);
        // A thread on another core takes no time from this one.
        let elsewhere = [thread(30, 100, Some(1)), thread(50, 0, Some(2))];
        assert_eq!(waited_ns(&elsewhere), 80.0);
        let together = [thread(30, 100, Some(1)), thread(50, 0, Some(1))];
        assert_eq!(waited_ns(&together), 30.0);
        assert_eq!(waited_ns(&[]), 0.0);
    }

    #[test]
    fn two_programs_on_one_core_wait_for_each_other() {
        let core = tidewire_io::affinity::available_cores()[0];
        let start = || {
            let spin = move || {
                tidewire_io::affinity::pin_to_core(core).unwrap();
                Command::new("sh")
                    .args(["-c", "while :; do :; done"])
                    .spawn()
                    .unwrap()
            };
            // A thread inherits the core of the thread that starts it.
            std::thread::spawn(spin).join().unwrap()
        };
        let mut both = [start(), start()];
        let before = Cost::of(both[0].id());
        // The wall-clock time of that depends on the machine.
        while Cost::of(both[0].id()).waited_ns_since(&before) < 20e6 {
            std::thread::yield_now();
        }
        for one in &mut both {
            one.kill().unwrap();
            one.wait().unwrap();
        }
    }

    /// Plays both parts: the program whose thread works and ends, and the reader of its account.
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

    /// Marks this process as the program.
    const PART: &str = "TIDEWIRE_TEST_OF_COST";

    const THREAD_NS: i64 = 30_000_000;
}
