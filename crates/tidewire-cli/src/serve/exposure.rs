//! Refuses to serve a network without protection, unless that is said.

use tidewire::{Address, Endpoint, SocketAddress};

use crate::failure::Failure;

/// The protection of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Protection {
    /// It finds out who its peers are.
    pub(super) authenticates: bool,
    /// `--insecure` was said.
    pub(super) is_waived: bool,
}

/// Refuses an address that other machines reach, unless peers are known and the connection is encrypted.
///
/// # Errors
/// The first such address, with both remedies.
pub(super) fn check(binds: &[String], protection: Protection) -> anyhow::Result<()> {
    if protection.is_waived {
        return Ok(());
    }
    for bind in binds {
        let address: Address = bind.parse()?;
        let is_encrypted = is_encrypted(bind);
        if !is_beyond_this_machine(&address)? || (is_encrypted && protection.authenticates) {
            continue;
        }
        let lacks = match (is_encrypted, protection.authenticates) {
            (false, false) => "encryption and users",
            (false, true) => "encryption",
            (true, _) => "users",
        };
        let what = format!("{bind} is reached by other machines, and this server has no {lacks}");
        let remedy = "listen on tls:// with --tls-cert and --tls-key, and name users by --auth-tokens, --auth-jwt or [[users]]; or listen on \
                      127.0.0.1, ::1 or ipc:// only; or say --insecure in a closed network";
        return Err(Failure::configuration(what, remedy).into());
    }
    Ok(())
}

/// Whether connections to an address are encrypted.
fn is_encrypted(bind: &str) -> bool {
    bind.starts_with("tls://")
}

/// Whether other machines may reach an address.
fn is_beyond_this_machine(address: &Address) -> anyhow::Result<bool> {
    if address.host().is_none() {
        return Ok(false);
    }
    Ok(address.resolve_all()?.iter().any(is_beyond))
}

/// Whether other machines may reach an endpoint. A host may have several.
fn is_beyond(endpoint: &Endpoint) -> bool {
    match endpoint {
        Endpoint::Socket(SocketAddress::Tcp(address))
        | Endpoint::Tls(address)
        | Endpoint::Udp(address) => !address.ip().to_canonical().is_loopback(),
        _ => false,
    }
}

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
    fn only_addresses_of_this_machine_are_served_without_protection() {
        for bind in [
            "tcp://127.0.0.1:0",
            "tcp://[::1]:0",
            "udp://127.0.0.2:0",
            "tls://127.0.0.1:0",
            "tcp://[::ffff:127.0.0.1]:0",
            "tcp://localhost:0",
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

    #[test]
    fn one_of_several_addresses_is_enough_for_a_refusal() {
        let binds = ["ipc:///tmp/x", "tls://0.0.0.0:0", "tcp://0.0.0.0:0"];
        let protection = Protection {
            authenticates: true,
            is_waived: false,
        };
        let binds: Vec<String> = binds.map(str::to_owned).into();
        let error = check(&binds, protection).unwrap_err().to_string();
        assert!(error.starts_with("tcp://0.0.0.0:0 is reached"), "{error}");
        check(&binds[..2], protection).unwrap();
        // A name may stand for this machine and for its address in the network.
        let of_one_host = ["tcp://127.0.0.1:0", "tcp://192.0.2.1:0"];
        let endpoints = of_one_host.map(|it| it.parse::<Address>().unwrap().resolve().unwrap());
        assert_eq!(endpoints.map(|it| is_beyond(&it)), [false, true]);
    }
}
