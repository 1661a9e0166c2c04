//! Users, their tokens, and a service that tells a peer who it is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use tidewire::auth::{Chain, IdentityLimits, KnownPeers, Permissions, Token, Tokens, Users};
use tidewire::{Context, HandlerResult, Message};

/// A token file in a folder of its own.
#[derive(Debug)]
pub struct TokenFolder {
    _folder: TempDir,
    path: PathBuf,
}

impl TokenFolder {
    /// Makes a folder for the file.
    ///
    /// # Panics
    /// There can be no folder.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "a folder is made on purpose only"
    )]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        Self {
            _folder: folder,
            path,
        }
    }

    /// The path of the file, which exists after the first [`add`](Self::add).
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a token of a user to the file.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn add(&self, name: &str) -> Token {
        Tokens::append(&self.path, name, None).expect("a token in the file")
    }

    /// Tokens of these users first, then anonymous peers if their user exists.
    ///
    /// # Panics
    /// The file cannot be read.
    pub fn chain(&self, users: impl Into<Arc<Users>>) -> Chain {
        let users = users.into();
        let tokens = Tokens::read(&self.path, Arc::clone(&users)).expect("a file of tokens");
        Chain::new()
            .then(tokens)
            .then(KnownPeers::new(users).admit_anonymous())
    }
}

/// Makes users with these permissions and no limits.
///
/// # Panics
/// A name is bad, or comes twice.
#[must_use]
pub fn users(list: &[(&str, Permissions)]) -> Users {
    let mut users = Users::new(Permissions::nothing());
    for (name, permissions) in list {
        users
            .add(name, Some(permissions), IdentityLimits::default())
            .expect("a good name");
    }
    users
}

/// Answers with the name of the peer.
///
/// # Errors
/// The errors of [`Context::reply`].
pub fn tell_name(cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
    let session = cx.session();
    let name = session
        .identity()
        .map(|identity| identity.name().to_owned());
    cx.reply(name.unwrap_or_default().as_bytes())
}
