//! Every limit of a lane and a server, with its default and its reason.
//!
//! Passing a limit is a typed, counted close or refusal: never a panic, never unbounded memory.

mod rate;

use std::sync::OnceLock;
use std::time::Duration;

use tidewire_io::memory::memory_bytes;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::connection::Rules;
use tidewire_proto::limits as wire;
use tidewire_proto::room::{LagLimits, Policy};

pub(crate) use rate::{Bucket, Rate};
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
    /// Bytes that all lanes of the server hold for its peers: outputs, logs of rooms and topics, partial frames, messages
    /// between lanes, sessions and subscriptions, each with the capacity of its buffers. Near the limit the newest connections
    /// and the slowest subscribers pay, see [`CloseReason::MemoryLimit`](crate::CloseReason::MemoryLimit). Not counted are
    /// code, stacks, a receive buffer of 256 KiB a lane, and the kernel's buffers. Default a quarter of the memory of the
    /// machine, or of its control group if that has less: the kernel's buffers of as many sockets take about as much again.
    pub memory_bytes_max: usize,
    /// Largest frame accepted, whole, in bytes. Default 1 MiB.
    pub frame_bytes_max: usize,
    /// Sessions of the whole server. Default 65,536; the descriptor limit is usually lower.
    pub sessions_max: usize,
    /// Sessions from one address: an IPv4 address, or a network of IPv6 (the first 64 bits), since each host there has as
    /// many addresses as it likes. Default 16,384: above a large NAT, below all descriptors of a machine.
    pub sessions_per_address_max: usize,
    /// From connect to an accepted hello. Default 5 s: three retransmissions of a lost packet. It also bounds the wait
    /// of a client that was told to wait for the server of an in-process name.
    pub handshake_timeout: Duration,
    /// Silence after which a session that answers pings is closed. Default 60 s.
    pub idle_timeout: Duration,
    /// Silence after which a session whose codec has no pings is closed. Default 20 min: a person may think. Over UDP
    /// only what the peer sends counts, elsewhere also that it takes what it is sent.
    pub idle_timeout_without_heartbeat: Duration,
    /// Time without anything from the peer after which a session is closed, whatever the peer takes, in every codec; zero for
    /// never, the default. It is for devices that must report: the other timeouts take it for a sign of life that the peer's
    /// system takes what it is sent, which it also does while the program behind it hangs. An answered ping counts as
    /// something from the peer, so with pings keep `heartbeat` below it. What is not read because of this side does not
    /// count as silence.
    pub receive_timeout: Duration,
    /// Silence after which a ping is sent, zero for never. Default 20 s: two of them fit into the idle timeout.
    pub heartbeat: Duration,
    /// From the prompt of a service that asks people who they are until they are known, where the codec has no hello
    /// ([`Context::await_login`](crate::Context::await_login)). Default 60 s: a person reads it, thinks of a name that is
    /// free, and types it.
    pub login_timeout: Duration,
    /// From the first byte of a frame to its last, with a second more for every `frame_bytes_per_second_min` bytes of it
    /// that have come. Bytes alone do not start it anew: a peer that sends one at a time would hold its place for ever.
    /// Default 10 s: three retransmissions of a lost packet, and a little more. A line that a person types (codec `lines`) has
    /// `login_timeout` if that is longer.
    pub frame_timeout: Duration,
    /// The slowest that a long frame may come, see `frame_timeout`. Default 16 KiB a second, a poor mobile network: a
    /// frame of 1 MiB has 74 s.
    pub frame_bytes_per_second_min: usize,
    /// Unsent bytes of a session's own output above which reading from it pauses, and direct sends to it from
    /// others are refused. What other threads send is counted apart, with the same limit and 64 bytes for each message that
    /// its lane has not taken. So is what a client's threads have left for its lane: their one-way messages, and their
    /// requests. Default 1 MiB.
    pub queue_bytes_max: usize,
    /// Bytes of broadcasts that not all lanes have seen yet, above which further ones are refused. Default 8 MiB: four
    /// batches between lanes, so that lanes that were busy for a moment are not behind for a second.
    pub broadcast_bytes_max: usize,
    /// Requests of one session whose answers are deferred, and answers that wait for them where replies are matched
    /// by their order. A session with so many is not read, nor one for which such answers of more than `queue_bytes_max`
    /// bytes wait. Default 1,024: a worker pool is busy with fewer, and with small replies a session costs a few hundred
    /// kilobytes at most.
    pub deferred_per_session_max: usize,
    /// Unsent bytes of a room above which a subscriber counts as slow. Default 8 MiB: about a second of a busy
    /// room (200,000 messages of 40 bytes), so that a short stall costs nobody the connection.
    pub lag_bytes_max: u64,
    /// Unsent messages of a room above which a subscriber counts as slow. Default 262,144.
    pub lag_messages_max: u64,
    /// Longest time that a `block` subscriber may hold the publishers. Default 1 s.
    pub block_deadline: Duration,
    /// Rooms of the whole server. Default 16,384 of the 65,535 that aliases can name.
    pub rooms_max: usize,
    /// Rooms that the sessions of one address have opened and that are not empty yet. Default 4,096, a quarter of all, so
    /// that one address cannot take the rooms of everybody. Behind a proxy all clients have one address: raise it there.
    /// Peers without an address (ipc and inproc) have no such share.
    pub rooms_per_address_max: usize,
    /// Rooms a session may be in at once. Default 64: each costs a look at every flush of the session.
    pub rooms_per_session_max: usize,
    /// Distinct patterns that the sessions of the whole server are subscribed to. Default 16,384; with the rooms they
    /// share the 65,535 aliases.
    pub topics_max: usize,
    /// Patterns that sessions of one address were the first to subscribe to and that are still subscribed to. Default
    /// 4,096, a quarter of all, as with the rooms.
    pub topics_per_address_max: usize,
    /// Patterns a session may be subscribed to at once. Default 256: each costs a look at every flush of the session,
    /// and wildcards make few do.
    pub subscriptions_per_session_max: usize,
    /// Subscribers that are registered at once for every topic of the whole server, as UVRPC's are over UDP. Default 256:
    /// each publication goes to each of them, at addresses that nobody has proved. One that is silent for
    /// `idle_timeout_without_heartbeat` is forgotten.
    pub registrations_max: usize,
    /// Of these, the subscribers at one address. Default 64, a quarter of all.
    pub registrations_per_address_max: usize,
    /// Sessions over UDP whose address is not validated, with codecs that prove no addresses on servers that do not trust their
    /// peers; at most a quarter of `sessions_max`, spread evenly over the lanes. Another one takes the place of the oldest.
    /// Default 4,096: a forger cannot take more places than these, and as many newcomers within `unvalidated_timeout` are
    /// more than this is made for.
    pub unvalidated_max: usize,
    /// Silence after which such a session ends, unless answers are still owed to it, without a word to its peer. An address
    /// that is still heard this long after its first datagram is established: its session may be silent for
    /// `idle_timeout_without_heartbeat`. At most half of `sessions_max` are. Default 10 s: longer than a peer waits for an
    /// answer before it asks again.
    pub unvalidated_timeout: Duration,
    /// Timers of one session that have not fired; see [`Context::set_timer`](crate::Context::set_timer). Default 64: one for
    /// each request that a device has under way, and a mistake in a loop is found before it costs memory.
    pub timers_per_session_max: usize,
    /// Timers of one lane that belong to no session and have not fired; see
    /// [`Context::set_lane_timer`](crate::Context::set_lane_timer). Default 65,536, about 5 MB.
    pub timers_per_lane_max: usize,
    /// Largest room in which coming and going is announced and the roster is pushed at joining. Default 1,024:
    /// announcements grow with the square of the members. Above it, ask for the list.
    pub presence_members_max: usize,
    /// Pings and other control frames a session may send in a second. Default 100.
    pub control_frames_per_second_max: u32,
    /// Largest datagram that is filled up with several frames, in bytes. Default 1,472: what Ethernet carries in one
    /// packet over IPv4 (over IPv6 it is 1,452). A larger frame travels alone, in a datagram that the network takes
    /// apart, and is lost with any of its parts; one that exceeds 65,507 bytes is refused.
    pub datagram_bytes_max: usize,
    /// Bytes read from one session in one turn, so that a loud one cannot starve the rest. Default 512 KiB.
    pub turn_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes_max: memory_bytes_max_default(),
            frame_bytes_max: wire::FRAME_BYTES_MAX,
            sessions_max: 65_536,
            sessions_per_address_max: 16_384,
            handshake_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            idle_timeout_without_heartbeat: Duration::from_secs(20 * 60),
            receive_timeout: Duration::ZERO,
            heartbeat: Duration::from_secs(20),
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
            turn_bytes_max: 512 * 1024,
        }
    }
}

impl Limits {
    /// The settings of connections with this codec.
    pub(crate) fn rules(&self, codec: &AnyCodec) -> Rules {
        let has_pings = codec.has_pings();
        Rules {
            begins_with_hello: codec.begins_with_hello(),
            has_pings,
            has_go_away: codec.has_go_away(),
            frame_bytes_max: self.frame_bytes_max,
            handshake_timeout_ns: nanoseconds(self.handshake_timeout),
            idle_timeout_ns: nanoseconds(if has_pings {
                self.idle_timeout
            } else {
                self.idle_timeout_without_heartbeat
            }),
            receive_timeout_ns: nanoseconds(self.receive_timeout),
            heartbeat_ns: nanoseconds(self.heartbeat),
            unvalidated_timeout_ns: nanoseconds(self.unvalidated_timeout),
            frame_timeout_ns: nanoseconds(if codec.is_typed() {
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

/// A quarter of what the process can have at most; read once, because the files of the system are many.
fn memory_bytes_max_default() -> usize {
    static DEFAULT: OnceLock<usize> = OnceLock::new();
    *DEFAULT.get_or_init(|| {
        let quarter = memory_bytes().map_or(MEMORY_BYTES_MAX_UNKNOWN, |bytes| bytes / 4);
        usize::try_from(quarter).unwrap_or(usize::MAX)
    })
}

/// The memory limit where the system does not tell how much there is: small machines have four times this.
const MEMORY_BYTES_MAX_UNKNOWN: u64 = 1 << 30;

/// Largest frame over UDP, in bytes: the 65,535 of an IPv4 packet without the headers of IP and UDP. A server that
/// listens on UDP accepts no larger frame over any transport, because a room's message is framed once for all members.
pub const DATAGRAM_FRAME_BYTES_MAX: usize = 65_507;

/// What a UDP socket asks for as its receive buffer, in bytes; the system cuts it to `net.core.rmem_max`. The longer the
/// burst it holds, the fewer datagrams are lost while the lane is busy.
pub(crate) const DATAGRAM_RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// Bytes of each of the two rings of an in-process connection. A ring walks through all of its memory however little
/// is in it, so it should fit the cache beside everything else; 64 KiB are as much as a sender's largest usual write.
pub(crate) const INPROC_RING_BYTES: usize = 64 * 1024;

/// In-process connections that may wait for their servers at once, in the whole process. A quarter of what a lane's queue
/// holds, since they all arrive together, and half of the usual 1,024 descriptors.
pub(crate) const INPROC_WAITING_MAX: usize = 256;

/// Lines of a log that may wait to be written. At some 200 bytes each they are a few megabytes, and as many as a busy log
/// has in the second in which its disk does something else.
#[cfg(feature = "log")]
pub(crate) const LOG_QUEUE_LINES_MAX: usize = 16_384;

/// How long the end of a log waits while its target takes nothing: long enough for a disk that wakes up, short enough
/// for whoever pressed Ctrl-C.
#[cfg(feature = "log")]
pub(crate) const LOG_STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// A duration on the lanes' clock. One of centuries, as people write to switch a limit off, is as long as can be.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The settings of a room for which a service asks nothing else.
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
