//! Runs the conformance suite of the test kit in every cell: transport × poller × codec.

use tidewire_io::poller::PollerKind;
use tidewire_testkit::conformance::{
    BEHAVIOURS, CodecKind, LAYERED, Setup, Transport, cells, matrix,
};
use tidewire_testkit::conformance_suite;

conformance_suite! {
    tcp: Tcp, 0;
    tls: Tls, 0;
    ws: Ws, 0;
    wss: Wss, 0;
    ipc: Ipc, 0;
    inproc: Inproc, 0;
    udp: Udp, 0;
    tcp_with_a_layer: Tcp, 1;
    ipc_with_a_layer: Ipc, 1;
    tcp_with_two_layers: Tcp, 2;
}

/// Behaviours that need a server of their own, over any codec with frames.
const OWN_SERVER: [&str; 18] = [
    "echo_of_many_sizes",
    "pipelined_requests_get_their_own_replies",
    "many_sessions_at_once",
    "half_closed_clients_get_their_answers",
    "one_byte_at_a_time",
    "frames_split_anywhere",
    "messages_of_one_turn_share_a_write",
    "peers_that_read_nothing_are_paused",
    "dribbling_readers_get_everything",
    "draining_answers_accepted_requests",
    "closes_follow_earlier_messages",
    "clients_reconnect_after_a_restart",
    "lazy_clients_connect_at_their_first_use",
    "messages_of_threads_arrive",
    "broadcasts_reach_the_chosen_sessions",
    "state_and_timers_belong_to_a_session",
    "a_paused_session_goes_on_where_it_stopped",
    "a_session_above_its_rate_waits",
];

/// Behaviours that share a server, over any codec with frames.
const SHARED_SERVER: [&str; 7] = [
    "replies_of_any_order_find_their_requests",
    "replies_to_nothing_match_nothing",
    "a_full_window_refuses_or_lets_wait",
    "a_server_with_its_hands_full_reads_no_more",
    "one_way_messages_all_arrive_before_later_messages",
    "exact_topics_reach_subscribers",
    "rooms_reach_every_codec",
];

/// Behaviours of the chat service's rooms, for people and programs.
const CHAT: [&str; 6] = [
    "everyone_but_the_sender_hears",
    "names_are_unique_and_may_be_retried",
    "presence_tells_who_comes_and_goes",
    "members_that_close_have_left",
    "rooms_span_two_lanes",
    "rooms_span_three_lanes",
];

/// Behaviours of rooms and topics that only the native protocol has.
const NATIVE: [&str; 7] = [
    "stalled_subscribers_hear_the_newest_of_each_topic",
    "subscriptions_are_made_again_after_a_restart",
    "members_are_listed",
    "whispers_reach_one_member",
    "leaving_ends_delivery",
    "whispers_cross_lanes",
    CANCELLED,
];

const CANCELLED: &str = "cancelled_requests_are_not_answered";

/// Behaviours that wait for a peer or cut frames into pieces.
const STREAMS_ONLY: [&str; 9] = [
    "stalled_subscribers_hear_the_newest_of_each_topic",
    "a_server_with_its_hands_full_reads_no_more",
    "one_byte_at_a_time",
    "frames_split_anywhere",
    "peers_that_read_nothing_are_paused",
    "dribbling_readers_get_everything",
    "streams_come_back_whole",
    "a_paused_session_goes_on_where_it_stopped",
    "a_session_above_its_rate_waits",
];

/// Behaviours with a peer that writes many frames at once. Over UDP these are one datagram.
const WRITTEN_AT_ONCE: [&str; 2] = [
    "half_closed_clients_get_their_answers",
    "draining_answers_accepted_requests",
];

/// The behaviours that a cell must run. They are computed a second time, in another way, so that none is left out
/// unnoticed.
fn expected(setup: &Setup) -> Vec<&'static str> {
    const REFUSALS: &str = "refusals_find_their_requests";
    const WILDCARDS: &str = "wildcards_reach_subscribers";
    const LATE: &str = "late_replies_are_counted";
    let of_codec: &[&[&str]] = match setup.codec {
        CodecKind::Json if setup.poller != PollerKind::Epoll => {
            &[&SHARED_SERVER, &[REFUSALS, WILDCARDS, CANCELLED]]
        }
        CodecKind::Tw1 | CodecKind::Json => {
            &[&SHARED_SERVER, &CHAT, &NATIVE, &[REFUSALS, WILDCARDS]]
        }
        CodecKind::Lines => &[&SHARED_SERVER, &CHAT, &[LATE]],
        CodecKind::SrmpRpc | CodecKind::Uvrpc => &[&SHARED_SERVER, &[REFUSALS, WILDCARDS, LATE]],
        CodecKind::Srmp | CodecKind::Custom => &[&SHARED_SERVER, &[REFUSALS, LATE]],
        CodecKind::LengthField | CodecKind::Delimited => &[&SHARED_SERVER, &[LATE]],
        CodecKind::Raw => &[],
    };
    let mut names = of_codec.concat();
    let own_server = setup.poller == PollerKind::Epoll
        || matches!(setup.codec, CodecKind::Tw1 | CodecKind::Lines);
    match setup.codec {
        CodecKind::Raw if own_server => names.push("streams_come_back_whole"),
        CodecKind::Raw => {}
        _ if own_server => names.extend(OWN_SERVER),
        _ => {}
    }
    if own_server && names.contains(&REFUSALS) {
        names.push("messages_above_the_rate_are_refused");
    }
    if setup.transport == Transport::Udp {
        names.retain(|name| !STREAMS_ONLY.contains(name));
        // Without ids there are no requests over UDP, and most behaviours need requests.
        match setup.codec {
            CodecKind::Lines => names.retain(|name| CHAT.contains(name)),
            CodecKind::LengthField | CodecKind::Delimited | CodecKind::Raw => names.clear(),
            _ => {}
        }
        if setup.codec == CodecKind::Uvrpc {
            names.retain(|name| !WRITTEN_AT_ONCE.contains(name));
        }
        let has_ids = matches!(
            setup.codec,
            CodecKind::Tw1
                | CodecKind::Json
                | CodecKind::Srmp
                | CodecKind::SrmpRpc
                | CodecKind::Uvrpc
                | CodecKind::Custom
        );
        if own_server && has_ids {
            names.push("copies_of_datagrams_change_nothing");
        }
    }
    if own_server {
        names.push("silent_peers_are_closed_although_they_are_sent_messages");
    }
    names.sort_unstable();
    names
}

#[test]
fn the_matrix_is_complete_and_says_why_a_cell_is_empty() {
    let text = matrix();
    let alone: Vec<&str> = BEHAVIOURS
        .iter()
        .filter(|behaviour| !behaviour.is_shared())
        .map(|behaviour| behaviour.name)
        .collect();
    let (_, tests) = tcp::epoll::srmp::TESTS;
    assert_eq!(
        tests, alone,
        "every behaviour with its own server is a test"
    );
    let transports = [
        tcp::epoll::tw1::TESTS,
        tls::epoll::tw1::TESTS,
        ws::epoll::tw1::TESTS,
        wss::epoll::tw1::TESTS,
        ipc::poll::raw::TESTS,
        inproc::uring::srmp::TESTS,
        udp::select::uvrpc::TESTS,
    ];
    let transports = transports.map(|(setup, _)| setup.transport);
    assert_eq!(transports, Transport::ALL, "every transport has tests");
    let layered = [
        tcp_with_a_layer::epoll::tw1::TESTS,
        ipc_with_a_layer::poll::raw::TESTS,
        tcp_with_two_layers::uring::srmp::TESTS,
    ];
    let layered = layered.map(|(setup, _)| (setup.transport, setup.layers));
    assert_eq!(layered, LAYERED, "every stack of layers has tests");
    let codecs = [
        tcp::select::tw1::TESTS,
        tcp::select::lines::TESTS,
        tcp::select::json::TESTS,
        tcp::select::srmp::TESTS,
        tcp::select::srmp_rpc::TESTS,
        tcp::select::length_field::TESTS,
        tcp::select::delimited::TESTS,
        tcp::select::uvrpc::TESTS,
        tcp::select::raw::TESTS,
        tcp::select::custom::TESTS,
    ];
    let codecs = codecs.map(|(setup, _)| setup.codec);
    assert_eq!(codecs, CodecKind::ALL, "every codec has tests");
    for setup in cells().filter(|setup| setup.unavailable().is_none()) {
        let mut ran: Vec<&str> = BEHAVIOURS
            .iter()
            .filter(|behaviour| behaviour.skipped(&setup).is_none())
            .map(|behaviour| behaviour.name)
            .collect();
        ran.sort_unstable();
        assert_eq!(ran, expected(&setup), "{setup}\n{text}");
    }
}
