//! Refuses to serve a network without protection, unless that is said.

use std::os::unix::ffi::OsStrExt;

use tidewire::Endpoint;
use tidewire::address::Address;

use crate::failure::Failure;

/// The protection of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Protection {
    /// It finds out who its peers are.
    pub(super) authenticates: bool,
    /// `--insecure` was said.
    pub(super) is_waived: bool,
}

/// Refuses an address that others reach, unless peers are known, and the connection is encrypted or stays on this
/// machine.
///
/// # Errors
/// The first such address, with the remedies.
pub(super) fn check(binds: &[String], protection: Protection) -> anyhow::Result<()> {
    for bind in binds {
        let endpoints = bind.parse::<Address>()?.resolve_all()?;
        for endpoint in &endpoints {
            check_endpoint(bind, endpoint, protection)?;
        }
    }
    Ok(())
}

/// Refuses proxies that everybody can be.
///
/// # Errors
/// A range has all addresses in it, so that every peer could claim any address.
pub(super) fn check_proxies(
    flag: &str,
    networks: &[String],
    is_waived: bool,
) -> Result<(), Failure> {
    let is_everybody = |network: &&String| network.trim().ends_with("/0");
    match networks.iter().find(is_everybody) {
        Some(network) if !is_waived => Err(Failure::configuration(
            format!("{flag} {network} lets every peer say that it is another one"),
            "list the addresses of the proxies; or say --insecure in a closed network",
        )),
        _ => Ok(()),
    }
}

/// As [`check`], for the endpoints that a server listens on.
pub(super) fn check_endpoints(
    endpoints: &[Endpoint],
    protection: Protection,
) -> Result<(), Failure> {
    let mut endpoints = endpoints.iter();
    endpoints.try_for_each(|it| check_endpoint(&it.to_string(), it, protection))
}

fn check_endpoint(bind: &str, endpoint: &Endpoint, protection: Protection) -> Result<(), Failure> {
    if protection.is_waived {
        return Ok(());
    }
    let (reached_by, lacks, remedy) = match (endpoint.is_tls(), protection.authenticates) {
        (_, false) if is_abstract(endpoint) => ("every user of this machine", "users", LOCAL),
        _ if endpoint.is_local() => return Ok(()),
        (true, true) => return Ok(()),
        (false, false) => ("other machines", "encryption and users", REMOTE),
        (false, true) => ("other machines", "encryption", REMOTE),
        (true, false) => ("other machines", "users", REMOTE),
    };
    let what = format!("{bind} is reached by {reached_by}, and this server has no {lacks}");
    Err(Failure::configuration(what, remedy))
}

/// Whether it is a name of Linux's abstract namespace, which has no file and so no mode.
fn is_abstract(endpoint: &Endpoint) -> bool {
    matches!(endpoint, Endpoint::Unix(path) if path.as_os_str().as_bytes().starts_with(b"@"))
}

const REMOTE: &str = "listen on tls:// or wss:// with --tls-cert and --tls-key, and name users by --auth-tokens, --auth-jwt or [[users]]; or listen on \
                      127.0.0.1, ::1 or ipc:// only; or say --insecure in a closed network";

const LOCAL: &str = "listen on ipc://PATH, whose file only your own user may use; or name users by --auth-tokens, --auth-jwt or [[users]]; or \
                     say --insecure";

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(bind: &str, authenticates: bool) -> Option<String> {
        let protection = Protection {
            authenticates,
            is_waived: false,
        };
        check(&[bind.to_owned()], protection)
            .err()
            .map(|error| error.to_string())
    }

    #[test]
    fn encrypted_addresses_need_users_only() {
        for bind in ["tls://0.0.0.0:0", "wss://0.0.0.0:0/chat"] {
            let one = refusal(bind, false).expect(bind);
            assert!(one.ends_with("has no users"), "{one}");
            assert_eq!(refusal(bind, true), None, "{bind}");
        }
    }

    #[test]
    fn only_addresses_of_this_machine_are_served_without_protection() {
        for bind in [
            "tcp://127.0.0.1:0",
            "tcp://[::1]:0",
            "udp://127.0.0.2:0",
            "tls://127.0.0.1:0",
            "tcp://[::ffff:127.0.0.1]:0",
            "tcp://localhost:0",
            "ws://127.0.0.1:0/chat",
            "ipc:///tmp/x",
        ] {
            assert_eq!(refusal(bind, false), None, "{bind}");
        }
        for bind in [
            "tcp://0.0.0.0:0",
            "tcp://[::]:0",
            "udp://192.0.2.1:0",
            "tcp://*:0",
            "udp://[::]:0",
            "ws://0.0.0.0:0/chat",
        ] {
            let both = refusal(bind, false).expect(bind);
            assert!(both.contains("encryption and users"), "{both}");
            let one = refusal(bind, true).expect(bind);
            assert!(one.ends_with("has no encryption"), "{one}");
            let waived = Protection {
                authenticates: false,
                is_waived: true,
            };
            assert!(check(&[bind.to_owned()], waived).is_ok());
        }
    }

    #[test]
    fn encryption_without_users_is_not_enough_beyond_this_machine() {
        for bind in ["tls://0.0.0.0:0", "tls://[::]:0", "tls://192.0.2.1:0"] {
            let text = refusal(bind, false).expect(bind);
            assert!(text.ends_with("has no users"), "{text}");
            assert_eq!(refusal(bind, true), None, "{bind}");
        }
    }

    /// An abstract name has no file, so every local user could connect to a server without users.
    #[test]
    fn an_abstract_name_is_served_to_known_users_only() {
        let refused = refusal("ipc://@chat", false).unwrap();
        assert!(
            refused.contains("every user of this machine") && refused.ends_with("has no users"),
            "{refused}"
        );
        assert_eq!(refusal("ipc://@chat", true), None);
    }

    /// The bug: everybody might claim every address, without a word.
    #[test]
    fn not_everybody_is_a_proxy() {
        let check = |network: &str, is_waived| {
            check_proxies("--proxy-protocol-from", &[network.to_owned()], is_waived).is_ok()
        };
        assert!(check("10.0.0.0/8", false));
        assert!(check("192.0.2.1", false));
        for network in ["0.0.0.0/0", "::/0"] {
            assert!(!check(network, false), "{network}");
            assert!(check(network, true), "{network}");
        }
    }

    #[test]
    fn one_of_several_addresses_is_enough_for_a_refusal() {
        let binds = ["ipc:///tmp/x", "tls://0.0.0.0:0", "tcp://0.0.0.0:0"].map(str::to_owned);
        let protection = Protection {
            authenticates: true,
            is_waived: false,
        };
        let error = check(&binds, protection).unwrap_err().to_string();
        assert!(error.starts_with("tcp://0.0.0.0:0 is reached"), "{error}");
        check(&binds[..2], protection).unwrap();
    }

    /// Names were resolved for the check and again for the listener, which took the second answer.
    #[test]
    fn the_endpoints_that_a_server_listens_on_are_checked_too() {
        let protection = Protection {
            authenticates: true,
            is_waived: false,
        };
        let listening = |bind: &str| [bind.parse::<Address>().unwrap().resolve().unwrap()];
        for bind in ["tcp://127.0.0.1:1", "tls://192.0.2.1:1"] {
            assert!(check_endpoints(&listening(bind), protection).is_ok());
        }
        for bind in ["tcp://192.0.2.1:1", "udp://[::]:1"] {
            let refused = check_endpoints(&listening(bind), protection).unwrap_err();
            assert!(refused.to_string().starts_with(bind), "{refused}");
        }
    }
}
