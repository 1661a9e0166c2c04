//! The JSON and the actions, checked by the schema that the server itself serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use tidewire::{Chat, Client, Event, Policy, Server};
use tidewire_admin::Settings;
use tidewire_testkit::backplane::InprocEngine;
use tidewire_testkit::certificates::usual;
use tidewire_testkit::fixtures::tw1;
use tidewire_testkit::{DEADLINE, Peer, Wire, assert_conserved, wait_until};

use crate::{Site, node};

/// Fails unless the value follows this definition of the schema.
pub(crate) fn check(site: &Site, definition: &str, value: &Value) {
    let mut schema = site.json("/api/schema");
    assert!(schema["$defs"][definition].is_object(), "{definition}");
    schema["anyOf"] = json!([{ "$ref": format!("#/$defs/{definition}") }]);
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<_> = validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{definition}: {errors:#?}");
}

#[test]
fn a_node_shows_its_cluster() {
    let engine = InprocEngine::default();
    let node = |id: &str| node(&engine, id).start(|_| Chat::new()).unwrap();
    let other = node("two");
    let site = Site::beside(node("one"), Settings::default());
    let seen = wait_until("the other node answers", || {
        let overview = site.json("/api/overview");
        let has_lag = overview["node"]["peers"][0]["lag_ms"].is_number();
        has_lag.then_some(overview)
    });
    check(&site, "overview", &seen);
    check(&site, "node", &seen["node"]);
    let (own, peers) = (&seen["node"], &seen["node"]["peers"]);
    assert_eq!(
        (&own["id"], &own["cut_off"]),
        (&json!("one"), &json!(false))
    );
    assert_eq!(
        (&peers[0]["id"], &peers[0]["lost"]),
        (&json!("two"), &json!(0))
    );
    drop(other);
    wait_until("the other node has gone", || {
        let overview = site.json("/api/overview");
        let is_alone = overview["node"]["peers"] == json!([]);
        is_alone.then_some(())
    });
    let alone = Site::start(Settings::default());
    assert_eq!(alone.json("/api/overview")["node"], json!(null));
}

#[test]
fn answers_follow_the_schema() {
    let site = Site::start(Settings::default());
    let client = Client::connect(&site.server.to_string()).wait().unwrap();
    let _topic = client.subscribe("a.>").wait().unwrap();
    client.publish("a.b", b"news").unwrap();
    wait_until("the message is delivered", || {
        (site.server.metrics().room_delivered == 1).then_some(())
    });
    let overview = site.json("/api/overview");
    check(&site, "overview", &overview);
    assert_eq!(overview["sessions"]["open"], 1);
    assert_eq!(overview["lanes"].as_array().unwrap().len(), 2);
    assert_eq!(overview["counters"]["published"], 1);
    let sessions = site.json("/api/sessions");
    check(&site, "sessions", &sessions);
    assert_eq!(
        (&sessions["total"], &sessions["entries"][0]["topics"]),
        (&json!(1), &json!(1))
    );
    let topics = site.json("/api/topics?search=A.");
    check(&site, "rooms", &topics);
    assert_eq!(
        (
            &topics["entries"][0]["name"],
            &topics["entries"][0]["members"]
        ),
        (&json!("a.>"), &json!(1))
    );
    let rooms = site.json("/api/rooms");
    check(&site, "rooms", &rooms);
    assert_eq!(rooms["total"], 0);
    for (path, status) in [
        ("/api/sessions?sort=x", 400),
        ("/api/nothing", 404),
        ("/nothing", 404),
    ] {
        let answer = site.get(path);
        assert_eq!(answer.status, status, "{path}");
        check(&site, "error", &serde_json::from_str(&answer.body).unwrap());
    }
    assert_eq!(
        site.request("DELETE", "/api/overview", &["X-Tidewire-Admin: 1"], "")
            .status,
        405
    );
}

#[test]
fn a_session_is_closed_with_a_reason() {
    let site = Site::start(Settings::default());
    let client = Client::connect(&site.server.to_string()).wait().unwrap();
    let sessions = wait_until("the session is open", || {
        let sessions = site.json("/api/sessions");
        (sessions["total"] == 1).then_some(sessions)
    });
    let id = sessions["entries"][0]["id"].as_str().unwrap();
    let path = format!("/api/sessions/{id}/close");
    assert_eq!(
        site.request("POST", &path, &[], "{}").status,
        403,
        "without the header"
    );
    let answer = site.post(&path, r#"{"reason":"maintenance <b>"}"#);
    assert_eq!(answer.status, 202, "{answer:?}");
    check(
        &site,
        "accepted",
        &serde_json::from_str(&answer.body).unwrap(),
    );
    let (reason, text) = loop {
        if let Event::Closed { reason, text } = client.next_event().wait() {
            break (reason, text);
        }
    };
    assert!(reason.is_final());
    assert_eq!(&*text, "maintenance <b>");
    wait_until("the session is gone", || {
        (site.json("/api/sessions")["total"] == 0).then_some(())
    });
    assert_eq!(site.post(&path, "{}").status, 404);
    assert_eq!(site.post("/api/sessions/zz/close", "{}").status, 400);
    assert_eq!(site.post(&path, r#"{"resaon":"x"}"#).status, 400);
    assert_eq!(site.server.metrics().closed_by("service"), 1);
}

/// Regression: a server with a few sessions had no memory, and its kinds of memory had some.
#[test]
fn memory_is_no_less_than_that_of_its_kinds() {
    let site = Site::start(Settings::default());
    let client = Client::connect(&site.server.to_string()).wait().unwrap();
    let _topic = client.subscribe("a").wait().unwrap();
    let memory = site.json("/api/overview")["memory"].clone();
    let kinds = ["sessions", "kept", "common", "rooms"].map(|kind| memory[kind].as_u64().unwrap());
    let sum = kinds.iter().sum::<u64>();
    assert!(
        sum > 0 && memory["bytes"].as_u64().unwrap() >= sum,
        "{memory}"
    );
}

#[test]
fn a_program_says_what_drain_and_reload_do() {
    let site = Site::start(Settings::default());
    assert_eq!(site.post("/api/drain", "{}").status, 501);
    let calls = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let (drains, reloads) = (Arc::clone(&calls), Arc::clone(&calls));
    let settings = Settings::default()
        .on_drain(move || {
            drains[0].fetch_add(1, Ordering::SeqCst);
        })
        .on_reload(move || {
            reloads[1].fetch_add(1, Ordering::SeqCst);
        });
    let site = Site::start(settings);
    assert_eq!(site.post("/api/drain", "").status, 202);
    assert_eq!(site.post("/api/reload", "{}").status, 202);
    assert_eq!(calls.each_ref().map(|it| it.load(Ordering::SeqCst)), [1, 1]);
    // A link or an image of another page can only GET.
    assert_eq!(site.get("/api/drain").status, 404);
}

#[test]
fn readiness_ends_with_the_drain_and_health_with_the_lanes() {
    let site = Site::start(Settings::default());
    assert_eq!(
        (site.get("/healthz").status, site.get("/readyz").status),
        (200, 200)
    );
    site.server.stopper().withdraw();
    assert_eq!(
        (site.get("/healthz").status, site.get("/readyz").status),
        (200, 503)
    );
    let Site { admin, server } = site;
    drop(server);
    let ended = || {
        let mut stream = std::net::TcpStream::connect(admin.address()).unwrap();
        let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let answer = std::io::read_to_string(stream).unwrap();
        answer.starts_with("HTTP/1.1 503").then_some(())
    };
    wait_until("the lanes have ended", ended);
}

/// The walk over sessions is made in parts, and sessions come and go between them.
#[test]
fn pages_are_complete_while_sessions_close() {
    const STAY: usize = 300;
    let server = Server::builder()
        .listen("inproc://walked")
        .unwrap()
        .start(|_| Chat::new())
        .unwrap();
    let site = Site::beside(server, Settings::default());
    let connect = |name: &str| {
        let client = Client::connect("inproc://walked").wait().unwrap();
        client.join("lobby").named(name).wait().unwrap();
        client
    };
    let staying: Vec<Client> = (0..STAY)
        .map(|it| connect(&format!("stays-{it:03}")))
        .collect();
    let ends = Arc::new(AtomicBool::new(false));
    let churn = {
        let ends = Arc::clone(&ends);
        std::thread::spawn(move || {
            let mut rounds = 0_u32;
            while !ends.load(Ordering::SeqCst) {
                let leaving: Vec<Client> = (0..20)
                    .map(|_| Client::connect("inproc://walked").wait().unwrap())
                    .collect();
                drop(leaving);
                rounds += 1;
            }
            rounds
        })
    };
    for _ in 0..10 {
        let page = site.json("/api/sessions?search=stays-&sort=name&order=asc&limit=1000");
        let names: Vec<_> = page["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["name"].as_str().unwrap().to_owned())
            .collect();
        let expected: Vec<_> = (0..STAY).map(|it| format!("stays-{it:03}")).collect();
        assert_eq!(names, expected, "each that stays is there, and once");
        check(&site, "sessions", &page);
    }
    ends.store(true, Ordering::SeqCst);
    assert!(churn.join().unwrap() > 0);
    drop(staying);
    let metrics = wait_until("all have left", || {
        let metrics = site.server.metrics();
        (metrics.sessions_opened == metrics.sessions_closed()).then_some(metrics)
    });
    assert!(metrics.sessions_opened >= STAY as u64);
}

#[test]
fn the_slowest_subscriber_is_named_with_its_lag_and_policy() {
    let server = Server::builder()
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .start(|_| Chat::new().policy(Policy::DropOldest))
        .unwrap();
    let site = Site::beside(server, Settings::default());
    let wire = Wire::connect_narrow(&site.server.addresses()[0], &tw1(), 4096).unwrap();
    let mut deaf = Peer::greet(wire, &tw1());
    deaf.join("lobby", "deaf").unwrap();
    let author = Client::connect(&site.server.to_string()).wait().unwrap();
    let room = author.join("lobby").named("ann").wait().unwrap();
    let payload = vec![b'x'; 1 << 16];
    // The system's buffers take the first megabytes.
    let tops = wait_until("the peer is behind", || {
        for _ in 0..16 {
            room.say(&payload).unwrap();
        }
        room.members().wait().unwrap();
        let overview = site.json("/api/overview");
        check(&site, "overview", &overview);
        let tops = overview["tops"].clone();
        (tops["slowest"][0]["name"] == "deaf").then_some(tops)
    });
    let slowest = &tops["slowest"][0];
    assert!(slowest["lag_bytes"].as_u64().unwrap() > 0, "{slowest}");
    assert!(slowest["lag_messages"].as_u64().unwrap() > 0, "{slowest}");
    assert_eq!(slowest["policy"], "drop_oldest");
    let page = wait_until("the author has everything", || {
        let page = site.json("/api/sessions?sort=lag&order=asc");
        (page["entries"][0]["lag_bytes"] == 0).then_some(page)
    });
    check(&site, "sessions", &page);
    let names = [0, 1].map(|index| page["entries"][index]["name"].clone());
    assert_eq!(names, ["ann", "deaf"]);
    drop((deaf, author));
    let Site { admin, server } = site;
    drop(admin);
    assert_conserved(&server.shutdown(DEADLINE));
}

#[test]
fn a_certificate_is_shown_with_the_days_that_are_left() {
    let server = Server::builder()
        .listen("tls://127.0.0.1:0")
        .unwrap()
        .tls(usual().1.server())
        .start(|_| Chat::new())
        .unwrap();
    let site = Site::beside(server, Settings::default());
    let overview = site.json("/api/overview");
    check(&site, "overview", &overview);
    let certificate = &overview["certificate"];
    assert!(certificate["days_left"].as_f64().unwrap() > 0.0);
    let expires = certificate["expires_ms"].as_u64().unwrap();
    assert!(expires > overview["at_ms"].as_u64().unwrap());
    let without = Site::start(Settings::default());
    assert_eq!(without.json("/api/overview")["certificate"], json!(null));
}

/// The orders of the API. An unknown order is refused with their names.
fn session_sorts(site: &Site) -> Vec<String> {
    let refused = site.get("/api/sessions?sort=x");
    let error: Value = serde_json::from_str(&refused.body).unwrap();
    let names = error["error"].as_str().unwrap().split("use ").nth(1);
    names.unwrap().split(", ").map(str::to_owned).collect()
}

/// The figure of an order of sessions, as text with the same order.
fn sort_key(sort: &str, session: &Value) -> String {
    let text = |name: &str| session[name].as_str().unwrap_or_default().to_owned();
    let number = |name: &str| session[name].as_u64().unwrap();
    let number = match sort {
        "name" | "peer" | "identity" => return text(sort),
        "lag" => number("lag_bytes") + number("queued_bytes"),
        // The entries of a page are described one after the other, so their ages are of several moments. Names are not.
        "age" => 1_000 - text("name")[5..].parse::<u64>().unwrap(),
        "queued" | "memory" => number(&format!("{sort}_bytes")),
        _ => number(sort),
    };
    format!("{number:020}")
}

#[test]
fn pages_of_many_sessions_are_searched_and_sorted() {
    let server = Server::builder()
        .listen("inproc://paged")
        .unwrap()
        .lanes(2)
        .slow_subscribers(Policy::DropOldest)
        .start(|_| Chat::new())
        .unwrap();
    let site = Site::beside(server, Settings::default());
    let names: Vec<String> = (0..300).map(|index| format!("user-{index:03}")).collect();
    let clients: Vec<Client> = names
        .iter()
        .map(|name| {
            let client = Client::connect("inproc://paged").wait().unwrap();
            client.join("lobby").named(name).wait().unwrap();
            client
        })
        .collect();
    clients[7].join("annex").named(&names[7]).wait().unwrap();
    for sort in session_sorts(&site) {
        for order in ["asc", "desc"] {
            let page = site.json(&format!(
                "/api/sessions?sort={sort}&order={order}&limit=1000"
            ));
            let entries = page["entries"].as_array().unwrap().iter();
            let mut keys: Vec<_> = entries.map(|it| sort_key(&sort, it)).collect();
            if order == "desc" {
                keys.reverse();
            }
            assert_eq!(keys.len(), names.len(), "{sort}");
            assert!(keys.is_sorted(), "{sort} {order}: {keys:?}");
        }
    }
    let page = site.json("/api/sessions?sort=name&order=asc&offset=298&limit=10");
    assert_eq!((&page["total"], &page["found"]), (&json!(300), &json!(300)));
    let found: Vec<_> = page["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(found, ["user-298", "user-299"]);
    assert_eq!(
        (&page["is_cut"], &page["limit"]),
        (&json!(false), &json!(10))
    );
    // Regression: a page was cut to its largest size silently.
    for (limit, in_force, is_cut) in [(100_000, 1_000, false), (300, 300, false), (299, 299, true)]
    {
        let page = site.json(&format!("/api/sessions?limit={limit}"));
        assert_eq!(
            (&page["limit"], &page["is_cut"]),
            (&json!(in_force), &json!(is_cut))
        );
    }
    let page = site.json("/api/sessions?search=USER-12&sort=name");
    assert_eq!(
        (&page["found"], &page["entries"][0]["name"]),
        (&json!(10), &json!("user-129"))
    );
    let rooms = site.json("/api/rooms");
    assert_eq!(
        (
            &rooms["entries"][0]["name"],
            &rooms["entries"][0]["members"]
        ),
        (&json!("lobby"), &json!(300))
    );
    drop(clients);
}
