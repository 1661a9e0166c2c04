//! A new certificate while the server runs: open sessions continue, new sessions use it, and a broken certificate
//! changes nothing.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tidewire::tls::{ClientTls, ServerTls, TlsError, TlsFault};
use tidewire::{Backoff, Client};
use tidewire_testkit::DEADLINE;
use tidewire_testkit::certificates::{Authority, Identity};

use crate::{ask, connect, fault, logs, serve};

/// Replaces a file by another, as programs that renew certificates do.
fn replace(path: &Path, content: &str) {
    let next = path.with_extension("next");
    fs::write(&next, content).unwrap();
    fs::set_permissions(&next, Permissions::from_mode(0o600)).unwrap();
    fs::rename(next, path).unwrap();
}

fn put(directory: &TempDir, identity: &Identity) -> ServerTls {
    let [chain, key] = ["server.pem", "server.key"].map(|name| directory.path().join(name));
    replace(&chain, &identity.chain);
    replace(&key, &identity.key);
    ServerTls::new(chain, key)
}

#[test]
fn new_connections_use_the_new_pair_and_a_broken_one_changes_nothing() {
    let directory = TempDir::new().unwrap();
    let [old, new] = ["old", "new"].map(Authority::new);
    let server = serve(put(&directory, &old.sign_server()));
    let certificate = server.server().tls_acceptor().unwrap();
    let logs = logs();
    let first = connect(&server, old.client()).unwrap();
    ask(&first, b"before");
    assert!(
        !certificate.reload_if_changed().unwrap(),
        "nothing has changed"
    );

    // The key belongs to another certificate.
    let broken = Identity {
        chain: new.sign_server().chain,
        key: new.sign_server().key,
    };
    put(&directory, &broken);
    let refused = certificate.reload_if_changed().unwrap_err();
    assert!(matches!(refused, TlsError::KeyMismatch { .. }), "{refused}");
    let key = directory.path().join("server.key");
    let said = format!("the old one stays error=the key {}", key.display());
    assert!(logs.text().contains(&said), "{said}");
    assert!(
        !certificate.reload_if_changed().unwrap(),
        "it is refused once"
    );
    ask(
        &connect(&server, old.client()).unwrap(),
        b"the old one stays",
    );

    put(&directory, &new.sign_server());
    assert!(certificate.reload_if_changed().unwrap());
    ask(&connect(&server, new.client()).unwrap(), b"the new one");
    assert_eq!(
        fault(connect(&server, old.client())),
        TlsFault::UnknownIssuer
    );
    ask(&first, b"no session has ended");

    let metrics = server.metrics();
    assert_eq!((metrics.tls_reloads, metrics.tls_reloads_refused), (1, 1));
    drop(first);
    server.stop();
}

#[test]
fn a_client_of_a_removed_authority_does_not_return_by_its_ticket() {
    let directory = TempDir::new().unwrap();
    let servers = Authority::new("servers");
    let clients = Authority::new("clients");
    let ca = directory.path().join("clients.pem");
    replace(&ca, clients.text());
    let settings = put(&directory, &servers.sign_server());
    let server = serve(settings.require_clients_of(ca.as_path()));
    let (chain, key) = clients.sign_client("ann").pair();
    let settings = servers.client().identity(chain, key);
    // A client's tickets live as long as the client, so the client must be the same.
    let builder = Client::builder().tls(settings);
    let client = builder.reconnect(Backoff::default()).connect(&server.url());
    let client = client.wait().unwrap();
    ask(&client, b"known");

    replace(&ca, Authority::new("others").text());
    assert!(
        server
            .server()
            .tls_acceptor()
            .unwrap()
            .reload_if_changed()
            .unwrap()
    );
    for session in server.server().sessions().list() {
        session.close().unwrap();
    }
    server.wait_for("it is refused", |metrics| metrics.closed_by("layer") > 0);
    drop(client);
    server.stop();
}

/// Regression: a client kept the certificate of its start. After its expiry, the server refused the client for ever,
/// although the file had a newer certificate.
#[test]
fn a_client_comes_back_with_the_certificate_and_the_authorities_that_its_files_have_now() {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    let [servers, clients, new_servers, new_clients] =
        ["servers", "clients", "new servers", "new clients"].map(Authority::new);
    let put_client = |servers: &Authority, clients: &Authority| {
        let identity = clients.sign_client("ann");
        replace(&path("ca.pem"), servers.text());
        replace(&path("client.pem"), &identity.chain);
        replace(&path("client.key"), &identity.key);
    };
    put_client(&servers, &clients);
    replace(&path("clients.pem"), clients.text());
    let settings = put(&directory, &servers.sign_server());
    let server = serve(settings.require_clients_of(path("clients.pem")));
    let settings = ClientTls::new().only_ca(path("ca.pem"));
    let settings = settings.identity(path("client.pem"), path("client.key"));
    let client = Client::builder().tls(settings).reconnect(Backoff {
        first: Duration::from_millis(1),
        max: Duration::from_millis(1),
    });
    let client = client.connect(&server.url()).wait().unwrap();
    ask(&client, b"before");

    put(&directory, &new_servers.sign_server());
    replace(&path("clients.pem"), new_clients.text());
    let certificate = server.server().tls_acceptor().unwrap();
    assert!(certificate.reload_if_changed().unwrap());
    for session in server.server().sessions().list() {
        session.close().unwrap();
    }
    server.wait_for("the old certificate is refused", |metrics| {
        metrics.closed_by("layer") > 0
    });
    put_client(&new_servers, &new_clients);
    let after = client.request(b"after").idempotent().timeout(DEADLINE);
    assert_eq!(after.wait().unwrap().payload(), b"after");
    drop(client);
    server.stop();
}

/// Regression: each SIGHUP, such as that of logrotate, read the same certificate again, said so, and made all tickets
/// useless.
#[test]
fn a_certificate_that_is_the_same_is_not_taken_again() {
    let directory = TempDir::new().unwrap();
    let authority = Authority::new("same");
    let identity = authority.sign_server();
    let server = serve(put(&directory, &identity));
    let certificate = server.server().tls_acceptor().unwrap();
    assert!(!certificate.reload().unwrap());
    // Written again, without a change.
    put(&directory, &identity);
    assert!(!certificate.reload_if_changed().unwrap());
    assert_eq!(server.server().metrics().tls_reloads, 0);
    put(&directory, &authority.sign_server());
    assert!(certificate.reload().unwrap());
    assert_eq!(server.server().metrics().tls_reloads, 1);
}

/// A file that was refused for its mode is used after its mode is corrected, although its content is older.
#[test]
fn a_file_whose_mode_was_mended_has_changed() {
    let directory = TempDir::new().unwrap();
    let authority = Authority::new("mode");
    let server = serve(put(&directory, &authority.sign_server()));
    let certificate = server.server().tls_acceptor().unwrap();
    put(&directory, &authority.sign_server());
    let key = directory.path().join("server.key");
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    assert!(certificate.reload_if_changed().is_err());
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    assert!(certificate.reload_if_changed().unwrap());
}
