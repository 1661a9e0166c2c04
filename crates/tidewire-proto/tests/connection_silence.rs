//! Peers that take their output and send nothing, in virtual time.

use tidewire_proto::codec::{AnyCodec, Codec, Format, Opening};
use tidewire_proto::connection::{CloseReason, Connection, Delivery, Overdue, Rules};

const SECOND: u64 = 1_000_000_000;

/// The rules of an open connection of this codec.
fn rules(codec: &AnyCodec, receive_timeout_ns: u64) -> Rules {
    let format = Format {
        opening: Opening::Nothing,
        ..*codec.format()
    };
    Rules {
        format: Box::leak(Box::new(format)),
        authenticates: false,
        frame_bytes_max: 4096,
        handshake_timeout_ns: 5 * SECOND,
        first_frame_timeout_ns: 5 * SECOND,
        idle_timeout_ns: 1_200 * SECOND,
        idle_timeout_without_pings_ns: 1_200 * SECOND,
        ping_timeout_ns: 10 * SECOND,
        receive_timeout_ns,
        heartbeat_ns: 0,
        unvalidated_timeout_ns: 10 * SECOND,
        frame_timeout_ns: 10 * SECOND,
        frame_bytes_per_second_min: 1024,
        control_frames_per_second_max: 100,
    }
}

/// Returns the second in which a connection closes whose peer takes output every second and sends when `speaks` returns
/// true.
fn closed_after(rules: &Rules, delivery: Delivery, speaks: impl Fn(u64) -> bool) -> Option<u64> {
    let mut connection = Connection::accepted(rules, delivery, 0);
    let mut timer_ns = connection.poll_timeout(rules, 0, false);
    for second in 1..1_000 {
        let now_ns = second * SECOND;
        if timer_ns.is_some_and(|at| at <= now_ns) {
            let overdue = connection.handle_timeout(rules, now_ns, false);
            if let Overdue::Closed(reason) = overdue {
                assert_eq!(reason, CloseReason::IdleTimeout);
                return Some(second);
            }
            timer_ns = connection.poll_timeout(rules, now_ns, false);
        }
        connection.output_mut().handle_blocked();
        connection.handle_writable(now_ns);
        let _ = connection.handle_written(rules, false, false, now_ns);
        if speaks(second) {
            connection.timing_mut().note_input(now_ns);
        }
    }
    None
}

/// Regression: this side's own output kept the session of a silent device alive.
#[test]
fn a_silent_peer_is_closed_in_every_codec_although_it_takes_output() {
    for name in AnyCodec::NAMES {
        let codec = AnyCodec::by_name(name).expect("a built-in codec");
        for delivery in [Delivery::Reliable, Delivery::Lossy] {
            let limited = rules(&codec, 60 * SECOND);
            let closed = closed_after(&limited, delivery, |_| false);
            assert_eq!(closed, Some(60), "{name} {delivery:?}");
            let closed = closed_after(&limited, delivery, |second| second % 59 == 0);
            assert_eq!(closed, None, "{name} {delivery:?}: it speaks");
            let closed = closed_after(&limited, delivery, |second| second <= 100);
            assert_eq!(closed, Some(160), "{name} {delivery:?}: it fell silent");
        }
        // Without the limit, a peer that takes its output may be silent.
        let closed = closed_after(&rules(&codec, 0), Delivery::Reliable, |_| false);
        assert_eq!(closed, None, "{name}");
    }
}

/// Returns the second in which a connection closes whose peer takes nothing more, and the seconds in which it is asked.
/// `answers` says whether the peer answers.
fn silent(rules: &Rules, mut connection: Connection, answers: bool) -> (Option<u64>, Vec<u64>) {
    let mut asked = Vec::new();
    let mut timer_ns = connection.poll_timeout(rules, 0, false);
    for second in 1..300 {
        let now_ns = second * SECOND;
        if timer_ns.is_none_or(|at| at > now_ns) {
            continue;
        }
        match connection.handle_timeout(rules, now_ns, false) {
            Overdue::Closed(reason) => {
                assert_eq!(reason, CloseReason::IdleTimeout);
                return (Some(second), asked);
            }
            Overdue::Ping | Overdue::LayerPing => {
                asked.push(second);
                if answers {
                    connection.timing_mut().note_input(now_ns);
                }
            }
            _ => {}
        }
        timer_ns = connection.poll_timeout(rules, now_ns, false);
    }
    (None, asked)
}

fn with_heartbeat(name: &str) -> Rules {
    let codec = AnyCodec::by_name(name).expect("a built-in codec");
    Rules {
        idle_timeout_ns: 60 * SECOND,
        heartbeat_ns: 20 * SECOND,
        ..rules(&codec, 0)
    }
}

/// Regression: a dead connection was noticed after 60 s, because a ping had 40 s.
#[test]
fn a_ping_without_an_answer_ends_a_connection_after_ten_seconds() {
    let rules = with_heartbeat("tw1");
    let connection = Connection::accepted(&rules, Delivery::Reliable, 0);
    assert_eq!(silent(&rules, connection, false), (Some(30), vec![20]));
    let connection = Connection::accepted(&rules, Delivery::Reliable, 0);
    let (closed, asked) = silent(&rules, connection, true);
    assert_eq!((closed, &asked[..3]), (None, &[20, 40, 60][..]));
    // A shorter idle timeout is kept.
    let short = Rules {
        idle_timeout_ns: 25 * SECOND,
        ..rules
    };
    let connection = Connection::accepted(&short, Delivery::Reliable, 0);
    assert_eq!(silent(&short, connection, false), (Some(25), vec![20]));
}

/// Over UDP an answer may be lost, and a router forgets a silent peer.
#[test]
fn over_a_lossy_transport_pings_come_every_ten_seconds_until_the_idle_timeout() {
    let rules = with_heartbeat("tw1");
    let connection = Connection::accepted(&rules, Delivery::Lossy, 0);
    let asked = vec![10, 20, 30, 40, 50];
    assert_eq!(silent(&rules, connection, false), (Some(60), asked));
}

/// Regression: a proxy cut WebSockets of such a codec after 60 s of silence.
#[test]
fn a_codec_without_pings_uses_those_of_the_layer_beneath() {
    let rules = with_heartbeat("lines");
    let connection = Connection::accepted(&rules, Delivery::Reliable, 0);
    assert_eq!(silent(&rules, connection, false), (None, vec![]));
    for (answers, closed) in [(false, Some(30)), (true, None)] {
        let mut connection = Connection::accepted(&rules, Delivery::Reliable, 0);
        connection.timing_mut().note_layer_pings();
        let (ended, asked) = silent(&rules, connection, answers);
        assert_eq!((ended, asked[0]), (closed, 20));
    }
}
