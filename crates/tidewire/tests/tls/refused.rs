//! Connections that TLS must refuse: each side says why, and what to do.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};
use tidewire::tls::{ClientTls, Pem, ServerTls, TlsFault};
use tidewire::{Client, CloseReason, ConnectError, Endpoint, Server};
use tidewire_proto::layer::LayerError;
use tidewire_testkit::certificates::{Authority, HOSTS, Identity, usual};
use tidewire_testkit::fixtures::{codec, echo, limited, tw1};
use tidewire_testkit::{DEADLINE, TestServer};

use crate::{ask, connect, fault, logs, serve, serve_as};

/// Connects to a server with this certificate, and returns why the client refused it.
fn refusal_of(identity: &Identity) -> TlsFault {
    let server = serve(identity.server());
    let fault = fault(connect(&server, usual().0.client()));
    let metrics = server.wait_for("the server knows", |metrics| {
        metrics.closed_by("layer") == 1
    });
    assert_eq!(metrics.frames_in, 0);
    server.stop();
    fault
}

#[test]
fn certificates_that_a_client_must_not_accept_are_refused_by_their_fault() {
    let (authority, _) = usual();
    let expired = authority.sign(&HOSTS, |params| {
        params.not_after = date_time_ymd(2020, 1, 1);
    });
    assert_eq!(refusal_of(&expired), TlsFault::Expired);
    let early = authority.sign(&HOSTS, |params| {
        params.not_before = date_time_ymd(2100, 1, 1);
    });
    assert_eq!(refusal_of(&early), TlsFault::NotYetValid);
    let elsewhere = authority.sign(&["elsewhere.example"], |_| {});
    assert_eq!(refusal_of(&elsewhere), TlsFault::WrongHost);
    let unknown = Authority::new("nobody knows it").sign_server();
    assert_eq!(refusal_of(&unknown), TlsFault::UnknownIssuer);
    let purpose = authority.sign(&HOSTS, |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    assert_eq!(refusal_of(&purpose), TlsFault::WrongPurpose);

    let key = KeyPair::generate().unwrap();
    let hosts = HOSTS.map(str::to_owned);
    let certificate = CertificateParams::new(hosts)
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let chain = certificate.pem();
    let key = key.serialize_pem();
    assert_eq!(
        refusal_of(&Identity { chain, key }),
        TlsFault::UnknownIssuer
    );
}

#[test]
fn the_server_name_may_be_set() {
    let (authority, _) = usual();
    let server = serve(authority.sign(&["elsewhere.example"], |_| {}).server());
    let settings = authority.client().server_name("elsewhere.example");
    let client = connect(&server, settings).unwrap();
    ask(&client, b"hello");
    drop(client);
    server.stop();
}

#[test]
fn the_system_does_not_trust_the_authority_of_a_test() {
    let server = serve(usual().1.server());
    match connect(&server, ClientTls::new()) {
        // A machine without any authorities says so instead.
        Err(ConnectError::Start(error)) => assert!(error.to_string().contains("ca-certificates")),
        outcome => assert_eq!(fault(outcome), TlsFault::UnknownIssuer),
    }
    server.stop();
}

/// Regression: a CA file replaced the authorities of the system.
#[test]
fn a_ca_file_is_trusted_beside_the_system_and_refuses_by_the_same_faults() {
    let (authority, identity) = usual();
    let beside = || ClientTls::new().ca(authority.pem());
    let server = serve(identity.server());
    ask(&connect(&server, beside()).unwrap(), b"hello");
    let alone = ClientTls::new().only_ca(authority.pem());
    ask(&connect(&server, alone).unwrap(), b"hello");
    server.stop();
    let purpose = authority.sign(&HOSTS, |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    let unknown = Authority::new("nobody knows it").sign_server();
    let elsewhere = authority.sign(&["elsewhere.example"], |_| {});
    for (identity, expected) in [
        (purpose, TlsFault::WrongPurpose),
        (unknown, TlsFault::UnknownIssuer),
        (elsewhere, TlsFault::WrongHost),
    ] {
        let server = serve(identity.server());
        assert_eq!(fault(connect(&server, beside())), expected);
        server.stop();
    }
}

#[test]
fn a_chain_that_is_too_long_to_read_is_refused() {
    let (authority, identity) = usual();
    let chain = [identity.chain.as_str(), &authority.text().repeat(200)].concat();
    assert!(chain.len() > 64 << 10);
    let long = Identity {
        chain,
        key: identity.key.clone(),
    };
    assert_eq!(refusal_of(&long), TlsFault::ChainTooLong);
}

#[test]
fn two_codecs_find_out_in_the_handshake() {
    let (authority, identity) = usual();
    let builder = Server::builder().tls(identity.server());
    let server = TestServer::over_tls(builder, &codec("lines"), |_| echo);
    let refused = fault(connect(&server, authority.client()));
    assert_eq!(refused, TlsFault::Alert(120));
    server.stop();
}

#[test]
fn tls_1_2_is_an_option_of_the_server() {
    let (authority, identity) = usual();
    for (tls, works) in [
        (identity.server(), false),
        (identity.server().allow_tls12(), true),
    ] {
        let server = serve(tls);
        let address = server.url().replace("tls://", "");
        let mut openssl = std::process::Command::new("openssl");
        let outcome = openssl
            .args(["s_client", "-tls1_2", "-brief", "-connect", &address])
            .stdin(std::process::Stdio::null())
            .output();
        let Ok(outcome) = outcome else {
            crate::foreign::missing("openssl");
            return;
        };
        let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
        assert_eq!(said.contains("TLSv1.2"), works, "{said}");
        let client = connect(&server, authority.client()).unwrap();
        ask(&client, b"1.3 as well");
        drop(client);
        drop(server);
    }
}

/// The text of the error that a client of `address` gets.
fn error_text(builder: tidewire::ClientBuilder, address: &str) -> String {
    builder.connect(address).wait().unwrap_err().to_string()
}

#[test]
fn plain_text_on_a_tls_port_and_tls_on_a_plain_port_are_said_to_the_client_and_the_log() {
    let (authority, identity) = usual();
    let logs = logs();
    let said = || logs.text();
    let sealed = serve(identity.server());
    let plain_address = sealed.url().replace("tls://", "tcp://");
    let text = error_text(Client::builder(), &plain_address);
    assert!(
        text.contains("the peer speaks TLS") && text.contains("tls://"),
        "{text}"
    );
    let metrics = sealed.wait_for("it is counted", |metrics| metrics.closed_by("layer") == 1);
    assert_eq!(metrics.frames_in, 0);
    sealed.stop();
    assert!(said().contains("TLS failed: the peer does not speak TLS here"));

    let plain = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let sealed_address = plain.url().replace("tcp://", "tls://");
    let builder = Client::builder().tls(authority.client());
    let text = error_text(builder, &sealed_address);
    assert!(
        text.contains("does not speak TLS") && text.contains("tcp://"),
        "{text}"
    );
    plain.wait_for("it is counted", |metrics| metrics.closed_by("layer") == 1);
    plain.stop();
    assert!(said().contains("TLS failed: the peer speaks TLS, and this side does not"));
}

#[test]
fn a_handshake_that_never_ends_is_timed_out_and_counted_in_memory() {
    const PEERS: usize = 50;
    let short = |limits: &mut tidewire::Limits| {
        limits
            .connections
            .set_handshake_timeout(Duration::from_millis(300));
    };
    let server = serve_as(limited(short), usual().1.server());
    let Endpoint::Tls(address) = *server.address() else {
        panic!("an address of TLS");
    };
    let peers: Vec<TcpStream> = (0..PEERS)
        .map(|_| {
            let mut peer = TcpStream::connect(address).unwrap();
            // The beginning of a record that promises more.
            peer.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
            peer
        })
        .collect();
    server.wait_for("memory is counted", |metrics| {
        metrics.memory_bytes > 100_000 || metrics.closed_by("handshake_timeout") > 0
    });
    server.wait_for("all are closed", |metrics| {
        metrics.closed_by("handshake_timeout") == PEERS as u64
    });
    for mut peer in peers {
        let mut alert = Vec::new();
        peer.read_to_end(&mut alert).unwrap();
        assert_eq!(alert[..3], [21, 3, 3]);
    }
    server.stop();
}

#[test]
fn the_end_without_its_record_is_a_reset() {
    let server = serve(usual().1.server());
    let peer = server.peer();
    drop(peer);
    server.wait_for("it counts as a reset", |metrics| {
        metrics.closed_by("peer_reset") == 1
    });
    let peer = server.peer();
    peer.finish_writing();
    server.wait_for("it counts as an end", |metrics| {
        metrics.closed_by("peer_closed") == 1
    });
    server.stop();
}

#[test]
fn a_server_without_a_certificate_does_not_start() {
    let builder = Server::builder().listen("tls://127.0.0.1:0").unwrap();
    let error = builder.start(|_| echo).unwrap_err().to_string();
    assert!(error.contains("without a certificate"), "{error}");
}

#[test]
fn a_key_of_another_certificate_is_refused_at_the_start() {
    let (authority, identity) = usual();
    let other = authority.sign_server();
    let (chain, _) = identity.pair();
    let (_, key) = other.pair();
    let tls = ServerTls::new(chain.clone(), key.clone());
    let builder = Server::builder()
        .listen("tls://127.0.0.1:0")
        .unwrap()
        .tls(tls);
    let error = builder.start(|_| echo).unwrap_err().to_string();
    assert!(
        error.contains("is not the key of the certificate"),
        "{error}"
    );
    let client = Client::builder().tls(authority.client().identity(chain, key));
    let error = error_text(client, "tls://127.0.0.1:1");
    assert!(
        error.contains("is not the key of the certificate"),
        "{error}"
    );
}

#[test]
fn a_name_that_no_certificate_can_have_is_refused() {
    let settings = ClientTls::new().ca(Pem::bytes(usual().0.text().as_bytes()));
    let builder = Client::builder().tls(settings.server_name("not a name"));
    let error = error_text(builder, "tls://127.0.0.1:1");
    assert!(error.contains("\"not a name\" is no name"), "{error}");
}

#[test]
fn handlers_never_connect_in_plain_text_where_tls_is_asked_for() {
    let server = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    let make = |cx: &mut tidewire::Context<'_>, _: tidewire::Message<'_>| {
        let endpoint = Endpoint::Tls(([127, 0, 0, 1], 1).into());
        let refused = cx.connections().connect(&endpoint).unwrap_err();
        assert!(matches!(refused, ConnectError::NoTls), "{refused}");
        cx.reply(refused.to_string().as_bytes())
    };
    let server = server.start(move |_| make).unwrap();
    let client = Client::connect(&server.to_string()).wait().unwrap();
    client.request(b"").wait().unwrap();
    drop(client);
    assert_eq!(server.shutdown(DEADLINE).failures, [""; 0]);
}

#[test]
fn a_layer_error_of_tls_is_told_with_its_remedy() {
    let reason = CloseReason::Layer(LayerError::Tls(TlsFault::UnknownIssuer));
    let text = reason.to_string();
    assert!(
        text.starts_with("TLS failed: ") && text.contains("CA file"),
        "{text}"
    );
}
