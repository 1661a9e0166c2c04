//! The machine and build a report was made with: without them a figure cannot be compared with any other.
//!
//! Only facts that change results are taken, and each has a fallback of "unknown": a report must never fail
//! because a container hides a file. Version and commit are those of the binary, so it passes them in.

use std::ffi::OsString;
use std::fs;
use std::thread;

use serde::{Deserialize, Serialize};

/// Where and with what a run was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Memory of the machine in bytes; nothing where it is not known, as in reports of older builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Whether the machine is virtual, and of which maker, in words; nothing where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtualisation: Option<String>,
    /// The command line that made the report; nothing where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_line: Option<String>,
}

impl Environment {
    /// Describes this machine; `version` and `commit` describe the calling binary. An empty commit becomes
    /// "unknown".
    pub fn detect(version: &str, commit: &str) -> Self {
        let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let memory_info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            cpu: or_unknown(cpu_name(&cpu_info)),
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            kernel: or_unknown(&release),
            version: version.to_owned(),
            commit: or_unknown(commit),
            memory_bytes: bytes_of(&memory_info, "MemTotal"),
            virtualisation: (!cpu_info.is_empty()).then(|| virtualisation(&cpu_info)),
            command_line: Some(command_line(std::env::args_os())),
        }
    }
}

/// The values of a key in a file such as `/proc/cpuinfo`, whose lines are `key: value`.
pub(crate) fn values<'t>(text: &'t str, key: &str) -> impl Iterator<Item = &'t str> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.filter_map(move |(found, value)| (found.trim() == key).then_some(value.trim()))
}

/// The bytes of a line such as `VmRSS:  1234 kB`.
pub(crate) fn bytes_of(text: &str, key: &str) -> Option<u64> {
    let kibibytes: u64 = values(text, key)
        .next()?
        .strip_suffix("kB")?
        .trim_end()
        .parse()
        .ok()?;
    kibibytes.checked_mul(1 << 10)
}

/// Whether the processor says that a hypervisor runs beneath it.
pub(crate) fn is_virtual(cpu_info: &str) -> bool {
    let mut flags = values(cpu_info, "flags").flat_map(str::split_whitespace);
    flags.any(|flag| flag == "hypervisor")
}

/// The same in words, with the maker of the machine where the firmware names one.
fn virtualisation(cpu_info: &str) -> String {
    if !is_virtual(cpu_info) {
        return "none found".to_owned();
    }
    let maker = fs::read_to_string("/sys/class/dmi/id/sys_vendor").unwrap_or_default();
    match maker.trim() {
        "" => "virtual machine".to_owned(),
        maker => format!("virtual machine ({maker})"),
    }
}

/// Words that hold a space or nothing are put between quotes, so that the line can be read as it was typed.
fn command_line(words: impl Iterator<Item = OsString>) -> String {
    let quoted = words.map(|word| {
        let word = word.to_string_lossy().into_owned();
        if word.is_empty() || word.contains(char::is_whitespace) {
            format!("'{word}'")
        } else {
            word
        }
    });
    quoted.collect::<Vec<String>>().join(" ")
}

/// The first processor's name. The key differs: `model name` on x86, `Model` or `Hardware` on boards with
/// ARM, `uarch` on RISC-V.
fn cpu_name(cpu_info: &str) -> &str {
    let keys = ["model name", "Model", "Hardware", "uarch"];
    let mut names = keys
        .into_iter()
        .filter_map(|key| values(cpu_info, key).next());
    names.next().unwrap_or_default()
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
        assert!(environment.memory_bytes > Some(1 << 20), "{environment:?}");
        assert!(environment.virtualisation.is_some() && environment.command_line.is_some());
    }

    #[test]
    fn memory_virtualisation_and_command_line_are_read() {
        let memory_info = "MemTotal:  4 kB\nMemFree: 1 kB\n";
        assert_eq!(bytes_of(memory_info, "MemTotal"), Some(4_096));
        assert_eq!(bytes_of("MemTotal: much\n", "MemTotal"), None);
        assert!(virtualisation("flags\t\t: fpu hypervisor sse\n").starts_with("virtual machine"));
        assert_eq!(virtualisation("flags: fpu\n"), "none found");
        let words = ["tidewire", "load", "a file", ""].map(OsString::from);
        assert_eq!(command_line(words.into_iter()), "tidewire load 'a file' ''");
    }
}
