//! The groups of limits: one list of names, defaults, bounds and reasons for each.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::time::Duration;

use tidewire_proto::layer::RECORD_BYTES_MAX;
use tidewire_proto::limits as wire;
use tidewire_proto::setting::SettingError;
use tidewire_proto::websocket::HeadLimits;

use super::{ALIASES_MAX, DATAGRAM_FRAME_BYTES_MAX, memory_bytes_max_default};

/// The error of a limit with which no server or client can work. Its setting is the group and name of the limit, as
/// `sessions.max`.
pub(super) fn out_of_bounds(
    limit: &'static str,
    value: impl fmt::Debug,
    bound: &str,
) -> SettingError {
    let value = format!("{value:?}");
    let text = format!("the limit {limit} is {value}; set it to {bound}");
    SettingError::new(limit, value, text)
}

/// Checks one limit against its bounds.
fn check<T: PartialOrd + fmt::Debug>(
    limit: &'static str,
    value: T,
    bounds: impl RangeBounds<T>,
) -> Result<(), SettingError> {
    if bounds.contains(&value) {
        return Ok(());
    }
    let bound = match (bounds.start_bound(), bounds.end_bound()) {
        (Bound::Included(least), Bound::Included(most)) => format!("{least:?} to {most:?}"),
        (Bound::Included(least), _) => format!("at least {least:?}"),
        (_, Bound::Included(most) | Bound::Excluded(most)) => format!("at most {most:?}"),
        _ => String::from("another value"),
    };
    Err(out_of_bounds(limit, value, &bound))
}

/// The shortest time of a limit that 0 does not switch off.
const SHORTEST: Duration = Duration::from_nanos(1);

/// Makes a group of limits. Each has a line: its name, its setter, its type, its default, and the bounds of its values.
macro_rules! limits {
    (
        $(#[$about:meta])*
        pub struct $type:ident in $group:literal:
        $($(#[doc = $doc:literal])* $name:ident, $set:ident: $value:ty = $default:expr, $bounds:expr;)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $type {
            $($name: $value,)*
        }

        impl Default for $type {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl $type {
            $(
                $(#[doc = $doc])*
                #[must_use]
                #[inline]
                pub fn $name(&self) -> $value {
                    self.$name
                }

                #[doc = concat!("Sets [`", stringify!($name), "`](Self::", stringify!($name), ").")]
                pub fn $set(&mut self, value: $value) -> &mut Self {
                    self.$name = value;
                    self
                }
            )*

            pub(super) fn check_each(&self) -> Result<(), SettingError> {
                $(check(concat!($group, ".", stringify!($name)), self.$name, $bounds)?;)*
                Ok(())
            }
        }
    };
}

limits! {
    /// Limits and timings of one connection, at a server in [`Limits`](crate::Limits), which has an example, and at a
    /// client for [`ClientBuilder::limits`](crate::ClientBuilder::limits).
    pub struct ConnectionLimits in "connections":
    /// Largest whole frame that is accepted, in bytes. Default 1 MiB.
    frame_bytes_max, set_frame_bytes_max: usize = wire::FRAME_BYTES_MAX, 1..=u32::MAX as usize;
    /// The longest time from the first byte of a frame to its last. Each `frame_bytes_per_second_min` bytes of the
    /// frame that have come add a second. Single bytes do not restart the time: otherwise a peer that sends one byte at
    /// a time would keep its session for ever. Default 10 s: three retransmissions of a lost packet, and a little more.
    /// A line that a person types (codec `lines`) has [`HandshakeLimits::login_timeout`] if that is longer.
    frame_timeout, set_frame_timeout: Duration = Duration::from_secs(10), SHORTEST..;
    /// The lowest rate of a long frame in bytes a second; see `frame_timeout`. Default 16 KiB a second, the rate of a
    /// poor mobile network: a frame of 1 MiB has 74 s.
    frame_bytes_per_second_min, set_frame_bytes_per_second_min: usize = 16 * 1024, 1..;
    /// Pings and other control frames that a session may send in a second. Default 100.
    control_frames_per_second_max, set_control_frames_per_second_max: u32 = 100, 1..;
    /// Largest datagram that several frames share, in bytes. Default 1,472: the payload of one Ethernet packet over
    /// IPv4 (over IPv6 it is 1,452). A larger frame has a datagram of its own. The network splits that datagram into
    /// fragments, and it is lost if one of them is lost. A frame of more than 65,507 bytes is refused.
    datagram_bytes_max, set_datagram_bytes_max: usize = 1_472, 1..=DATAGRAM_FRAME_BYTES_MAX;
    /// Unsent bytes in the output of a session. Above this limit the session is not read, and direct sends to it from
    /// others are refused. Messages of other threads have a count of their own with the same limit, and 64 bytes for
    /// each message that the lane has not taken. So have the one-way messages and requests that a client's threads have
    /// queued for its lane. Default 1 MiB.
    queue_bytes_max, set_queue_bytes_max: usize = 1 << 20, 1..;
    /// Deferred requests of one session, and answers that wait for them where replies are matched by their order. A
    /// session that reaches this limit is not read, nor is one with more than `queue_bytes_max` bytes of such answers.
    /// Default 1,024: a worker pool is busy with fewer, and with small replies a session costs a few hundred kilobytes
    /// at most.
    deferred_max, set_deferred_max: usize = 1_024, 1..;
    /// Bytes read from one session in one turn, so that a busy session cannot starve the others. Default 512 KiB.
    turn_bytes_max, set_turn_bytes_max: usize = 512 * 1024, 1..;
    /// The longest time from connect to an accepted hello. Default 5 s: three retransmissions of a lost packet. It also
    /// bounds the wait of a client for the server of an in-process name, and the lookup of a host name before a
    /// connect.
    handshake_timeout, set_handshake_timeout: Duration = Duration::from_secs(5), SHORTEST..;
    /// A session whose peer answers pings is closed after this time of silence. Default 60 s. Its codec has pings, or
    /// it is over WebSocket, which has some of its own.
    idle_timeout, set_idle_timeout: Duration = Duration::from_secs(60), SHORTEST..;
    /// A session without pings is closed after this time of silence. Default 20 min, because a person may need time to
    /// think. Over UDP only received messages end the silence. Elsewhere the peer also ends it when it takes bytes that
    /// it is sent.
    idle_timeout_without_heartbeat, set_idle_timeout_without_heartbeat: Duration = Duration::from_secs(20 * 60),
        SHORTEST..;
    /// A session that receives nothing for this time is closed, in every codec. Zero, the default, means never. It is
    /// for devices that must report. The other timeouts also count it as a sign of life when the peer's system accepts
    /// bytes, which it does even while the program behind it hangs. An answered ping counts as received, so with pings
    /// keep `heartbeat` below this time. Time in which this side does not read is not silence.
    receive_timeout, set_receive_timeout: Duration = Duration::ZERO, ..;
    /// A silent peer is sent a ping after at most this time of silence; zero means never. The pings of a lane are
    /// spread over the time, so a ping comes up to seven eighths of it sooner. Default 20 s. Over UDP it is 10 s at
    /// most, because routers on the way forget a silent peer, many after 30 s.
    heartbeat, set_heartbeat: Duration = Duration::from_secs(20), ..;
    /// A session is closed if nothing came and nothing was taken for this time since a ping. Default 10 s: several
    /// round trips of a slow network, a retransmission included. Over UDP, where an answer may get lost, only
    /// `idle_timeout` closes.
    ping_timeout, set_ping_timeout: Duration = Duration::from_secs(10), SHORTEST..;
}

limits! {
    /// Limits of the sessions of a server: `Limits::sessions`. [`Limits`](crate::Limits) has an example.
    pub struct SessionLimits in "sessions":
    /// Sessions of the whole server. Default 65,536; the descriptor limit is usually lower. When all places are taken,
    /// a newcomer takes that of the newest session of the address with the most sessions, if this one has at least
    /// twice as many; see [`CloseReason::Displaced`](crate::CloseReason::Displaced).
    max, set_max: usize = 65_536, 1..;
    /// Sessions from one address: an IPv4 address, or an IPv6 network (the first 64 bits), because a host in such a
    /// network may use any of its addresses. Default 16,384: above a large NAT, below all descriptors of a machine.
    per_address_max, set_per_address_max: usize = 16_384, 1..;
    /// Timers of one session that have not fired; see [`TimerActions::set`](crate::TimerActions::set). Default 64: one
    /// for each request that a device has in flight. A handler that sets timers in a loop by mistake gets an error
    /// before it costs memory.
    timers_max, set_timers_max: usize = 64, ..;
    /// Timers of one lane that belong to no session and have not fired; see
    /// [`TimerActions::set_for_lane`](crate::TimerActions::set_for_lane). Default 65,536, about 5 MB.
    timers_per_lane_max, set_timers_per_lane_max: usize = 65_536, ..;
}

limits! {
    /// Limits of connections whose peer is not known yet: `Limits::handshakes`. [`Limits`](crate::Limits) has an
    /// example.
    pub struct HandshakeLimits in "handshakes":
    /// Handshakes of layers such as TLS that one address may begin in a second; 0 means no limit. Further connections
    /// of the address are refused. Default 1,000. All sessions of an address ([`SessionLimits::per_address_max`]) may
    /// come at once after a silence, so that its clients are back soon after a restart. Connections without layers have
    /// no such limit: to refuse one costs as much as to accept it.
    per_address_per_second_max, set_per_address_per_second_max: usize = 1_000, ..;
    /// Memory that the unfinished handshakes of one address may hold, in bytes: the state of TLS and what has come of a
    /// handshake, from 16 to 144 KiB each. Default 256 MiB: as many as [`SessionLimits::per_address_max`] at rest. It
    /// is at most a quarter of [`MemoryLimits::bytes_max`], so that one address never brings the server near that limit
    /// by handshakes. A hello has at most 2 KiB and is not counted.
    bytes_per_address_max, set_bytes_per_address_max: usize = 256 << 20, 1..;
    /// The longest time from a service's prompt for a name until the peer is known, where the codec has no hello
    /// ([`Context::await_login`](crate::Context::await_login)). Default 60 s: a person reads the prompt, thinks of a
    /// free name, and types it.
    login_timeout, set_login_timeout: Duration = Duration::from_secs(60), SHORTEST..;
    /// Bytes of the head of a WebSocket handshake, or of a request for a page. Default 16 KiB, as Node has: browsers
    /// send cookies of up to 4 KiB each. At most 32 KiB, which is what a layer may hold.
    websocket_head_bytes_max, set_websocket_head_bytes_max: usize = HeadLimits::default().bytes_max,
        1..=RECORD_BYTES_MAX;
    /// Headers of a WebSocket handshake. Default 128: proxies add some to the twenty of a browser.
    websocket_headers_max, set_websocket_headers_max: usize = HeadLimits::default().headers_max, 1..;
}

limits! {
    /// Limits of the memory that a server holds for its peers: `Limits::memory`. [`Limits`](crate::Limits) has an
    /// example.
    pub struct MemoryLimits in "memory":
    /// Bytes that all lanes of the server hold for its peers: outputs, logs of rooms and topics, partial frames,
    /// messages between lanes, sessions and subscriptions, each with the capacity of its buffers. Near the limit, new
    /// connections are refused, and sessions with an unfinished handshake, a long partial frame, or a long output are
    /// closed; see [`CloseReason::MemoryLimit`](crate::CloseReason::MemoryLimit). The kernel's buffer of a socket
    /// counts once it is full. Code, stacks, and for each lane a receive buffer of 256 KiB and its latest topics (less
    /// than 2 MiB) are not counted. Default: a quarter of the memory of the machine, of its control group, or of its
    /// resource limits (`RLIMIT_AS`, `RLIMIT_DATA`): of the least of them.
    bytes_max, set_bytes_max: usize = memory_bytes_max_default(), 1..;
    /// Bytes of broadcasts that not all lanes have handled. Above this limit a broadcast is refused. Default 8 MiB:
    /// four batches between lanes, so that lanes that were busy for a moment catch up within a second.
    broadcast_bytes_max, set_broadcast_bytes_max: usize = 8 << 20, 1..;
}

limits! {
    /// Limits of rooms, and of the logs that rooms and patterns have: `Limits::rooms`. [`Limits`](crate::Limits) has an
    /// example.
    pub struct RoomLimits in "rooms":
    /// Rooms of the whole server. Default 16,384 of the 64,512 that aliases can name.
    max, set_max: usize = 16_384, ..=ALIASES_MAX;
    /// Rooms that the sessions of one address have opened and that are not empty yet. Default 4,096, a quarter of all,
    /// so that one address cannot take all rooms. In the last quarter of all rooms, an address may have a 32nd of those
    /// that are free, so that many addresses cannot take all rooms either. Behind a proxy all clients have one address:
    /// raise the limit there. Peers without an address (ipc and inproc) have no such limit.
    per_address_max, set_per_address_max: usize = 4_096, ..;
    /// Rooms that a session may be in at once. Default 64: every flush of the session checks each of them.
    per_session_max, set_per_session_max: usize = 64, ..;
    /// Members of the largest room that announces who comes and goes, and that sends a new member the list of members.
    /// Default 1,024: announcements grow with the square of the members. In a larger room, ask for the list.
    presence_members_max, set_presence_members_max: usize = 1_024, ..;
    /// Unsent bytes of a room above which a subscriber counts as slow. Default 8 MiB: about a second of a busy room
    /// (200,000 messages of 40 bytes), so that a short stall costs no subscriber its connection.
    lag_bytes_max, set_lag_bytes_max: u64 = 8 << 20, 1..;
    /// Unsent messages of a room above which a subscriber counts as slow. Default 262,144.
    lag_messages_max, set_lag_messages_max: u64 = 262_144, 1..;
    /// The longest time for which a `block` subscriber may hold the publishers. Default 1 s.
    block_deadline, set_block_deadline: Duration = Duration::from_secs(1), ..;
}

limits! {
    /// Limits of topics and patterns: `Limits::topics`. [`Limits`](crate::Limits) has an example.
    pub struct TopicLimits in "topics":
    /// Distinct patterns that the sessions of the whole server are subscribed to. Default 16,384; with the rooms they
    /// share the 64,512 aliases.
    max, set_max: usize = 16_384, ..=ALIASES_MAX;
    /// Patterns that sessions of one address were the first to subscribe to and that still have subscribers. Default
    /// 4,096, a quarter of all, as with the rooms.
    per_address_max, set_per_address_max: usize = 4_096, ..;
    /// Patterns that a session may be subscribed to at once. Default 256: every flush of the session checks each of
    /// them, and with wildcards a few patterns are enough.
    per_session_max, set_per_session_max: usize = 256, ..;
    /// Shapes of the patterns with `*` before the last segment. `a.*.c` and `x.*.z` have the same shape, `a.*.>` has
    /// another one. Default 256. A publication looks for one pattern of each shape that fits its topic, and each may
    /// match. Patterns with a wildcard only at the end are not counted.
    shapes_max, set_shapes_max: usize = 256, ..=SHAPES_MAX;
    /// Of these, the shapes that sessions of one address were the first to use. Default 64, a quarter of all.
    shapes_per_address_max, set_shapes_per_address_max: usize = 64, ..;
    /// The shapes that the patterns of one session may have. Default 16: a program has few kinds of topics.
    shapes_per_session_max, set_shapes_per_session_max: usize = 16, ..;
}

/// The most shapes that a server may allow. A publication to a topic with 16 segments may need as many look-ups.
const SHAPES_MAX: usize = 4_096;

limits! {
    /// Limits of sessions and subscribers over UDP: `Limits::udp`. [`Limits`](crate::Limits) has an example.
    pub struct UdpLimits in "udp":
    /// Subscribers of the whole server that are registered for every topic, as those of UVRPC over UDP are. Default
    /// 256: each publication goes to each of them, at unvalidated addresses. A subscriber that is silent for
    /// [`ConnectionLimits::idle_timeout_without_heartbeat`] is forgotten.
    registrations_max, set_registrations_max: usize = 256, ..;
    /// Of these, the subscribers at one address. Default 64, a quarter of all.
    registrations_per_address_max, set_registrations_per_address_max: usize = 64, ..;
    /// Sessions over UDP with an unvalidated address, for codecs that do not validate addresses, on servers that do not
    /// trust their peers. They are at most a quarter of [`SessionLimits::max`], spread evenly over the lanes. A further
    /// session replaces the oldest. Default 4,096: it bounds the sessions that a forger can open. Peers that come
    /// faster than this many within `unvalidated_timeout` end each other's sessions.
    unvalidated_max, set_unvalidated_max: usize = 4_096, ..;
    /// A session with an unvalidated address ends after this time of silence, without a message to its peer, unless
    /// replies to it are pending. An address that still sends this long after its first datagram is established: its
    /// session may be silent for [`ConnectionLimits::idle_timeout_without_heartbeat`]. At most half of
    /// [`SessionLimits::max`] are established. Default 10 s: longer than a peer waits for an answer before it asks
    /// again.
    unvalidated_timeout, set_unvalidated_timeout: Duration = Duration::from_secs(10), SHORTEST..;
}
