//! The machine and build a report was made with: without them a figure cannot be compared with any other.
//!
//! Only facts that change results are taken, and each has a fallback of "unknown": a report must never fail
//! because a container hides a file. Version and commit are those of the binary, so it passes them in.

use std::fs;
use std::thread;

use serde::{Deserialize, Serialize};

/// Where and with what a run was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// Name of the processor, or "unknown".
    pub cpu: String,
    /// Processors this process may use at once; affinity and container limits count.
    pub cores: u32,
    /// Release of the kernel, or "unknown".
    pub kernel: String,
    /// Version of the binary.
    pub version: String,
    /// Commit the binary was built from, or "unknown".
    pub commit: String,
}

impl Environment {
    /// Describes this machine; `version` and `commit` describe the calling binary. An empty commit becomes
    /// "unknown".
    #[must_use]
    pub fn detect(version: &str, commit: &str) -> Self {
        let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            cpu: or_unknown(cpu_name(&cpu_info)),
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            kernel: or_unknown(&release),
            version: version.to_owned(),
            commit: or_unknown(commit),
        }
    }
}

/// The first processor's name. The key differs: `model name` on x86, `Model` or `Hardware` on boards with
/// ARM, `uarch` on RISC-V.
fn cpu_name(cpu_info: &str) -> &str {
    ["model name", "Model", "Hardware", "uarch"]
        .iter()
        .find_map(|wanted| {
            cpu_info
                .lines()
                .filter_map(|line| line.split_once(':'))
                .find_map(|(key, value)| (key.trim() == *wanted).then_some(value))
        })
        .unwrap_or_default()
}

fn or_unknown(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        "unknown".to_owned()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_processor_of_each_kind_of_machine() {
        let x86 = "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Xeon @ 2.50GHz\n\nprocessor\t: 1\n";
        assert_eq!(cpu_name(x86).trim(), "Xeon @ 2.50GHz");
        let arm = "processor\t: 0\nBogoMIPS\t: 108.00\n\nModel\t\t: Board 5 Rev 1.0\n";
        assert_eq!(cpu_name(arm).trim(), "Board 5 Rev 1.0");
        assert_eq!(cpu_name("nothing here"), "");
    }

    #[test]
    fn detects_this_machine_and_keeps_what_the_binary_says() {
        let environment = Environment::detect("1.2.3", "");
        assert!(environment.cores >= 1);
        assert!(!environment.cpu.is_empty() && !environment.kernel.is_empty());
        assert_eq!(environment.version, "1.2.3");
        assert_eq!(environment.commit, "unknown");
    }
}
