//! Counters of a lane, readable from any thread at any time.
//!
//! Each lane owns one padded block and is its only writer, so an increment is a plain add: no locked
//! instruction, no shared cache line. Hot paths add once per batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::memory::MemoryAccount;
use tidewire_proto::connection::CloseReason;

/// A number that one thread changes and any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        // Only the lane writes, so load and store need not be one atomic step.
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(count),
            Ordering::Relaxed,
        );
    }

    /// As [`Counter::add`], when others than the lane may count: once it has ended.
    pub(crate) fn add_shared(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// For a number that is counted elsewhere, on the lane's own thread.
    #[inline]
    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The reason why a room message did not reach a subscriber. It is an index into
/// [`Metrics::room_dropped`]; [`Metrics`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The session closed before the message was written.
    Closed,
    /// The subscription's policy dropped it.
    Policy,
    /// The subscriber left the room before the message was written.
    Left,
    /// The server was near its memory limit: the subscriber was among those furthest behind, or the log could not grow.
    Memory,
    /// By the policy `conflate_by_topic`: a newer message of the topic took its place before the subscriber could take it, or
    /// there were more topics than the limits of a lagging subscriber allow.
    Replaced,
}

impl DropReason {
    /// Names of all reasons, in the order of their counters.
    pub const NAMES: [&'static str; 5] = ["closed", "policy", "left", "memory", "replaced"];
}

/// The reason why a datagram, or the rest of one, was dropped. The last two reasons are about datagrams to send, all others
/// about received ones. [`Metrics`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramDrop {
    /// Its sender has no session, and it cannot begin one.
    Stranger,
    /// It is not of the codec. What stood before that was handled.
    Malformed,
    /// Its last frame is not whole. Those before were handled.
    Unfinished,
    /// It was larger than is taken, and was not looked at.
    Truncated,
    /// Its session may not be read for now: output, a room, deferred answers, its rate or the service hold it back.
    Paused,
    /// A limit on the number of sessions was reached.
    Refused,
    /// Its session, or the server, is about to end.
    Closing,
    /// It overtook the welcome.
    Early,
    /// It has an address of this server as its source, and answering it would be answering oneself.
    OwnAddress,
    /// One of many that brought nothing new although all were answered, so that two servers may be answering each other.
    Loop,
    /// To an address that has not proved itself, beyond what that address sent.
    OverBudget,
    /// The system would not send it.
    Unsendable,
}

impl DatagramDrop {
    /// Names of all reasons, in the order of their counters.
    pub const NAMES: [&'static str; 12] = [
        "stranger",
        "malformed",
        "unfinished",
        "truncated",
        "paused",
        "refused",
        "closing",
        "early",
        "own_address",
        "loop",
        "over_budget",
        "unsendable",
    ];
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Debug, Default)]
        pub(crate) struct LaneCounters {
            $(pub(crate) $name: Counter,)*
            pub(crate) closed: [Counter; CloseReason::NAMES.len()],
            pub(crate) room_dropped: [Counter; DropReason::NAMES.len()],
            pub(crate) datagrams_dropped: [Counter; DatagramDrop::NAMES.len()],
        }

        /// The counters of one lane, or the sum over lanes, at one moment. Counters only grow, but for the two of memory.
        ///
        /// ```
        /// use tidewire::{Client, Context, DatagramDrop, DropReason, Message};
        ///
        /// let server = tidewire::serve("tcp://127.0.0.1:0", |cx: &mut Context<'_>, message: Message<'_>| {
        ///     cx.reply(message.payload)
        /// })?;
        /// let client = Client::connect(&server.to_string()).wait()?;
        /// client.request(b"hello").wait()?;
        ///
        /// let metrics = server.metrics();
        /// assert_eq!(metrics.sessions_opened, 1);
        /// assert_eq!(metrics.closed_by("idle_timeout"), 0);
        /// assert_eq!(metrics.room_dropped[DropReason::Policy as usize], 0);
        /// assert_eq!(metrics.datagrams_dropped_by(DatagramDrop::Malformed), 0);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: u64,)*
            /// Bytes that the server's lanes hold for its peers, less than 64 KiB a lane from what they have settled; see
            /// [`Limits::memory_bytes_max`](crate::Limits::memory_bytes_max).
            pub memory_bytes: u64,
            /// The limit of those bytes.
            pub memory_bytes_max: u64,
            /// How often the memory pressure rose or fell by a level. The levels are normal, high and full.
            pub memory_pressure_changes: u64,
            /// Sessions closed, by reason; see [`CloseReason::NAMES`].
            pub closed: [u64; CloseReason::NAMES.len()],
            /// Room messages a subscriber did not get, by reason; see [`DropReason::NAMES`].
            pub room_dropped: [u64; DropReason::NAMES.len()],
            /// Datagrams that did not go where they were to go, by reason; see [`DatagramDrop::NAMES`].
            pub datagrams_dropped: [u64; DatagramDrop::NAMES.len()],
        }

        impl LaneCounters {
            fn add_to(&self, sum: &mut Metrics) {
                $(sum.$name += self.$name.read();)*
                for (total, counter) in sum.closed.iter_mut().zip(&self.closed) {
                    *total += counter.read();
                }
                for (total, counter) in sum.datagrams_dropped.iter_mut().zip(&self.datagrams_dropped) {
                    *total += counter.read();
                }
                for (total, counter) in sum.room_dropped.iter_mut().zip(&self.room_dropped) {
                    *total += counter.read();
                }
            }
        }
    };
}

counters! {
    /// Sessions accepted or connected.
    sessions_opened,
    /// Connections refused because a session limit was reached.
    sessions_refused,
    /// Sessions that waited for something when a drain reached its deadline: output, answers, messages of rooms that were
    /// not written yet, or requests that were read but not handled.
    sessions_cut_off,
    /// Messages for rooms, topics or sessions of another lane that had ended when they came, each counted once however many
    /// sessions it was for.
    mail_undelivered,
    /// Failures of `accept`, descriptor exhaustion included.
    accept_errors,
    /// Bytes read from sockets.
    bytes_in,
    /// Bytes taken by sockets.
    bytes_out,
    /// Frames decoded.
    frames_in,
    /// Write calls that took bytes.
    writes,
    /// System calls that waited for events, read or wrote, also those that came to nothing. What it takes to open and close
    /// sessions, to change what is waited for, and to ring a lane that sleeps is not among them.
    system_calls,
    /// Times a lane that had nothing to do looked for work awhile before it would sleep; see
    /// [`ServerBuilder::spin_us`](crate::ServerBuilder::spin_us).
    spins,
    /// Of these, times that there was some.
    spins_found,
    /// Allocations of the lane's thread, up to its last turn. 0 in a program whose allocator does not count
    /// ([`is_counting`](crate::system::is_counting)).
    allocations,
    /// Bytes of those allocations; of buffers that grew, what was added.
    allocated_bytes,
    /// Messages said in rooms, on this lane.
    said,
    /// Messages published to topics, on this lane, whether or not anybody is subscribed.
    published,
    /// Frames of rooms and topics times their subscribers.
    room_offered,
    /// Room frames handed to a subscriber's socket whole.
    room_delivered,
    /// Sweeps of a room.
    sweeps,
    /// Gap notices sent.
    gaps_announced,
    /// Times a publisher was held because a room blocks.
    publishers_held,
    /// Times reading paused because a session did not take its output, or the application did not take a client's events.
    reads_paused,
    /// Events that a client dropped because the application did not take them; see
    /// [`WhenEventsFull`](crate::WhenEventsFull).
    events_dropped,
    /// Connections refused because the server was near its memory limit. They are counted in `sessions_refused`, too.
    memory_refused_sessions,
    /// Messages for rooms and topics refused because the server was at its memory limit, and those of other lanes that were
    /// dropped for it.
    memory_refused_messages,
    /// Messages a service refused with a typed error.
    refused,
    /// Of these, messages whose handler failed with an error of its own. The peer was told no details; the log has them.
    handler_failures,
    /// Times that a session was not read because it had used up its [`RateLimit`](crate::RateLimit).
    rate_paused,
    /// Of the refused messages, those above the rate limit of their session.
    rate_refused,
    /// Direct sends refused because the receiver's queue was full or it was gone.
    sends_refused,
    /// Messages refused at the sender because they fit no frame that the receiver takes.
    sends_too_large,
    /// Datagrams received, whatever became of them.
    datagrams_in,
    /// Datagrams handed to the system. Whether they arrive is not known.
    datagrams_out,
    /// Datagrams that reached this machine and found no room in a socket of a lane. A run handed over in one piece on
    /// the same machine counts as one.
    kernel_drops,
    /// Challenges sent to addresses that said hello and had not shown that they receive there.
    challenges,
    /// Hellos sent again because nothing came back.
    hellos_repeated,
    /// Registrations of subscribers, not counting those that were only repeated.
    registrations,
    /// Registrations refused because of the limit, or because the address had not proved itself.
    registrations_refused,
    /// Requests that were missing, by their ids, when a later one came over UDP. Those that came after all are counted
    /// in `requests_late` as well, so that the difference was lost.
    requests_missing,
    /// Requests that came over UDP after later ones.
    requests_late,
    /// Replies that no request waited for.
    replies_unmatched,
    /// Cancel frames received.
    requests_cancelled,
    /// Requests whose answers were deferred.
    deferred,
    /// Deferred answers handed to their session.
    deferred_answered,
    /// Deferred answers that nobody wanted any more: the session had ended or the caller had cancelled.
    deferred_undelivered,
    /// Requests to upstreams that were sent, or wait for a connection. Each is answered, failed, timed out, cancelled or
    /// still in flight.
    upstream_requests,
    /// Requests to upstreams that were refused at once: too many waited, or the upstream was down.
    upstream_refused,
    /// Requests that upstreams answered, by a reply or a refusal.
    upstream_answered,
    /// Requests whose upstream could not be reached, or whose connection ended before the answer.
    upstream_failed,
    /// Requests that upstreams did not answer in time.
    upstream_timed_out,
    /// Requests to upstreams that were taken back, because the session that asked had ended.
    upstream_cancelled,
    /// Connections made to upstreams.
    upstream_connections,
    /// Messages of other threads brought into their session's output.
    sends_taken,
    /// Messages of other threads whose session had ended when its lane came to them.
    sends_undelivered,
    /// Sessions that broadcasts chose.
    broadcast_matched,
    /// Of these, sessions into whose output the message went.
    broadcast_queued,
    /// Of these, sessions whose output was full.
    broadcast_full,
    /// Of these, sessions that take only smaller frames.
    broadcast_too_large,
    /// Messages that were said and that the history of their room has no room for: each exceeds
    /// [`History::bytes_max`](crate::History::bytes_max) alone, or there are too many rooms.
    history_skipped,
}

impl Metrics {
    /// Sessions closed with this counter name, such as `"idle_timeout"`. 0 for an unknown name.
    #[must_use]
    pub fn closed_by(&self, name: &str) -> u64 {
        CloseReason::NAMES
            .iter()
            .position(|known| *known == name)
            .map_or(0, |index| self.closed[index])
    }

    /// Sessions closed, for whatever reason.
    #[must_use]
    pub fn sessions_closed(&self) -> u64 {
        self.closed.iter().sum()
    }

    /// Datagrams dropped for this reason.
    #[must_use]
    pub fn datagrams_dropped_by(&self, reason: DatagramDrop) -> u64 {
        self.datagrams_dropped[reason as usize]
    }

    /// Room frames dropped, for whatever reason.
    #[must_use]
    pub fn room_dropped_total(&self) -> u64 {
        self.room_dropped.iter().sum()
    }

    /// Room frames that are neither delivered nor dropped yet. Exact when the lanes are at rest.
    #[must_use]
    pub fn room_in_flight(&self) -> i128 {
        i128::from(self.room_offered)
            - i128::from(self.room_delivered)
            - i128::from(self.room_dropped_total())
    }
}

/// Reads the counters of all lanes of a server, also after the server has stopped. Given by
/// [`Server::metrics_reader`](crate::Server::metrics_reader); [`Metrics`] has an example.
#[derive(Clone, Debug)]
pub struct MetricsReader {
    lanes: Arc<[Arc<CachePadded<LaneCounters>>]>,
    memory: Arc<MemoryAccount>,
}

impl MetricsReader {
    pub(crate) fn new(
        lanes: Vec<Arc<CachePadded<LaneCounters>>>,
        memory: Arc<MemoryAccount>,
    ) -> Self {
        Self {
            lanes: lanes.into(),
            memory,
        }
    }

    /// The sum over all lanes, now.
    #[must_use]
    pub fn read(&self) -> Metrics {
        let mut sum = Metrics {
            memory_bytes: self.memory.bytes() as u64,
            memory_bytes_max: self.memory.bytes_max() as u64,
            memory_pressure_changes: self.memory.pressure_changes(),
            ..Metrics::default()
        };
        for lane in self.lanes.iter() {
            lane.add_to(&mut sum);
        }
        sum
    }
}
