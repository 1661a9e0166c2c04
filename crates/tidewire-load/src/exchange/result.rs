//! The findings of a lane's agents, which the lane hands in when the step ends.

use serde::{Deserialize, Serialize};
use tidewire::CloseReason;

use crate::ledger::{Absence, Ledger};

/// The findings of a lane's agents, handed in when the step ends.
#[derive(Debug, Default)]
pub(crate) struct LaneResult {
    pub(crate) agents: Vec<AgentResult>,
    pub(crate) counts: Counts,
    pub(crate) disconnects: Vec<CloseReason>,
    pub(crate) failures: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct AgentResult {
    pub(crate) index: u32,
    /// The node that it is connected to, from 0.
    pub(crate) node: usize,
    pub(crate) is_slow: bool,
    pub(crate) sent: u64,
    /// The account of what it should get; nothing if it was never logged in, or gets nothing.
    pub(crate) ledger: Option<Ledger>,
    /// The server's word on the messages that this agent sent one way.
    pub(crate) confirmed: Option<Confirmation>,
    /// When it had no connection, in a step with faults.
    pub(crate) absences: Vec<Absence>,
    /// Messages that the server says it dropped on the way to this agent, or has no more for it.
    pub(crate) told: u64,
    /// How often the server said that messages may be missing, and not how many.
    pub(crate) told_unknown: u64,
    /// At the end some of what it sent still waited in this process to be written.
    pub(crate) is_backed_up: bool,
}

/// A server's word on how many messages it has of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmation {
    /// The server answered a request that was sent after the last message, so it has handled all messages.
    InOrder,
    /// The server counted the messages that it handled.
    Count(u64),
}

/// Numbers of a step. `offered = sent + skipped + unsent + send errors`, of which the report has `total_sent` and
/// `total_send_errors`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkCounts {
    /// Messages that were due.
    pub offered: u64,
    /// Left out because they could not be sent in time.
    pub skipped: u64,
    /// Due and still not sent at the end.
    pub unsent: u64,
    /// Deliveries that failed logins, sends and receivers stand for in the share of success.
    #[serde(default)]
    pub failed_deliveries: u64,
    /// Replies given up after the timeout.
    pub timeouts: u64,
    /// Replies that came after they had been given up; they count as received.
    pub late_replies: u64,
    /// Messages the server answered with an error.
    pub refused: u64,
    /// Most unanswered messages at one time, of all lanes together at most.
    pub in_flight_max: u64,
    /// Messages that arrived too late for their sent time to be known; they are missing in `service`.
    pub sent_unknown: u64,
    /// Messages that the schedule had due in the steady window, sent or not.
    pub steady_offered: u64,
    /// Messages of `steady_offered` that were sent before the window ended. Reports of older builds do not have it.
    #[serde(default)]
    pub steady_on_time: Option<u64>,
    /// Deliveries that the messages of `steady_offered` must lead to. In a part of a fan-out only those to receivers of
    /// the same part count, because only they are timed.
    pub steady_expected: u64,
    /// Messages that were sent within the steady window.
    pub steady_sent: u64,
    /// Distinct messages that arrived within the steady window.
    pub steady_received: u64,
}

impl WorkCounts {
    /// Adds all but `in_flight_max`, of which a sum means something only where both were at the same time.
    pub(crate) fn add(&mut self, other: &Self) {
        add_fields!(self, other;
            offered skipped unsent failed_deliveries timeouts late_replies refused sent_unknown steady_offered
            steady_expected steady_sent steady_received);
        let on_time = self.steady_on_time.zip(other.steady_on_time);
        self.steady_on_time = on_time.map(|(one, other)| one + other);
    }
}

/// Numbers of a lane that are added up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// The counts that are in the report.
    pub(crate) work: WorkCounts,
    /// Messages due in the steady window that were skipped or never sent, though their agent had a place for them.
    pub(crate) steady_overdue: u64,
    /// Messages due in the steady window that were sent before it ended.
    pub(crate) steady_on_time: u64,
    /// Messages due in the steady window that were not sent in it, because their agent had no place for them.
    pub(crate) steady_held: u64,
    /// Replies that came in the steady window, after their message had been given up.
    pub(crate) steady_late_replies: u64,
    /// Messages that were given up in the steady window, after the timeout, an error or the end of the connection.
    pub(crate) steady_unanswered: u64,
    /// How long messages that were given up had been waited for within the steady window.
    pub(crate) steady_unanswered_ns: u64,
    pub(crate) send_errors: u64,
    /// Messages of the room itself.
    pub(crate) announced: u64,
}
