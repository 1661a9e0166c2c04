//! Peers that take their output and send nothing, in virtual time.

use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::connection::{CloseReason, Connection, Delivery, Overdue, Rules};

const SECOND: u64 = 1_000_000_000;

/// The rules of an open connection of this codec.
fn rules(codec: &AnyCodec, receive_timeout_ns: u64) -> Rules {
    Rules {
        begins_with_hello: false,
        hello_is_optional: false,
        authenticates: false,
        has_pings: codec.has_pings(),
        has_go_away: codec.has_go_away(),
        frame_bytes_max: 4096,
        handshake_timeout_ns: 5 * SECOND,
        first_frame_timeout_ns: 5 * SECOND,
        idle_timeout_ns: 1_200 * SECOND,
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
        connection.handle_blocked();
        connection.handle_writable(now_ns);
        let _ = connection.handle_written(rules, false, false, now_ns);
        if speaks(second) {
            connection.note_input(now_ns);
        }
    }
    None
}

/// The bug: this side's own output kept the session of a silent device alive.
#[test]
fn a_silent_peer_is_closed_in_every_codec_although_it_takes_what_it_is_sent() {
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
