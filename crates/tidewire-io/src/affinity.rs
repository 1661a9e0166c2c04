//! Binds a lane to one core, so that its caches stay warm and measurements repeat.

use std::io;

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds the calling thread to one core, by the number the operating system gives it.
///
/// # Errors
///
/// `EINVAL` when the core does not exist, is offline, or is not permitted to this process; see [`available_cores`].
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::from(Errno::INVAL));
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Returns the numbers of the cores that the calling thread may run on, in ascending order. Empty when the system does
/// not say.
#[must_use]
pub fn available_cores() -> Vec<usize> {
    sched_getaffinity(None).map_or_else(
        |_refused| Vec::new(),
        |cores| {
            (0..CpuSet::MAX_CPU)
                .filter(|&core| cores.is_set(core))
                .collect()
        },
    )
}

/// Returns how many cores of the machine are online, also those on which this thread must not run. Returns 1 when the
/// system does not say.
#[must_use]
#[expect(
    unsafe_code,
    reason = "the standard library asks for the calling thread's cores only"
)]
pub fn online_cores() -> usize {
    // SAFETY: the call takes a number and returns one; it touches no memory of this process.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(cores).map_or(1, |cores| cores.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_run_on_its_core_only() {
        let cores = available_cores();
        let last = *cores.last().unwrap();
        // A thread of its own runs this, because the affinity of the test's thread belongs to the harness.
        std::thread::spawn(move || {
            pin_to_core(last).unwrap();
            assert_eq!(available_cores(), [last]);
            assert_eq!(rustix::thread::sched_getcpu(), last);
        })
        .join()
        .unwrap();
        assert_eq!(available_cores(), cores, "other threads are not touched");
    }

    #[test]
    fn a_pinned_thread_still_knows_how_many_cores_there_are() {
        let cores = online_cores();
        assert!(cores >= available_cores().len());
        let pinned = std::thread::spawn(|| {
            pin_to_core(available_cores()[0]).unwrap();
            online_cores()
        });
        assert_eq!(pinned.join().unwrap(), cores);
    }

    #[test]
    fn a_core_that_does_not_exist_is_refused() {
        let missing = CpuSet::MAX_CPU - 1;
        if !available_cores().contains(&missing) {
            assert_eq!(pin_to_core(missing).unwrap_err().raw_os_error(), Some(22));
        }
        assert_eq!(
            pin_to_core(usize::MAX).unwrap_err().raw_os_error(),
            Some(22)
        );
    }
}
