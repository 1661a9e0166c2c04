//! The flags that say whom a client trusts and by what a server knows it: the same for every command that connects.

use std::io::{self, BufRead, Read, StdinLock};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use clap::Args;
use tidewire::AnyCodec;
use tidewire::auth::{Credentials, Token};
use tidewire::tls::ClientTls;
use tidewire_load::credentials::TokenSource;
use tidewire_load::scenario::Trust;
use tidewire_proto::codec::Codec;

use crate::failure::Failure;

// This is no doc comment, because it would become the help of the whole command.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SecurityArguments {
    /// Certificates of authorities to trust at a tls:// or wss:// address beside those of the system, in PEM
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Trust the authorities of --ca only, and not those of the system
    #[arg(long, requires = "ca")]
    ca_only: bool,

    /// Certificate chain to show a server that asks for one, in PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// Key of --cert, in PEM, which other users may not read
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,

    /// Name that the server's certificate must have [default: the host of the address]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,

    /// The file with the token by which the server knows this client, which other users may not read. It is read for
    /// each connection; - reads the first line of standard input. For a load test, file or input may have many tokens,
    /// one in a line, which the agents take in turn. Without the flag the token is that in TIDEWIRE_TOKEN, if there is
    /// one
    // A token itself is never an argument, because other users of the machine see those.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl SecurityArguments {
    /// Returns these flags, with the keys of a scenario where there is no flag.
    pub(crate) fn or(&self, trust: &Trust) -> Self {
        let path = |flag: &Option<PathBuf>, key: &Option<String>| {
            flag.clone().or_else(|| key.as_ref().map(PathBuf::from))
        };
        // A certificate and its key belong together.
        let pair = match self.cert {
            Some(_) => (self.cert.clone(), self.key.clone()),
            None => (path(&None, &trust.cert), path(&None, &trust.key)),
        };
        Self {
            ca: path(&self.ca, &trust.ca),
            ca_only: self.ca_only,
            cert: pair.0,
            key: pair.1,
            server_name: self.server_name.clone().or(trust.server_name.clone()),
            token_file: path(&self.token_file, &trust.token_file),
        }
    }

    /// Returns whom to trust at this address, and what to show. `host` is the host of the address.
    ///
    /// # Errors
    /// A flag of TLS is given, and the address has none.
    pub(crate) fn tls(&self, address: &str, host: Option<&str>) -> Result<ClientTls, Failure> {
        let is_tls = address.starts_with("tls://") || address.starts_with("wss://");
        if !is_tls {
            if let Some(flag) = self.tls_flag() {
                let what = format!(
                    "{flag} is for tls:// and wss:// addresses, and {address} is none: nothing would be encrypted"
                );
                let remedy = format!("write tls://HOST:PORT, or leave {flag} out");
                return Err(Failure::configuration(what, remedy));
            }
            return Ok(ClientTls::new());
        }
        let mut settings = ClientTls::new();
        if let Some(ca) = &self.ca {
            settings = match self.ca_only {
                true => settings.only_ca(ca.clone()),
                false => settings.ca(ca.clone()),
            };
        }
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            settings = settings.identity(cert.clone(), key.clone());
        }
        Ok(match self.server_name.as_deref().or(host) {
            Some(name) => settings.server_name(name),
            None => settings,
        })
    }

    /// Whether a name is given that the certificate must have.
    pub(crate) fn has_server_name(&self) -> bool {
        self.server_name.is_some()
    }

    /// The first flag of TLS that is given.
    fn tls_flag(&self) -> Option<&'static str> {
        let given = [
            ("--ca", self.ca.is_some()),
            ("--cert", self.cert.is_some()),
            ("--server-name", self.server_name.is_some()),
        ];
        given.into_iter().find(|it| it.1).map(|it| it.0)
    }

    /// Refuses all flags, for a server that a command starts itself.
    ///
    /// # Errors
    /// The first flag that is given.
    pub(crate) fn refuse_for_own_server(&self) -> Result<(), Failure> {
        let token = self.token_file.is_some().then_some("--token-file");
        match self.tls_flag().or(token) {
            None => Ok(()),
            Some(flag) => {
                let what = format!(
                    "{flag} is for a server that runs already; one that is started for the run asks for no token, and its \
                     certificate is made for it"
                );
                let remedy = format!("name the server with --target, or leave {flag} out");
                Err(Failure::configuration(what, remedy))
            }
        }
    }

    /// Returns the credentials of one client, if there are some.
    ///
    /// # Errors
    /// They are no token, or the codec cannot send them.
    pub(crate) fn credentials(&self, codec: &AnyCodec) -> anyhow::Result<Option<Credentials>> {
        Ok(match self.origin(codec)? {
            Origin::None => None,
            Origin::Variable(text) => Some(Token::new(&text).context(TOKEN_VARIABLE)?.into()),
            Origin::Input => {
                let line = read_input(|input, text| input.read_line(text))?;
                Some(Token::new(&line).context(INPUT)?.into())
            }
            Origin::File(file) => Some(Credentials::provider(move || Ok(Token::read(&file)?))),
        })
    }

    /// Returns where the agents of a load test get their tokens, if they have some.
    ///
    /// # Errors
    /// Those on standard input are no tokens, or the codec cannot send them.
    pub(crate) fn tokens(&self, codec: &AnyCodec) -> anyhow::Result<Option<TokenSource>> {
        Ok(match self.origin(codec)? {
            Origin::None => None,
            Origin::Variable(text) => Some(fixed(Token::list(&text).context(TOKEN_VARIABLE)?)),
            Origin::Input => {
                let text = read_input(|input, text| input.read_to_string(text))?;
                Some(fixed(Token::list(&text).context(INPUT)?))
            }
            Origin::File(file) => Some(TokenSource::new(move || Ok(Token::read_list(&file)?))),
        })
    }

    fn origin(&self, codec: &AnyCodec) -> anyhow::Result<Origin> {
        let Some(file) = &self.token_file else {
            return Ok(match std::env::var(TOKEN_VARIABLE) {
                Ok(text) if !text.is_empty() && codec.format().begins_with_hello() => {
                    Origin::Variable(text)
                }
                _ => Origin::None,
            });
        };
        if !codec.format().begins_with_hello() {
            let what = format!("codec {} has no place for a token", codec.name());
            let remedy = "use --codec tw1 or json, or let the server know this client by its address or Unix user";
            return Err(Failure::configuration(what, remedy).into());
        }
        Ok(match file.as_os_str() == "-" {
            true => Origin::Input,
            false => Origin::File(file.clone()),
        })
    }
}

/// Where a token comes from.
enum Origin {
    None,
    /// The variable, which has this text.
    Variable(String),
    Input,
    /// A file, which is read for each connection.
    File(PathBuf),
}

/// A source that has always the same tokens.
fn fixed(tokens: Vec<Token>) -> TokenSource {
    TokenSource::new(move || Ok(tokens.clone()))
}

/// Reads standard input once, however often a command connects.
fn read_input(
    read: impl FnOnce(&mut StdinLock<'_>, &mut String) -> io::Result<usize>,
) -> anyhow::Result<String> {
    static TEXT: Mutex<Option<String>> = Mutex::new(None);
    let mut known = TEXT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = &*known {
        return Ok(text.clone());
    }
    let mut text = String::new();
    read(&mut io::stdin().lock(), &mut text).context("cannot read a token from standard input")?;
    Ok(known.insert(text).clone())
}

/// The name of standard input in errors.
const INPUT: &str = "standard input";

/// The variable of the environment that holds a token.
const TOKEN_VARIABLE: &str = "TIDEWIRE_TOKEN";
