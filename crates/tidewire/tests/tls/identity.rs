//! Certificates of clients: accepted clients, and the names that handlers see.

use tidewire::tls::{CertificateNames, TlsFault};
use tidewire::{Client, Context, Message, Server};
use tidewire_testkit::certificates::{Authority, usual};
use tidewire_testkit::fixtures::tw1;
use tidewire_testkit::{DEADLINE, TestServer, assert_conserved, wait_until};

use crate::{ask, connect, fault, serve};

/// Answers with the names of the client's certificate.
fn tell_names(builder: tidewire::ServerBuilder) -> TestServer {
    TestServer::over_tls(builder, &tw1(), |_| {
        |cx: &mut Context<'_>, _: Message<'_>| {
            let names = cx.session().certificate().map(|names| {
                let CertificateNames {
                    dns,
                    emails,
                    uris,
                    common_name,
                    ..
                } = names;
                format!("{dns:?} {emails:?} {uris:?} {common_name:?}")
            });
            cx.reply(names.unwrap_or_else(|| "none".to_owned()).as_bytes())
        }
    })
}

fn names(client: &Client) -> String {
    let reply = client.request(b"who am i?").wait().unwrap();
    String::from_utf8(reply.payload().to_vec()).unwrap()
}

#[test]
fn handlers_see_the_names_of_a_verified_client_also_when_it_resumes() {
    let (authority, server) = usual();
    let clients = Authority::new("clients");
    let settings = server.server().require_clients_of(clients.pem());
    let server = tell_names(Server::builder().tls(settings));
    let (chain, key) = clients.sign_client("ann").pair();
    let builder = Client::builder().tls(authority.client().identity(chain, key));
    let builder = builder.reconnect(tidewire::Backoff::default());
    let client = builder.connect(&server.url()).wait().unwrap();
    let expected = r#"["ann.example"] ["ann@example"] ["spiffe://example/ann"] Some("ann")"#;
    assert_eq!(names(&client), expected);
    // The server closes the session, and the client resumes it with its ticket.
    for session in server.server().sessions().list() {
        session.close().unwrap();
    }
    server.wait_for("the client is back", |metrics| metrics.sessions_opened == 2);
    let again = wait_until("the client is open", || {
        client.request(b"who am i?").wait().ok()
    });
    assert_eq!(again.payload(), expected.as_bytes());
    drop(client);
    server.stop();
}

#[test]
fn a_client_without_a_certificate_is_refused_where_one_is_required() {
    let (authority, server) = usual();
    let clients = Authority::new("clients");
    let required = serve(server.server().require_clients_of(clients.pem()));
    let refused = fault(connect(&required, authority.client()));
    assert_eq!(refused, TlsFault::Alert(116));
    required.wait_for("it is counted", |metrics| metrics.closed_by("layer") == 1);
    required.stop();

    let optional = server.server().accept_clients_of(clients.pem());
    let optional = tell_names(Server::builder().tls(optional));
    let client = connect(&optional, authority.client()).unwrap();
    assert_eq!(names(&client), "none");
    drop(client);
    optional.stop();
}

#[test]
fn a_client_certificate_of_another_authority_is_refused() {
    let (authority, server) = usual();
    let clients = Authority::new("clients");
    let (chain, key) = Authority::new("others").sign_client("eve").pair();
    for settings in [
        server.server().require_clients_of(clients.pem()),
        server.server().accept_clients_of(clients.pem()),
    ] {
        let server = serve(settings);
        let settings = authority.client().identity(chain.clone(), key.clone());
        assert_eq!(fault(connect(&server, settings)), TlsFault::Alert(48));
        server.stop();
    }
}

/// Regression: the account had the same memory for a session with a chain of 60 KiB as for a session without one.
#[test]
fn the_chain_of_a_client_is_in_the_memory_account() {
    const CLIENTS: u64 = 24;
    let (authority, server) = usual();
    let clients = Authority::new("clients");
    let settings = server.server().require_clients_of(clients.pem());
    let mut held = [0; 2];
    for (held, extra) in held.iter_mut().zip([0, 90]) {
        let server = serve(settings.clone());
        let mut identity = clients.sign_client("ann");
        identity.chain.push_str(&clients.text().repeat(extra));
        let (chain, key) = identity.pair();
        let settings = authority.client().identity(chain, key);
        let all: Vec<Client> = (0..CLIENTS)
            .map(|_| connect(&server, settings.clone()).unwrap())
            .collect();
        all.iter().for_each(|client| ask(client, b"here"));
        *held = server.metrics().memory_bytes;
        drop(all);
        server.stop();
    }
    let [short, long] = held;
    let more = (long - short) / CLIENTS;
    assert!(more > 25_000, "{more} bytes for a chain of some 36 KB");
}

#[test]
fn a_plain_address_has_no_certificate() {
    let server = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    let make = |cx: &mut Context<'_>, _: Message<'_>| {
        assert_eq!(cx.session().certificate(), None);
        cx.reply(b"")
    };
    let server = server.start(move |_| make).unwrap();
    let client = Client::connect(&server.to_string()).wait().unwrap();
    client.request(b"").wait().unwrap();
    drop(client);
    assert_conserved(&server.shutdown(DEADLINE));
}
