//! Files that decide about access, or that must stay secret.
//!
//! Problem: a user who can write a file of tokens, keys or authorities can give access to anyone, and a server reads
//! such files again automatically. Approach: one function opens all such files. It checks the owner and the mode of the
//! opened file, so no user can replace the file between check and read.
//!
//! The rule is that of OpenSSH: the owner is root or the user of this process, and neither the group nor others may
//! write. Others may not read a secret. A group may, because servers often read keys as members of a group.
//!
//! Rejected: to allow a group to write, as the rule for users was once. Each member could then become an administrator.
//! Rejected: a check of the folders above. A secret mount and a link have folders that look different, and a writable
//! folder is a mistake that harms every program.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The reason why a file must be trusted. See [`open_trusted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The file decides about access: users, tokens, issuers, public keys, authorities. Others may read it and must not
    /// write it.
    Decides,
    /// Whoever reads it can pass as its owner: keys, tokens, shared secrets.
    Secret,
}

/// A file that must be trusted cannot be opened, or others could have changed or read it. See [`open_trusted`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system's error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The group, or every user of this machine, may write it.
    #[error(
        "{} may be written by other users of this machine (mode {mode:03o}); run `chmod go-w` on it, and check what is \
         in it",
        path.display()
    )]
    Writable {
        /// The file.
        path: PathBuf,
        /// The permission bits.
        mode: u32,
    },
    /// Every user of this machine may read or run it.
    #[error(
        "{} is open to other users of this machine (mode {mode:03o}); run `chmod 600` on it, and replace the secret if \
         others may have read it",
        path.display()
    )]
    Readable {
        /// The file.
        path: PathBuf,
        /// The permission bits.
        mode: u32,
    },
    /// Another user owns the file, and so can change it.
    #[error(
        "{} belongs to user {owner}, who can change it; give it to root or to the user of this process (`chown \
         {process}`), and check what is in it",
        path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// The number of its owner.
        owner: u32,
        /// The number of the user of this process.
        process: u32,
    },
}

/// Opens a file that must be trusted. It is what all of this library's files with tokens, keys and authorities are
/// opened by.
///
/// ```
/// use std::fs::{self, Permissions};
/// use std::os::unix::fs::PermissionsExt;
/// use tidewire_io::trusted::{OpenError, Trust, open_trusted};
///
/// # let path = std::env::temp_dir().join(format!("tidewire-secret-{}", std::process::id()));
/// fs::write(&path, "secret")?;
/// fs::set_permissions(&path, Permissions::from_mode(0o644))?;
/// assert!(open_trusted(&path, Trust::Decides).is_ok());
/// let refused = open_trusted(&path, Trust::Secret).unwrap_err();
/// assert!(matches!(refused, OpenError::Readable { mode: 0o644, .. }));
/// # fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// See [`OpenError`].
pub fn open_trusted(path: &Path, trust: Trust) -> Result<File, OpenError> {
    let file = File::open(path)?;
    check_trust(&file, path, trust)?;
    Ok(file)
}

/// Checks a file that is open, as [`open_trusted`] does. The path is only for the error. A terminal is always trusted:
/// it has no content.
///
/// # Errors
/// See [`OpenError`].
pub fn check_trust(file: &File, path: &Path, trust: Trust) -> Result<(), OpenError> {
    let found = FileFacts::of(&file.metadata()?);
    found.judge(path, trust)
}

/// The state of a file when it was read. Another state means that the file was changed or replaced.
///
/// ```
/// use tidewire_io::trusted::FileState;
///
/// let seen = FileState::of("Cargo.toml");
/// assert!(seen.is_some() && seen == FileState::of("Cargo.toml"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    identity: (u64, u64),
    bytes: u64,
    modified_ns: i128,
    /// The time of the last change of content, mode or owner. Mode and owner decide whether the file is trusted.
    changed_ns: i128,
}

impl FileState {
    /// The present state. `None` if the file does not exist.
    #[must_use]
    pub fn of(path: impl AsRef<Path>) -> Option<Self> {
        let metadata = path.as_ref().metadata().ok()?;
        let time = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        let modified_ns = time(metadata.mtime(), metadata.mtime_nsec());
        let changed_ns = time(metadata.ctime(), metadata.ctime_nsec());
        Some(Self {
            identity: (metadata.dev(), metadata.ino()),
            bytes: metadata.len(),
            modified_ns,
            changed_ns,
        })
    }
}

/// The facts that the system tells of a file.
#[derive(Clone, Copy, Debug)]
struct FileFacts {
    is_terminal: bool,
    owner: u32,
    mode: u32,
    /// The user of this process.
    process: u32,
}

impl FileFacts {
    fn of(metadata: &Metadata) -> Self {
        Self {
            is_terminal: metadata.file_type().is_char_device(),
            owner: metadata.uid(),
            mode: metadata.mode() & 0o777,
            process: rustix::process::geteuid().as_raw(),
        }
    }

    fn judge(self, path: &Path, trust: Trust) -> Result<(), OpenError> {
        let Self {
            owner,
            mode,
            process,
            ..
        } = self;
        let path = || path.to_owned();
        if self.is_terminal {
            return Ok(());
        }
        if trust == Trust::Secret && mode & FOR_OTHERS != 0 {
            return Err(OpenError::Readable { path: path(), mode });
        }
        if mode & WRITABLE_BY_OTHERS != 0 {
            return Err(OpenError::Writable { path: path(), mode });
        }
        match owner == ROOT || owner == process {
            true => Ok(()),
            false => Err(OpenError::Owner {
                path: path(),
                owner,
                process,
            }),
        }
    }
}

const ROOT: u32 = 0;

/// The bits of a mode that let the group and all others write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The bits of a mode for users that are neither the owner nor in the group.
const FOR_OTHERS: u32 = 0o007;

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(owner: u32, mode: u32, trust: Trust) -> Result<(), OpenError> {
        let found = FileFacts {
            is_terminal: false,
            owner,
            mode,
            process: 1000,
        };
        found.judge(Path::new("file"), trust)
    }

    #[test]
    fn only_root_and_the_own_user_may_change_files_that_decide() {
        for mode in [0o400, 0o600, 0o640, 0o644, 0o444, 0o755] {
            assert!(judge(1000, mode, Trust::Decides).is_ok(), "{mode:o}");
            assert!(judge(0, mode, Trust::Decides).is_ok(), "{mode:o}");
        }
        for mode in [0o666, 0o660, 0o622, 0o602, 0o664, 0o777] {
            let refused = judge(1000, mode, Trust::Decides).unwrap_err();
            assert!(refused.to_string().contains("chmod go-w"), "{refused}");
            assert!(matches!(refused, OpenError::Writable { .. }), "{mode:o}");
        }
        let refused = judge(1001, 0o600, Trust::Decides).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("belongs to user 1001") && text.contains("chown 1000"),
            "{text}"
        );
    }

    #[test]
    fn a_secret_is_for_its_owner_and_readers_of_its_group() {
        for mode in [0o400, 0o600, 0o640, 0o440] {
            assert!(judge(1000, mode, Trust::Secret).is_ok(), "{mode:o}");
        }
        for mode in [0o604, 0o644, 0o601, 0o666] {
            let refused = judge(1000, mode, Trust::Secret).unwrap_err();
            assert!(refused.to_string().contains("chmod 600"), "{refused}");
        }
        let refused = judge(1000, 0o660, Trust::Secret).unwrap_err();
        assert!(matches!(refused, OpenError::Writable { mode: 0o660, .. }));
        assert!(judge(1001, 0o600, Trust::Secret).is_err());
    }

    /// The user of the process is asked of the system, and so is the owner.
    #[test]
    fn a_file_of_this_process_is_trusted_and_a_terminal_has_no_content() {
        let file = tempfile::NamedTempFile::new().unwrap();
        open_trusted(file.path(), Trust::Secret).unwrap();
        assert!(matches!(
            open_trusted(Path::new("/nowhere/file"), Trust::Secret),
            Err(OpenError::Io(_))
        ));
        open_trusted(Path::new("/dev/null"), Trust::Secret).unwrap();
    }
}
