//! Counters of a lane, readable from any thread at any time.
//!
//! Each lane owns one padded block and is its only writer, so an increment is a plain add: it needs no locked
//! instruction and no shared cache line. Hot paths add once per batch.

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

    /// As [`Counter::add`], for any thread. Use it once the lane has ended, or for a counter that the lane never
    /// changes.
    pub(crate) fn add_shared(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Replaces the number by a count that the lane's thread keeps elsewhere.
    #[inline]
    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The reason why a room message did not reach a subscriber. It is an index into [`Metrics::room_dropped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// The session closed before the message was written.
    Closed,
    /// The subscription's policy dropped it.
    Policy,
    /// The subscriber left the room before the message was written.
    Left,
    /// The server was near its memory limit: the subscriber was among the furthest behind, or the log could not grow.
    Memory,
    /// The policy `conflate_by_topic` replaced it by a newer message of the topic, or there were more topics than the
    /// limits of a lagging subscriber allow.
    Replaced,
    /// The subscriber was getting the history of the room or topic, and got or gets the message from there.
    Replayed,
    /// The codec of the subscriber cannot express it.
    Inexpressible,
    /// The subscriber left its queue group before the message was written, and another member got it.
    Reassigned,
}

/// The reason why a datagram, or the rest of a datagram, was dropped. The last two reasons are about datagrams to send,
/// all others about received datagrams. It is an index into [`Metrics::datagrams_dropped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatagramDrop {
    /// The sender has no session, and the datagram cannot begin one.
    UnvalidatedAddress,
    /// The bytes are not a frame of the codec. The frames before them were handled.
    Malformed,
    /// The last frame is not whole. The frames before it were handled.
    Unfinished,
    /// The datagram was larger than the limit, and was not decoded.
    Truncated,
    /// The session is not read at the moment, because of its output, a room, deferred answers, its rate or the service.
    Paused,
    /// A limit on the number of sessions was reached.
    Refused,
    /// The session, or the server, is about to end.
    Closing,
    /// The datagram came before the welcome.
    Early,
    /// The source is an address of this server, so the server would answer itself.
    OwnAddress,
    /// The datagram was one of many that brought nothing new and were answered. Two servers may be answering each
    /// other.
    Loop,
    /// The receiver is an unvalidated address, which may be sent no more bytes than it sent.
    OverBudget,
    /// The system refused to send the datagram.
    Unsendable,
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        #[derive(Debug, Default)]
        pub(crate) struct LaneCounters {
            $(pub(crate) $name: Counter,)*
            pub(crate) closed: [Counter; CloseReason::NAMES.len()],
            pub(crate) room_dropped: [Counter; Metrics::ROOM_DROP_REASONS.len()],
            pub(crate) datagrams_dropped: [Counter; Metrics::DATAGRAM_DROP_REASONS.len()],
        }

        /// The counters of one lane, or the sum over lanes, at one moment. All counters only grow, except the two of
        /// memory.
        ///
        /// ```
        /// use tidewire::Client;
        ///
        /// let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
        ///     cx.reply(message.payload)
        /// })?;
        /// let client = Client::connect(&server.to_string()).wait()?;
        /// client.request(b"hello").wait()?;
        ///
        /// let metrics = server.metrics();
        /// assert_eq!(metrics.sessions_opened, 1);
        /// assert_eq!(metrics.closed_by("idle_timeout"), 0);
        /// assert_eq!(metrics.room_dropped_by("policy"), 0);
        /// assert_eq!(metrics.datagrams_dropped_by("malformed"), 0);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Metrics {
            $($(#[doc = $doc])* pub $name: u64,)*
            /// Bytes that the server's lanes hold for its peers, to within 64 KiB a lane; see
            /// [`MemoryLimits::bytes_max`](crate::limits::MemoryLimits::bytes_max).
            pub memory_bytes: u64,
            /// The limit of the bytes above.
            pub memory_bytes_max: u64,
            /// Times that the memory pressure rose or fell by a level. The levels are normal, high and full.
            pub memory_pressure_changes: u64,
            /// Sessions closed, by reason; see [`CloseReason::NAMES`].
            pub closed: [u64; CloseReason::NAMES.len()],
            /// Room messages that did not reach a subscriber, by reason; see [`Self::ROOM_DROP_REASONS`].
            pub room_dropped: [u64; Self::ROOM_DROP_REASONS.len()],
            /// Datagrams dropped, by reason; see [`Self::DATAGRAM_DROP_REASONS`].
            pub datagrams_dropped: [u64; Self::DATAGRAM_DROP_REASONS.len()],
        }

        impl Metrics {
            /// The counters that have no reason: name, meaning, which is the field's documentation, and count.
            /// Exporters read them.
            ///
            /// ```
            /// let metrics = tidewire::metrics::Metrics { frames_in: 7, ..tidewire::metrics::Metrics::default() };
            /// let mut counters = metrics.counters();
            /// assert!(counters.any(|counter| counter == ("frames_in", " Frames decoded.", 7)));
            /// ```
            pub fn counters(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [
                    $((stringify!($name), concat!($($doc),*), self.$name),)*
                ]
                .into_iter()
            }
        }

        impl LaneCounters {
            /// Counts a datagram that is dropped, or the rest of one.
            #[cold]
            pub(crate) fn drop_datagram(&self, reason: DatagramDrop) {
                self.datagrams_dropped[reason as usize].add(1);
            }

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
    /// Peers that were let in with their credentials, once for each hello.
    authenticated,
    /// Peers that were not let in, because their credentials were missing, wrong, expired or revoked.
    auth_refused,
    /// Messages that were refused because the identity of their sender is not allowed to send them.
    forbidden,
    /// Sessions that waited for something when a drain reached its deadline: for their output, for answers, for
    /// messages of rooms, or for requests that were read but not handled.
    sessions_cut_off,
    /// Messages for rooms, topics or sessions of another lane that had ended. Each message counts once, for any number
    /// of sessions.
    mail_undelivered,
    /// Failures of `accept`, including the exhaustion of descriptors.
    accept_errors,
    /// Bytes read from sockets.
    bytes_in,
    /// Bytes that sockets accepted.
    bytes_out,
    /// Frames decoded.
    frames_in,
    /// Write calls that accepted bytes.
    writes,
    /// System calls that waited for events, read or wrote, with or without a result. Calls that open and close
    /// sessions, change the interest of a poller, or wake a lane are not counted.
    system_calls,
    /// Times that an idle lane spun before it went to sleep; see
    /// [`ServerBuilder::spin_us`](crate::ServerBuilder::spin_us).
    spins,
    /// Spins that found work.
    spins_found,
    /// Allocations of the lane's thread, up to its last turn. 0 in a program whose allocator does not count
    /// ([`is_counting`](crate::system::is_counting)).
    allocations,
    /// Bytes of those allocations. A buffer that grew counts with the bytes that were added.
    allocated_bytes,
    /// Chat messages sent to rooms, on this lane.
    chat_messages,
    /// Messages published to topics, on this lane, with or without subscribers.
    published,
    /// Frames of rooms and topics, times their subscribers.
    room_offered,
    /// Frames of rooms and topics that a subscriber's socket accepted whole.
    room_delivered,
    /// Sweeps of a room.
    sweeps,
    /// Gap notices sent.
    gaps_announced,
    /// Times that a publisher was held because a room blocks.
    publishers_held,
    /// Times that reading paused because a session did not take its output, or the application did not take a client's
    /// events.
    reads_paused,
    /// Events that a client dropped because the application did not take them; see
    /// [`WhenEventsFull`](crate::WhenEventsFull).
    events_dropped,
    /// Connections refused because the server was near its memory limit. `sessions_refused` counts them too.
    memory_refused_sessions,
    /// Connections refused because their address began too many handshakes of layers such as TLS. `sessions_refused`
    /// counts them too.
    handshakes_refused,
    /// Hellos of TLS that were answered, which costs a signature each.
    handshakes_answered,
    /// Connections whose peer had gone before the costly step of its handshake, or before the authenticator was asked.
    handshakes_abandoned,
    /// Connections that were left out there, because their peer had waited for nearly as long as the handshake may
    /// take.
    handshakes_expired,
    /// Turns in which handshakes had to wait, and authentications that had to wait for a later turn.
    handshakes_deferred,
    /// Times that the authenticator was asked about all sessions again.
    auth_reloads,
    /// Times that the users could not be replaced because the new ones could not be used.
    auth_reloads_refused,
    /// Times that certificate and key were read again and new connections use them.
    tls_reloads,
    /// Times that certificate and key were read again and could not be used.
    tls_reloads_refused,
    /// Handshakes of WebSocket that were refused, other than for their origin.
    websocket_handshakes_refused,
    /// Handshakes of WebSocket that were refused because a page of an unknown origin asked.
    websocket_origins_refused,
    /// WebSocket sessions that ended because a frame broke the rules, or because the peer sends pings and does not read
    /// the pongs.
    websocket_frames_refused,
    /// Messages for rooms and topics that were refused at the memory limit, and messages of other lanes that were
    /// dropped there.
    memory_refused_messages,
    /// Messages that a service refused with a typed error.
    refused,
    /// Of these, messages whose handler failed with an error of its own. The peer gets no details; the log has them.
    handler_failures,
    /// Calls of the application that panicked: handlers, hooks, and callbacks of upstreams. The log has the texts.
    handler_panics,
    /// Times that a session was not read because it had used up its [`RateLimit`](crate::limits::RateLimit).
    rate_paused,
    /// Of the refused messages, those above the rate limit of their session.
    rate_refused,
    /// Direct sends refused because the receiver's queue was full or its session had ended.
    sends_refused,
    /// Messages refused at the sender because they fit no frame that the receiver accepts.
    sends_too_large,
    /// Datagrams received, with any outcome.
    datagrams_in,
    /// Datagrams that the system accepted. It is not known whether they arrive.
    datagrams_out,
    /// Datagrams that reached this machine and found no room in a socket of a lane. A segment run from the same machine
    /// counts as one.
    kernel_drops,
    /// Challenges sent to unvalidated addresses that said hello.
    challenges,
    /// Hellos sent again because no answer came.
    hellos_repeated,
    /// Joins and subscriptions refused because there are too many rooms or patterns: of the server, the address or the
    /// session.
    rooms_refused,
    /// Registrations of subscribers, without repeated ones.
    registrations,
    /// Registrations refused because of the limit, or because the address was unvalidated.
    registrations_refused,
    /// Requests that were missing, by their ids, when a later one came over UDP. `requests_late` counts those that came
    /// after all, so the difference is the number of lost requests.
    requests_missing,
    /// Requests that came over UDP after later ones.
    requests_late,
    /// Requests, joins and subscriptions that came over UDP again, because the network copied them. They were dropped.
    requests_repeated,
    /// Replies for which no request waited.
    replies_unmatched,
    /// Cancel frames received.
    requests_cancelled,
    /// Requests whose answers were deferred.
    deferred,
    /// Deferred answers that their session got.
    deferred_answered,
    /// Deferred answers that came too late: the session had ended or the caller had cancelled.
    deferred_undelivered,
    /// Requests to upstreams that were sent, or wait for a connection. Each is answered, failed, timed out, cancelled
    /// or still in flight.
    upstream_requests,
    /// Requests to upstreams that were refused at once: too many waited, or the upstream was down.
    upstream_refused,
    /// Requests that upstreams answered, by a reply or a refusal.
    upstream_answered,
    /// Requests whose upstream could not be reached, or whose connection ended before the answer.
    upstream_failed,
    /// Requests that upstreams did not answer in time.
    upstream_timed_out,
    /// Requests to upstreams that were cancelled because the session that asked had ended.
    upstream_cancelled,
    /// Connections made to upstreams.
    upstream_connections,
    /// Connections of proxies that were closed, because they began without a usable PROXY header, or it did not come in
    /// time.
    proxy_headers_refused,
    /// Connections that reached their maximum age and were asked to end.
    connections_retired,
    /// Messages of other threads that were appended to their session's output.
    sends_taken,
    /// Messages of other threads whose session had ended before its lane handled them.
    sends_undelivered,
    /// Sessions that broadcasts chose.
    broadcast_matched,
    /// Of these, sessions whose output got the message.
    broadcast_queued,
    /// Of these, sessions whose output was full.
    broadcast_full,
    /// Of these, sessions that accept only smaller frames.
    broadcast_too_large,
    /// Of these, sessions whose codec cannot express the message.
    broadcast_inexpressible,
    /// Messages that the history of their room or topic did not keep. Such a message exceeds
    /// [`History::bytes_max`](crate::History::bytes_max) alone, or there are too many rooms.
    history_skipped,
    /// Messages that went to other nodes over the backplane.
    backplane_sent,
    /// Messages that could not go to other nodes: the backplane was gone or too slow. The other nodes find them
    /// missing.
    backplane_unsent,
    /// Messages of other nodes that came.
    backplane_received,
    /// Messages of other nodes that are missing. Members and subscribers were told how many.
    backplane_lost,
    /// Messages of other nodes that a lane did not take in time, once for each lane and each codec with members there,
    /// or whose receiver had gone.
    backplane_dropped,
    /// Times that the backplane dropped packets because this node was too slow. `backplane_lost` counts the messages.
    backplane_overflows,
    /// Packets and entries that this node does not understand.
    backplane_malformed,
    /// Times that the backplane was reachable again.
    backplane_reconnects,
    /// Packets of another node with the id of this one.
    backplane_duplicates,
    /// Requests to services of other nodes. Each is counted as answered, unserved, orphaned, unasked, timed out or
    /// abandoned, or waits for its answer.
    backplane_asked,
    /// Of these, requests that another node has answered, with a reply or a refusal.
    backplane_answered,
    /// Of these, requests to a service that no other node has.
    backplane_unserved,
    /// Of these, requests whose node died while it worked on them.
    backplane_orphaned,
    /// Of these, requests that could not be sent, because the node was cut off.
    backplane_unasked,
    /// Of these, requests without an answer at their deadline.
    backplane_timed_out,
    /// Of these, requests whose caller has gone or cancelled.
    backplane_abandoned,
    /// Requests of other nodes that came.
    backplane_taken,
    /// Of these, requests whose answer went out.
    backplane_served,
    /// Of these, requests that were over before the answer, or whose answer could not be sent.
    backplane_unserving,
    /// Messages that were sent from the history of a room or topic, to those who joined or came back.
    history_replayed,
}

impl Metrics {
    /// Why a message of a room or topic did not reach a subscriber, in the order of [`Self::room_dropped`]. The page
    /// `docs/counters.md` of the repository explains them.
    pub const ROOM_DROP_REASONS: [&'static str; 8] = [
        "closed",
        "policy",
        "left",
        "memory",
        "replaced",
        "replayed",
        "inexpressible",
        "reassigned",
    ];

    /// Why a datagram, or the rest of one, was dropped, in the order of [`Self::datagrams_dropped`]. The page
    /// `docs/counters.md` of the repository explains them.
    pub const DATAGRAM_DROP_REASONS: [&'static str; 12] = [
        "unvalidated_address",
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

    /// The number of sessions closed with this name of [`CloseReason::NAMES`], such as `"idle_timeout"`. 0 for an
    /// unknown name.
    #[must_use]
    pub fn closed_by(&self, name: &str) -> u64 {
        count_of(name, &CloseReason::NAMES, &self.closed)
    }

    /// The number of frames of rooms and topics dropped for this one of [`Self::ROOM_DROP_REASONS`], such as
    /// `"policy"`, once for each subscriber. 0 for an unknown name.
    #[must_use]
    pub fn room_dropped_by(&self, name: &str) -> u64 {
        count_of(name, &Self::ROOM_DROP_REASONS, &self.room_dropped)
    }

    /// The number of sessions closed for any reason.
    #[must_use]
    pub fn sessions_closed(&self) -> u64 {
        self.closed.iter().sum()
    }

    /// The number of datagrams dropped for this one of [`Self::DATAGRAM_DROP_REASONS`], such as `"malformed"`. 0 for an
    /// unknown name.
    #[must_use]
    pub fn datagrams_dropped_by(&self, name: &str) -> u64 {
        count_of(name, &Self::DATAGRAM_DROP_REASONS, &self.datagrams_dropped)
    }

    /// The number of frames of rooms and topics dropped for any reason, once for each subscriber.
    #[must_use]
    pub fn room_dropped_total(&self) -> u64 {
        self.room_dropped.iter().sum()
    }

    /// The number of frames of rooms and topics that are neither delivered nor dropped yet. It is exact while the lanes
    /// are idle, and may be negative for a moment while they work.
    #[must_use]
    pub fn room_in_flight(&self) -> i128 {
        i128::from(self.room_offered)
            - i128::from(self.room_delivered)
            - i128::from(self.room_dropped_total())
    }
}

/// The count with this name, or 0.
fn count_of(name: &str, names: &[&str], counts: &[u64]) -> u64 {
    let named = names.iter().zip(counts).find(|(known, _)| **known == name);
    named.map_or(0, |(_, count)| *count)
}

/// Reads the counters of all lanes of a server, also after the server has stopped.
#[derive(Clone, Debug)]
pub(crate) struct MetricsReader {
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

    pub(crate) fn lanes(&self) -> &[Arc<CachePadded<LaneCounters>>] {
        &self.lanes
    }

    /// The counters of the first lane, which are also those of the server.
    pub(crate) fn first_lane(&self) -> &LaneCounters {
        &self.lanes[0]
    }

    /// Reads the counters of each lane at this moment, in the order of the lanes, without the figures of memory.
    pub(crate) fn read_lanes(&self) -> Vec<Metrics> {
        let read = |lane: &Arc<CachePadded<LaneCounters>>| {
            let mut metrics = Metrics::default();
            lane.add_to(&mut metrics);
            metrics
        };
        self.lanes.iter().map(read).collect()
    }

    /// Reads the sum over all lanes at this moment.
    pub(crate) fn read(&self) -> Metrics {
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
