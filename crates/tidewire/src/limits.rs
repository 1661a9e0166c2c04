//! Every limit of a lane and a server, with its default and its reason.
//!
//! A session that exceeds a limit is closed or refused with a typed, counted reason. A limit never causes a panic.

mod rate;

use std::sync::OnceLock;
use std::time::Duration;

use tidewire_io::memory::memory_bytes;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::connection::Rules;
use tidewire_proto::limits as wire;
use tidewire_proto::room::{LagLimits, Policy};
use tidewire_proto::websocket::HeadLimits;

pub(crate) use rate::{Bucket, Rate, SharedBucket};
pub use rate::{RateLimit, RateLimitError, WhenExceeded};

/// Limits and timings of a server or client, for [`ServerBuilder::limits`](crate::ServerBuilder::limits) and
/// [`ClientBuilder::limits`](crate::ClientBuilder::limits). Start from `Limits::default()` and change single fields.
///
/// ```
/// use std::time::Duration;
/// use tidewire::{Context, Limits, Message, Server};
///
/// let limits = Limits {
///     frame_bytes_max: 64 * 1024,
///     receive_timeout: Duration::from_secs(60),
///     ..Limits::default()
/// };
/// let server = Server::builder()
///     .limits(limits)
///     .listen("tcp://127.0.0.1:0")?
///     .start(|_| |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes that all lanes of the server hold for its peers: outputs, logs of rooms and topics, partial frames,
    /// messages between lanes, sessions and subscriptions, each with the capacity of its buffers. Near the limit, new
    /// connections are refused, and sessions with an unfinished handshake, a long partial frame, or a long output are
    /// closed; see [`CloseReason::MemoryLimit`](crate::CloseReason::MemoryLimit). The kernel's buffer of a socket counts
    /// once it is full. Code, stacks, and a receive buffer of 256 KiB a lane are not counted. Default: a quarter of the
    /// memory of the machine, of its control group, or of its resource limits (`RLIMIT_AS`, `RLIMIT_DATA`): of the
    /// least of them.
    pub memory_bytes_max: usize,
    /// Largest whole frame that is accepted, in bytes. Default 1 MiB.
    pub frame_bytes_max: usize,
    /// Sessions of the whole server. Default 65,536; the descriptor limit is usually lower. When all places are taken, a newcomer
    /// takes that of the newest session of the address with the most sessions, if this one has at least twice as many; see
    /// [`CloseReason::Displaced`](crate::CloseReason::Displaced).
    pub sessions_max: usize,
    /// Sessions from one address: an IPv4 address, or an IPv6 network (the first 64 bits), because a host in such a network
    /// may use any of its addresses. Default 16,384: above a large NAT, below all descriptors of a machine.
    pub sessions_per_address_max: usize,
    /// Handshakes of layers such as TLS that one address may begin in a second; 0 means no limit. Further connections of the
    /// address are refused. Default 1,000. All sessions of an address
    /// (`sessions_per_address_max`) may come at once after a silence, so that its clients are back soon after a restart.
    /// Connections without layers have no such limit: to refuse one costs as much as to accept it.
    pub handshakes_per_address_per_second_max: usize,
    /// Memory that the unfinished handshakes of one address may hold, in bytes: the state of TLS and what has come of a
    /// handshake, from 16 to 144 KiB each. Default 256 MiB: as many as `sessions_per_address_max` at rest. It is at most a
    /// quarter of `memory_bytes_max`, so that one address never brings the server near that limit by handshakes. A hello has at
    /// most 2 KiB and is not counted.
    pub handshake_bytes_per_address_max: usize,
    /// The longest time from connect to an accepted hello. Default 5 s: three retransmissions of a lost packet. It also bounds
    /// the wait of a client for the server of an in-process name, and the lookup of a host name before a connect.
    pub handshake_timeout: Duration,
    /// A session whose peer answers pings is closed after this time of silence. Default 60 s. Its codec has pings, or it is over
    /// WebSocket, which has some of its own.
    pub idle_timeout: Duration,
    /// A session without pings is closed after this time of silence. Default 20 min, because a person may need
    /// time to think. Over UDP only received messages end the silence. Elsewhere the peer also ends it when it takes bytes
    /// that it is sent.
    pub idle_timeout_without_heartbeat: Duration,
    /// A session that receives nothing for this time is closed, in every codec. Zero, the default, means never. It is
    /// for devices that must report. The other timeouts also count it as a sign of life when the peer's system accepts
    /// bytes, which it does even while the program behind it hangs. An answered ping counts as received, so with pings
    /// keep `heartbeat` below this time. Time in which this side does not read is not silence.
    pub receive_timeout: Duration,
    /// A silent peer is sent a ping after at most this time of silence; zero means never. The pings of a lane are spread over the
    /// time, so a ping comes up to seven eighths of it sooner. Default 20 s. Over UDP it is 10 s at most, because routers on the way
    /// forget a silent peer, many after 30 s.
    pub heartbeat: Duration,
    /// A session is closed if nothing came and nothing was taken for this time since a ping. Default 10 s: several round trips of a
    /// slow network, a retransmission included. Over UDP, where an answer may get lost, only `idle_timeout` closes.
    pub ping_timeout: Duration,
    /// The longest time from a service's prompt for a name until the peer is known, where the codec has no hello
    /// ([`Context::await_login`](crate::Context::await_login)). Default 60 s: a person reads the prompt, thinks of a free name,
    /// and types it.
    pub login_timeout: Duration,
    /// The longest time from the first byte of a frame to its last. Each `frame_bytes_per_second_min` bytes of the frame that
    /// have come add a second. Single bytes do not restart the time: otherwise a peer that sends one byte at a time would keep
    /// its session for ever. Default 10 s: three retransmissions of a lost packet, and a little more. A line that a person
    /// types (codec `lines`) has `login_timeout` if that is longer.
    pub frame_timeout: Duration,
    /// The lowest rate of a long frame in bytes a second; see `frame_timeout`. Default 16 KiB a second, the rate of a poor
    /// mobile network: a frame of 1 MiB has 74 s.
    pub frame_bytes_per_second_min: usize,
    /// Unsent bytes in the output of a session. Above this limit the session is not read, and direct sends to it from
    /// others are refused. Messages of other threads have a count of their own with the same limit, and 64 bytes for each
    /// message that the lane has not taken. So have the one-way messages and requests that a client's threads have queued for
    /// its lane. Default 1 MiB.
    pub queue_bytes_max: usize,
    /// Bytes of broadcasts that not all lanes have handled. Above this limit a broadcast is refused. Default 8 MiB: four
    /// batches between lanes, so that lanes that were busy for a moment catch up within a second.
    pub broadcast_bytes_max: usize,
    /// Deferred requests of one session, and answers that wait for them where replies are matched by their order. A session
    /// that reaches this limit is not read, nor is one with more than `queue_bytes_max` bytes of such answers. Default 1,024: a
    /// worker pool is busy with fewer, and with small replies a session costs a few hundred kilobytes at most.
    pub deferred_per_session_max: usize,
    /// Unsent bytes of a room above which a subscriber counts as slow. Default 8 MiB: about a second of a busy
    /// room (200,000 messages of 40 bytes), so that a short stall costs no subscriber its connection.
    pub lag_bytes_max: u64,
    /// Unsent messages of a room above which a subscriber counts as slow. Default 262,144.
    pub lag_messages_max: u64,
    /// The longest time for which a `block` subscriber may hold the publishers. Default 1 s.
    pub block_deadline: Duration,
    /// Rooms of the whole server. Default 16,384 of the 64,512 that aliases can name.
    pub rooms_max: usize,
    /// Rooms that the sessions of one address have opened and that are not empty yet. Default 4,096, a quarter of all, so
    /// that one address cannot take all rooms. In the last quarter of all rooms, an address may have a 32nd of those that
    /// are free, so that many addresses cannot take all rooms either. Behind a proxy all clients have one address: raise the limit there.
    /// Peers without an address (ipc and inproc) have no such limit.
    pub rooms_per_address_max: usize,
    /// Rooms that a session may be in at once. Default 64: every flush of the session checks each of them.
    pub rooms_per_session_max: usize,
    /// Distinct patterns that the sessions of the whole server are subscribed to. Default 16,384; with the rooms they
    /// share the 64,512 aliases.
    pub topics_max: usize,
    /// Patterns that sessions of one address were the first to subscribe to and that still have subscribers. Default
    /// 4,096, a quarter of all, as with the rooms.
    pub topics_per_address_max: usize,
    /// Patterns that a session may be subscribed to at once. Default 256: every flush of the session checks each of them,
    /// and with wildcards a few patterns are enough.
    pub subscriptions_per_session_max: usize,
    /// Subscribers of the whole server that are registered for every topic, as those of UVRPC over UDP are. Default 256:
    /// each publication goes to each of them, at unvalidated addresses. A subscriber that is silent for
    /// `idle_timeout_without_heartbeat` is forgotten.
    pub registrations_max: usize,
    /// Of these, the subscribers at one address. Default 64, a quarter of all.
    pub registrations_per_address_max: usize,
    /// Sessions over UDP with an unvalidated address, for codecs that do not validate addresses, on servers that do not trust
    /// their peers. They are at most a quarter of `sessions_max`, spread evenly over the lanes. A further session replaces the
    /// oldest. Default 4,096: it bounds the sessions that a forger can open. Peers that come faster than this many within
    /// `unvalidated_timeout` end each other's sessions.
    pub unvalidated_max: usize,
    /// A session with an unvalidated address ends after this time of silence, without a message to its peer, unless replies to
    /// it are pending. An address that still sends this long after its first datagram is established: its session may be silent
    /// for `idle_timeout_without_heartbeat`. At most half of `sessions_max` are established. Default 10 s: longer than a peer
    /// waits for an answer before it asks again.
    pub unvalidated_timeout: Duration,
    /// Timers of one session that have not fired; see [`TimerActions::set`](crate::TimerActions::set). Default 64: one for
    /// each request that a device has in flight. A handler that sets timers in a loop by mistake gets an error before it costs
    /// memory.
    pub timers_per_session_max: usize,
    /// Timers of one lane that belong to no session and have not fired; see
    /// [`TimerActions::set_for_lane`](crate::TimerActions::set_for_lane). Default 65,536, about 5 MB.
    pub timers_per_lane_max: usize,
    /// Members of the largest room that announces who comes and goes, and that sends a new member the list of members. Default
    /// 1,024: announcements grow with the square of the members. In a larger room, ask for the list.
    pub presence_members_max: usize,
    /// Pings and other control frames that a session may send in a second. Default 100.
    pub control_frames_per_second_max: u32,
    /// Largest datagram that several frames share, in bytes. Default 1,472: the payload of one Ethernet packet over IPv4 (over
    /// IPv6 it is 1,452). A larger frame has a datagram of its own. The network splits that datagram into fragments, and it is
    /// lost if one of them is lost. A frame of more than 65,507 bytes is refused.
    pub datagram_bytes_max: usize,
    /// Bytes of the head of a WebSocket handshake, or of a request for a page. Default 16 KiB, as Node has: browsers send
    /// cookies of up to 4 KiB each. At most 32 KiB count, which is what a layer may hold.
    pub websocket_head_bytes_max: usize,
    /// Headers of a WebSocket handshake. Default 128: proxies add some to the twenty of a browser.
    pub websocket_headers_max: usize,
    /// Bytes read from one session in one turn, so that a busy session cannot starve the others. Default 512 KiB.
    pub turn_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes_max: memory_bytes_max_default(),
            frame_bytes_max: wire::FRAME_BYTES_MAX,
            sessions_max: 65_536,
            sessions_per_address_max: 16_384,
            handshakes_per_address_per_second_max: 1_000,
            handshake_bytes_per_address_max: 256 << 20,
            handshake_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            idle_timeout_without_heartbeat: Duration::from_secs(20 * 60),
            receive_timeout: Duration::ZERO,
            heartbeat: Duration::from_secs(20),
            ping_timeout: Duration::from_secs(10),
            login_timeout: Duration::from_secs(60),
            frame_timeout: Duration::from_secs(10),
            frame_bytes_per_second_min: 16 * 1024,
            queue_bytes_max: 1 << 20,
            broadcast_bytes_max: 8 << 20,
            deferred_per_session_max: 1_024,
            lag_bytes_max: 8 << 20,
            lag_messages_max: 262_144,
            block_deadline: Duration::from_secs(1),
            rooms_max: 16_384,
            rooms_per_address_max: 4_096,
            rooms_per_session_max: 64,
            topics_max: 16_384,
            topics_per_address_max: 4_096,
            subscriptions_per_session_max: 256,
            registrations_max: 256,
            registrations_per_address_max: 64,
            unvalidated_max: 4_096,
            unvalidated_timeout: Duration::from_secs(10),
            timers_per_session_max: 64,
            timers_per_lane_max: 65_536,
            presence_members_max: 1_024,
            control_frames_per_second_max: 100,
            datagram_bytes_max: 1_472,
            websocket_head_bytes_max: HeadLimits::default().bytes_max,
            websocket_headers_max: HeadLimits::default().headers_max,
            turn_bytes_max: 512 * 1024,
        }
    }
}

impl Limits {
    /// The settings of connections with this codec.
    pub(crate) fn rules(&self, codec: &AnyCodec) -> Rules {
        let format = codec.format();
        Rules {
            format,
            authenticates: false,
            frame_bytes_max: self.frame_bytes_max,
            handshake_timeout_ns: nanoseconds(self.handshake_timeout),
            // Without a hello a person types the first frame.
            first_frame_timeout_ns: nanoseconds(if format.hello_is_optional() {
                self.handshake_timeout.max(self.login_timeout)
            } else {
                self.handshake_timeout
            }),
            idle_timeout_ns: nanoseconds(self.idle_timeout),
            idle_timeout_without_pings_ns: nanoseconds(self.idle_timeout_without_heartbeat),
            ping_timeout_ns: nanoseconds(self.ping_timeout),
            receive_timeout_ns: nanoseconds(self.receive_timeout),
            heartbeat_ns: nanoseconds(self.heartbeat),
            unvalidated_timeout_ns: nanoseconds(self.unvalidated_timeout),
            frame_timeout_ns: nanoseconds(if format.is_typed() {
                self.frame_timeout.max(self.login_timeout)
            } else {
                self.frame_timeout
            }),
            frame_bytes_per_second_min: self.frame_bytes_per_second_min,
            control_frames_per_second_max: self.control_frames_per_second_max,
        }
    }

    /// How far a room subscriber may fall behind.
    #[must_use]
    pub fn lag(&self) -> LagLimits {
        LagLimits {
            bytes_max: self.lag_bytes_max,
            messages_max: self.lag_messages_max,
        }
    }
}

/// How long the drop of a client's last clone waits until its messages are written. A server that reads takes a queue of a
/// megabyte in a few milliseconds, and nobody waits for a second without noticing.
pub(crate) const CLIENT_LINGER_DEFAULT: Duration = Duration::from_secs(1);

/// A quarter of the memory that the process may use. It is read once, because it takes many files of the system.
fn memory_bytes_max_default() -> usize {
    static DEFAULT: OnceLock<usize> = OnceLock::new();
    *DEFAULT.get_or_init(|| {
        let quarter = memory_bytes().map_or(MEMORY_BYTES_MAX_UNKNOWN, |bytes| bytes / 4);
        usize::try_from(quarter).unwrap_or(usize::MAX)
    })
}

/// The memory limit if the size of the memory is unknown: small machines have four times this.
const MEMORY_BYTES_MAX_UNKNOWN: u64 = 1 << 30;

/// Largest frame over UDP, in bytes: the 65,535 of an IPv4 packet without the headers of IP and UDP. A server that
/// listens on UDP accepts no larger frame over any transport, because a room's message is framed once for all members.
pub const DATAGRAM_FRAME_BYTES_MAX: usize = 65_507;

/// The receive buffer that a UDP socket asks for, in bytes. The system cuts it to `net.core.rmem_max`. A larger buffer holds
/// a longer burst, so fewer datagrams are lost while the lane is busy.
pub(crate) const DATAGRAM_RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// Bytes of each of the two rings of an in-process connection. A ring uses all of its memory in turn, even if it holds few
/// bytes, so it should fit the cache. 64 KiB is the largest usual write.
pub(crate) const INPROC_RING_BYTES: usize = 64 * 1024;

/// In-process connections of the whole process that may wait for their servers at once. They all arrive together, so they are
/// a quarter of the places of a mailbox. They also use only half of the usual 1,024 descriptors.
pub(crate) const INPROC_WAITING_MAX: usize = 256;

/// Lines of a log that may wait to be written. At some 200 bytes each they are a few megabytes: the lines of a busy log in one
/// second, while its disk is busy.
#[cfg(feature = "log")]
pub(crate) const LOG_QUEUE_LINES_MAX: usize = 16_384;

/// The longest time for which the end of a log waits for a target that accepts nothing. It is long enough for a disk that wakes
/// up, and short enough for a person who has pressed Ctrl-C.
#[cfg(feature = "log")]
pub(crate) const LOG_STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Spans that may wait to be exported. At about 1 KB each they are some 8 MB, and they hold 16,000 spans a second between two
/// batches.
#[cfg(feature = "otlp")]
pub(crate) const OTLP_QUEUE_SPANS_MAX: usize = 8_192;

/// Spans of one request to a collector: some 150 KB, as exporters of OpenTelemetry send them.
#[cfg(feature = "otlp")]
pub(crate) const OTLP_BATCH_SPANS_MAX: usize = 512;

/// The longest time of one request to a collector. Spans of a busy server fill the queue in that time.
#[cfg(feature = "otlp")]
pub(crate) const OTLP_POST_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time for which the end of an export waits for the collector: as for [`LOG_STALL_TIMEOUT`].
#[cfg(feature = "otlp")]
pub(crate) const OTLP_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Converts a duration to nanoseconds, as the lanes' clock counts. A duration that does not fit becomes the longest
/// one, because people write centuries to switch a limit off.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The default settings of rooms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoomDefaults {
    /// The policy for a subscriber that does not keep up. Default `disconnect`.
    pub(crate) policy: Policy,
    /// The longest time that a message waits for others to share its write. Default 5 ms. A
    /// [`Coalescer`](tidewire_proto::room::Coalescer) chooses shorter times.
    pub(crate) coalesce_max: Duration,
}

impl Default for RoomDefaults {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            coalesce_max: Duration::from_millis(5),
        }
    }
}
