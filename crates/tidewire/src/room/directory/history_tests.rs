use std::sync::Arc;

use tidewire_proto::backplane::NodeLife;

use super::*;
use crate::broker::BackplaneLink;
use crate::history::{History, Readiness};
use crate::limits::Limits;

/// Regression: only one of those that waited was told of a failure, and the next one made the node try again. If it had
/// gone meanwhile, somebody else was told later, and names that nobody asked for again stayed for ever.
#[test]
fn a_failure_is_told_to_all_that_waited_and_to_nobody_later() {
    let link = Arc::new(BackplaneLink::new(NodeLife::new("one", 1), 1_000, true));
    let directory = Directory::new(&Limits::default(), None, Some(Arc::clone(&link)));
    let room = RoomOrTopic::Room("lobby".into());
    let limits = Some(History::default());
    let fails = |is_repeating| {
        let readiness = directory.readiness(&room, limits, is_repeating);
        matches!(readiness, Readiness::Failed(_))
    };
    assert!(!fails(false) && !fails(false), "both wait");
    assert!(directory.awaits(&room));
    directory.histories().fail(&room, "no space");
    assert!(!directory.awaits(&room));
    assert!(fails(true) && fails(true), "both are told");
    assert!(!fails(false), "the node tries again");
    assert_eq!(link.take().histories.len(), 1);
    directory.histories().fail(&room, "no space");
    directory.histories().forget_failures();
    assert!(fails(true), "a heartbeat may be due at once");
    directory.histories().forget_failures();
    assert!(directory.histories().wants_nothing());
    assert!(!fails(false));
    // A node that has ended answers nothing.
    link.close();
    assert!(!directory.awaits(&room));
    assert!(fails(false) && fails(true), "it waited when the node ended");
    assert!(matches!(
        directory.readiness(&RoomOrTopic::Room("new".into()), limits, false),
        Readiness::Failed(_)
    ));
}
