//! Handshakes that are resumed, as the library says on both sides.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use rcgen::{CertificateParams, KeyPair};
use rustls::HandshakeKind::{self, Full, Resumed};
use rustls::{ClientConnection, ServerConnection};

use super::acceptor::HTTP;
use super::*;

/// Settings of servers without and with client certificates, and of their clients.
fn settings() -> [(ServerTls, ClientTls); 2] {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let chain = Pem::bytes(params.self_signed(&key).unwrap().pem().into_bytes());
    let key = Pem::bytes(key.serialize_pem().into_bytes());
    let server = ServerTls::new(chain.clone(), key);
    let client = ClientTls::new().only_ca(chain.clone());
    let asking = server.clone().accept_clients_of(chain);
    [(server, client.clone()), (asking, client)]
}

fn connector(settings: &ClientTls, protocol: Option<&'static str>) -> Connector {
    let configs = ClientConfigs::load(settings).unwrap();
    Connector::new(&configs, "localhost", protocol).unwrap()
}

/// Moves bytes between the two until nothing is left.
fn exchange(client: &mut ClientConnection, server: &mut ServerConnection) {
    while client.wants_write() || server.wants_write() {
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        while client.wants_write() {
            client.write_tls(&mut to_server).unwrap();
        }
        while server.wants_write() {
            server.write_tls(&mut to_client).unwrap();
        }
        let (mut to_server, mut to_client) = (&to_server[..], &to_client[..]);
        while !to_server.is_empty() {
            server.read_tls(&mut to_server).unwrap();
            server.process_new_packets().unwrap();
        }
        while !to_client.is_empty() {
            client.read_tls(&mut to_client).unwrap();
            client.process_new_packets().unwrap();
        }
    }
}

/// One connection. Returns the kind of its handshake. It never has early data.
fn kind(connector: &Connector, acceptor: &Acceptor) -> HandshakeKind {
    let mut client = connector.connection().unwrap();
    let mut server = acceptor.connection("tw1").unwrap();
    assert!(client.early_data().is_none(), "no 0-RTT is offered");
    exchange(&mut client, &mut server);
    assert!(server.early_data().is_none(), "no 0-RTT is accepted");
    assert_eq!(client.handshake_kind(), server.handshake_kind());
    assert!(!client.is_early_data_accepted());
    server.handshake_kind().unwrap()
}

#[test]
fn the_second_connection_of_a_client_is_resumed_unless_certificates_of_clients_are_asked_for() {
    for ((server, client), second) in settings().into_iter().zip([Resumed, Full]) {
        let acceptor = Acceptor::load(server, ["tw1"]).unwrap();
        let connector = connector(&client, Some("tw1"));
        let kinds = [(); 3].map(|()| kind(&connector, &acceptor));
        assert_eq!(kinds, [Full, second, second]);
        // The lanes of a gateway share the tickets of an upstream.
        let other = connector.with_protocol("tw1");
        assert_eq!(kind(&other, &acceptor), second);
        // The same certificate is not taken again, so tickets keep their worth.
        assert!(!acceptor.reload().unwrap());
        assert_eq!(kind(&connector, &acceptor), second);
    }
}

#[test]
fn tickets_are_worth_nothing_after_another_certificate_was_taken() {
    let folder = tempfile::tempdir().unwrap();
    let [chain_path, key_path] = ["server.pem", "server.key"].map(|name| folder.path().join(name));
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let chain = params.self_signed(&key).unwrap().pem();
    fs::write(&chain_path, &chain).unwrap();
    fs::write(&key_path, key.serialize_pem()).unwrap();
    fs::set_permissions(&key_path, Permissions::from_mode(0o600)).unwrap();
    let server = ServerTls::new(&*chain_path, &*key_path);
    let acceptor = Acceptor::load(server, ["tw1"]).unwrap();
    let client = ClientTls::new().only_ca(Pem::bytes(chain.clone().into_bytes()));
    let connector = connector(&client, Some("tw1"));
    let kinds = [(); 2].map(|()| kind(&connector, &acceptor));
    assert_eq!(kinds, [Full, Resumed]);
    fs::write(&chain_path, chain + "# renewed\n").unwrap();
    assert!(acceptor.reload().unwrap());
    assert_eq!(kind(&connector, &acceptor), Full);
}

/// Regression: at `wss://` a server knew the codec's name only, and browsers, which offer `http/1.1`, were refused.
#[test]
fn browsers_agree_on_http_at_wss_and_on_nothing_at_tls() {
    let [(server, client), _] = settings();
    let acceptor = Acceptor::load(server, ["tw1"]).unwrap();
    for (offered, is_web, is_accepted) in [
        (Some(HTTP), true, true),
        (None, true, true),
        (Some("h2"), true, false),
        (Some(HTTP), false, false),
        (Some("tw1"), false, true),
    ] {
        let connector = connector(&client, offered);
        let mut client = connector.connection().unwrap();
        let mut server = acceptor
            .connection(if is_web { HTTP } else { "tw1" })
            .unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        server.read_tls(&mut &hello[..]).unwrap();
        let outcome = server.process_new_packets();
        assert_eq!(outcome.is_ok(), is_accepted, "{offered:?}, {is_web}");
    }
}

fn trusts(connector: &Connector, server: &ServerTls) -> bool {
    let acceptor = Acceptor::load(server.clone(), ["tw1"]).unwrap();
    let mut client = connector.connection().unwrap();
    let mut server = acceptor.connection("tw1").unwrap();
    let (mut hello, mut answer) = (Vec::new(), Vec::new());
    client.write_tls(&mut hello).unwrap();
    server.read_tls(&mut &hello[..]).unwrap();
    server.process_new_packets().unwrap();
    while server.wants_write() {
        server.write_tls(&mut answer).unwrap();
    }
    client.read_tls(&mut &answer[..]).unwrap();
    client.process_new_packets().is_ok()
}

/// Regression: a client read its authorities and its certificate once, and could not connect after a renewal.
#[test]
fn files_of_a_client_are_read_again_and_unusable_ones_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    let [(old, _), (new, _)] = [settings()[0].clone(), settings()[0].clone()];
    let put = |text: &[u8]| {
        let next = ca.with_extension("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, &ca).unwrap();
    };
    let chain = |server: &ServerTls| match &server.chain {
        Pem::Bytes(bytes) => bytes.to_vec(),
        Pem::File(_) => panic!("it is given as bytes"),
    };
    put(&chain(&old));
    let configs = ClientConfigs::load(&ClientTls::new().only_ca(ca.as_path())).unwrap();
    assert!(configs.has_files());
    let connector = Connector::new(&configs, "localhost", Some("tw1")).unwrap();
    configs.refresh();
    assert!(trusts(&connector, &old) && !trusts(&connector, &new));

    put(b"no certificate");
    configs.refresh();
    assert!(trusts(&connector, &old), "the old ones stay");
    fs::remove_file(&ca).unwrap();
    configs.refresh();
    assert!(trusts(&connector, &old), "the old ones stay");

    put(&chain(&new));
    configs.refresh();
    assert!(trusts(&connector, &new) && !trusts(&connector, &old));
    let bytes = ClientConfigs::load(&settings()[0].1).unwrap();
    assert!(!bytes.has_files(), "bytes do not change");
}

/// Regression: the zone was taken for a part of the name, and `tls://[fe80::1%eth0]` could not be connected to.
#[test]
fn the_zone_of_an_address_is_in_no_certificate() {
    let configs = ClientConfigs::load(&settings()[0].1).unwrap();
    assert!(Connector::new(&configs, "fe80::1%eth0", None).is_ok());
    assert!(Connector::new(&configs, "server%eth0", None).is_err());
}
