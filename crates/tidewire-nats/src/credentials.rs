//! The credentials of a user in a file, as `nsc` writes it. The file is read again for each connection if it has
//! changed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use async_nats::{Auth, AuthError};
use nkeys::KeyPair;
use tidewire_io::trusted::{FileState, Trust, open_trusted};

use crate::error::NatsError;

/// A file of credentials, and its last content.
#[derive(Debug)]
pub(crate) struct CredentialsFile {
    path: PathBuf,
    present: Mutex<CurrentCredentials>,
}

#[derive(Debug)]
struct CurrentCredentials {
    pair: UserPair,
    /// The state of the file at the last read. `None` after a read that failed, which is repeated.
    seen: Option<FileState>,
}

struct UserPair {
    jwt: String,
    key: KeyPair,
}

impl CredentialsFile {
    pub(crate) fn load(path: &Path) -> Result<Self, NatsError> {
        let seen = FileState::of(path);
        let pair = UserPair::read(path).map_err(|source| NatsError::Credentials {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            present: Mutex::new(CurrentCredentials { pair, seen }),
        })
    }

    /// Adds the token and the signature of this nonce to a connection's credentials. If the file cannot be read, the
    /// earlier credentials stay in use, with a warning in the log.
    pub(crate) fn sign(&self, mut auth: Auth, nonce: &[u8]) -> Result<Auth, AuthError> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let state = FileState::of(&self.path);
        if present.seen.is_none() || state != present.seen {
            present.read(&self.path, state);
        }
        let UserPair { jwt, key } = &present.pair;
        auth.signature = Some(key.sign(nonce).map_err(AuthError::new)?);
        auth.jwt = Some(jwt.clone());
        Ok(auth)
    }
}

impl CurrentCredentials {
    fn read(&mut self, path: &Path, state: Option<FileState>) {
        match UserPair::read(path) {
            Ok(pair) => {
                (self.pair, self.seen) = (pair, state);
                tracing::info!(path = %path.display(), "NATS gets the credentials that were read again");
            }
            Err(error) => {
                let is_first = self.seen.take().is_some();
                if is_first {
                    tracing::warn!(
                        path = %path.display(),
                        %error,
                        "the new credentials of NATS cannot be used, and the old ones stay"
                    );
                }
            }
        }
    }
}

impl UserPair {
    fn read(path: &Path) -> io::Result<Self> {
        let file = open_trusted(path, Trust::Secret).map_err(io::Error::other)?;
        let text = io::read_to_string(file)?;
        let missing = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut entries = entries(&text);
        let jwt = entries.next();
        let jwt = jwt.ok_or_else(|| missing("there is no token of a user in it"))?;
        let seed = entries.next();
        let seed = seed.ok_or_else(|| missing("there is no key of a user in it"))?;
        // The error of a seed may show the seed.
        let key = KeyPair::from_seed(seed).map_err(|_| missing("its key is no seed of nkeys"))?;
        let jwt = jwt.to_owned();
        Ok(Self { jwt, key })
    }
}

/// The pair has a secret, so its content is not shown.
impl std::fmt::Debug for UserPair {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("UserPair(..)")
    }
}

/// The lines between two lines of dashes.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let entry = |index: usize| {
        let is_mark = |index: usize| lines.get(index).is_some_and(|line| line.starts_with("---"));
        let line = lines[index];
        let is_entry = !line.is_empty() && !is_mark(index);
        (index > 0 && is_entry && is_mark(index - 1) && is_mark(index + 1)).then_some(line)
    };
    let found: Vec<&str> = (0..lines.len()).filter_map(entry).collect();
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, jwt: &str) {
        let seed = KeyPair::new_user().seed().expect("a seed");
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             ************************* IMPORTANT *************************\nKeep it secret.\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n"
        );
        let next = path.with_extension("next");
        std::fs::write(&next, text).expect("a file");
        set_mode(&next, 0o600);
        std::fs::rename(next, path).expect("a file");
    }

    fn set_mode(path: &Path, mode: u32) {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("a mode");
    }

    /// Regression: credentials that every user of the machine could read or write were used.
    #[test]
    fn credentials_that_others_may_read_are_refused_at_the_start_and_later() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("node.creds");
        write(&path, "first");
        let file = CredentialsFile::load(&path).expect("credentials");
        write(&path, "second");
        set_mode(&path, 0o644);
        assert_eq!(jwt(&file), "first", "the old ones stay");
        let error = CredentialsFile::load(&path).expect_err("it is open");
        assert!(error.to_string().contains("chmod 600"), "{error}");
        set_mode(&path, 0o640);
        assert_eq!(jwt(&file), "second");
    }

    fn jwt(file: &CredentialsFile) -> String {
        let auth = file.sign(Auth::new(), b"nonce").expect("a signature");
        assert!(auth.signature.is_some_and(|it| it.len() == 64));
        auth.jwt.expect("a token")
    }

    /// Regression: the file was read at the start only, so a node with an expired user was cut off for ever.
    #[test]
    fn credentials_are_read_again_and_unusable_ones_change_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("node.creds");
        write(&path, "first");
        let file = CredentialsFile::load(&path).expect("credentials");
        assert_eq!(jwt(&file), "first");
        write(&path, "second");
        assert_eq!(jwt(&file), "second");
        std::fs::write(&path, "no credentials").expect("a file");
        assert_eq!(jwt(&file), "second", "the old ones stay");
        std::fs::remove_file(&path).expect("a file");
        assert_eq!(jwt(&file), "second", "the old ones stay");
        write(&path, "third");
        assert_eq!(jwt(&file), "third");
        let shown = format!("{file:?}");
        assert!(!shown.contains("third"), "{shown}");
        assert!(CredentialsFile::load(&path.join("nothing")).is_err());
    }
}
