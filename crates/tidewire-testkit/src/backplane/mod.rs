//! The conformance suite of backplanes, and a backplane within the process.
//!
//! [`suite`], [`entering`], [`services`], and [`histories`], [`topic_histories`] and [`lost_ends`] for histories, check
//! each sentence of the contract at the top of `tidewire::backplane`, with servers and raw peers. A backplane passes it
//! by [`backplane_suite!`](crate::backplane_suite). [`InprocEngine`] is the second implementation, so that the suite
//! does not only describe NATS; it can also lose packets and silence nodes on demand.

pub mod entering;
pub mod histories;
mod inproc;
pub mod lost_ends;
pub mod services;
mod streams;
pub mod suite;
pub mod topic_histories;

pub use inproc::{InprocBackplane, InprocEngine};

use tidewire::backplane::Backplane;

/// An engine that connects the servers of a test.
pub trait Engine {
    /// Its backplane.
    type Backplane: Backplane + 'static;

    /// Returns the backplane of one more node.
    fn backplane(&self) -> Self::Backplane;

    /// Makes the engine unreachable for all nodes.
    fn cut(&mut self);

    /// Makes it reachable again.
    fn mend(&mut self);

    /// Loses the histories of all rooms and topics.
    fn lose_streams(&mut self);

    /// Keeps a copy of all histories. The engine is cut off.
    fn save_streams(&mut self);

    /// Replaces all histories by the copy. The engine is cut off.
    fn restore_streams(&mut self);
}

/// Makes a test of each function of the [suite]. The expression makes an engine; if it is `None`, the test is skipped.
#[macro_export]
macro_rules! backplane_suite {
    ($make:expr) => {
        $crate::backplane_suite!(@kinds histories $make;
            all_nodes_have_one_order
            a_member_that_comes_back_to_another_node_gets_what_it_missed
            the_missing_number_is_exact_when_the_history_was_too_short
            messages_wait_while_the_engine_is_gone
            a_node_that_starts_again_has_the_history
            a_history_that_is_lost_begins_again
        );
        $crate::backplane_suite!(@kinds lost_ends $make;
            a_stream_that_lost_its_end_begins_again
        );
        $crate::backplane_suite!(@each topic_histories $make;
            the_last_value_of_a_topic_is_the_same_on_all_nodes
            wildcards_get_live_messages_of_kept_topics_once
            a_node_that_only_publishes_keeps_nothing
        );
        $crate::backplane_suite!(@each suite $make;
            members_on_two_nodes_hear_each_other_in_order
            a_message_reaches_every_node_once
            subscribers_get_what_is_published_at_another_node
            presence_spans_nodes
            a_name_of_another_node_is_shown_with_it
            whispers_cross_nodes
            a_node_id_in_use_is_refused
            a_node_that_is_cut_off_serves_its_members_and_tells_gaps
            publishers_of_a_node_that_is_cut_off_are_refused_on_request
            publishers_to_topics_are_refused_on_request_while_the_node_is_cut_off
            large_rooms_have_counts
        );
        $crate::backplane_suite!(@each entering $make;
            members_get_messages_of_another_node_after_their_join
            members_that_join_a_cut_off_node_are_told
            joins_and_leaves_during_a_cut_are_told_once_behind_it
        );
        $crate::backplane_suite!(@each services $make;
            messages_for_a_session_cross_nodes
            a_request_goes_to_one_of_the_nodes_that_have_the_service
            every_way_to_answer_crosses_nodes
            a_node_does_not_ask_itself
            a_request_that_no_node_serves_fails_at_once
            a_request_ends_at_its_deadline_or_with_its_caller
            requests_of_a_node_that_is_gone_fail
            a_node_that_is_cut_off_asks_no_other
        );
    };
    (@kinds $of:ident $make:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                use $crate::backplane::histories::HistoryKind;
                for kind in [HistoryKind::Room, HistoryKind::Topic] {
                    if let Some(mut engine) = $make {
                        $crate::backplane::$of::$name(&mut engine, kind);
                    }
                }
            }
        )*
    };
    (@each $of:ident $make:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                if let Some(mut engine) = $make {
                    $crate::backplane::$of::$name(&mut engine);
                }
            }
        )*
    };
}
