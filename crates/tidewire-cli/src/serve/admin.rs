//! The flags of the admin server, and what its actions do here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::low_level::raise;
use tidewire::auth::Token;
use tidewire::{Address, Endpoint};
use tidewire_admin::{Admin, AdminError, BoundAdmin, Settings};

use crate::failure::Failure;
use crate::signals;

/// The flags of the admin server.
#[derive(Debug, Args)]
pub(super) struct AdminArguments {
    /// Address of the dashboard, /metrics, /healthz, /readyz and /api over HTTP, such as 127.0.0.1:9090. Whoever reaches it may
    /// close sessions and drain the server, unless there is an --admin-token-file. See docs/admin.md
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    admin: Option<SocketAddr>,

    /// The file with the token of the --admin address, which other users may not read. An address that other machines reach
    /// needs it, and --insecure, because HTTP is not encrypted
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,

    /// Name by which a proxy or a scraper asks the --admin address; may be repeated. IP addresses and localhost are always
    /// answered, and other names are not, because a web page could make one of its own mean this machine
    #[arg(long, value_name = "NAME")]
    admin_host: Vec<String>,
}

impl AdminArguments {
    /// Binds the address, if there is one. `binds` are the addresses of the server.
    ///
    /// # Errors
    /// The address cannot be used, or the token cannot be read.
    pub(super) fn bind(
        &self,
        is_insecure: bool,
        binds: &[String],
    ) -> anyhow::Result<Option<BoundAdmin>> {
        let Some(address) = self.admin else {
            return match self.admin_token_file.is_some() || !self.admin_host.is_empty() {
                true => {
                    let what = "--admin-token-file and --admin-host are for an admin server, and there is none";
                    Err(Failure::configuration(what, "give --admin 127.0.0.1:9090").into())
                }
                false => Ok(None),
            };
        };
        check_apart(address, binds)?;
        let mut settings = Settings::default()
            .allow_plaintext(is_insecure)
            .on_drain(once(SIGTERM))
            .on_reload(|| send(SIGHUP));
        if let Some(file) = &self.admin_token_file {
            let token = Token::read(file);
            let token = token.map_err(|error| Failure::configuration(error.to_string(), TOKEN))?;
            settings = settings.token(token);
        }
        for host in &self.admin_host {
            settings = settings.host(host);
        }
        let bound = Admin::bind(address, settings);
        Ok(Some(bound.map_err(|error| refused(&error))?))
    }
}

/// A name such as localhost may have several addresses, so the flag takes none.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let wanted = "use an IP address and a port, such as 127.0.0.1:9090 or [::1]:9090";
    text.parse()
        .map_err(|_| format!("it is no address to listen on; {wanted}; port 0 takes a free one"))
}

/// Refuses an address that the server has, too. The one that is bound second would be in use, by this process itself.
fn check_apart(admin: SocketAddr, binds: &[String]) -> Result<(), Failure> {
    let admin = Endpoint::from(admin);
    for bind in binds {
        // An address with a mistake is refused where it is bound.
        let address = bind.parse::<Address>();
        let endpoints = address.and_then(|it| it.resolve_all()).unwrap_or_default();
        if endpoints.iter().any(|it| it.excludes(&admin)) {
            let what = format!("--admin {admin} and --bind {bind} have the same port");
            return Err(Failure::configuration(what, "give --admin another port"));
        }
    }
    Ok(())
}

fn refused(error: &AdminError) -> Failure {
    let remedy = match error {
        AdminError::NoToken(_) => "give --admin-token-file, or --admin 127.0.0.1:PORT",
        AdminError::Plaintext(_) => {
            "give --admin 127.0.0.1:PORT, and let a proxy with TLS or an SSH tunnel reach it; or say --insecure in a closed network"
        }
        _ => "give another --admin IP:PORT; port 0 takes a free one",
    };
    Failure::configuration(error.to_string(), remedy)
}

/// The actions are the signals of an operator, so that both ways do the same. A second SIGTERM would end the process at once.
fn once(signal: i32) -> impl Fn() + Send + Sync {
    let is_sent = AtomicBool::new(false);
    move || {
        if !signals::has_begun() && !is_sent.swap(true, Ordering::SeqCst) {
            send(signal);
        }
    }
}

fn send(signal: i32) {
    if let Err(error) = raise(signal) {
        tracing::error!(%error, signal, "the process cannot signal itself");
    }
}

const TOKEN: &str =
    "write a long random text into a file of mode 600, as `tidewire token new` prints one";

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the error advised to stop the process that has the port, which was this one.
    #[test]
    fn an_admin_address_is_not_that_of_the_server() {
        let check = |admin: &str, bind: &str| {
            let outcome = check_apart(admin.parse().unwrap(), &[bind.to_owned()]);
            outcome.map_err(|error| error.to_string())
        };
        let error = check("127.0.0.1:8080", "ws://0.0.0.0:8080/chat").unwrap_err();
        assert!(error.contains("have the same port"), "{error}");
        assert!(check("127.0.0.1:8080", "127.0.0.1:8080").is_err());
        for bind in [
            "tcp://127.0.0.1:8081",
            "udp://127.0.0.1:8080",
            "tcp://127.0.0.2:8080",
        ] {
            assert_eq!(check("127.0.0.1:8080", bind), Ok(()));
        }
        assert_eq!(check("127.0.0.1:0", "tcp://127.0.0.1:0"), Ok(()));
    }
}
