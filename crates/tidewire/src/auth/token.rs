//! A token that identifies a client. It is secret, so it is never shown.

use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use thiserror::Error;
use tidewire_proto::limits::CREDENTIALS_BYTES_MAX;

use crate::describe::describe;

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

/// A text is not a token.
///
/// [`Authenticate`](crate::auth::Authenticate) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It is empty, or only white space.
    #[error("the token is empty")]
    Empty,
    /// It does not fit a hello.
    #[error("the token has {bytes} bytes; a hello takes {CREDENTIALS_BYTES_MAX} at most")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It has a space, a line end or another character that no token has.
    #[error("the token has a space, a line end or a control character within it; use one token")]
    Character,
}

/// The credentials of a client: a token, or a function that gets one. For
/// [`ClientBuilder::credentials`](crate::ClientBuilder::credentials).
///
/// [`Authenticate`](crate::auth::Authenticate) has an example.
#[derive(Clone)]
pub struct Credentials(Source);

#[derive(Clone)]
enum Source {
    Fixed(Token),
    Provider(Provider),
}

type Provider = Arc<dyn Fn() -> Result<Token, Box<dyn Error + Send + Sync>> + Send + Sync>;

impl Credentials {
    /// Gets a token for each connection, and a newer one before a token expires. The function runs on a thread of its own, so it
    /// may read a file or ask another server. After a panic or an error the client tries again as after any failure to
    /// connect.
    ///
    /// ```
    /// use tidewire::auth::{Credentials, Token};
    ///
    /// let credentials = Credentials::provider(|| Ok(Token::new(&std::fs::read_to_string("token")?)?));
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

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credentials(..)")
    }
}

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
            bytes if bytes > CREDENTIALS_BYTES_MAX => Err(TokenError::TooLong { bytes }),
            _ => Ok(Self(text.into())),
        }
    }

    /// The token itself. Never log it.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_token_is_refused_and_never_shown() {
        for (text, error) in [
            ("", TokenError::Empty),
            (" \n", TokenError::Empty),
            ("se\ncret", TokenError::Character),
            ("se cret", TokenError::Character),
            ("se\u{1b}cret", TokenError::Character),
        ] {
            assert_eq!(Token::new(text), Err(error));
            assert!(!error.to_string().contains("cret"));
        }
        let long = "x".repeat(CREDENTIALS_BYTES_MAX + 1);
        assert_eq!(
            Token::new(&long),
            Err(TokenError::TooLong { bytes: long.len() })
        );
        let token = Token::new(&long[1..]).unwrap();
        assert_eq!(format!("{:?}", Some(token)), "Some(Token(..))");
    }
}
