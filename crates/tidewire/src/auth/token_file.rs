//! Tokens as hashes, in memory or in a file.
//!
//! Each line of a file has the name of a user, the SHA-256 of a token in hexadecimal digits, and optionally the time at
//! which the token expires, in seconds since 1970. A user may have several tokens, so a new token can replace an old
//! one without a gap. Tokens are 32 random bytes, so a plain hash is enough: a slow hash protects passwords, which can
//! be guessed. Whoever reads the file cannot log in.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tidewire_proto::text;

use super::token::open;
use super::{
    AuthFailure, AuthOutcome, AuthRequest, Authenticate, Identity, Proof, TableBytes, Token,
    TokenError, Users,
};
use tidewire_io::trusted::Trust;

/// Identifies users by random tokens. Peers without a token are left to the next authenticator.
///
/// ```
/// use std::sync::Arc;
/// use tidewire::auth::{Permissions, Token, Tokens, Users};
/// use tidewire::{Chat, Server};
///
/// let users = Users::new(Permissions::nothing()).with("admin", &Permissions::everything())?;
/// let token = Token::new("f3b1c0d4a96e58e2")?; // from the environment of the program
/// let tokens = Tokens::new(Arc::new(users)).with("admin", &token);
/// let server = Server::builder().authenticate(tokens).listen("tcp://127.0.0.1:0")?.start_one(Chat::new())?;
/// # let client = tidewire::Client::builder().credentials(token).connect(&server.to_string()).wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A file has tokens that a command or another program makes:
///
/// ```
/// use std::sync::Arc;
/// use tidewire::auth::{IdentityLimits, Permissions, Tokens, Users};
/// # let folder = std::env::temp_dir().join(format!("tidewire-tokens-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("tokens");
///
/// let token = Tokens::append(&path, "ann", None)?; // shown once, to Ann
/// let mut users = Users::new(Permissions::everything());
/// users.add("ann", None, IdentityLimits::default())?;
/// let tokens = Tokens::read(&path, Arc::new(users))?;
/// # let server = tidewire::Server::builder().authenticate(tokens).listen("tcp://127.0.0.1:0")?
/// #     .start_one(tidewire::Chat::new())?;
/// # let client = tidewire::Client::builder().credentials(token).connect(&server.to_string()).wait()?;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tokens {
    users: Arc<Users>,
    /// By the first bytes of the hash. These reveal nothing about the token, so the look-up may take any time.
    by_start: HashMap<[u8; 8], Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    hash: [u8; 32],
    name: Box<str>,
    expires_at: Option<SystemTime>,
}

impl Tokens {
    /// No token yet.
    #[must_use]
    pub fn new(users: Arc<Users>) -> Self {
        let by_start = HashMap::new();
        Self { users, by_start }
    }

    /// Adds a token of a user. Take a random one: only its SHA-256 is kept, which does not protect words that can be
    /// guessed.
    #[must_use]
    pub fn with(mut self, name: &str, token: &Token) -> Self {
        self.insert(Entry {
            hash: hash_of(token.secret().as_bytes()),
            name: name.into(),
            expires_at: None,
        });
        self
    }

    fn insert(&mut self, entry: Entry) {
        let entries = self.by_start.entry(start_of(&entry.hash));
        entries.or_default().push(entry);
    }

    /// Reads the file. A token of an unknown user is refused, with a warning in the log: the removal of a user must not
    /// wait for the removal of its tokens.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn read(path: &Path, users: Arc<Users>) -> Result<Self, TokenError> {
        let mut tokens = Self::new(users);
        let mut without_user = WithoutUser::default();
        for (line, entry) in entries(path)? {
            if tokens.users.identity(&entry.name).is_none() {
                without_user.count += 1;
                without_user
                    .first
                    .get_or_insert_with(|| (line, entry.name.clone()));
            }
            tokens.insert(entry);
        }
        without_user.warn(path);
        Ok(tokens)
    }

    /// The names in a file, each once.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn names(path: &Path) -> Result<Vec<String>, TokenError> {
        let mut names: Vec<String> = entries(path)?
            .into_iter()
            .map(|(_, entry)| entry.name.into_string())
            .collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Makes a token for a user and appends its hash to the file, which is created with mode 0600 if it is missing. The
    /// token itself is nowhere but in the result.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn append(
        path: &Path,
        name: &str,
        expires_at: Option<SystemTime>,
    ) -> Result<Token, TokenError> {
        if name.is_empty()
            || !name
                .chars()
                .all(|it| it.is_alphanumeric() || "-_".contains(it))
        {
            return Err(TokenError::Name(name.to_owned()));
        }
        let token = new_token().map_err(TokenError::io(path))?;
        let mut line = format!(
            "{name} {}",
            hexadecimal(&hash_of(token.secret().as_bytes()))
        );
        if let Some(since) =
            expires_at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok())
        {
            // Writing to a string cannot fail.
            let _ = write!(line, " {}", since.as_secs());
        }
        line.push('\n');
        append_line(path, &line).map_err(TokenError::io(path))?;
        Ok(token)
    }

    fn find(&self, token: &[u8]) -> Option<&Entry> {
        let hash = hash_of(token);
        let entries = self.by_start.get(&start_of(&hash))?;
        entries.iter().find(|entry| entry.hash.ct_eq(&hash).into())
    }
}

impl Authenticate for Tokens {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        if request.token().is_empty() {
            return AuthOutcome::Unknown;
        }
        let Some(entry) = self.find(request.token()) else {
            return AuthOutcome::Unknown;
        };
        let Some(identity) = self.users.identity(&entry.name) else {
            return AuthOutcome::Refused(AuthFailure::Revoked);
        };
        AuthOutcome::admit(entry.prove(identity))
    }

    /// An identity stays admitted while its user is known and its token is in the file.
    fn current(&self, identity: &Arc<Identity>) -> Option<Arc<Identity>> {
        let Some(Proof::Token(start)) = identity.proof() else {
            return None;
        };
        let entries = self.by_start.get(start)?;
        let entry = entries.iter().find(|it| *it.name == *identity.name())?;
        let now = self.users.identity(identity.name())?;
        Some(Arc::new(entry.prove(now)))
    }

    fn is_reserved(&self, name: &str) -> bool {
        self.users.is_reserved(name)
    }

    fn measure(&self, tables: &mut TableBytes) {
        tables.add_shared(&self.users, Users::measure);
        tables.add(self.by_start.capacity() * size_of::<([u8; 8], Vec<Entry>)>());
        for entries in self.by_start.values() {
            tables.add(entries.capacity() * size_of::<Entry>());
            tables.add(entries.iter().map(|entry| entry.name.len()).sum());
        }
    }
}

impl Entry {
    fn prove(&self, identity: Identity) -> Identity {
        let identity = identity.proved_by(Proof::Token(start_of(&self.hash)));
        match self.expires_at {
            Some(at) => identity.expires_at(at),
            None => identity,
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (name, digits) = (words.next()?, words.next()?);
        let expires_at = match words.next() {
            Some(seconds) => {
                let seconds = Duration::from_secs(seconds.parse().ok()?);
                Some(SystemTime::UNIX_EPOCH.checked_add(seconds)?)
            }
            None => None,
        };
        if digits.len() != 64 || words.next().is_some() {
            return None;
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks(2)) {
            *byte = text::hexadecimal(str::from_utf8(pair).ok()?)? as u8;
        }
        Some(Self {
            hash,
            name: name.into(),
            expires_at,
        })
    }
}

#[derive(Debug, Default)]
struct WithoutUser {
    count: usize,
    /// The line and the name of the first.
    first: Option<(usize, Box<str>)>,
}

impl WithoutUser {
    fn warn(&self, path: &Path) {
        if let Some((line, name)) = &self.first {
            tracing::warn!(
                file = %path.display(),
                tokens = self.count,
                first_line = line,
                first_user = ?name,
                "tokens are refused, because no user has their name; add the users to the configuration or remove the \
                 lines"
            );
        }
    }
}

/// Reads the lines of a file, with their numbers from 1.
fn entries(path: &Path) -> Result<Vec<(usize, Entry)>, TokenError> {
    let mut text = String::new();
    let read = open(path, Trust::Decides)?.read_to_string(&mut text);
    read.map_err(TokenError::io(path))?;
    let lines = text
        .lines()
        .enumerate()
        .map(|(index, text)| (index + 1, text.trim()));
    let lines = lines.filter(|(_, text)| !text.is_empty() && !text.starts_with('#'));
    lines
        .map(|(line, text)| match Entry::parse(text) {
            Some(entry) => Ok((line, entry)),
            None => Err(TokenError::Line {
                path: path.to_owned(),
                line,
            }),
        })
        .collect()
}

/// Appends a line, and first the line end that an editor may have left out.
fn append_line(path: &Path, line: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.read(true).append(true).create(true).mode(0o600);
    let mut file = options.open(path)?;
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    let before = if last == *b"\n" { "" } else { "\n" };
    file.write_all(format!("{before}{line}").as_bytes())
}

fn hash_of(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn start_of(hash: &[u8; 32]) -> [u8; 8] {
    let mut start = [0; 8];
    start.copy_from_slice(&hash[..8]);
    start
}

/// Makes a token of 32 random bytes of the system.
fn new_token() -> io::Result<Token> {
    let mut random = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    Token::new(&hexadecimal(&random)).map_err(io::Error::other)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::auth::{IdentityLimits, Permissions, ask_about};

    fn users(names: &[&str]) -> Arc<Users> {
        let mut users = Users::new(Permissions::everything());
        for name in names {
            users.add(name, None, IdentityLimits::default()).unwrap();
        }
        Arc::new(users)
    }

    #[test]
    fn a_token_is_kept_as_its_hash_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let first = Tokens::append(&path, "ann", None).unwrap();
        #[expect(
            clippy::disallowed_methods,
            reason = "credentials expire by the wall clock"
        )]
        let later = SystemTime::now() + Duration::from_secs(60);
        let second = Tokens::append(&path, "bob", Some(later)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(first.secret()) && !text.contains(second.secret()));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let tokens = Tokens::read(&path, users(&["ann", "bob"])).unwrap();
        let name = |token: &Token| match ask_about(&tokens, token.secret().as_bytes()) {
            AuthOutcome::Admitted(identity) => (identity.name().to_owned(), identity.expiry()),
            other => panic!("{other:?}"),
        };
        assert_eq!(name(&first), ("ann".to_owned(), None));
        assert!(matches!(name(&second), (name, Some(_)) if name == "bob"));
        for token in [
            "",
            "wrong",
            &first.secret()[1..],
            &hexadecimal(&hash_of(first.secret().as_bytes())),
        ] {
            assert!(matches!(
                ask_about(&tokens, token.as_bytes()),
                AuthOutcome::Unknown
            ));
        }
        let AuthOutcome::Admitted(ann) = ask_about(&tokens, first.secret().as_bytes()) else {
            panic!("not admitted");
        };
        assert!(tokens.current(&ann).is_some() && tokens.is_reserved("ann"));
        // Her other token does not replace the revoked token.
        let others = text
            .lines()
            .skip(1)
            .fold(String::new(), |all, line| all + line + "\n");
        fs::write(folder.path().join("fewer"), &others).unwrap();
        Tokens::append(&folder.path().join("fewer"), "ann", None).unwrap();
        let fewer = Tokens::read(&folder.path().join("fewer"), users(&["ann", "bob"])).unwrap();
        assert!(fewer.current(&ann).is_none());
    }

    /// Regression: a token without its user made the whole file unusable, so a reload revoked no token.
    #[test]
    fn a_token_whose_user_was_removed_is_refused_and_the_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let [ann, bob] = ["ann", "bob"].map(|name| Tokens::append(&path, name, None).unwrap());
        let both = Tokens::read(&path, users(&["ann", "bob"])).unwrap();
        let AuthOutcome::Admitted(former) = ask_about(&both, ann.secret().as_bytes()) else {
            panic!("not admitted");
        };
        let without = Tokens::read(&path, users(&["bob"])).unwrap();
        assert!(matches!(
            ask_about(&without, ann.secret().as_bytes()),
            AuthOutcome::Refused(AuthFailure::Revoked)
        ));
        assert!(without.current(&former).is_none());
        assert!(matches!(
            ask_about(&without, bob.secret().as_bytes()),
            AuthOutcome::Admitted(_)
        ));
    }

    /// The line of the new token was joined to the last one.
    #[test]
    fn a_token_is_appended_after_a_line_without_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        Tokens::append(&path, "ann", None).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.trim_end()).unwrap();
        Tokens::append(&path, "bob", None).unwrap();
        Tokens::append(&path, "eve", None).unwrap();
        assert_eq!(Tokens::names(&path).unwrap(), ["ann", "bob", "eve"]);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 3);
    }

    /// Whoever may write the file could add a token for any user.
    #[test]
    fn a_file_that_others_may_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        Tokens::append(&path, "ann", None).unwrap();
        let read_with = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Tokens::read(&path, users(&["ann"]))
        };
        for mode in [0o602, 0o620, 0o666] {
            let refused = read_with(mode).unwrap_err();
            assert!(
                matches!(refused, TokenError::Untrusted(_)),
                "{mode:o}: {refused}"
            );
        }
        for mode in [0o600, 0o400, 0o644] {
            assert!(read_with(mode).is_ok(), "{mode:o}");
        }
    }

    #[test]
    fn a_typo_in_the_file_is_told_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let digits = "0a".repeat(32);
        for line in [
            "ann",
            "ann xyz",
            &format!("ann {digits} x"),
            &format!("ann {digits}0"),
        ] {
            fs::write(&path, format!("# users\n\n{line}\n")).unwrap();
            let error = Tokens::read(&path, users(&["ann"])).unwrap_err();
            assert!(matches!(error, TokenError::Line { line: 3, .. }), "{error}");
        }
        for name in ["", "a b", "a\n", "a.b", "*"] {
            assert!(matches!(
                Tokens::append(&path, name, None),
                Err(TokenError::Name(_))
            ));
        }
    }
}
