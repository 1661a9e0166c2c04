//! Every limit of a lane and a server, with its default and its reason.
//!
//! A session that exceeds a limit is closed or refused with a typed, counted reason. A limit never causes a panic.

mod groups;
mod rate;

use std::sync::OnceLock;
use std::time::Duration;
use tidewire_proto::setting::SettingError;

use tidewire_io::memory::memory_bytes;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::connection::Rules;
use tidewire_proto::room::{LagLimits, Policy};

pub use groups::{
    ConnectionLimits, HandshakeLimits, MemoryLimits, RoomLimits, SessionLimits, TopicLimits,
    UdpLimits,
};
pub(crate) use rate::{Bucket, Rate, SharedBucket};
pub use rate::{RateLimit, WhenExceeded};

/// Limits and timings of a server, for [`ServerBuilder::limits`](crate::ServerBuilder::limits), in groups. A server
/// that starts checks them, so a limit that makes no sense is an error that names it: [`SettingError`].
///
/// ```
/// use std::time::Duration;
/// use tidewire::{Context, Limits, Message, Server};
///
/// let mut limits = Limits::default();
/// limits.connections.set_frame_bytes_max(64 * 1024).set_receive_timeout(Duration::from_secs(60));
/// limits.sessions.set_max(10_000);
/// let server = Server::builder()
///     .limits(limits)
///     .listen("tcp://127.0.0.1:0")?
///     .start_one(|cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Of each connection. A client has the same ones.
    pub connections: ConnectionLimits,
    /// Of sessions.
    pub sessions: SessionLimits,
    /// Of connections whose peer is not known yet.
    pub handshakes: HandshakeLimits,
    /// Of memory.
    pub memory: MemoryLimits,
    /// Of rooms, and of the logs of rooms and patterns.
    pub rooms: RoomLimits,
    /// Of topics and patterns.
    pub topics: TopicLimits,
    /// Of sessions and subscribers over UDP.
    pub udp: UdpLimits,
}

impl Limits {
    /// Checks each limit against its bounds, and those that depend on another one, as the start of a server does.
    ///
    /// # Errors
    /// The first limit that makes no sense, with its value and its bound.
    pub fn check(&self) -> Result<(), SettingError> {
        self.connections.check_each()?;
        self.sessions.check_each()?;
        self.handshakes.check_each()?;
        self.memory.check_each()?;
        self.rooms.check_each()?;
        self.topics.check_each()?;
        self.udp.check_each()?;
        let (rooms, topics) = (self.rooms.max(), self.topics.max());
        if rooms + topics > ALIASES_MAX {
            let most = ALIASES_MAX - rooms;
            let bound = format!(
                "at most {most}: with rooms.max, which is {rooms}, there are {ALIASES_MAX}"
            );
            return Err(groups::out_of_bounds("topics.max", topics, &bound));
        }
        Ok(())
    }

    /// The settings of connections with this codec.
    pub(crate) fn rules(&self, codec: &AnyCodec) -> Rules {
        let format = codec.format();
        let each = &self.connections;
        let login_timeout = self.handshakes.login_timeout();
        Rules {
            format,
            authenticates: false,
            frame_bytes_max: each.frame_bytes_max(),
            handshake_timeout_ns: nanoseconds(each.handshake_timeout()),
            // Without a hello a person types the first frame.
            first_frame_timeout_ns: nanoseconds(if format.hello_is_optional() {
                each.handshake_timeout().max(login_timeout)
            } else {
                each.handshake_timeout()
            }),
            idle_timeout_ns: nanoseconds(each.idle_timeout()),
            idle_timeout_without_pings_ns: nanoseconds(each.idle_timeout_without_heartbeat()),
            ping_timeout_ns: nanoseconds(each.ping_timeout()),
            receive_timeout_ns: nanoseconds(each.receive_timeout()),
            heartbeat_ns: nanoseconds(each.heartbeat()),
            unvalidated_timeout_ns: nanoseconds(self.udp.unvalidated_timeout()),
            frame_timeout_ns: nanoseconds(if format.is_typed() {
                each.frame_timeout().max(login_timeout)
            } else {
                each.frame_timeout()
            }),
            frame_bytes_per_second_min: each.frame_bytes_per_second_min(),
            control_frames_per_second_max: each.control_frames_per_second_max(),
        }
    }
}

impl RoomLimits {
    /// How far a subscriber of a room or topic may fall behind.
    pub(crate) fn lag(&self) -> LagLimits {
        LagLimits {
            bytes_max: self.lag_bytes_max(),
            messages_max: self.lag_messages_max(),
        }
    }
}

/// Rooms and patterns of a server at the same time. The other aliases of 16 bits stay free, so that an alias is used
/// again only after many others.
pub(crate) const ALIASES_MAX: usize = 65_535 - 1_023;

/// How long the drop of a client's last clone waits until its messages are written. A server that reads takes a queue
/// of a megabyte in a few milliseconds, and nobody waits for a second without noticing.
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

/// The receive buffer that a UDP socket asks for, in bytes. The system cuts it to `net.core.rmem_max`. A larger buffer
/// holds a longer burst, so fewer datagrams are lost while the lane is busy.
pub(crate) const DATAGRAM_RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// Bytes of each of the two rings of an in-process connection. A ring uses all of its memory in turn, even if it holds
/// few bytes, so it should fit the cache. 64 KiB is the largest usual write.
pub(crate) const INPROC_RING_BYTES: usize = 64 * 1024;

/// In-process connections of the whole process that may wait for their servers at once. They all arrive together, so
/// they are a quarter of the places of a mailbox. They also use only half of the usual 1,024 descriptors.
pub(crate) const INPROC_WAITING_MAX: usize = 256;

/// Lines of a log that may wait to be written. At some 200 bytes each they are a few megabytes: the lines of a busy log
/// in one second, while its disk is busy.
#[cfg(feature = "log")]
pub(crate) const LOG_QUEUE_LINES_MAX: usize = 16_384;

/// The longest time for which the end of a log waits for a target that accepts nothing. It is long enough for a disk
/// that wakes up, and short enough for a person who has pressed Ctrl-C.
#[cfg(feature = "log")]
pub(crate) const LOG_STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Spans that may wait to be exported. At about 1 KB each they are some 8 MB, and they hold 16,000 spans a second
/// between two batches.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Limits)) -> String {
        let mut limits = Limits::default();
        change(&mut limits);
        limits.check().unwrap_err().to_string()
    }

    #[test]
    fn a_limit_that_makes_no_sense_is_named_with_its_value_and_bound() {
        assert_eq!(Limits::default().check(), Ok(()));
        let zero = refusal(|limits| {
            limits.connections.set_frame_timeout(Duration::ZERO);
        });
        assert_eq!(
            zero,
            "the limit connections.frame_timeout is 0ns; set it to at least 1ns"
        );
        let beyond = refusal(|limits| {
            limits.connections.set_datagram_bytes_max(70_000);
        });
        assert_eq!(
            beyond,
            "the limit connections.datagram_bytes_max is 70000; set it to 1 to 65507"
        );
        let many = refusal(|limits| {
            limits.rooms.set_max(70_000);
        });
        assert_eq!(
            many,
            "the limit rooms.max is 70000; set it to at most 64512"
        );
    }

    #[test]
    fn rooms_and_topics_that_have_too_few_aliases_are_refused() {
        let names = refusal(|limits| {
            limits.rooms.set_max(60_000);
        });
        assert_eq!(
            names,
            "the limit topics.max is 16384; set it to at most 4512: with rooms.max, which is 60000, there are 64512"
        );
    }

    /// Regression: a short idle timeout needed a shorter heartbeat, also where there are no pings, or pings after 10 s.
    #[test]
    fn a_short_idle_timeout_needs_no_other_heartbeat() {
        let mut limits = Limits::default();
        limits.connections.set_idle_timeout(Duration::from_secs(10));
        assert_eq!(limits.check(), Ok(()));
    }
}
