//! The memory that this process may use: the machine's memory, or a smaller limit of a control group or resource.
//!
//! Problem: a limit that follows the machine must follow the container first, and the machine's own figures do not show
//! the container's limit. Approach: read `/proc/meminfo` and the limits of the process's control groups, and take the
//! smallest. Control groups of both versions nest, and every group limits the groups below it. So the walk reads each
//! group from the process's own up to the root. A container may see its own group as the root, so the walk skips groups
//! that do not exist.
//!
//! The resource limits of the process (`ulimit -v` and `-d`, `LimitAS=`, `LimitDATA=`) count, too: an allocation beyond
//! these limits fails, and ends the process.
//!
//! Rejected: the C library (`sysconf`), which knows only the machine; and `memory.high`, above which the kernel slows a
//! process down but does not end it.

use std::fs;
use std::path::{Component, Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// Returns the maximum bytes of memory of this process: the smallest of the machine's memory, the limits of its control
/// groups, and its resource limits. Returns `None` if none of them is known.
#[must_use]
pub fn memory_bytes() -> Option<u64> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| machine_bytes(&text));
    let groups = read(Path::new("/proc/self/cgroup")).and_then(|text| group_bytes(&text, read));
    let resources = [Resource::As, Resource::Data].map(|resource| getrlimit(resource).current);
    let resources = resources.into_iter().flatten();
    machine.into_iter().chain(groups).chain(resources).min()
}

/// Gives freed memory that the allocator keeps back to the system: the memory of the calling thread, and the memory
/// that threads share. The call walks the allocator's memory, so call it only after a peak, or after a large allocation
/// replaced another. The call works with glibc's allocator, and with mimalloc when the feature `mimalloc` is on;
/// otherwise it does nothing.
#[expect(unsafe_code, reason = "allocators have no safe interface for this")]
pub fn release_unused() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no pointer, and any thread may make it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
    #[cfg(feature = "mimalloc")]
    // SAFETY: as above.
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
}

/// Parses the machine's memory from the text of `/proc/meminfo`.
fn machine_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Returns the smallest limit of the control groups that the text of `/proc/self/cgroup` names. `read` returns the text
/// of a file.
fn group_bytes(groups: &str, mut read: impl FnMut(&Path) -> Option<String>) -> Option<u64> {
    let mut smallest = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        // Version 2 has one hierarchy, whose list of controllers is empty.
        let (root, file) = match controllers {
            "" => (VERSION_2_ROOT, VERSION_2_FILE),
            list if list.split(',').any(|name| name == "memory") => {
                (VERSION_1_ROOT, VERSION_1_FILE)
            }
            _ => continue,
        };
        let names = Path::new(group).components().skip(1);
        if names.clone().any(|name| name == Component::ParentDir) {
            // The container does not see this group and the groups above it.
            continue;
        }
        let mut directory = PathBuf::from(root);
        directory.extend(names);
        let inside = directory.ancestors().take_while(|it| it.starts_with(root));
        for directory in inside {
            let limit = read(&directory.join(file)).and_then(|text| text.trim().parse().ok());
            smallest = smallest.into_iter().chain(limit).min();
        }
    }
    smallest
}

const VERSION_1_ROOT: &str = "/sys/fs/cgroup/memory";
const VERSION_1_FILE: &str = "memory.limit_in_bytes";

const VERSION_2_ROOT: &str = "/sys/fs/cgroup";
/// Parses a limit. The file holds `max` when there is no limit.
const VERSION_2_FILE: &str = "memory.max";

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str =
        "MemTotal:       24552080 kB\nMemFree:         6291456 kB\nSwapTotal: 0 kB\n";

    fn limit(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        group_bytes(groups, |path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn the_machine_tells_kibibytes() {
        assert_eq!(machine_bytes(MEMINFO), Some(24_552_080 * 1024));
        for text in ["", "MemTotal:", "MemTotal: many kB", "MemTotal: 5"] {
            assert_eq!(machine_bytes(text), None, "{text}");
        }
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn version_2_is_asked_up_to_the_root_and_max_is_no_limit() {
        let groups = "0::/system.slice/tidewire.service\n";
        let own = "/sys/fs/cgroup/system.slice/tidewire.service/memory.max";
        let slice = "/sys/fs/cgroup/system.slice/memory.max";
        assert_eq!(limit(groups, &[(own, "max\n")]), None);
        assert_eq!(limit(groups, &[(own, "67108864\n")]), Some(64 << 20));
        let both = [(own, "67108864\n"), (slice, "33554432\n")];
        assert_eq!(
            limit(groups, &both),
            Some(32 << 20),
            "the outer one is smaller"
        );
        assert_eq!(
            limit(groups, &[(own, "max\n"), (slice, "4096\n")]),
            Some(4096)
        );
    }

    #[test]
    fn a_container_sees_its_group_as_the_root() {
        let root = [("/sys/fs/cgroup/memory.max", "1048576\n")];
        assert_eq!(limit("0::/\n", &root), Some(1 << 20));
        // A container without its own namespace of groups sees the host's path.
        assert_eq!(limit("0::/docker/0123abcd\n", &root), Some(1 << 20));
        assert_eq!(
            limit("0::/../sibling\n", &root),
            None,
            "outside of what is seen"
        );
    }

    #[test]
    fn version_1_is_found_among_the_controllers() {
        let groups =
            "12:cpu,cpuacct:/a\n11:hugetlb,memory:/docker/0123/inner\n1:name=systemd:/a\n0::/a\n";
        let inner = "/sys/fs/cgroup/memory/docker/0123/inner/memory.limit_in_bytes";
        let root = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        let unlimited = "9223372036854771712\n";
        assert_eq!(
            limit(groups, &[(inner, "536870912\n"), (root, unlimited)]),
            Some(512 << 20)
        );
        assert_eq!(
            limit(groups, &[(root, unlimited)]),
            Some(9_223_372_036_854_771_712)
        );
        assert_eq!(limit("3:cpu:/a\n", &[(root, "1\n")]), None, "not of memory");
    }

    #[test]
    fn a_text_that_is_no_list_of_groups_has_no_limit() {
        for groups in ["", "\n\n", "nonsense", "5:memory", ":::"] {
            assert_eq!(limit(groups, &[]), None, "{groups:?}");
        }
    }
}
