//! Requests of attackers, and too many honest requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::net::{AddressFamily, SocketType};
use tidewire::auth::Token;
use tidewire::{Client, Policy, PubSub, Server};
use tidewire_admin::{Admin, AdminError, Settings};
use tidewire_testkit::wait_until;

use crate::Site;

fn secured() -> Site {
    Site::start(Settings::default().token(Token::new("c2VjcmV0").unwrap()))
}

#[test]
fn without_the_token_there_is_only_health_and_an_empty_page() {
    let site = secured();
    for path in [
        "/",
        "/admin.js",
        "/admin.css",
        "/healthz",
        "/readyz",
        "/api/schema",
    ] {
        assert_eq!(site.get(path).status, 200, "{path}");
    }
    for path in [
        "/metrics",
        "/api/overview",
        "/api/sessions",
        "/api/rooms",
        "/api/topics",
        "/api/events",
        "/nothing",
    ] {
        let answer = site.get(path);
        assert_eq!(answer.status, 401, "{path}");
        assert!(
            answer.head.contains("www-authenticate: bearer"),
            "{}",
            answer.head
        );
    }
    for path in [
        "/api/drain",
        "/api/reload",
        "/api/logout",
        "/api/sessions/1/close",
    ] {
        assert_eq!(site.post(path, "{}").status, 401, "{path}");
    }
    let with = |value: &str| site.request("GET", "/metrics", &[value], "").status;
    assert_eq!(with("Authorization: Bearer c2VjcmV0"), 200);
    assert_eq!(with("Authorization: Bearer c2VjcmV1"), 401);
    assert_eq!(with("Authorization: Basic c2VjcmV0"), 401);
    assert_eq!(
        with("Cookie: tidewire_admin=00000000000000000000000000000000"),
        401
    );
    let doubled = "Authorization: Bearer c2VjcmV0\r\nAuthorization: Bearer c2VjcmV0";
    assert_eq!(with(doubled), 400);
}

/// Regression: HAProxy asks in HTTP/1.0 without a host, got 400, and took a healthy server out of service.
#[test]
fn health_is_answered_for_a_load_balancer_without_a_host() {
    let site = secured();
    for path in ["/healthz", "/readyz"] {
        for request in [
            format!("GET {path} HTTP/1.0\r\n\r\n"),
            format!("HEAD {path} HTTP/1.0\r\n\r\n"),
            format!("GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n"),
            format!("GET {path} HTTP/1.1\r\nHost: tidewire.example\r\nConnection: close\r\n\r\n"),
        ] {
            assert_eq!(site.raw(request.as_bytes()).status, 200, "{request}");
        }
    }
    let other = site.raw(b"GET / HTTP/1.0\r\n\r\n");
    assert_eq!(other.status, 400, "{other:?}");
    let post = site.raw(b"POST /readyz HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(post.status, 400, "{post:?}");
}

#[test]
fn a_login_gives_a_cookie_that_scripts_and_other_sites_cannot_use() {
    let site = secured();
    assert_eq!(site.post("/api/login", r#"{"token":"wrong"}"#).status, 401);
    assert_eq!(site.post("/api/login", "{").status, 400);
    let answer = site.post("/api/login", r#"{"token":"c2VjcmV0"}"#);
    assert_eq!(answer.status, 202);
    let cookie = answer
        .head
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap();
    assert!(
        cookie.contains("httponly") && cookie.contains("samesite=strict"),
        "{cookie}"
    );
    let pair = format!("Cookie: {}", cookie.split(';').next().unwrap());
    assert_eq!(
        site.request("GET", "/api/overview", &[&pair], "").status,
        200
    );
    let logout = site.request("POST", "/api/logout", &[&pair, "X-Tidewire-Admin: 1"], "");
    assert_eq!(
        (logout.status, logout.body.as_str()),
        (202, r#"{"accepted":"logout"}"#)
    );
    let body = serde_json::from_str(&logout.body).unwrap();
    crate::api::check(&site, "accepted", &body);
    assert_eq!(
        site.request("GET", "/api/overview", &[&pair], "").status,
        401
    );
}

#[test]
fn pages_of_other_origins_and_rebound_names_are_refused() {
    let site = Site::start(Settings::default().host("ops.example").unwrap());
    let ask = |host: &str| {
        let request =
            format!("GET /api/overview HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        site.raw(request.as_bytes()).status
    };
    for host in ["localhost", "127.0.0.1", "[::1]:9090", "ops.example"] {
        assert_eq!(ask(host), 200, "{host}");
    }
    for host in [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
    ] {
        assert_eq!(ask(host), 421, "{host}");
    }
    let absolute = "GET http://evil.example/api/overview HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(site.raw(absolute.as_bytes()).status, 421);
    let post = |headers: &[&str]| site.request("POST", "/api/drain", headers, "{}").status;
    assert_eq!(post(&["Origin: http://evil.example"]), 403);
    assert_eq!(
        post(&["X-Tidewire-Admin: 1", "Origin: http://evil.example"]),
        403
    );
    assert_eq!(post(&["X-Tidewire-Admin: 1", "Origin: null"]), 403);
    let preflight = site.request(
        "OPTIONS",
        "/api/drain",
        &[
            "Origin: http://evil.example",
            "Access-Control-Request-Headers: x-tidewire-admin",
        ],
        "",
    );
    assert!(
        preflight.status >= 400 && !preflight.head.contains("access-control"),
        "{preflight:?}"
    );
    let page = site.get("/");
    assert!(
        page.head
            .contains("content-security-policy: default-src 'none'"),
        "{}",
        page.head
    );
    assert!(page.head.contains("x-frame-options: deny"), "{}", page.head);
}

/// Regression: they were told to send the header of a POST.
#[test]
fn unknown_methods_are_refused_with_the_list_of_methods() {
    let site = Site::start(Settings::default());
    for method in ["OPTIONS", "TRACE", "PUT", "DELETE"] {
        let answer = site.request(method, "/api/drain", &[], "");
        assert_eq!(answer.status, 405, "{method}");
        assert!(answer.head.contains("allow: get, head, post"), "{answer:?}");
    }
}

/// Regression: an operator could not see an attack on the admin server.
#[test]
fn requests_are_counted_by_their_end() {
    let site = secured();
    let bearer = ["Authorization: Bearer c2VjcmV0"];
    let count = |end: &str| {
        let text = site.request("GET", "/metrics", &bearer, "").body;
        let series = format!("tidewire_admin_requests_total{{end=\"{end}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.unwrap().parse::<u64>().unwrap()
    };
    let answered = count("answered");
    assert_eq!(site.get("/healthz").status, 200);
    wait_until("it is counted, and the scrape before", || {
        (count("answered") >= answered + 2).then_some(())
    });
    assert_eq!((count("refused"), count("broken")), (0, 0));
    assert_eq!(site.get("/api/overview").status, 401);
    assert_eq!(site.get("/nothing").status, 401);
    assert_eq!(site.raw(b"\x16\x03\x01\0\r\n\r\n").status, 400);
    wait_until("they are counted", || {
        ((count("refused"), count("broken")) == (2, 1)).then_some(())
    });
}

/// The pages are parts of the program and name nothing outside of it.
#[test]
fn pages_refer_to_nothing_outside_and_make_no_html_of_data() {
    let site = Site::start(Settings::default());
    for path in ["/", "/admin.js", "/admin.css"] {
        let body = site.get(path).body;
        let foreign = body.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !foreign.contains("http:") && !foreign.contains("https:") && !foreign.contains("url("),
            "{path}"
        );
        for word in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!body.contains(word), "{path} has {word}");
        }
    }
}

/// Regression: a request with a length and chunks did its action, and the test had no action.
#[test]
fn malformed_and_smuggled_requests_are_refused() {
    let acted = Arc::new(AtomicBool::new(false));
    let act = {
        let acted = Arc::clone(&acted);
        move || acted.store(true, Ordering::SeqCst)
    };
    let site = Site::start(Settings::default().on_drain(act.clone()).on_reload(act));
    let host = format!("Host: {}\r\n", site.address());
    let long = "x".repeat(70_000);
    let cases = [
        malformed_heads(&host),
        odd_targets(&host, &long),
        odd_protocols(&host, &long),
    ]
    .concat();
    for (what, request) in cases {
        let answer = site.raw(request.as_bytes());
        // 0: closed without an answer. 202 would be an action, and 200 a page.
        assert!(
            answer.status == 0 || answer.status >= 400,
            "{what}: {answer:?}"
        );
        assert!(
            !answer.head.contains("\ninjected") && !answer.body.contains("HTTP/1.1 "),
            "{what}: {answer:?}"
        );
    }
    assert_eq!(site.get("/healthz").status, 200, "the server goes on");
    assert!(!acted.load(Ordering::SeqCst));
}

/// Requests with an end or headers that two programs could read in two ways.
fn malformed_heads(host: &str) -> Vec<(&'static str, String)> {
    let smuggled = "GET /api/reload HTTP/1.1\r\nHost: localhost\r\n\r\n";
    vec![
        (
            "two lengths",
            format!(
                "POST /api/drain HTTP/1.1\r\n{host}X-Tidewire-Admin: 1\r\nContent-Length: 2\r\nContent-Length: \
                 4\r\n\r\n{{}}"
            ),
        ),
        (
            "a length and chunks",
            format!(
                "POST /api/drain HTTP/1.1\r\n{host}X-Tidewire-Admin: 1\r\nContent-Length: 4\r\nTransfer-Encoding: \
                 chunked\r\n\r\n0\r\n\r\n{smuggled}"
            ),
        ),
        (
            "chunks that are hidden",
            format!(
                "POST /api/drain HTTP/1.1\r\n{host}X-Tidewire-Admin: 1\r\nTransfer-Encoding: \
                 xchunked\r\n\r\n0\r\n\r\n{smuggled}"
            ),
        ),
        (
            "a folded header",
            format!("GET / HTTP/1.1\r\n{host}X-Folded: a\r\n b\r\n\r\n"),
        ),
        (
            "a space before the colon",
            format!("GET / HTTP/1.1\r\n{host}X-Space : a\r\n\r\n"),
        ),
        (
            "a line end within a value",
            format!("GET / HTTP/1.1\r\n{host}X-End: a\rInjected: b\r\n\r\n"),
        ),
        (
            "a zero within a value",
            format!("GET / HTTP/1.1\r\n{host}X-Zero: a\0b\r\n\r\n"),
        ),
    ]
}

/// Requests for paths that do not exist or are too long.
fn odd_targets(host: &str, long: &str) -> Vec<(&'static str, String)> {
    vec![
        (
            "a line end in the path",
            format!("GET /%0d%0aInjected:%20b HTTP/1.1\r\n{host}Connection: close\r\n\r\n"),
        ),
        (
            "a path upwards",
            format!("GET /../../../../etc/passwd HTTP/1.1\r\n{host}Connection: close\r\n\r\n"),
        ),
        (
            "an encoded path upwards",
            format!("GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n{host}Connection: close\r\n\r\n"),
        ),
        (
            "a long header",
            format!("GET / HTTP/1.1\r\n{host}X-Long: {long}\r\n\r\n"),
        ),
        (
            "a long path",
            format!("GET /{long} HTTP/1.1\r\n{host}\r\n\r\n"),
        ),
        (
            "many headers",
            format!(
                "GET / HTTP/1.1\r\n{host}{}\r\n",
                "X-Many: a\r\n".repeat(200)
            ),
        ),
    ]
}

/// Requests for another host, by another protocol, or with a body that is too long.
fn odd_protocols(host: &str, long: &str) -> Vec<(&'static str, String)> {
    vec![
        (
            "no host",
            "GET /api/overview HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
        ),
        (
            "two hosts",
            format!("GET / HTTP/1.1\r\n{host}Host: evil.example\r\nConnection: close\r\n\r\n"),
        ),
        (
            "an old version",
            "GET /api/overview HTTP/1.0\r\n\r\n".to_owned(),
        ),
        (
            "a WebSocket",
            format!(
                "GET / HTTP/1.1\r\n{host}Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: \
                 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            ),
        ),
        (
            "a proxy's method",
            "CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n".to_owned(),
        ),
        (
            "a long body",
            format!(
                "POST /api/login HTTP/1.1\r\n{host}X-Tidewire-Admin: 1\r\nConnection: close\r\nContent-Length: \
                 {}\r\n\r\n{long}",
                long.len()
            ),
        ),
        (
            "another protocol",
            "TW1\x01\x02\x03 hello\r\n\r\n".to_owned(),
        ),
        ("TLS", "\x16\x03\x01\x00\x01\x01\r\n\r\n".to_owned()),
    ]
}

#[test]
fn addresses_that_others_reach_need_a_token_and_consent() {
    let bind = |settings| Admin::bind("0.0.0.0:0".parse().unwrap(), settings);
    assert!(matches!(
        bind(Settings::default().allow_plaintext(true)),
        Err(AdminError::NoToken(_))
    ));
    let token = Token::new("c2VjcmV0").unwrap();
    let settings = Settings::default().token(token);
    assert!(matches!(
        bind(settings.clone()),
        Err(AdminError::Plaintext(_))
    ));
    assert!(bind(settings.allow_plaintext(true)).is_ok());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = Admin::bind(taken.local_addr().unwrap(), Settings::default());
    assert!(matches!(refused, Err(AdminError::Bind(_))));
}

/// Half-sent requests hold a place each, and no more.
#[test]
fn connections_that_send_nothing_do_not_keep_others_out() {
    let site = Site::start(Settings::default());
    let mut idle: Vec<_> = (0..100).map(|_| site.connect()).collect();
    for stream in &mut idle {
        stream.write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
    }
    assert_eq!(site.get("/healthz").status, 200);
    let mut answer = Vec::new();
    // The server ends them itself.
    let _ = idle[0].read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
}

/// Regression: a login without its body held its place for ever, and 128 such logins kept all others out, without a
/// token.
#[test]
fn logins_without_a_body_do_not_keep_others_out() {
    let site = secured();
    let head = format!(
        "POST /api/login HTTP/1.1\r\nHost: {}\r\nX-Tidewire-Admin: 1\r\nContent-Length: 99\r\n\r\n{{",
        site.address()
    );
    // As many as there are places. Others wait in the queue of the system.
    let mut silent: Vec<_> = (0..128).map(|_| site.connect()).collect();
    for stream in &mut silent {
        stream.write_all(head.as_bytes()).unwrap();
    }
    assert_eq!(site.get("/healthz").status, 200);
    let mut answer = String::new();
    // The newcomer took the place of the connection with the longest silence. The server ends the others, and does not
    // wait for the rest of the body.
    silent[127].read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[test]
fn no_message_is_lost_while_the_admin_server_is_flooded() {
    const MESSAGES_MIN: u64 = 20_000;
    const ANSWERS_MIN: usize = 1_000;
    let server = Server::builder()
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .lanes(2)
        .slow_subscribers(Policy::Block)
        .start(|_| PubSub::new())
        .unwrap();
    let site = Site::beside(server, Settings::default());
    let address = site.server.to_string();
    let subscriber = Client::connect(&address).wait().unwrap();
    let topic = subscriber.subscribe("news").wait().unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let admin = site.address();
    let floods: Vec<_> = ["/metrics", "/api/sessions", "/api/overview", "/readyz"]
        .map(|path| {
            let (ends, answered) = (Arc::clone(&ends), Arc::clone(&answered));
            std::thread::spawn(move || flood(admin, path, &ends, &answered))
        })
        .into_iter()
        .collect();
    let publisher = Client::connect(&address).wait().unwrap();
    let mut messages = 0;
    while messages < MESSAGES_MIN || answered.load(Ordering::SeqCst) < ANSWERS_MIN {
        let round = messages..messages + 1_000;
        for number in round.clone() {
            publisher.publish("news", &number.to_le_bytes()).unwrap();
        }
        for number in round {
            let message = loop {
                if let tidewire::TopicEvent::Message(message) = topic.next_event().wait() {
                    break message;
                }
            };
            assert_eq!(message.payload, number.to_le_bytes());
        }
        messages += 1_000;
    }
    ends.store(true, Ordering::SeqCst);
    for flood in floods {
        flood.join().unwrap();
    }
    let metrics = wait_until("all is counted", || {
        let metrics = site.server.metrics();
        (metrics.room_in_flight() == 0).then_some(metrics)
    });
    assert_eq!(
        metrics.room_offered,
        metrics.room_delivered + metrics.room_dropped_total()
    );
    assert_eq!(
        (metrics.room_delivered, metrics.published),
        (messages, messages)
    );
    drop(publisher);
}

/// Asks as fast as it can on one connection, and counts the answers.
fn flood(address: SocketAddr, path: &str, ends: &AtomicBool, answered: &AtomicUsize) {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let mut bytes = vec![0; 1 << 16];
    while !ends.load(Ordering::SeqCst) {
        stream.write_all(request.as_bytes()).unwrap();
        // A whole answer: its head says how long the body is.
        let mut answer = Vec::new();
        loop {
            let count = stream.read(&mut bytes).unwrap();
            assert!(count > 0, "{path}: the connection ended");
            answer.extend_from_slice(&bytes[..count]);
            let text = String::from_utf8_lossy(&answer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.unwrap().parse().unwrap() {
                assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
                break;
            }
        }
        answered.fetch_add(1, Ordering::SeqCst);
    }
}

/// Regression: 200 silent connections of one address took all places, and health checks of others were not answered.
#[test]
fn silent_connections_of_one_address_do_not_block_health() {
    let site = Site::start(Settings::default());
    let from = |address: [u8; 4]| {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from((address, 0))).unwrap();
        rustix::net::connect(&socket, &site.address()).unwrap();
        TcpStream::from(socket)
    };
    let silent: Vec<_> = (0..400).map(|_| from([127, 0, 7, 7])).collect();
    // Neighbours of the flood and the flooding address have a place for their newest connection.
    for address in [[127, 0, 0, 9], [127, 0, 7, 7]] {
        let mut stream = from(address);
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    }
    let metrics = site.get("/metrics").body;
    let broken = metrics
        .lines()
        .find_map(|line| line.strip_prefix("tidewire_admin_requests_total{end=\"broken\"} "));
    let broken: f64 = broken.unwrap().parse().unwrap();
    assert!(broken >= 272.0, "those that gave way are counted: {broken}");
    drop(silent);
}

/// Regression: the wrong tokens of one client kept out all clients of the same proxy.
#[test]
fn wrong_tokens_count_for_the_client_of_a_listed_proxy() {
    let settings = Settings::default().token(Token::new("c2VjcmV0").unwrap());
    let settings = settings.forwarded_for_from("127.0.0.1").unwrap();
    let site = Site::start(settings);
    let status = |headers: &[&str]| {
        let mut all = vec!["Authorization: Bearer wrong"];
        all.extend_from_slice(headers);
        site.request("GET", "/metrics", &all, "").status
    };
    let of = |host: u8| status(&[&format!("X-Forwarded-For: 203.0.113.{host}")]);
    // A fast machine needs a few more than one second's tokens.
    let is_refused = (0..10_000).any(|_| of(1) == 429);
    assert!(is_refused, "the guesses of one client are limited");
    assert_eq!(of(2), 401, "another client is not limited");
    assert_eq!(
        status(&["X-Forwarded-For: 203.0.113.3", "Forwarded: for=203.0.113.3"]),
        400
    );
}
