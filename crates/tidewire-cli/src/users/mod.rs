//! The users of a server: `[auth]` and `[[users]]` in `tidewire.toml`, and the authenticators that know them.
//!
//! Users are tables in the file, because a flag cannot hold them.

mod jwks;
mod jwt;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Command;
use thiserror::Error;
use tidewire::Limits;
use tidewire::SettingError;
use tidewire::auth::{
    Access, Chain, Identity, IdentityLimits, KnownPeers, Permissions, TokenError, Tokens, Users,
};
use tidewire::limits::{RateLimit, WhenExceeded};
use tidewire_io::trusted::{OpenError, Trust, check_trust};
use tidewire_load::toml_file::{Mistake, TomlEntry, TomlFile, TomlTable};

use crate::config::with_defaults;
pub(crate) use jwks::KeySets;
use jwt::JwtFile;

/// Why users, or the issuers of their tokens, cannot be used.
#[derive(Debug, Error)]
pub(crate) enum UsersError {
    #[error("cannot read {}: {source}; check the path, and that this user may read it", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A key is unknown or missing, or a value is wrong.
    #[error(transparent)]
    Mistake(#[from] Mistake),
    /// The tables were there before. Without them all users may do everything, so this is taken for a mistake.
    #[error(
        "{} has no [auth] and no [[users]] any more; put them back, or restart the server to do without them",
        path.display()
    )]
    NoTables { path: PathBuf },
    /// Others may write a file that decides who is let in, or read a secret by which they could sign tokens.
    #[error(transparent)]
    Untrusted(OpenError),
    #[error("user {user:?}: {source}")]
    User {
        user: String,
        source: Box<dyn Error + Send + Sync>,
    },
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// No key is there, so no peer could come in.
    #[error("{}: there are no [[issuers]] with keys; add one, or leave --auth-jwt out", path.display())]
    NoKeys { path: PathBuf },
    #[error("cannot use key {kid:?} of issuer {issuer:?} from {}: {source}", path.display())]
    IssuerKey {
        path: PathBuf,
        kid: String,
        issuer: String,
        source: Box<SettingError>,
    },
    #[error("cannot use the keys of issuer {issuer:?} from {place}: {source}")]
    KeySet {
        place: String,
        issuer: String,
        source: SettingError,
    },
    #[error("cannot fetch keys from {url:?}: others could change them on the way; use https://")]
    KeySetUrl { url: String },
    /// An issuer has no audience, or two keys of one id.
    #[error("{}: {source}", path.display())]
    Issuer { path: PathBuf, source: SettingError },
}

impl UsersError {
    /// Something of a user is wrong.
    fn of<E: Into<Box<dyn Error + Send + Sync>>>(user: &str) -> impl FnOnce(E) -> Self {
        move |error| Self::User {
            user: user.to_owned(),
            source: error.into(),
        }
    }

    /// A file that must be trusted cannot be opened.
    pub(crate) fn unopened(path: &Path) -> impl Fn(OpenError) -> Self {
        move |error| match error {
            OpenError::Io(source) => Self::unread(path)(source),
            untrusted => Self::Untrusted(untrusted),
        }
    }

    pub(crate) fn unread(path: &Path) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Read {
            path: path.to_owned(),
            source,
        }
    }
}

/// A user of the file.
#[derive(Debug)]
struct UserTable {
    name: String,
    unix_users: Vec<u32>,
    certificates: Vec<String>,
    addresses: Vec<String>,
    limits: IdentityLimits,
}

/// Where the users, their tokens, and the issuers of tokens are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    pub(crate) config: Option<PathBuf>,
    pub(crate) tokens: Option<PathBuf>,
    /// The command `serve`, whose flags are the keys of the configuration.
    pub(crate) serve: Command,
    /// Whether the tables must be there, because they were.
    pub(crate) needs_tables: bool,
    pub(crate) jwt: Option<PathBuf>,
    /// The sets of keys that issuers publish.
    pub(crate) key_sets: KeySets,
    pub(crate) limits: Limits,
}

/// The users of a file, with what proves who they are.
#[derive(Debug)]
pub(crate) struct UserFile {
    pub(crate) users: Arc<Users>,
    tables: Vec<UserTable>,
    /// Whether the file says anything about users.
    has_users: bool,
    /// The flag `--auth-tokens`.
    auth_tokens: Option<PathBuf>,
}

impl UserFile {
    /// Reads the users of a configuration file. `serve` has the flags of a server, whose other keys the file may have.
    ///
    /// # Errors
    /// See [`UsersError`].
    pub(crate) fn read(path: &Path, serve: &Command) -> Result<Self, UsersError> {
        let mut opened = File::open(path).map_err(UsersError::unread(path))?;
        let mut text = String::new();
        let read = opened.read_to_string(&mut text);
        read.map_err(UsersError::unread(path))?;
        let file = TomlFile::parse(path.display(), &text)?;
        let root = file.root();
        with_defaults(serve.clone(), &root)?;
        let file = Self::of(&root)?;
        let names_such_a_file = root.entries().any(|it| DECISIVE.contains(&it.name()));
        if file.has_users || names_such_a_file {
            check_trust(&opened, path, Trust::Decides).map_err(UsersError::unopened(path))?;
        }
        Ok(file)
    }

    fn of(root: &TomlTable<'_>) -> Result<Self, UsersError> {
        let auth = root.read("auth", |it| {
            it.table(|auth| auth.read("default_permissions", permissions))
        })?;
        let has_defaults = auth.is_some();
        let defaults = auth.flatten().unwrap_or(Permissions::nothing());
        let mut users = Users::new(defaults);
        let tables = root.list("users", |it| {
            it.table(|table| UserTable::read(table, &mut users))
        })?;
        Ok(Self {
            users: Arc::new(users),
            has_users: has_defaults || !tables.is_empty(),
            tables,
            auth_tokens: root.read("auth_tokens", |it| it.text().map(PathBuf::from))?,
        })
    }

    /// The names in the file of tokens: this one, or that of the key `auth_tokens`. `None` without either.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub(crate) fn token_names(
        &self,
        tokens: Option<&Path>,
    ) -> Result<Option<Vec<String>>, TokenError> {
        let path = tokens.or(self.auth_tokens.as_deref());
        path.map(Tokens::names).transpose()
    }

    /// Whether the file says anything about users.
    pub(crate) fn has_users(&self) -> bool {
        self.has_users
    }

    /// The names of all users, in the order of the file.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tables.iter().map(|user| &*user.name)
    }

    /// Limits of users that have no effect, because the server's own limit is lower: a sentence for each, with its
    /// user.
    pub(crate) fn limits_without_effect(&self, server: &Limits) -> Vec<(&str, String)> {
        let of_user = |user: &UserTable| {
            let IdentityLimits {
                sessions_max,
                subscriptions_max,
                rooms_max,
                ..
            } = user.limits;
            let of_session = server.topics.per_session_max();
            let limits = [
                ("sessions_max", sessions_max, server.sessions.max()),
                ("subscriptions_max", subscriptions_max, of_session),
                ("rooms_max", rooms_max, server.rooms.per_session_max()),
            ];
            limits.into_iter().filter_map(|(key, own, of_server)| {
                let own = own.filter(|own| *own > of_server)?;
                Some(format!(
                    "{key} = {own} has no effect, because the server allows {of_server}"
                ))
            })
        };
        let users = self.tables.iter();
        users
            .flat_map(|user| of_user(user).map(|text| (&*user.name, text)))
            .collect()
    }

    /// How a user can prove who it is, apart from tokens, in the order in which the server looks.
    pub(crate) fn proofs(&self, name: &str) -> impl Iterator<Item = ProofEntry<'_>> {
        let user = self.tables.iter().find(|user| user.name == name);
        user.into_iter().flat_map(UserTable::proofs)
    }

    /// The user whose entry counts in place of this one, which is further down in the file and never counts.
    pub(crate) fn hides(&self, name: &str, index: usize) -> Option<&str> {
        let entry = self.proofs(name).nth(index)?;
        let all = self.tables.iter();
        let mut all =
            all.flat_map(|user| user.proofs().enumerate().map(move |it| (&*user.name, it)));
        let (first, _) = all
            .find(|(user, (at, other))| other.covers(&entry) || (*user == name && *at == index))?;
        (first != name).then_some(first)
    }

    /// Knows peers by certificate, Unix user and address, and then as anonymous.
    pub(crate) fn chain(&self, first: Chain) -> Result<Chain, UsersError> {
        let mut known = KnownPeers::new(Arc::clone(&self.users));
        for user in &self.tables {
            for name in &user.certificates {
                known = known.certificate(name, &user.name);
            }
            for id in &user.unix_users {
                known = known.unix_user(*id, &user.name);
            }
            for network in &user.addresses {
                let with = known.address(network, &user.name);
                known = with.map_err(UsersError::of(&user.name))?;
            }
        }
        Ok(first.then(known.admit_anonymous()))
    }
}

/// An entry by which a user is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProofEntry<'a> {
    Certificate(&'a str),
    UnixUser(u32),
    Address(&'a str),
}

impl ProofEntry<'_> {
    /// Whether every peer of the other entry is also one of this entry.
    fn covers(&self, other: &Self) -> bool {
        let (Self::Address(own), Self::Address(other)) = (self, other) else {
            return self == other;
        };
        let (Some((own, own_bits)), Some((other, other_bits))) = (range(own), range(other)) else {
            return false;
        };
        let differ = own.iter().zip(&other).map(|(own, other)| own ^ other);
        let same_bits = match differ.clone().position(|byte| byte != 0) {
            Some(at) => at * 8 + differ.clone().nth(at).unwrap_or(0).leading_zeros() as usize,
            None => own.len() * 8,
        };
        own.len() == other.len() && own_bits <= other_bits && own_bits <= same_bits
    }
}

/// The bytes of a range of addresses, and how many bits of them count.
fn range(text: &str) -> Option<(Vec<u8>, usize)> {
    let (address, bits) = text.split_once('/').unwrap_or((text, ""));
    let bytes = match address.parse().ok()? {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let bits = bits.parse().unwrap_or(bytes.len() * 8);
    Some((bytes, bits))
}

impl fmt::Display for ProofEntry<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(name) => write!(formatter, "certificate {name}"),
            Self::UnixUser(id) => write!(formatter, "Unix user {id}"),
            Self::Address(range) => write!(formatter, "address {range}"),
        }
    }
}

impl UserTable {
    fn proofs(&self) -> impl Iterator<Item = ProofEntry<'_>> {
        let certificates = self.certificates.iter();
        let certificates = certificates.map(|name| ProofEntry::Certificate(name));
        let unix_users = self.unix_users.iter().copied().map(ProofEntry::UnixUser);
        let addresses = self.addresses.iter();
        let addresses = addresses.map(|range| ProofEntry::Address(range));
        certificates.chain(unix_users).chain(addresses)
    }

    /// Reads a user, and adds it to the others.
    fn read(table: &TomlTable<'_>, users: &mut Users) -> Result<Self, UsersError> {
        let name = table.require("name", |it| match it.text()? {
            name if users.identity(name).is_some() => Err(it.unusable(format!(
                "there are two users {name:?}; rename or remove one"
            ))),
            name => Ok(name.to_owned()),
        })?;
        let permissions = table.read("permissions", permissions)?;
        let limits = limits(table)?;
        limits.check().map_err(UsersError::of(&name))?;
        let added = users.add(&name, permissions.as_ref(), limits);
        added.map_err(UsersError::of(&name))?;
        let texts = |key| table.list(key, |it| it.text().map(str::to_owned));
        Ok(Self {
            name,
            unix_users: table.list("unix_users", TomlEntry::whole)?,
            certificates: texts("certificates")?,
            addresses: texts("addresses")?,
            limits,
        })
    }
}

fn limits(user: &TomlTable<'_>) -> Result<IdentityLimits, Mistake> {
    let mut rate = RateLimit::new(WhenExceeded::Refuse);
    let messages = user.read("messages_per_second", TomlEntry::whole)?;
    if let Some(messages) = messages {
        rate = rate.messages_per_second(messages);
    }
    let bytes = user.read("bytes_per_second", TomlEntry::whole)?;
    if let Some(bytes) = bytes {
        rate = rate.bytes_per_second(bytes);
    }
    let replaces_oldest = user.read("when_full", |it| match it.text()? {
        "refuse" => Ok(false),
        "replace" => Ok(true),
        _ => Err(it.wrong("\"refuse\" or \"replace\"")),
    })?;
    Ok(IdentityLimits {
        sessions_max: user.read("sessions_max", TomlEntry::whole)?,
        replaces_oldest: replaces_oldest.unwrap_or_default(),
        subscriptions_max: user.read("subscriptions_max", TomlEntry::whole)?,
        rooms_max: user.read("rooms_max", TomlEntry::whole)?,
        rate: (messages.is_some() || bytes.is_some()).then_some(rate),
    })
}

impl Sources {
    /// Makes the authenticator of a server. `None` if neither the file nor the flags say anything about users. After
    /// the file had users once, it must have some each time: an empty or half written file takes no permission checks
    /// away.
    ///
    /// # Errors
    /// See [`UsersError`].
    pub(crate) fn authenticator(&mut self) -> Result<Option<Chain>, UsersError> {
        let file = self.config.as_deref();
        let file = file.map(|path| UserFile::read(path, &self.serve));
        let file = file.transpose()?;
        let file = file.filter(UserFile::has_users);
        for (user, text) in file
            .iter()
            .flat_map(|it| it.limits_without_effect(&self.limits))
        {
            tracing::warn!(user = ?user, "{text}");
        }
        let has_tables = file.is_some();
        if let (true, false, Some(path)) = (self.needs_tables, has_tables, &self.config) {
            return Err(UsersError::NoTables { path: path.clone() });
        }
        let made = self.make(file)?;
        self.needs_tables = has_tables;
        Ok(made)
    }

    fn make(&self, file: Option<UserFile>) -> Result<Option<Chain>, UsersError> {
        let users = match &file {
            Some(file) => Arc::clone(&file.users),
            None if self.tokens.is_none() && self.jwt.is_none() => return Ok(None),
            None => Arc::new(self.all_powerful()?),
        };
        let mut chain = Chain::new();
        if let Some(tokens) = &self.tokens {
            chain = chain.then(Tokens::read(tokens, Arc::clone(&users))?);
        }
        if let Some(jwt) = &self.jwt {
            chain = chain.then(JwtFile::read(jwt)?.keys(users, &self.key_sets)?);
        }
        match file {
            Some(file) => file.chain(chain).map(Some),
            None => Ok(Some(chain)),
        }
    }

    /// The users of a server without tables: everybody who has a token may do everything.
    fn all_powerful(&self) -> Result<Users, UsersError> {
        let mut users = Users::new(Permissions::everything());
        let names = self.tokens.as_deref().map(Tokens::names).transpose()?;
        for name in names.unwrap_or_default() {
            let added = users.add(&name, None, IdentityLimits::default());
            added.map_err(UsersError::of(&name))?;
        }
        Ok(users)
    }

    /// All files that decide who is let in. A file of issuers that cannot be read names no keys.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let own = [&self.config, &self.tokens, &self.jwt];
        let jwt = self.jwt.as_deref().map(JwtFile::read);
        let keys = jwt.and_then(Result::ok);
        let keys = keys.iter().flat_map(JwtFile::key_files);
        own.into_iter().flatten().cloned().chain(keys).collect()
    }
}

/// Whether this user stands for all peers that are not known.
pub(crate) fn is_anonymous(name: &str) -> bool {
    name == Identity::ANONYMOUS
}

fn permissions(entry: &TomlEntry<'_>) -> Result<Permissions, Mistake> {
    entry.table(|table| {
        let access = |key| table.read(key, access).map(Option::unwrap_or_default);
        Ok(Permissions {
            publish: access("publish")?,
            subscribe: access("subscribe")?,
            join: access("join")?,
            say: access("say")?,
            call: access("call")?,
        })
    })
}

fn access(entry: &TomlEntry<'_>) -> Result<Access, Mistake> {
    entry.table(|table| {
        let list = |key| table.list(key, TomlEntry::text);
        Access::new(list("allow")?, list("deny")?).map_err(|error| entry.unusable(error))
    })
}

/// The flags that name other files which decide who is let in.
const DECISIVE: [&str; 4] = [
    "auth_tokens",
    "auth_jwt",
    "tls_client_ca",
    "admin_token_file",
];
