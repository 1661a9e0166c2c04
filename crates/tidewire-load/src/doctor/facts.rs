//! The facts about the machine that a measurement depends on.

use std::fs;
use std::path::Path;
use std::thread;

use serde::Serialize;
use tidewire_io::affinity::available_cores;
use tidewire_io::descriptors::descriptor_limit;

use super::timing::{self, LoopFacts, WakeupFacts};
use crate::environment::{Environment, is_virtual};
use crate::process::MachineSample;

/// All facts that the examination uses. A fact that a container hides is unknown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// Name of the processor, or "unknown".
    pub cpu: String,
    /// Release of the kernel, or "unknown".
    pub kernel: String,
    /// The clock.
    pub clock: ClockFacts,
    /// The cores.
    pub cores: CoreFacts,
    /// Limits of the kernel and of this process.
    pub limits: LimitFacts,
    /// How late sleepers wake.
    pub wakeup: WakeupFacts,
    /// How evenly a fixed piece of work takes its time.
    pub fixed_loop: LoopFacts,
}

/// The monotonic clock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClockFacts {
    /// The clock source of the kernel, such as `tsc`.
    pub source: Option<String>,
    /// Smallest step between two readings that differ, in nanoseconds.
    pub resolution_ns: u64,
    /// Cost of a reading, in nanoseconds; the median of many batches.
    pub cost_ns: f64,
}

/// The cores.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoreFacts {
    /// Cores this process may run on.
    pub allowed: usize,
    /// Cores it may use at once, which a container's quota can lower.
    pub usable: usize,
    /// Whether a hypervisor is beneath.
    pub is_virtual: bool,
    /// Processor time that the hypervisor gave to others during the examination, in percent of all.
    pub steal_pct: Option<f64>,
    /// The different policies by which the cores choose their frequency; empty when they are not shown.
    pub governors: Vec<String>,
    /// Threads that ran or wanted to, as a mean of the minute before.
    pub load_average: Option<f64>,
}

/// Limits of the kernel and of this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LimitFacts {
    /// Descriptors this process may raise its limit to.
    pub descriptors_max: u64,
    /// Largest receive buffer of a socket, in bytes.
    pub receive_buffer_bytes_max: Option<u64>,
    /// Largest send buffer of a socket, in bytes.
    pub send_buffer_bytes_max: Option<u64>,
    /// Longest queue of connections that wait to be accepted.
    pub accept_queue_max: Option<u64>,
    /// Ports for outgoing connections.
    pub local_ports: Option<u64>,
}

impl Facts {
    pub(super) fn gather() -> Self {
        let environment = Environment::detect("", "");
        let before = MachineSample::read();
        let fixed_loop = timing::fixed_loop();
        let wakeup = timing::wakeups();
        let steal_pct = before
            .zip(MachineSample::read())
            .and_then(|(before, after)| after.stolen_pct_since(&before));
        Self {
            cpu: environment.cpu,
            kernel: environment.kernel,
            clock: ClockFacts {
                source: text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
                resolution_ns: timing::resolution_ns(),
                cost_ns: timing::reading_cost_ns(),
            },
            cores: CoreFacts {
                allowed: available_cores().len(),
                usable: thread::available_parallelism().map_or(1, std::num::NonZero::get),
                is_virtual: is_virtual(&text("/proc/cpuinfo").unwrap_or_default()),
                steal_pct,
                governors: governors(Path::new("/sys/devices/system/cpu")),
                load_average: text("/proc/loadavg").and_then(|text| first(&text)),
            },
            limits: LimitFacts {
                descriptors_max: descriptor_limit().hard,
                receive_buffer_bytes_max: number("/proc/sys/net/core/rmem_max"),
                send_buffer_bytes_max: number("/proc/sys/net/core/wmem_max"),
                accept_queue_max: number("/proc/sys/net/core/somaxconn"),
                local_ports: text("/proc/sys/net/ipv4/ip_local_port_range")
                    .and_then(|text| port_count(&text)),
            },
            wakeup,
            fixed_loop,
        }
    }
}

fn governors(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut found: Vec<String> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path().join("cpufreq/scaling_governor");
            Some(fs::read_to_string(path).ok()?.trim().to_owned())
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

fn port_count(range: &str) -> Option<u64> {
    let mut ends = range.split_whitespace().map(str::parse::<u64>);
    let (low, high) = (ends.next()?.ok()?, ends.next()?.ok()?);
    Some(high.checked_sub(low)? + 1)
}

fn first(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

fn number(path: &str) -> Option<u64> {
    text(path)?.parse().ok()
}

fn text(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_understood() {
        assert_eq!(port_count("32768\t60999"), Some(28_232));
        assert_eq!(port_count("9 1"), None);
        assert_eq!(first("0.52 0.41 0.30 2/345 1234"), Some(0.52));
        assert!(is_virtual("flags\t\t: fpu hypervisor sse\n"));
        assert!(!is_virtual("model name: hypervisor\nflags: fpu\n"));
    }

    #[test]
    fn governors_are_listed_once() {
        let directory = tempfile::tempdir().unwrap();
        for (core, governor) in [("cpu0", "powersave\n"), ("cpu1", "powersave\n")] {
            let place = directory.path().join(core).join("cpufreq");
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("scaling_governor"), governor).unwrap();
        }
        fs::create_dir(directory.path().join("microcode")).unwrap();
        assert_eq!(governors(directory.path()), ["powersave"]);
        assert!(governors(&directory.path().join("none")).is_empty());
    }
}
