//! How many descriptors this process may have open.
//!
//! A session costs one. The soft limit is 1,024 on most machines and the hard limit far higher, for the
//! sake of programs that use a fixed `fd_set`; this crate does not, so a server raises the one to the other.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limits on the number of open descriptors (`RLIMIT_NOFILE`).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct DescriptorLimit {
    /// The number in force; `u64::MAX` where there is no limit.
    pub soft: u64,
    /// How far an unprivileged process may raise it; `u64::MAX` where there is no limit.
    pub hard: u64,
}

/// The limits in force.
#[must_use]
pub fn descriptor_limit() -> DescriptorLimit {
    let limit = getrlimit(Resource::Nofile);
    DescriptorLimit {
        soft: limit.current.unwrap_or(u64::MAX),
        hard: limit.maximum.unwrap_or(u64::MAX),
    }
}

/// Raises the soft limit to the hard limit and returns what is in force then.
///
/// # Errors
///
/// The kernel's refusal, which a sandbox may cause; the limits are then as before.
pub fn raise_descriptor_limit() -> io::Result<DescriptorLimit> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                maximum: limit.maximum,
            },
        )?;
    }
    Ok(descriptor_limit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raising_takes_soft_to_hard_and_may_be_repeated() {
        let before = descriptor_limit();
        let raised = raise_descriptor_limit().unwrap();
        assert_eq!(raised.soft, raised.hard);
        assert_eq!(raised.hard, before.hard);
        assert_eq!(raise_descriptor_limit().unwrap(), raised);
        assert_eq!(descriptor_limit(), raised);
    }
}
