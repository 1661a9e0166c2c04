//! `/metrics`, read by a strict reader of OpenMetrics.

use std::collections::{BTreeMap, BTreeSet};

use tidewire::metrics::Metrics;
use tidewire::{Client, PubSub, Server};
use tidewire_admin::{CONTENT_TYPE, Settings};
use tidewire_testkit::backplane::InprocEngine;
use tidewire_testkit::certificates::usual;
use tidewire_testkit::{DEADLINE, assert_conserved, wait_until};

use crate::{Site, node};

/// The metrics of a scrape: the type of each family, and the value of each series.
#[derive(Debug, Default)]
struct Scrape {
    types: BTreeMap<String, String>,
    series: BTreeMap<String, f64>,
}

/// Reads a text as the specification of OpenMetrics 1.0 demands.
fn read(text: &str) -> Scrape {
    let body = text.strip_suffix("# EOF\n").expect("the end is marked");
    let mut scrape = Scrape::default();
    let mut helped = BTreeSet::new();
    let mut family = String::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(!help.is_empty() && !help.ends_with('.'), "{line}");
            assert!(!help.contains(['[', '`']), "{line}");
            assert!(helped.insert(name.to_owned()), "helped twice: {line}");
            name.clone_into(&mut family);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, family, "the type follows the help");
            assert!(matches!(kind, "counter" | "gauge"), "{line}");
            assert!(
                scrape
                    .types
                    .insert(name.to_owned(), kind.to_owned())
                    .is_none()
            );
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let bare = match scrape.types[&family].as_str() {
                "counter" => name
                    .strip_suffix("_total")
                    .expect("a counter ends with _total"),
                _ => name,
            };
            assert_eq!(bare, family, "{line} stands under its family");
            let is_name = |name: &str| {
                name.bytes()
                    .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_')
            };
            assert!(is_name(name) && name.starts_with("tidewire_"), "{line}");
            let value: f64 = value.parse().unwrap();
            assert!(value.is_finite() && value >= 0.0, "{line}");
            assert!(
                scrape.series.insert(series.to_owned(), value).is_none(),
                "twice: {line}"
            );
        }
    }
    assert!(helped.iter().eq(scrape.types.keys()));
    scrape
}

fn scrape(site: &Site) -> Scrape {
    let accept = ["Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5"];
    let answer = site.request("GET", "/metrics", &accept, "");
    assert_eq!(answer.status, 200);
    assert!(
        answer.head.contains(&CONTENT_TYPE.to_lowercase()),
        "{}",
        answer.head
    );
    read(&answer.body)
}

/// A node with a certificate, which exports all metrics, and another node. The first node knows the lag of the other.
fn complete() -> (Site, Server) {
    let engine = InprocEngine::default();
    let other = node(&engine, "two").start(|_| PubSub::new()).unwrap();
    let own = node(&engine, "one").listen("tls://127.0.0.1:0").unwrap();
    let own = own.tls(usual().1.server());
    let site = Site::beside(own.start(|_| PubSub::new()).unwrap(), Settings::default());
    wait_until("the other node answers", || {
        let lag = "tidewire_node_lag_seconds{node=\"two\"}";
        scrape(&site).series.contains_key(lag).then_some(())
    });
    (site, other)
}

#[test]
fn a_node_exports_what_it_knows_of_the_others() {
    let (site, other) = complete();
    let connect = |server: &Server| {
        let address = server.addresses()[0].to_string();
        Client::connect(&address).wait().unwrap()
    };
    let (subscriber, publisher) = (connect(&site.server), connect(&other));
    let topic = subscriber.subscribe("news").wait().unwrap();
    // The other node learns of the subscription a moment later.
    let scrape = wait_until("a message crosses", || {
        publisher.publish("news", b"x").unwrap();
        publisher.flush().wait().unwrap();
        let scrape = scrape(&site);
        let received = scrape.series["tidewire_node_received_total{node=\"two\"}"];
        (received >= 1.0).then_some(scrape)
    });
    assert_eq!(scrape.series["tidewire_node_peers"], 1.0);
    assert_eq!(scrape.series["tidewire_node_cut_off"], 0.0);
    let lost = scrape.series["tidewire_node_lost_total{node=\"two\"}"];
    assert_eq!(lost, 0.0);
    drop((topic, subscriber, publisher));
    let Site { admin, server } = site;
    drop(admin);
    for server in [server, other] {
        assert_conserved(&server.shutdown(DEADLINE));
    }
}

#[test]
fn every_exported_metric_is_in_the_list_of_counters() {
    let (site, _other) = complete();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/counters.md");
    let page = std::fs::read_to_string(page).unwrap();
    let fields: BTreeSet<_> = Metrics::default().counters().map(|it| it.0).collect();
    for (family, kind) in scrape(&site).types {
        // A test of the documents compares the fields with their tables.
        if family
            .strip_prefix("tidewire_")
            .is_some_and(|it| fields.contains(it))
        {
            continue;
        }
        let suffix = if kind == "counter" { "_total" } else { "" };
        let name = format!("`{family}{suffix}`");
        assert!(
            page.contains(&name),
            "docs/counters.md does not explain {name}"
        );
    }
}

#[test]
fn every_counter_is_exported_with_its_lanes() {
    let site = Site::start(Settings::default());
    let client = Client::connect(&site.server.to_string()).wait().unwrap();
    client.subscribe("a.secret.topic").wait().unwrap();
    let scrape = scrape(&site);
    for (name, _, _) in Metrics::default().counters() {
        for lane in 0..2 {
            let series = format!("tidewire_{name}_total{{lane=\"{lane}\"}}");
            assert!(scrape.series.contains_key(&series), "{series}");
        }
    }
    let opened =
        |lane: usize| scrape.series[&format!("tidewire_sessions_opened_total{{lane=\"{lane}\"}}")];
    assert_eq!(opened(0) + opened(1), 1.0);
    assert_eq!(scrape.series["tidewire_sessions_open"], 1.0);
    assert_eq!(scrape.series["tidewire_ready"], 1.0);
    assert_eq!(
        scrape.series["tidewire_sessions_closed_total{reason=\"idle_timeout\"}"],
        0.0
    );
    assert_eq!(
        scrape.series["tidewire_room_dropped_total{reason=\"policy\"}"],
        0.0
    );
    assert_eq!(scrape.series["tidewire_memory_pressure_changes_total"], 0.0);
    assert!(scrape.series["tidewire_lane_cpu_seconds_total{lane=\"0\"}"] > 0.0);
    assert!(scrape.series["tidewire_memory_bytes_max"] > 0.0);
}

/// Tools such as `promtool` read the older format, in which the help stands under the name of the series.
#[test]
fn a_request_without_openmetrics_gets_the_older_format() {
    let site = Site::start(Settings::default());
    let answer = site.get("/metrics");
    assert!(
        answer.head.contains("text/plain; version=0.0.4"),
        "{}",
        answer.head
    );
    let helped: BTreeSet<&str> = answer
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next())
        .collect();
    for line in answer.body.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(helped.contains(name), "{line}");
    }
}

/// A label for each room would make as many series as peers like.
#[test]
fn peers_cannot_make_series() {
    let site = Site::start(Settings::default());
    let before = scrape(&site);
    let client = Client::connect(&site.server.to_string()).wait().unwrap();
    let _topics: Vec<_> = (0..100)
        .map(|index| client.subscribe(&format!("secret.{index}")).wait().unwrap())
        .collect();
    assert!(!site.get("/metrics").body.contains("secret"));
    let after = scrape(&site);
    assert!(before.series.keys().eq(after.series.keys()));
}

#[test]
fn counters_never_fall() {
    let site = Site::start(Settings::default());
    let client = Client::connect(&site.server.to_string()).wait().unwrap();
    let _topic = client.subscribe("a").wait().unwrap();
    let mut last = scrape(&site);
    for _ in 0..5 {
        client.publish("a", b"news").unwrap();
        let next = scrape(&site);
        for (series, value) in &last.series {
            if series.contains("_total") {
                assert!(next.series[series] >= *value, "{series}");
            }
        }
        last = next;
    }
}

/// The dashboard and the alarms of `packaging/` are worth nothing if a metric has another name.
#[test]
fn the_packaged_dashboard_and_alerts_name_metrics_that_exist() {
    let (site, _other) = complete();
    let scrape = scrape(&site);
    let known: BTreeSet<String> = scrape
        .series
        .keys()
        .map(|it| it.split('{').next().unwrap().to_owned())
        .collect();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
    for file in ["grafana/tidewire.json", "prometheus/alerts.yml"] {
        let text = std::fs::read_to_string(format!("{root}/{file}")).unwrap();
        let is_name = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_';
        let named: BTreeSet<&str> = text
            .split(|it: char| !is_name(it))
            .filter(|word| word.starts_with("tidewire_"))
            .collect();
        assert!(named.len() > 5, "{file}: {named:?}");
        for name in named {
            assert!(known.contains(name), "{file} names {name}");
        }
        if file.ends_with("json") {
            let _: serde_json::Value = serde_json::from_str(&text).unwrap();
        }
    }
}
