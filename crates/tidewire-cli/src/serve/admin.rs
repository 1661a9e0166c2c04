//! The flags of the admin server, and what its actions do here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::low_level::raise;
use tidewire::address::Address;
use tidewire::auth::Token;
use tidewire::tls::ServerTls;
use tidewire::{Endpoint, Server};
use tidewire_admin::{Admin, AdminError, BoundAdmin, Settings};
use tidewire_command::signals;

use crate::failure::Failure;

/// The flags of the admin server.
#[derive(Debug, Args)]
pub(super) struct AdminArguments {
    /// Address of the dashboard, /metrics, /healthz, /readyz and /api over HTTP, such as 127.0.0.1:9090. Whoever
    /// reaches it may close sessions and drain the server, unless there is an --admin-token-file. See docs/admin.md
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    admin: Option<SocketAddr>,

    /// The file with the token of the --admin address, which other users may not read. An address that other machines
    /// reach needs it, and --admin-tls
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,

    /// Name by which a proxy or a scraper asks the --admin address; may be repeated. IP addresses and localhost are
    /// always answered, and other names are not, because a web page could make one of its own mean this machine
    #[arg(long, value_name = "NAME")]
    admin_host: Vec<String>,

    /// Encrypt the --admin address by the certificate of --tls-cert and --tls-key
    #[arg(long)]
    admin_tls: bool,

    /// Let other machines reach the --admin address without --admin-tls, although they could read the token on the way:
    /// for closed networks. --insecure does not allow it
    #[arg(long)]
    admin_insecure: bool,

    /// Address of /healthz and /readyz alone, such as 0.0.0.0:9091, for load balancers on other machines: it needs no
    /// token and changes nothing
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    health: Option<SocketAddr>,

    /// Answer /metrics at the --health address, too, to whoever reaches it
    #[arg(long)]
    health_metrics: bool,

    /// Answer 503 at /readyz while this server is cut off from its --backplane. Without it, a server that is cut off is
    /// ready and serves its own clients
    #[arg(long)]
    ready_needs_backplane: bool,
}

/// The addresses for operators, bound or served.
#[derive(Debug)]
pub(super) struct AdminServers<A> {
    pub(super) admin: Option<A>,
    pub(super) health: Option<A>,
}

impl AdminServers<BoundAdmin> {
    /// Begins to answer, about this server.
    ///
    /// # Errors
    /// See [`AdminError`].
    pub(super) fn serve(self, server: &Server) -> Result<AdminServers<Admin>, AdminError> {
        let serve = |bound: Option<BoundAdmin>| bound.map(|it| it.serve(server)).transpose();
        Ok(AdminServers {
            admin: serve(self.admin)?,
            health: serve(self.health)?,
        })
    }
}

impl AdminArguments {
    /// Whether the certificate of the server encrypts this address.
    pub(super) fn is_encrypted(&self) -> bool {
        self.admin_tls
    }

    /// Binds the addresses that there are. `tls` is the server's certificate, and `binds` are its other addresses.
    ///
    /// # Errors
    /// An address cannot be used, the token cannot be read, or a flag has no effect.
    pub(super) fn bind(
        &self,
        tls: Option<ServerTls>,
        binds: &[String],
        forwarders: &[String],
    ) -> anyhow::Result<AdminServers<BoundAdmin>> {
        for (flag, address) in [("--admin", self.admin), ("--health", self.health)] {
            if let Some(address) = address {
                check_apart(flag, address, binds)?;
            }
        }
        if let (Some(admin), Some(health)) = (self.admin, self.health)
            && Endpoint::from(admin).excludes(&health.into())
            && !leaves_ipv4(admin, Some(health))
            && !leaves_ipv4(health, Some(admin))
        {
            let what = format!("--admin {admin} and --health {health} have the same port");
            return Err(Failure::configuration(what, "give --health another port").into());
        }
        let health = self.health.map(|address| {
            let settings = Settings::default()
                .ipv6_only(leaves_ipv4(address, self.admin))
                .health_only(self.health_metrics)
                .needs_backplane(self.ready_needs_backplane);
            Admin::bind(address, settings).map_err(|error| refused("--health", &error))
        });
        if self.health_metrics && health.is_none() {
            let what = "--health-metrics is for an address of health, and there is none";
            return Err(Failure::configuration(what, "give --health 127.0.0.1:9091").into());
        }
        let Some(address) = self.admin else {
            let has_flags = self.admin_token_file.is_some()
                || !self.admin_host.is_empty()
                || self.admin_tls
                || self.admin_insecure;
            if has_flags {
                let what = "--admin-token-file, --admin-host, --admin-tls and --admin-insecure are for an admin server, and there is none";
                return Err(Failure::configuration(what, "give --admin 127.0.0.1:9090").into());
            }
            let health = health.transpose()?;
            return Ok(AdminServers {
                admin: None,
                health,
            });
        };
        let settings = self.settings(tls, forwarders)?;
        let settings = settings.ipv6_only(leaves_ipv4(address, self.health));
        let bound = Admin::bind(address, settings);
        Ok(AdminServers {
            admin: Some(bound.map_err(|error| refused("--admin", &error))?),
            health: health.transpose()?,
        })
    }

    /// The settings of the address for everything.
    fn settings(&self, tls: Option<ServerTls>, forwarders: &[String]) -> Result<Settings, Failure> {
        let mut settings = Settings::default()
            .allow_plaintext(self.admin_insecure)
            .needs_backplane(self.ready_needs_backplane)
            .on_drain(once(SIGTERM))
            .on_reload(|| send(SIGHUP));
        if let Some(file) = &self.admin_token_file {
            let token = Token::read(file);
            let token = token.map_err(|error| Failure::configuration(error.to_string(), TOKEN))?;
            settings = settings.token(token);
        }
        for network in forwarders {
            let listed = settings.forwarded_for_from(network);
            settings = listed.map_err(|error| {
                Failure::configuration(format!("--forwarded-for-from: {error}"), "")
            })?;
        }
        for host in &self.admin_host {
            let named = settings.host(host);
            settings = named.map_err(|error| {
                Failure::configuration(error.to_string(), "correct --admin-host")
            })?;
        }
        match (self.admin_tls, tls) {
            (false, _) => Ok(settings),
            (true, Some(tls)) => Ok(settings.tls(tls)),
            (true, None) => Err(Failure::configuration(
                "--admin-tls needs a certificate",
                "give --tls-cert FILE --tls-key FILE; `tidewire cert dev` makes a pair for tests",
            )),
        }
    }
}

/// A name such as localhost may have several addresses, so the flag takes none. A link-local address may have a zone,
/// the name of its interface.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let wanted = "use an IP address and a port, such as 127.0.0.1:9090 or [::1]:9090";
    let other = || format!("it is no address to listen on; {wanted}; port 0 takes a free one");
    let without_zone = match (text.find('%'), text.find(']')) {
        (Some(zone), Some(end)) if zone < end => text[..zone].to_owned() + &text[end..],
        _ => text.to_owned(),
    };
    let numbers: Result<SocketAddr, _> = without_zone.parse();
    numbers.map_err(|_| other())?;
    let address: Address = text.parse().map_err(|_| other())?;
    let endpoint = address.resolve().map_err(|error| error.to_string())?;
    endpoint.socket_address().ok_or_else(other)
}

/// Whether a listener at `[::]` leaves IPv4 to the other address for operators.
fn leaves_ipv4(own: SocketAddr, other: Option<SocketAddr>) -> bool {
    other.is_some_and(|other| Endpoint::from(own).leaves_ipv4_to(&other.into()))
}

/// Refuses an address that the server has, too. The one that is bound second would be in use, by this process itself.
fn check_apart(flag: &str, own: SocketAddr, binds: &[String]) -> Result<(), Failure> {
    let own = Endpoint::from(own);
    for bind in binds {
        // An address with a mistake is refused where it is bound.
        let address = bind.parse::<Address>();
        let endpoints = address.and_then(|it| it.resolve_all()).unwrap_or_default();
        if endpoints.iter().any(|it| it.excludes(&own)) {
            let what = format!("{flag} {own} and --bind {bind} have the same port");
            return Err(Failure::configuration(
                what,
                format!("give {flag} another port"),
            ));
        }
    }
    Ok(())
}

fn refused(flag: &str, error: &AdminError) -> Failure {
    let remedy = match error {
        AdminError::NoToken(_) => {
            "give --admin-token-file, or --admin 127.0.0.1:PORT; --health IP:PORT is enough for a load balancer".to_owned()
        }
        AdminError::Plaintext(_) => {
            "give --admin-tls, or --admin 127.0.0.1:PORT; --health IP:PORT is enough for a load balancer; or say --admin-insecure in a \
             closed network"
                .to_owned()
        }
        AdminError::Tls(_) => "correct --tls-cert and --tls-key".to_owned(),
        _ => format!("give another {flag} IP:PORT; port 0 takes a free one"),
    };
    Failure::configuration(error.to_string(), remedy)
}

/// The actions are the signals of an operator, so that both ways do the same. A second SIGTERM would end the process at
/// once.
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
            let outcome = check_apart("--admin", admin.parse().unwrap(), &[bind.to_owned()]);
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

    /// Regression: the admin listener took what the system's `bindv6only` says, and the second one was in use, in one
    /// order or in both.
    #[test]
    fn the_addresses_for_operators_may_be_all_of_each_family_at_one_port() {
        use std::net::TcpStream;

        let free = std::net::TcpListener::bind("[::]:0");
        let Some(port) = free.ok().and_then(|it| it.local_addr().ok()) else {
            return; // This machine has no IPv6.
        };
        let port = port.port();
        let [four, six] = ["0.0.0.0", "[::]"].map(|host| format!("{host}:{port}").parse().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "a-long-and-random-text").unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let arguments = |admin, health| AdminArguments {
            admin: Some(admin),
            admin_token_file: Some(file.clone()),
            admin_host: Vec::new(),
            admin_tls: false,
            admin_insecure: true,
            health,
            health_metrics: false,
            ready_needs_backplane: false,
        };
        for (admin, health) in [(four, Some(six)), (six, Some(four)), (six, None)] {
            let bound = arguments(admin, health).bind(None, &[], &[]).unwrap();
            assert_eq!(bound.health.is_some(), health.is_some());
            for host in ["127.0.0.1", "[::1]"] {
                TcpStream::connect(format!("{host}:{port}")).unwrap();
            }
        }
        let same = arguments(four, Some(four))
            .bind(None, &[], &[])
            .unwrap_err();
        assert!(same.to_string().contains("have the same port"), "{same}");
    }

    /// Regression: an address without its interface was refused as an invalid argument.
    #[test]
    fn a_link_local_address_needs_its_interface() {
        let error = parse_address("[fe80::1]:9090").unwrap_err();
        assert!(error.contains("[fe80::1%eth0]"), "{error}");
        let found = parse_address("[fe80::1%lo]:9090").unwrap();
        assert_eq!(
            (found.ip(), found.port()),
            ("fe80::1".parse().unwrap(), 9_090)
        );
        for other in [
            "localhost:9090",
            "fe80::1%lo:9090",
            "tcp://127.0.0.1:1",
            "[::1%]:",
        ] {
            let error = parse_address(other).unwrap_err();
            assert!(error.contains("IP address and a port"), "{other}: {error}");
        }
    }
}
