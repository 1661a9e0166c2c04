//! The flags of a server's limits.

use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use tidewire::{Limits, ServerBuilder};

use super::parse::{parse_handshake_bytes, parse_head_bytes, parse_lag_bytes, parse_memory_bytes};
use crate::units::{Bytes, parse_seconds};

/// The limits that have a flag.
#[derive(Debug, Args)]
pub(super) struct LimitArguments {
    /// How long a new connection may take until its hello is accepted: seconds, or a time as 500ms [default: 5]. A
    /// person may take as long to give a name to a chat over lines, and 60 seconds at the least
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, allow_negative_numbers = true)]
    timeout: Option<Duration>,

    /// Maximum bytes that the server holds for its peers: outputs, logs of rooms and topics, partial frames, sessions
    /// and subscriptions [default: a quarter of the machine's memory, or of its control group's or resource limit's].
    /// Near it the newest connections and the slowest subscribers are closed
    #[arg(long, visible_alias = "memory-max", value_name = "BYTES", value_parser = parse_memory_bytes)]
    memory_bytes_max: Option<Bytes>,

    /// Maximum sessions of the whole server. Each needs a descriptor
    #[arg(long, value_name = "N", value_parser = at_least_one(), default_value_t = Limits::default().sessions.max())]
    sessions_max: usize,

    /// Maximum sessions from one address. Behind a proxy all clients have one address, unless --proxy-protocol-from
    /// names it
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    #[arg(default_value_t = Limits::default().sessions.per_address_max())]
    sessions_per_address_max: usize,

    /// Maximum handshakes of TLS that one address may begin in a second, after the first ones up to
    /// --sessions-per-address-max; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = Limits::default().handshakes.per_address_per_second_max())]
    handshakes_per_address_per_second_max: usize,

    /// Maximum bytes of memory that the unfinished handshakes of one address may hold; at most a quarter of
    /// --memory-bytes-max counts
    #[arg(long, value_name = "BYTES", value_parser = parse_handshake_bytes)]
    #[arg(default_value_t = Bytes(Limits::default().handshakes.bytes_per_address_max()))]
    handshake_bytes_per_address_max: Bytes,

    /// Unsent bytes of one room or pattern above which a subscriber is slow, so that --slow-subscriber applies to it
    #[arg(long, value_name = "BYTES", value_parser = parse_lag_bytes)]
    #[arg(default_value_t = bytes(Limits::default().rooms.lag_bytes_max()))]
    lag_bytes_max: Bytes,

    /// Unsent messages of one room or pattern above which a subscriber is slow
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(default_value_t = Limits::default().rooms.lag_messages_max())]
    lag_messages_max: u64,

    /// Members of the largest room that announces who comes and goes, and lists its members to a new one. The same on
    /// all nodes of a cluster: where a node has more members in a room, the other nodes know only their number
    #[arg(long, value_name = "N", default_value_t = Limits::default().rooms.presence_members_max())]
    presence_members_max: usize,

    /// Maximum rooms of the whole server. Rooms and topics together have at most 64,512 places
    #[arg(long, value_name = "N", value_parser = at_least_one(), default_value_t = Limits::default().rooms.max())]
    rooms_max: usize,

    /// Maximum rooms that the sessions of one address have opened
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    #[arg(default_value_t = Limits::default().rooms.per_address_max())]
    rooms_per_address_max: usize,

    /// Maximum rooms that a session may be in at once. A user's own rooms_max may be lower, and not higher
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    #[arg(default_value_t = Limits::default().rooms.per_session_max())]
    rooms_per_session_max: usize,

    /// Maximum topics and patterns of the whole server that somebody is subscribed to
    #[arg(long, value_name = "N", value_parser = at_least_one(), default_value_t = Limits::default().topics.max())]
    topics_max: usize,

    /// Maximum topics and patterns that the sessions of one address were the first to subscribe to
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    #[arg(default_value_t = Limits::default().topics.per_address_max())]
    topics_per_address_max: usize,

    /// Maximum subscriptions of a session. A user's own subscriptions_max may be lower, and not higher
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    #[arg(default_value_t = Limits::default().topics.per_session_max())]
    subscriptions_per_session_max: usize,

    /// Maximum shapes of patterns with `*` before the last segment: `a.*.c` and `x.*.z` have one shape
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(0..=4096))]
    #[arg(default_value_t = Limits::default().topics.shapes_max())]
    topic_shapes_max: usize,

    /// Maximum of these shapes that the sessions of one address were the first to use
    #[arg(long, value_name = "N")]
    #[arg(default_value_t = Limits::default().topics.shapes_per_address_max())]
    topic_shapes_per_address_max: usize,

    /// Maximum of these shapes that the patterns of a session may have
    #[arg(long, value_name = "N")]
    #[arg(default_value_t = Limits::default().topics.shapes_per_session_max())]
    topic_shapes_per_session_max: usize,

    /// Maximum bytes of the headers of a WebSocket handshake; at most 32k
    #[arg(long, value_name = "BYTES", value_parser = parse_head_bytes)]
    #[arg(default_value_t = Bytes(Limits::default().handshakes.websocket_head_bytes_max()))]
    websocket_head_bytes_max: Bytes,

    /// Maximum headers of a WebSocket handshake
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(16..=1024))]
    #[arg(default_value_t = Limits::default().handshakes.websocket_headers_max())]
    websocket_headers_max: usize,

    /// Maximum age of a connection, in seconds or as 12h: before it, clients are asked to connect again, so that a load
    /// balancer spreads them anew [default: any age]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, allow_negative_numbers = true)]
    connection_age_max: Option<Duration>,

    /// How long a client may take to end a connection that has reached its maximum age, in seconds or as 10s
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = parse_seconds, allow_negative_numbers = true)]
    connection_age_grace: Duration,
}

impl LimitArguments {
    /// Returns the limits. People need longer for a name than programs for a hello, so `--timeout` only ever lengthens
    /// their time.
    pub(super) fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        if let Some(Bytes(max)) = self.memory_bytes_max {
            limits.memory.set_bytes_max(max);
        }
        if let Some(timeout) = self.timeout {
            limits.connections.set_handshake_timeout(timeout);
            let login_timeout = timeout.max(limits.handshakes.login_timeout());
            limits.handshakes.set_login_timeout(login_timeout);
        }
        limits
            .sessions
            .set_max(self.sessions_max)
            .set_per_address_max(self.sessions_per_address_max);
        limits
            .handshakes
            .set_per_address_per_second_max(self.handshakes_per_address_per_second_max)
            .set_bytes_per_address_max(self.handshake_bytes_per_address_max.0)
            .set_websocket_head_bytes_max(self.websocket_head_bytes_max.0)
            .set_websocket_headers_max(self.websocket_headers_max);
        limits
            .rooms
            .set_max(self.rooms_max)
            .set_per_address_max(self.rooms_per_address_max)
            .set_per_session_max(self.rooms_per_session_max)
            .set_presence_members_max(self.presence_members_max)
            .set_lag_bytes_max(self.lag_bytes_max.0 as u64)
            .set_lag_messages_max(self.lag_messages_max);
        limits
            .topics
            .set_max(self.topics_max)
            .set_per_address_max(self.topics_per_address_max)
            .set_per_session_max(self.subscriptions_per_session_max)
            .set_shapes_max(self.topic_shapes_max)
            .set_shapes_per_address_max(self.topic_shapes_per_address_max)
            .set_shapes_per_session_max(self.topic_shapes_per_session_max);
        limits
    }

    /// Sets the maximum age of connections.
    pub(super) fn limit_age(&self, builder: ServerBuilder) -> ServerBuilder {
        match self.connection_age_max {
            Some(max) => builder.connection_age_max(max, self.connection_age_grace),
            None => builder,
        }
    }
}

/// A limit of 0 would refuse everybody.
fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

fn bytes(count: u64) -> Bytes {
    Bytes(usize::try_from(count).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        limits: LimitArguments,
    }

    fn limits(arguments: &[&str]) -> Limits {
        let all = ["serve"].iter().chain(arguments);
        Only::try_parse_from(all).unwrap().limits.limits()
    }

    /// The bug: `timeout = 5` for programs gave people 5 s to type a name.
    #[test]
    fn a_timeout_never_shortens_the_time_to_give_a_name() {
        let seconds = Duration::from_secs;
        for (arguments, hello, name) in [
            (&[][..], 5, 60),
            (&["--timeout", "5"], 5, 60),
            (&["--timeout", "90"], 90, 90),
        ] {
            let limits = limits(arguments);
            assert_eq!(limits.connections.handshake_timeout(), seconds(hello));
            assert_eq!(limits.handshakes.login_timeout(), seconds(name));
        }
    }

    #[test]
    fn limits_of_sessions_subscribers_and_rooms_are_flags() {
        let limits = limits(&[
            "--sessions-max=100000",
            "--lag-bytes-max=262144",
            "--lag-messages-max=10000",
            "--presence-members-max=500",
        ]);
        assert_eq!(limits.sessions.max(), 100_000);
        assert_eq!(limits.rooms.lag_bytes_max(), 262_144);
        assert_eq!(limits.rooms.lag_messages_max(), 10_000);
        assert_eq!(limits.rooms.presence_members_max(), 500);
    }

    #[test]
    fn the_limits_of_rooms_topics_and_handshakes_are_flags() {
        let limits = limits(&[
            "--rooms-max=10",
            "--rooms-per-address-max=11",
            "--rooms-per-session-max=12",
            "--topics-max=13",
            "--topics-per-address-max=14",
            "--subscriptions-per-session-max=1000",
            "--topic-shapes-max=15",
            "--topic-shapes-per-address-max=16",
            "--topic-shapes-per-session-max=0",
            "--websocket-head-bytes-max=32k",
            "--websocket-headers-max=256",
        ]);
        assert_eq!(limits.rooms.max(), 10);
        assert_eq!(limits.rooms.per_address_max(), 11);
        assert_eq!(limits.rooms.per_session_max(), 12);
        assert_eq!(limits.topics.max(), 13);
        assert_eq!(limits.topics.per_address_max(), 14);
        assert_eq!(limits.topics.per_session_max(), 1_000);
        assert_eq!(limits.topics.shapes_max(), 15);
        assert_eq!(limits.topics.shapes_per_address_max(), 16);
        assert_eq!(limits.topics.shapes_per_session_max(), 0);
        assert_eq!(limits.handshakes.websocket_head_bytes_max(), 32 << 10);
        assert_eq!(limits.handshakes.websocket_headers_max(), 256);
    }

    /// The bug: `--sessions-max 0` started a server that refused everybody.
    #[test]
    fn limits_that_make_a_server_useless_are_refused() {
        for flag in [
            "--sessions-max=0",
            "--sessions-per-address-max=0",
            "--memory-bytes-max=0",
            "--handshake-bytes-per-address-max=0",
            "--lag-bytes-max=0",
            "--lag-messages-max=0",
            "--rooms-max=0",
            "--rooms-per-address-max=0",
            "--rooms-per-session-max=0",
            "--topics-max=0",
            "--topics-per-address-max=0",
            "--subscriptions-per-session-max=0",
            "--websocket-head-bytes-max=0",
            "--websocket-headers-max=0",
            "--timeout=0",
        ] {
            assert!(Only::try_parse_from(["serve", flag]).is_err(), "{flag}");
        }
    }

    #[test]
    fn the_limits_of_an_address_are_flags() {
        let limits = limits(&[
            "--sessions-per-address-max=1",
            "--handshakes-per-address-per-second-max=2",
            "--handshake-bytes-per-address-max=1M",
        ]);
        assert_eq!(limits.sessions.per_address_max(), 1);
        assert_eq!(limits.handshakes.per_address_per_second_max(), 2);
        assert_eq!(limits.handshakes.bytes_per_address_max(), 1 << 20);
    }
}
