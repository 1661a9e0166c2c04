//! The file of `serve --auth-jwt`: the issuers of JSON Web Tokens, with the keys that they sign them by.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidewire::auth::{JwtIssuer, JwtKeys, Users};
use tidewire_io::trusted::{Trust, open_trusted};
use tidewire_load::toml_file::{Mistake, TomlEntry, TomlFile, TomlTable};

use super::UsersError;
use super::jwks::{KeySets, is_trusted};

/// A file of issuers.
#[derive(Debug)]
pub(crate) struct JwtFile {
    path: PathBuf,
    leeway_seconds: Option<u64>,
    issuers: Vec<IssuerTable>,
}

#[derive(Debug)]
struct IssuerTable {
    issuer: String,
    audience: Vec<String>,
    name_claim: Option<String>,
    /// The kind that the header of a token must have in `typ`.
    typ: Option<String>,
    /// A file with a set of keys. Relative to the folder of the file of issuers.
    jwks: Option<PathBuf>,
    /// Where the issuer publishes its set of keys.
    jwks_url: Option<String>,
    /// How often that is fetched.
    jwks_refresh: Duration,
    keys: Vec<KeyTable>,
}

#[derive(Debug)]
struct KeyTable {
    kid: String,
    algorithm: String,
    /// Relative to the folder of the file of issuers.
    file: PathBuf,
}

impl IssuerTable {
    fn read(table: &TomlTable<'_>) -> Result<Self, Mistake> {
        let text = |key| table.read(key, owned);
        let refresh = table.read("jwks_refresh_seconds", TomlEntry::whole::<u64>)?;
        Ok(Self {
            issuer: table.require("issuer", owned)?,
            audience: table.require("audience", |it| it.list(owned))?,
            name_claim: text("name_claim")?,
            typ: text("typ")?,
            jwks: text("jwks")?.map(PathBuf::from),
            jwks_url: text("jwks_url")?,
            jwks_refresh: Duration::from_secs(refresh.unwrap_or(JWKS_REFRESH_SECONDS).max(1)),
            keys: table.list("keys", |it| it.table(KeyTable::read))?,
        })
    }
}

impl KeyTable {
    fn read(table: &TomlTable<'_>) -> Result<Self, Mistake> {
        Ok(Self {
            kid: table.require("kid", owned)?,
            algorithm: table.require("algorithm", owned)?,
            file: table.require("file", owned)?.into(),
        })
    }
}

fn owned(entry: &TomlEntry<'_>) -> Result<String, Mistake> {
    Ok(entry.text()?.to_owned())
}

impl JwtFile {
    /// Reads the file, and none of its keys.
    ///
    /// # Errors
    /// See [`UsersError`].
    pub(crate) fn read(path: &Path) -> Result<Self, UsersError> {
        let mut file = open_trusted(path, Trust::Decides).map_err(UsersError::unopened(path))?;
        let mut text = String::new();
        let read = file.read_to_string(&mut text);
        read.map_err(UsersError::unread(path))?;
        TomlFile::parse(path.display(), &text)?.read(|root| {
            Ok(Self {
                path: path.to_owned(),
                leeway_seconds: root.read("leeway_seconds", TomlEntry::whole)?,
                issuers: root.list("issuers", |it| it.table(IssuerTable::read))?,
            })
        })
    }

    pub(crate) fn key_files(&self) -> impl Iterator<Item = PathBuf> {
        let issuers = self.issuers.iter();
        let files = issuers.flat_map(|it| it.keys.iter().map(|key| &key.file).chain(&it.jwks));
        files.map(|file| self.beside(file))
    }

    /// Reads the keys.
    ///
    /// # Errors
    /// See [`UsersError`].
    pub(crate) fn keys(&self, users: Arc<Users>, sets: &KeySets) -> Result<JwtKeys, UsersError> {
        let mut keys = JwtKeys::new(users);
        if let Some(seconds) = self.leeway_seconds {
            keys = keys.leeway(Duration::from_secs(seconds));
        }
        let mut issuers = self.issuers.iter();
        if self.key_files().next().is_none() && !issuers.any(|it| it.jwks_url.is_some()) {
            let path = self.path.clone();
            return Err(UsersError::NoKeys { path });
        }
        for table in &self.issuers {
            let audience = table.audience.iter().map(String::as_str);
            let mut issuer = JwtIssuer::new(&table.issuer, audience);
            if let Some(claim) = &table.name_claim {
                issuer = issuer.name_claim(claim);
            }
            if let Some(typ) = &table.typ {
                issuer = issuer.typ(typ);
            }
            for key in &table.keys {
                issuer = self.add(issuer, &table.issuer, key)?;
            }
            issuer = self.add_sets(issuer, table, sets)?;
            keys = keys.issuer(issuer).map_err(|source| UsersError::Issuer {
                path: self.path.clone(),
                source,
            })?;
        }
        Ok(keys)
    }

    fn add(
        &self,
        issuer: JwtIssuer,
        name: &str,
        table: &KeyTable,
    ) -> Result<JwtIssuer, UsersError> {
        let path = self.beside(&table.file);
        let unusable = |source| UsersError::IssuerKey {
            path: path.clone(),
            kid: table.kid.clone(),
            issuer: name.to_owned(),
            source: Box::new(source),
        };
        let trust = match JwtIssuer::is_symmetric(&table.algorithm).map_err(unusable)? {
            true => Trust::Secret,
            false => Trust::Decides,
        };
        let key = read_key(&path, trust)?;
        issuer
            .key(&table.kid, &table.algorithm, &key)
            .map_err(unusable)
    }

    /// Adds the sets of keys of an issuer. One that cannot be fetched now is left out, and comes later.
    fn add_sets(
        &self,
        mut issuer: JwtIssuer,
        table: &IssuerTable,
        sets: &KeySets,
    ) -> Result<JwtIssuer, UsersError> {
        let unusable = |place: String| {
            let issuer = table.issuer.clone();
            move |source| UsersError::KeySet {
                place,
                issuer,
                source,
            }
        };
        if let Some(file) = &table.jwks {
            let path = self.beside(file);
            let text = read_key(&path, Trust::Decides)?;
            let place = path.display().to_string();
            issuer = issuer.key_set(&text).map_err(unusable(place))?;
        }
        if let Some(url) = &table.jwks_url {
            if !is_trusted(url) {
                let url = url.clone();
                return Err(UsersError::KeySetUrl { url });
            }
            if let Some(text) = sets.text(url, table.jwks_refresh) {
                issuer = issuer.key_set(&text).map_err(unusable(url.clone()))?;
            }
        }
        Ok(issuer)
    }

    fn beside(&self, file: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(file)
    }
}

fn read_key(path: &Path, trust: Trust) -> Result<Vec<u8>, UsersError> {
    let file = open_trusted(path, trust).map_err(UsersError::unopened(path))?;
    let mut key = Vec::new();
    let read = file.take(KEY_BYTES_MAX).read_to_end(&mut key);
    read.map_err(UsersError::unread(path))?;
    Ok(key)
}

/// How often the set of an issuer is fetched: issuers publish a new key hours before they use it.
const JWKS_REFRESH_SECONDS: u64 = 300;

/// The longest key that is read. One of RSA with 8192 bits has 1.4 kB.
const KEY_BYTES_MAX: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use tidewire_testkit::jwt::SigningKey;

    use super::*;

    fn keys(text: &str) -> Result<JwtKeys, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jwt.toml");
        let write = |name: &str, bytes: &[u8], mode| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        write("jwt.toml", text.as_bytes(), 0o644);
        write("a.pem", SigningKey::new().public_pem().as_bytes(), 0o644);
        let set = format!("{{\"keys\":[{}]}}", SigningKey::new().jwk("b"));
        write("set.json", set.as_bytes(), 0o644);
        write("secret", &[b'x'; 32], 0o600);
        write("open", &[b'x'; 32], 0o644);
        let file = JwtFile::read(&path).map_err(|error| error.to_string())?;
        file.keys(Arc::default(), &KeySets::default())
            .map_err(|error| error.to_string())
    }

    fn issuer(keys: &str) -> String {
        format!("[[issuers]]\nissuer = \"a\"\naudience = [\"x\"]\n{keys}")
    }

    fn key(kid: &str, algorithm: &str, file: &str) -> String {
        format!(
            "[[issuers.keys]]\nkid = \"{kid}\"\nalgorithm = \"{algorithm}\"\nfile = \"{file}\"\n"
        )
    }

    #[test]
    fn a_file_lists_issuers_and_their_keys() {
        let both = issuer(&(key("1", "ES256", "a.pem") + &key("2", "HS256", "secret")));
        keys(&format!("leeway_seconds = 5\n{both}")).unwrap();
        keys(&issuer("jwks = \"set.json\"\ntyp = \"at+jwt\"\n")).unwrap();
    }

    /// The bug: a public key and the list of issuers of mode 666 were read, and read again when somebody changed them.
    #[test]
    fn issuers_and_public_keys_that_others_may_write_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, bytes: &[u8], mode| {
            fs::write(path(name), bytes).unwrap();
            fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
        };
        let text = issuer(&key("1", "ES256", "a.pem"));
        let signing = SigningKey::new();
        let pem = signing.public_pem();
        for (list, public, is_trusted) in [
            (0o644, 0o644, true),
            (0o666, 0o644, false),
            (0o644, 0o666, false),
            (0o644, 0o620, false),
        ] {
            write("jwt.toml", text.as_bytes(), list);
            write("a.pem", pem.as_bytes(), public);
            let keys = JwtFile::read(&path("jwt.toml"))
                .and_then(|file| file.keys(Arc::default(), &KeySets::default()));
            match keys {
                Ok(_) => assert!(is_trusted, "{list:o} {public:o}"),
                Err(error) => {
                    assert!(!is_trusted, "{error}");
                    assert!(error.to_string().contains("chmod go-w"), "{error}");
                }
            }
        }
    }

    #[test]
    fn mistakes_are_told() {
        let es256 = key("1", "ES256", "a.pem");
        for (text, told) in [
            (String::new(), "no [[issuers]] with keys"),
            (issuer(""), "no [[issuers]] with keys"),
            (
                "issuer = \"a\"".to_owned(),
                "jwt.toml:1: unknown key `issuer`; did you mean `issuers`?",
            ),
            (
                "[[issuers]]\nissuer = \"a\"".to_owned(),
                "jwt.toml:1: the key `issuers[0].audience` is missing",
            ),
            (
                issuer(&es256).replace("[\"x\"]", "[]"),
                "issuer \"a\" has no audience",
            ),
            (issuer(&es256.repeat(2)), "two keys \"1\""),
            (
                issuer(&key("1", "none", "a.pem")),
                "\"none\" is not an algorithm",
            ),
            (
                issuer(&key("1", "RS256", "a.pem")),
                "it is not a key of RS256",
            ),
            (
                issuer(&key("1", "HS256", "a.pem")),
                "is open to other users of this machine (mode 644)",
            ),
            (issuer(&key("1", "HS256", "open")), "run `chmod 600` on it"),
            (
                issuer(&key("1", "HS512", "secret")),
                "32 bytes is too short",
            ),
            (issuer("jwks = \"a.pem\"\n"), "it is no set of keys"),
            (
                issuer("jwks_url = \"http://login.example.org/keys\"\n"),
                "use https://",
            ),
            (
                issuer(&key("1", "ES256", "missing")),
                "missing: No such file",
            ),
        ] {
            let error = keys(&text).unwrap_err();
            assert!(error.contains(told), "{text:?}: {error}");
        }
    }
}
