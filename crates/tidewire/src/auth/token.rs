//! A token that identifies a client. It is secret, so it is never shown.

use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tidewire_proto::limits::{CREDENTIALS_BYTES_MAX, LONG_CREDENTIALS_BYTES_MAX};

use crate::describe::describe;
use tidewire_io::trusted::{OpenError, Trust, open_trusted};

/// A secret by which a server knows a client. `Debug` does not show it.
///
/// ```
/// use tidewire::auth::Token;
///
/// let token = Token::new("c2VjcmV0\n")?; // as read from a file
/// assert_eq!(format!("{token:?}"), "Token(..)");
/// assert!(Token::new("two\nlines").is_err());
/// # Ok::<(), tidewire::auth::TokenError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

/// A text or a file is not what it must be for a token. The text never shows the token. [`Token`] and
/// [`Tokens`](crate::auth::Tokens) have examples.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The text is empty, or only white space.
    #[error("the token is empty")]
    Empty,
    /// The token does not fit a hello.
    #[error(
        "the token has {bytes} bytes; a hello takes {LONG_CREDENTIALS_BYTES_MAX} at most over tls:// and wss://, and \
         {CREDENTIALS_BYTES_MAX} elsewhere"
    )]
    TooLong {
        /// The token's length.
        bytes: usize,
    },
    /// The token has a space, a line end or another character that no token has.
    #[error("the token has a space, a line end or a control character within it; use one token")]
    Character,
    /// The name of a user does not fit a line of a file of tokens.
    #[error("{0:?} cannot be the name of a user: use letters, digits, - and _")]
    Name(String),
    /// A file of tokens cannot be read or written.
    #[error("cannot use the token file {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users of the machine may write the file, or read a token in it. The source says which, as an `OpenError`
    /// of `tidewire-io`.
    #[error("the token file {0}")]
    Untrusted(#[source] Box<dyn Error + Send + Sync>),
    /// A file has no token, or one with a mistake.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The mistake in its text.
        source: Box<Self>,
    },
    /// A line of a file of tokens has another form.
    #[error(
        "{}:{line}: not NAME, 64 hexadecimal digits and optionally a time; `tidewire token new` writes such lines",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

/// The credentials of a client: a token, or a function that provides tokens. For
/// [`ClientBuilder::credentials`](crate::ClientBuilder::credentials). [`Credentials::provider`] has an example.
#[derive(Clone)]
pub struct Credentials(Source);

#[derive(Clone)]
enum Source {
    Fixed(Token),
    Provider(Provider),
}

type Provider = Arc<dyn Fn() -> Result<Token, Box<dyn Error + Send + Sync>> + Send + Sync>;

impl Credentials {
    /// Gets a token for each connection, and a newer token before one expires. The function runs on a separate thread,
    /// so it may read a file or ask another server. After a panic or an error the client tries again as after any
    /// failure to connect.
    ///
    /// ```
    /// use tidewire::auth::{Credentials, Token};
    ///
    /// let credentials = Credentials::provider(|| Ok(Token::read("token".as_ref())?));
    /// let client = tidewire::Client::builder().credentials(credentials);
    /// ```
    pub fn provider(
        get: impl Fn() -> Result<Token, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        Self(Source::Provider(Arc::new(get)))
    }

    /// The token, if it is always the same.
    pub(crate) fn fixed(&self) -> Option<&Token> {
        match &self.0 {
            Source::Fixed(token) => Some(token),
            Source::Provider(_) => None,
        }
    }

    /// Gets a token. It may wait, so a lane must not call it for a provider.
    pub(crate) fn get(&self) -> Result<Token, String> {
        match &self.0 {
            Source::Fixed(token) => Ok(token.clone()),
            Source::Provider(get) => match catch_unwind(AssertUnwindSafe(&**get)) {
                Ok(result) => result.map_err(|error| describe(&*error)),
                Err(_) => Err("the provider of credentials panicked".to_owned()),
            },
        }
    }
}

impl From<Token> for Credentials {
    fn from(token: Token) -> Self {
        Self(Source::Fixed(token))
    }
}

opaque!(Credentials);

impl Token {
    /// Checks a token. White space around it is removed, because files end in a line end.
    ///
    /// # Errors
    /// See [`TokenError`]. The error does not show the token.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(TokenError::Empty);
        }
        if text.chars().any(|it| it.is_whitespace() || it.is_control()) {
            return Err(TokenError::Character);
        }
        match text.len() {
            bytes if bytes > LONG_CREDENTIALS_BYTES_MAX => Err(TokenError::TooLong { bytes }),
            _ => Ok(Self(text.into())),
        }
    }

    /// Reads a token from a file that other users may not open.
    ///
    /// ```
    /// use tidewire::auth::{Token, TokenError};
    ///
    /// let error = Token::read("missing".as_ref()).unwrap_err();
    /// assert!(matches!(error, TokenError::Io { .. }));
    /// ```
    ///
    /// # Errors
    /// See [`TokenError`]. The error does not show the token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        read(path, Self::new)
    }

    /// Reads tokens from such a file with one in each line.
    ///
    /// # Errors
    /// The errors of [`Token::read`].
    pub fn read_list(path: &Path) -> Result<Vec<Self>, TokenError> {
        read(path, Self::list)
    }

    /// Checks the tokens of a text with one in each line. Empty lines are skipped.
    ///
    /// ```
    /// use tidewire::auth::Token;
    ///
    /// assert_eq!(Token::list("first\n\nsecond\n").unwrap().len(), 2);
    /// assert!(Token::list("\n").is_err());
    /// ```
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn list(text: &str) -> Result<Vec<Self>, TokenError> {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let tokens: Vec<Self> = lines.map(Self::new).collect::<Result<_, _>>()?;
        match tokens.is_empty() {
            true => Err(TokenError::Empty),
            false => Ok(tokens),
        }
    }

    /// The token itself. Never log it.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }
}

opaque!(Token);

impl TokenError {
    /// Makes the error of a file that cannot be read or written from the system's error.
    pub(super) fn io(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

pub(super) fn open(path: &Path, trust: Trust) -> Result<File, TokenError> {
    open_trusted(path, trust).map_err(|error| match error {
        OpenError::Io(source) => TokenError::io(path)(source),
        untrusted => TokenError::Untrusted(untrusted.into()),
    })
}

/// Reads a file that other users may not open.
fn read<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, TokenError>,
) -> Result<T, TokenError> {
    let file = open(path, Trust::Secret)?;
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX).read_to_string(&mut text);
    read.map_err(TokenError::io(path))?;
    parse(&text).map_err(|source| TokenError::File {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

/// The maximum bytes of a file with tokens, so that a wrong file does not fill the memory.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_that_others_may_read_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let read = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Token::read(&path)
        };
        for mode in [0o600, 0o400, 0o640] {
            assert_eq!(read("secret\n", mode).unwrap().secret(), "secret");
        }
        for open in [0o644, 0o604, 0o602, 0o666] {
            let error = read("secret\n", open).unwrap_err();
            assert!(matches!(error, TokenError::Untrusted(_)), "{error:?}");
            let error = error.to_string();
            let mode = format!("(mode {open:03o})");
            assert!(
                error.contains("chmod 600") && error.contains(&mode),
                "{error}"
            );
        }
        let error = read("two\nsecrets", 0o600).unwrap_err();
        assert!(error.to_string().ends_with("use one token"), "{error}");
        assert!(!error.to_string().contains("secrets"));
    }

    #[test]
    fn a_text_that_is_no_token_is_refused_and_never_shown() {
        for (text, error) in [
            ("", TokenError::Empty),
            (" \n", TokenError::Empty),
            ("se\ncret", TokenError::Character),
            ("se cret", TokenError::Character),
            ("se\u{1b}cret", TokenError::Character),
        ] {
            let refused = Token::new(text).unwrap_err().to_string();
            assert_eq!(refused, error.to_string());
            assert!(!refused.contains("cret"));
        }
        let long = "x".repeat(LONG_CREDENTIALS_BYTES_MAX + 1);
        let refused = Token::new(&long).unwrap_err();
        assert!(matches!(refused, TokenError::TooLong { bytes } if bytes == long.len()));
        let token = Token::new(&long[1..]).unwrap();
        assert_eq!(format!("{:?}", Some(token)), "Some(Token(..))");
    }
}
