//! The users of a server, at its start, when their files change, and when SIGHUP asks for the present ones.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tidewire::Server;
use tidewire::auth::Replaceable;

use super::ServeArguments;
use crate::users::{Sources, UsersError};

/// The users of a server, and the state of their files.
#[derive(Debug)]
pub(super) struct ServedUsers {
    sources: Sources,
    authenticator: Option<Replaceable>,
    /// The files when they were last read.
    seen: Vec<(PathBuf, Option<FileState>)>,
}

/// The inode, length and time of a change of a file. Another state means that it has changed.
type FileState = (u64, u64, i64, i64);

impl ServedUsers {
    /// Reads the users.
    ///
    /// # Errors
    /// See [`UsersError`].
    pub(super) fn read(arguments: &ServeArguments) -> Result<Self, UsersError> {
        let mut sources = Sources {
            config: arguments.config.clone(),
            tokens: arguments.auth_tokens.clone(),
            jwt: arguments.auth_jwt.clone(),
            serve: ServeArguments::command(),
            needs_tables: false,
        };
        let seen = states(&sources);
        let authenticator = sources.authenticator()?.map(Replaceable::new);
        Ok(Self {
            sources,
            authenticator,
            seen,
        })
    }

    /// The authenticator. `None` if the server asks nobody.
    pub(super) fn authenticator(&self) -> Option<&Replaceable> {
        self.authenticator.as_ref()
    }

    /// Reads the users again. If that fails, the former ones stay.
    pub(super) fn reload(&mut self, server: &Server) {
        self.seen = states(&self.sources);
        let next = self.sources.authenticator();
        let Some(authenticator) = &self.authenticator else {
            if !matches!(next, Ok(None)) {
                tracing::error!(
                    "this server was started without users, so it asks nobody; restart it to use those in its files"
                );
            }
            return;
        };
        let next = match next {
            Ok(Some(users)) => Ok(users),
            Ok(None) => Err("no users are left in the files".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        // The log says how it ended.
        let _ = server.replace_authenticator(authenticator, next);
    }

    /// Reads the users again if one of their files has changed. Files that could not be used are not read again before they
    /// change once more.
    pub(super) fn reload_if_changed(&mut self, server: &Server) {
        let has_changed = |(path, seen): &(PathBuf, _)| state(path) != *seen;
        if self.authenticator.is_some() && self.seen.iter().any(has_changed) {
            self.reload(server);
        }
    }
}

fn states(sources: &Sources) -> Vec<(PathBuf, Option<FileState>)> {
    let files = sources.files().into_iter();
    files.map(|path| (path.clone(), state(&path))).collect()
}

fn state(path: &Path) -> Option<FileState> {
    let metadata = path.metadata().ok()?;
    let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
    Some((metadata.ino(), metadata.len(), seconds, nanoseconds))
}
