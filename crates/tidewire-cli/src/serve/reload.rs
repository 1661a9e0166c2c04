//! The settings and users of a server, at its start, when their files change, and when SIGHUP asks for the present
//! ones.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};
use tidewire::Server;
use tidewire::auth::Chain;
use tidewire_io::trusted::FileState;

use super::ServeArguments;
use super::limits::LimitArguments;
use crate::config;
use crate::logging::LogArguments;
use crate::users::{KeySets, Sources, UsersError};

/// The users of a server, and the state of their files.
#[derive(Debug)]
pub(super) struct ServedUsers {
    sources: Sources,
    /// The authenticator at the start, until the server has it.
    first: Option<Chain>,
    /// Whether the server asks an authenticator.
    authenticates: bool,
    /// The files when they were last read.
    seen: Vec<(PathBuf, Option<FileState>)>,
    /// The files could not be used, or not without a restart.
    is_refused: bool,
    /// The changes of fetched sets of keys that are in force.
    seen_changes: u64,
}

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
            key_sets: KeySets::default(),
            limits: arguments.limits.limits(),
        };
        let seen = states(&sources);
        let first = sources.authenticator()?;
        Ok(Self {
            sources,
            authenticates: first.is_some(),
            first,
            seen,
            is_refused: false,
            seen_changes: 0,
        })
    }

    /// Takes the authenticator for the server. `None` if the server asks nobody.
    pub(super) fn take_authenticator(&mut self) -> Option<Chain> {
        self.first.take()
    }

    /// Does what a request to reload asks for. Files that are as they were when they were read, and are in use, are not
    /// read again: a signal that rotates logs changes nothing.
    pub(super) fn reload(&mut self, server: &Server) {
        match self.is_refused || self.has_changed() {
            true => self.read_again(server),
            false => tracing::debug!("the users are those that are in use"),
        }
    }

    /// Reads the users again. If that fails, the former ones stay.
    fn read_again(&mut self, server: &Server) {
        self.seen = states(&self.sources);
        self.seen_changes = self.sources.key_sets.changes();
        let next = self.sources.authenticator();
        self.is_refused = !matches!(
            (self.authenticates, &next),
            (true, Ok(Some(_))) | (false, Ok(None))
        );
        if !self.authenticates {
            match next {
                Ok(None) => {}
                Ok(Some(_)) => tracing::error!(
                    "this server was started without users, so it asks nobody; restart it to use those in its files"
                ),
                // The settings come from the same file, and have said what is wrong with it.
                Err(error) => tracing::debug!(%error, "the files of users cannot be read"),
            }
            return;
        }
        let next = match next {
            Ok(Some(users)) => Ok(users),
            Ok(None) => Err("no users are left in the files".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        // The log says how it ended.
        let _ = server.replace_authenticator(next);
    }

    /// Reads the users again if one of their files has changed. Files that could not be used are not read again before
    /// they change once more.
    pub(super) fn reload_if_changed(&mut self, server: &Server) {
        if self.authenticates && self.has_changed() {
            self.read_again(server);
        }
    }

    fn has_changed(&self) -> bool {
        let has_changed = |(path, seen): &(PathBuf, _)| FileState::of(path) != *seen;
        let has_new_keys = self.sources.key_sets.changes() != self.seen_changes;
        has_new_keys || self.seen.iter().any(has_changed)
    }
}

fn states(sources: &Sources) -> Vec<(PathBuf, Option<FileState>)> {
    let files = sources.files().into_iter();
    let state = |path: PathBuf| (path.clone(), FileState::of(&path));
    files.map(state).collect()
}

/// The settings of a configuration file as they are in force.
#[derive(Debug)]
pub(super) struct Settings {
    config: Option<PathBuf>,
    /// The file when it was last read. `None` if it could not be used.
    seen: Option<FileState>,
    /// The value of each key in force, as text.
    in_force: BTreeMap<String, Vec<OsString>>,
}

impl Settings {
    /// Notes the settings of the start.
    pub(super) fn read(arguments: &ServeArguments) -> Self {
        let config = arguments.config.clone();
        let seen = config.as_ref().and_then(FileState::of);
        // Without a file, nothing can change.
        let matches = config.as_ref().and_then(|path| parse(path).ok());
        let in_force = matches.map(|it| values(&it)).unwrap_or_default();
        Self {
            config,
            seen,
            in_force,
        }
    }

    /// Reads the file again if it has changed. The log level and the limits are used at once; the log names other keys
    /// that have changed.
    pub(super) fn reload(&mut self, server: &Server) {
        let Some(path) = &self.config else {
            return;
        };
        let present = FileState::of(path);
        if present.is_some() && present == self.seen {
            return;
        }
        self.seen = None;
        let matches = match parse(path) {
            Ok(matches) => matches,
            Err(error) => {
                tracing::error!(
                    error,
                    "the settings stay as they are: the file cannot be used"
                );
                return;
            }
        };
        let next = values(&matches);
        let changed: Vec<String> = next
            .iter()
            .filter(|(key, value)| self.in_force.get(*key) != Some(value))
            .map(|(key, _)| key.clone())
            .collect();
        let (now, later): (Vec<_>, Vec<_>) = changed
            .into_iter()
            .partition(|key| RELOADED.contains(&key.as_str()));
        if !now.is_empty() {
            if let Err(error) = apply(&matches, server) {
                tracing::error!(error, "the settings stay as they are");
                return;
            }
            tracing::info!(changed = now.join(", "), "settings were read again");
            for key in now {
                let value = next.get(&key).cloned().unwrap_or_default();
                self.in_force.insert(key, value);
            }
        }
        self.seen = present;
        if !later.is_empty() {
            tracing::warn!(
                changed = later.join(", "),
                "settings have changed in the file and need a restart"
            );
        }
    }
}

/// Parses the command line again, with the file's present values for flags that are left out.
fn parse(config: &Path) -> Result<ArgMatches, String> {
    let command = config::with_defaults_of(ServeArguments::command(), config);
    let command = command.map_err(|error| error.to_string())?;
    // The first word is the program, and the second one this command.
    let matches = command.try_get_matches_from(env::args_os().skip(1));
    matches.map_err(|error| error.to_string())
}

fn values(matches: &ArgMatches) -> BTreeMap<String, Vec<OsString>> {
    let keys = config::keys_with_ids(&ServeArguments::command());
    keys.into_iter()
        .map(|(key, id)| {
            let raw = matches.get_raw(&id).into_iter().flatten();
            (key, raw.map(ToOwned::to_owned).collect())
        })
        .collect()
}

fn apply(matches: &ArgMatches, server: &Server) -> Result<(), String> {
    let text = |error: clap::Error| error.to_string();
    let log = LogArguments::from_arg_matches(matches).map_err(text)?;
    let limits = LimitArguments::from_arg_matches(matches).map_err(text)?;
    let limits = limits.limits();
    // All is checked before anything changes.
    limits.check().map_err(|error| error.to_string())?;
    let is_flag = matches.value_source("log_level") == Some(ValueSource::CommandLine);
    log.change_level(is_flag, super::LOG_LEVEL)
        .map_err(|error| error.to_string())?;
    server
        .change_limits(&limits)
        .map_err(|error| error.to_string())
}

/// The keys that are used without a restart. The contents of the files that other keys name are read again, too.
const RELOADED: [&str; 6] = [
    "log_level",
    "memory_bytes_max",
    "sessions_max",
    "sessions_per_address_max",
    "handshakes_per_address_per_second_max",
    "handshake_bytes_per_address_max",
];
