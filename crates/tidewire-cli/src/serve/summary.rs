//! The summary of a server at its end: the fate of all messages, and the reasons why sessions closed.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use tidewire::CloseReason;
use tidewire::metrics::Metrics;
use tidewire_command::output;
use tidewire_command::tell::{Stream, tell};

/// Prints the summary in one line: for people on stderr, or as a JSON object on stdout.
pub(super) fn print(metrics: &Metrics, json: bool) {
    if json {
        output::remember(tell(Stream::Out, format!("{}\n", object(metrics)).into()));
    } else {
        // If standard error is closed or blocked, no error can be reported.
        let _ = tell(Stream::Error, format!("{}\n", line(metrics)).into());
    }
}

pub(super) fn line(metrics: &Metrics) -> String {
    let mut text = format!(
        "served: sessions={} refused={} frames_in={} chat_messages={} offered={} delivered={} dropped={}",
        metrics.sessions_opened,
        metrics.sessions_refused,
        metrics.frames_in,
        metrics.chat_messages,
        metrics.room_offered,
        metrics.room_delivered,
        metrics.room_dropped_total(),
    );
    // The names of a kind that occurred, with their counts.
    let mut push = |kind: &str, names: &[&str], counts: &[u64]| {
        for (name, count) in names.iter().zip(counts).filter(|(_, count)| **count > 0) {
            // Writing to a string cannot fail.
            let _ = write!(text, " {kind}{name}={count}");
        }
    };
    push("", &["messages_refused"], &[metrics.refused]);
    let refused = [
        "handshakes_refused",
        "tls_reloads_refused",
        "auth_refused",
        "forbidden",
    ];
    push("", &refused, &refusals(metrics));
    push("", &["cut_off"], &[metrics.sessions_cut_off]);
    push("", &["mail_undelivered"], &[metrics.mail_undelivered]);
    let pressure = ["pressure_changes", "refused_sessions", "refused_messages"];
    let counts = [
        metrics.memory_pressure_changes,
        metrics.memory_refused_sessions,
        metrics.memory_refused_messages,
    ];
    push("memory_", &pressure, &counts);
    push("", &["published"], &[metrics.published]);
    push(
        "dropped.",
        &Metrics::ROOM_DROP_REASONS,
        &metrics.room_dropped,
    );
    push("closed.", &CloseReason::NAMES, &metrics.closed);
    let datagrams = ["in", "out", "challenges", "kernel_drops"];
    let counts = [
        metrics.datagrams_in,
        metrics.datagrams_out,
        metrics.challenges,
        metrics.kernel_drops,
    ];
    push("datagrams.", &datagrams, &counts);
    push(
        "datagrams_dropped.",
        &Metrics::DATAGRAM_DROP_REASONS,
        &metrics.datagrams_dropped,
    );
    text
}

/// The counts of refusals for reasons of security.
fn refusals(metrics: &Metrics) -> [u64; 4] {
    [
        metrics.handshakes_refused,
        metrics.tls_reloads_refused,
        metrics.auth_refused,
        metrics.forbidden,
    ]
}

fn object(metrics: &Metrics) -> Value {
    let counts = |names: &[&str], counts: &[u64]| -> Map<String, Value> {
        let pairs = names.iter().zip(counts).filter(|(_, count)| **count > 0);
        pairs
            .map(|(name, count)| ((*name).to_owned(), Value::from(*count)))
            .collect()
    };
    let [handshakes, reloads, auth, forbidden] = refusals(metrics);
    json!({
        "event": "served",
        "sessions": metrics.sessions_opened,
        "refused": metrics.sessions_refused,
        "handshakes_refused": handshakes,
        "tls_reloads_refused": reloads,
        "auth_refused": auth,
        "forbidden": forbidden,
        "messages_refused": metrics.refused,
        "memory_pressure_changes": metrics.memory_pressure_changes,
        "memory_refused_sessions": metrics.memory_refused_sessions,
        "memory_refused_messages": metrics.memory_refused_messages,
        "cut_off": metrics.sessions_cut_off,
        "mail_undelivered": metrics.mail_undelivered,
        "frames_in": metrics.frames_in,
        "chat_messages": metrics.chat_messages,
        "published": metrics.published,
        "offered": metrics.room_offered,
        "delivered": metrics.room_delivered,
        "dropped": metrics.room_dropped_total(),
        "dropped_by": counts(&Metrics::ROOM_DROP_REASONS, &metrics.room_dropped),
        "closed_by": counts(&CloseReason::NAMES, &metrics.closed),
        "datagrams_in": metrics.datagrams_in,
        "datagrams_out": metrics.datagrams_out,
        "challenges": metrics.challenges,
        "datagrams_dropped_by": counts(&Metrics::DATAGRAM_DROP_REASONS, &metrics.datagrams_dropped),
        "kernel_drops": metrics.kernel_drops,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_only_the_reasons_that_occurred() {
        let mut metrics = Metrics {
            sessions_opened: 3,
            chat_messages: 2,
            room_offered: 4,
            room_delivered: 3,
            ..Metrics::default()
        };
        metrics.closed[CloseReason::PeerClosed.index()] = 3;
        metrics.room_dropped[0] = 1;
        assert_eq!(
            line(&metrics),
            "served: sessions=3 refused=0 frames_in=0 chat_messages=2 offered=4 delivered=3 dropped=1 \
             dropped.closed=1 closed.peer_closed=3"
        );
        assert_eq!(
            object(&metrics).to_string(),
            r#"{"auth_refused":0,"challenges":0,"chat_messages":2,"closed_by":{"peer_closed":3},"cut_off":0,"datagrams_dropped_by":{},"datagrams_in":0,"datagrams_out":0,"delivered":3,"dropped":1,"dropped_by":{"closed":1},"event":"served","forbidden":0,"frames_in":0,"handshakes_refused":0,"kernel_drops":0,"mail_undelivered":0,"memory_pressure_changes":0,"memory_refused_messages":0,"memory_refused_sessions":0,"messages_refused":0,"offered":4,"published":0,"refused":0,"sessions":3,"tls_reloads_refused":0}"#
        );
    }

    /// The bug: a drain that refused thousands of requests ended with `refused=0`, which counts sessions.
    #[test]
    fn refused_messages_are_not_refused_sessions() {
        let metrics = Metrics {
            refused: 7,
            ..Metrics::default()
        };
        let text = line(&metrics);
        assert!(text.contains(" refused=0 "), "{text}");
        assert!(text.contains(" messages_refused=7"), "{text}");
        let object = object(&metrics);
        assert_eq!(
            (&object["refused"], &object["messages_refused"]),
            (&json!(0), &json!(7))
        );
    }

    /// The bug: peers without valid credentials or permissions, and certificates that could not be used, were not in
    /// the line.
    #[test]
    fn refused_credentials_messages_and_certificates_are_in_the_summary() {
        let metrics = Metrics {
            auth_refused: 2,
            forbidden: 3,
            tls_reloads_refused: 4,
            ..Metrics::default()
        };
        let (text, object) = (line(&metrics), object(&metrics));
        for (name, count) in [
            ("auth_refused", 2),
            ("forbidden", 3),
            ("tls_reloads_refused", 4),
        ] {
            assert!(text.contains(&format!(" {name}={count}")), "{text}");
            assert_eq!(object[name], json!(count));
        }
    }
}
