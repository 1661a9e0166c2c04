//! The findings of a lane's agents, which the lane hands in when the step ends.

use tidewire::CloseReason;

use crate::ledger::Ledger;

/// The findings of a lane's agents, handed in when the step ends.
#[derive(Debug, Default)]
pub(crate) struct LaneResult {
    pub(crate) agents: Vec<AgentResult>,
    pub(crate) counts: Counts,
    pub(crate) disconnects: Vec<CloseReason>,
    pub(crate) failures: Vec<String>,
}

/// The findings of one agent.
#[derive(Debug)]
pub(crate) struct AgentResult {
    pub(crate) index: u32,
    pub(crate) is_slow: bool,
    pub(crate) sent: u64,
    /// The account of what it should get; nothing if it was never logged in, or gets nothing.
    pub(crate) ledger: Option<Ledger>,
    /// The server's word on the messages that this agent sent one way.
    pub(crate) confirmed: Option<Confirmed>,
    /// At the end some of what it sent still waited in this process to be written.
    pub(crate) is_backed_up: bool,
}

/// A server's word on how many messages it has of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmed {
    /// It answered a request behind the last of them, so it has handled all.
    InOrder,
    /// It counted.
    Count(u64),
}

/// Numbers of a lane that are added up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Messages that were due, sent or not.
    pub(crate) offered: u64,
    /// Messages left out because they could not be sent in time.
    pub(crate) skipped: u64,
    /// Messages that were due and still not sent at the end.
    pub(crate) unsent: u64,
    /// Messages due in the steady window that were skipped or never sent, though their agent had a place for them.
    pub(crate) steady_overdue: u64,
    pub(crate) send_errors: u64,
    /// Replies given up.
    pub(crate) timeouts: u64,
    /// Replies that came after that.
    pub(crate) late_replies: u64,
    /// Messages the server answered with an error.
    pub(crate) refused: u64,
    /// Messages of which the receiver could not learn when they were sent.
    pub(crate) sent_unknown: u64,
    /// Most unanswered messages at one time.
    pub(crate) in_flight_max: u64,
    /// Messages that were due in the steady window.
    pub(crate) steady_offered: u64,
    /// Those of them that were sent before it ended.
    pub(crate) steady_on_time: u64,
    /// Messages that were sent within the steady window, whenever they were due.
    pub(crate) steady_sent: u64,
    /// Distinct messages that arrived within the steady window, whenever they were due.
    pub(crate) steady_received: u64,
    pub(crate) gaps: u64,
}
