//! The link under a model checker, which tries every interleaving of its threads.

use std::sync::Arc;

use super::*;

/// A look at the end before the lock lost a request: nobody took it, and nobody gave it back.
#[test]
fn a_request_that_races_with_the_end_of_the_node_is_taken_by_it_or_given_back() {
    loom::model(|| {
        let link = Arc::new(BackplaneLink::new(NodeLife::new("one", 1), 100, false));
        let callers = [0, 1].map(|request| {
            let link = Arc::clone(&link);
            loom::thread::spawn(move || link.direct(RequestWork::GiveUp { request }).is_err())
        });
        let mut taken = link.take().directed.len();
        taken += link.end().directed.len();
        let given_back = callers.map(|caller| caller.join().unwrap());
        let given_back = given_back.into_iter().filter(|it| *it).count();
        assert_eq!(taken + given_back, 2);
        assert!(
            link.take().directed.is_empty(),
            "nothing comes after the end"
        );
    });
}

/// A lane that waits for a history asks first and looks at the end then. It must not wait for a node that took nothing.
#[test]
fn a_lane_that_waits_is_noted_or_sees_the_end() {
    loom::model(|| {
        let link = Arc::new(BackplaneLink::new(NodeLife::new("one", 1), 100, true));
        let lane = loom::thread::spawn({
            let link = Arc::clone(&link);
            move || {
                link.note_history(&RoomOrTopic::Topic("a".into()));
                link.is_closed()
            }
        });
        let noted = link.end().histories.len();
        let sees_the_end = lane.join().unwrap();
        assert!(noted == 1 || sees_the_end);
    });
}
