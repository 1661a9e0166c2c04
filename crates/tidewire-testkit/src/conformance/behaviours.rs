//! Every behaviour of a cell, and its requirements.

use super::shared::Cell;
use super::{Behaviour, Need, Run, Setup};
use super::{
    closing, delivery, disorder, echo, flow, handlers, lifecycle, newest, requests, rooms,
    sessions, spans,
};

/// Every behaviour of a cell.
pub const BEHAVIOURS: &[Behaviour] = &[
    alone("echo_of_many_sizes", echo::of_many_sizes, &[Need::Frames]),
    alone(
        "pipelined_requests_get_their_own_replies",
        echo::pipelined_requests_get_their_own_replies,
        &[Need::Frames],
    ),
    alone(
        "many_sessions_at_once",
        echo::many_sessions_at_once,
        &[Need::Frames],
    ),
    alone(
        "half_closed_clients_get_their_answers",
        echo::half_closed_clients_get_their_answers,
        &[Need::Frames, Need::Together],
    ),
    alone(
        "streams_come_back_whole",
        echo::streams_come_back_whole,
        &[Need::Stream],
    ),
    alone(
        "one_byte_at_a_time",
        flow::one_byte_at_a_time,
        &[Need::Frames, Need::Pieces],
    ),
    alone(
        "frames_split_anywhere",
        flow::frames_split_anywhere,
        &[Need::Frames, Need::Pieces],
    ),
    alone(
        "messages_of_one_turn_share_a_write",
        flow::messages_of_one_turn_share_a_write,
        &[Need::Frames],
    ),
    alone(
        "peers_that_read_nothing_are_paused",
        flow::peers_that_read_nothing_are_paused,
        &[Need::Frames, Need::Waiting],
    ),
    alone(
        "dribbling_readers_get_everything",
        flow::dribbling_readers_get_everything,
        &[Need::Frames, Need::Waiting],
    ),
    alone(
        "stalled_subscribers_hear_the_newest_of_each_topic",
        newest::stalled_subscribers_hear_the_newest_of_each_topic,
        &[
            Need::Frames,
            Need::Waiting,
            Need::Subscribe,
            Need::Wildcards,
        ],
    ),
    alone(
        "draining_answers_accepted_requests",
        lifecycle::draining_answers_accepted_requests,
        &[Need::Frames, Need::Together],
    ),
    alone(
        "closes_follow_earlier_messages",
        closing::closes_follow_earlier_messages,
        &[Need::Frames],
    ),
    alone(
        "copies_of_datagrams_change_nothing",
        disorder::copies_of_datagrams_change_nothing,
        &[Need::Copies],
    ),
    alone(
        "silent_peers_are_closed_although_they_are_sent_messages",
        closing::silent_peers_are_closed_although_they_are_sent_messages,
        &[],
    ),
    alone(
        "clients_reconnect_after_a_restart",
        lifecycle::clients_reconnect_after_a_restart,
        &[Need::Frames],
    ),
    alone(
        "lazy_clients_connect_at_their_first_use",
        lifecycle::lazy_clients_connect_at_their_first_use,
        &[Need::Frames],
    ),
    alone(
        "subscriptions_are_made_again_after_a_restart",
        lifecycle::subscriptions_are_made_again_after_a_restart,
        &[Need::Subscribe],
    ),
    alone(
        "everyone_but_the_sender_hears",
        rooms::everyone_but_the_sender_hears,
        &[Need::Chat],
    ),
    alone(
        "names_are_unique_and_may_be_retried",
        rooms::names_are_unique_and_may_be_retried,
        &[Need::Chat],
    ),
    alone(
        "presence_tells_who_comes_and_goes",
        rooms::presence_tells_who_comes_and_goes,
        &[Need::Chat],
    ),
    alone(
        "members_are_listed",
        rooms::members_are_listed,
        &[Need::List],
    ),
    alone(
        "whispers_reach_one_member",
        rooms::whispers_reach_one_member,
        &[Need::Whisper],
    ),
    alone(
        "leaving_ends_delivery",
        rooms::leaving_ends_delivery,
        &[Need::Leave],
    ),
    alone(
        "members_that_close_have_left",
        rooms::members_that_close_have_left,
        &[Need::Chat],
    ),
    alone(
        "rooms_span_two_lanes",
        spans::rooms_span_two_lanes,
        &[Need::Chat],
    ),
    alone(
        "rooms_span_three_lanes",
        spans::rooms_span_three_lanes,
        &[Need::Chat],
    ),
    alone(
        "whispers_cross_lanes",
        spans::whispers_cross_lanes,
        &[Need::Whisper],
    ),
    alone(
        "messages_of_threads_arrive",
        sessions::messages_of_threads_arrive,
        &[Need::Frames],
    ),
    alone(
        "broadcasts_reach_the_chosen_sessions",
        sessions::broadcasts_reach_the_chosen_sessions,
        &[Need::Frames],
    ),
    alone(
        "state_and_timers_belong_to_a_session",
        handlers::state_and_timers_belong_to_a_session,
        &[Need::Frames],
    ),
    alone(
        "a_paused_session_goes_on_where_it_stopped",
        handlers::a_paused_session_goes_on_where_it_stopped,
        &[Need::Frames, Need::Together, Need::Waiting],
    ),
    alone(
        "a_session_above_its_rate_waits",
        handlers::a_session_above_its_rate_waits,
        &[Need::Frames, Need::Together, Need::Waiting],
    ),
    alone(
        "messages_above_the_rate_are_refused",
        handlers::messages_above_the_rate_are_refused,
        &[Need::Errors],
    ),
    shared(
        "replies_of_any_order_find_their_requests",
        requests::replies_of_any_order_find_their_requests,
        &[Need::Frames],
    ),
    shared(
        "refusals_find_their_requests",
        requests::refusals_find_their_requests,
        &[Need::Errors],
    ),
    shared(
        "replies_to_nothing_match_nothing",
        requests::replies_to_nothing_match_nothing,
        &[Need::Frames],
    ),
    shared(
        "a_full_window_refuses_or_lets_wait",
        requests::a_full_window_refuses_or_lets_wait,
        &[Need::Frames],
    ),
    shared(
        "a_server_with_its_hands_full_reads_no_more",
        requests::a_server_with_its_hands_full_reads_no_more,
        &[Need::Frames, Need::Waiting],
    ),
    shared(
        "cancelled_requests_are_not_answered",
        requests::cancelled_requests_are_not_answered,
        &[Need::Cancel],
    ),
    shared(
        "late_replies_are_counted",
        requests::late_replies_are_counted,
        &[Need::LateReplies],
    ),
    shared(
        "one_way_messages_all_arrive_before_later_messages",
        delivery::one_way_messages_all_arrive_before_later_messages,
        &[Need::Frames],
    ),
    shared(
        "exact_topics_reach_subscribers",
        delivery::exact_topics_reach_subscribers,
        &[Need::Frames],
    ),
    shared(
        "wildcards_reach_subscribers",
        delivery::wildcards_reach_subscribers,
        &[Need::Wildcards],
    ),
    shared(
        "rooms_reach_every_codec",
        delivery::rooms_reach_every_codec,
        &[Need::Frames],
    ),
];

const fn alone(name: &'static str, run: fn(&Setup), needs: &'static [Need]) -> Behaviour {
    let run = Run::Alone(run);
    Behaviour { name, run, needs }
}

const fn shared(name: &'static str, run: fn(&Cell<'_>), needs: &'static [Need]) -> Behaviour {
    let run = Run::Shared(run);
    Behaviour { name, run, needs }
}
