//! An address for health alone, readiness without the backplane, and encryption.

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};

use tidewire::auth::Token;
use tidewire::tls::ClientTls;
use tidewire::{PubSub, Server};
use tidewire_admin::{Admin, AdminError, Settings};
use tidewire_proto::layer::Stack;
use tidewire_testkit::backplane::{Engine, InprocEngine};
use tidewire_testkit::certificates::usual;
use tidewire_testkit::wait_until;

use crate::{Answer, Site, node};

#[test]
fn an_address_for_health_answers_nothing_else_and_needs_no_permission() {
    let open: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let server = Server::builder().start(|_| PubSub::new()).unwrap();
    let admin = Admin::bind(open, Settings::default().health_only(false)).unwrap();
    let site = Site {
        admin: admin.serve(&server).unwrap(),
        server,
    };
    for path in ["/healthz", "/readyz"] {
        assert_eq!(site.get(path).status, 200, "{path}");
    }
    for path in ["/", "/metrics", "/api/overview", "/api/schema", "/admin.js"] {
        assert_eq!(site.get(path).status, 404, "{path}");
    }
    for path in ["/api/drain", "/api/reload", "/api/login"] {
        assert_eq!(site.post(path, "{}").status, 404, "{path}");
    }
    assert!(site.server.inspector().is_ready());
}

#[test]
fn an_address_for_health_has_metrics_if_that_is_said() {
    let site = Site::start(Settings::default().health_only(true));
    let metrics = site
        .raw(b"GET /metrics HTTP/1.1\r\nHost: node-1.internal:9091\r\nConnection: close\r\n\r\n");
    assert_eq!(metrics.status, 200);
    assert!(
        metrics.body.contains("tidewire_sessions_open"),
        "{}",
        metrics.body
    );
    assert_eq!(site.get("/api/overview").status, 404);
}

/// By choice, because a node that is cut off still serves its own clients.
#[test]
fn a_node_that_is_cut_off_is_not_ready_if_it_needs_its_backplane() {
    let mut engine = InprocEngine::default();
    let start = |id, needs| {
        let server = node(&engine, id).start(|_| PubSub::new()).unwrap();
        Site::beside(server, Settings::default().needs_backplane(needs))
    };
    let (strict, lenient) = (start("a", true), start("b", false));
    wait_until("both reach it", || {
        let ready = [&strict, &lenient].map(|site| site.get("/readyz"));
        ready.iter().all(|it| it.body == "ok\n").then_some(())
    });
    engine.cut();
    wait_until("it is seen", || {
        (strict.get("/readyz").status == 503).then_some(())
    });
    assert!(strict.get("/readyz").body.contains("cut off"));
    assert_eq!(
        strict.get("/healthz").status,
        200,
        "a restart would not help"
    );
    wait_until("the other one says so, too", || {
        let answer = lenient.get("/readyz");
        (answer.status == 200 && answer.body.contains("cut off")).then_some(())
    });
}

fn ask(address: SocketAddr, tls: &ClientTls, request: &str) -> Result<Answer, String> {
    let mut stream = TcpStream::connect(address).unwrap();
    let layer = tls.layer("localhost", Some("http/1.1")).unwrap();
    let mut stack = Stack::from(layer);
    stack.start().unwrap();
    let (mut asked, mut plain) = (false, Vec::new());
    let mut buffer = [0; 4096];
    loop {
        if stack.is_ready() && !asked {
            stack.write(&[IoSlice::new(request.as_bytes())]).unwrap();
            asked = true;
        }
        let unsent = stack.unsent().to_vec();
        stream
            .write_all(&unsent)
            .map_err(|error| error.to_string())?;
        stack.advance(unsent.len());
        match stream
            .read(&mut buffer)
            .map_err(|error| error.to_string())?
        {
            0 => break,
            count => stack
                .receive(&buffer[..count])
                .map_err(|error| error.to_string())?,
        }
        loop {
            match stack.read(&mut buffer).map_err(|error| error.to_string())? {
                0 => break,
                count => plain.extend_from_slice(&buffer[..count]),
            }
        }
    }
    Ok(Answer::parse(&String::from_utf8_lossy(&plain)))
}

#[test]
fn an_encrypted_address_with_a_token_is_served_to_other_machines() {
    let (ca, identity) = usual();
    let open: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let secured = || Settings::default().tls(identity.server());
    let refused = Admin::bind(open, secured()).unwrap_err();
    assert!(matches!(refused, AdminError::NoToken(_)), "{refused}");
    let token = Token::new("c2VjcmV0").unwrap();
    let plain = Admin::bind(open, Settings::default().token(token.clone())).unwrap_err();
    assert!(matches!(plain, AdminError::Plaintext(_)), "{plain}");

    let server = Server::builder().start(|_| PubSub::new()).unwrap();
    let admin = Admin::bind(open, secured().token(token))
        .unwrap()
        .serve(&server)
        .unwrap();
    assert!(admin.url().starts_with("https://"), "{}", admin.url());
    let address = SocketAddr::from(([127, 0, 0, 1], admin.address().port()));
    let get = |path: &str, more: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n");
        ask(address, &ca.client(), &request).unwrap()
    };
    assert_eq!(get("/metrics", "").status, 401);
    let metrics = get("/metrics", "Authorization: Bearer c2VjcmV0\r\n");
    assert_eq!(metrics.status, 200);
    // More than one record of TLS.
    assert!(
        metrics.body.len() > 16 << 10
            && metrics
                .body
                .trim_end()
                .ends_with(['0', '1', '2', '3', '4', '5', '6', '7', '8', '9']),
        "{}",
        metrics.body.len()
    );
    let script = get("/admin.js", "");
    assert!(
        script.body.len() > 10_000
            && script
                .head
                .contains(&format!("content-length: {}", script.body.len()))
    );
    let login = "{\"token\":\"c2VjcmV0\"}";
    let request = format!(
        "POST /api/login HTTP/1.1\r\nHost: localhost\r\nX-Tidewire-Admin: 1\r\nConnection: close\r\nContent-Length: \
         {}\r\n\r\n{login}",
        login.len()
    );
    let cookie = ask(address, &ca.client(), &request).unwrap();
    assert!(
        cookie.head.contains("samesite=strict; secure"),
        "{}",
        cookie.head
    );

    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // The server may reset what it does not read.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
}
