//! The flags of a server's limits.

use std::time::Duration;

use clap::Args;
use tidewire::{Limits, ServerBuilder};

use super::parse::parse_memory_bytes;
use crate::connection::parse_seconds;

/// The limits that have a flag.
#[derive(Debug, Args)]
pub(super) struct LimitArguments {
    /// How long a new connection may take until its hello is accepted, in seconds [default: 5]. A person may take as long
    /// to give a name to a chat over lines, and 60 seconds at the least
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, allow_negative_numbers = true)]
    timeout: Option<Duration>,

    /// Maximum bytes that the server holds for its peers: outputs, logs of rooms and topics, partial frames, sessions
    /// and subscriptions [default: a quarter of the machine's memory, or of its control group's]. Near it the newest
    /// connections and the slowest subscribers are closed
    #[arg(long, visible_alias = "memory-max", value_name = "BYTES", value_parser = parse_memory_bytes)]
    memory_bytes_max: Option<usize>,

    /// Maximum sessions of the whole server. Each needs a descriptor
    #[arg(long, value_name = "N", default_value_t = Limits::default().sessions_max)]
    sessions_max: usize,

    /// Maximum sessions from one address. Behind a proxy all clients have one address, unless --proxy-protocol-from names it
    #[arg(long, value_name = "N", default_value_t = Limits::default().sessions_per_address_max)]
    sessions_per_address_max: usize,

    /// Maximum handshakes of TLS that one address may begin in a second, after the first ones up to
    /// --sessions-per-address-max; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = Limits::default().handshakes_per_address_per_second_max)]
    handshakes_per_address_per_second_max: usize,

    /// Maximum bytes of memory that the unfinished handshakes of one address may hold; at most a quarter of
    /// --memory-bytes-max counts
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().handshake_bytes_per_address_max)]
    handshake_bytes_per_address_max: usize,

    /// Unsent bytes of one room or pattern above which a subscriber is slow, so that --slow-subscriber applies to it
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..), default_value_t = Limits::default().lag_bytes_max)]
    lag_bytes_max: u64,

    /// Unsent messages of one room or pattern above which a subscriber is slow
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), default_value_t = Limits::default().lag_messages_max)]
    lag_messages_max: u64,

    /// Members of the largest room that announces who comes and goes, and lists its members to a new one. The same on all nodes
    /// of a cluster: where a node has more members in a room, the other nodes know only their number
    #[arg(long, value_name = "N", default_value_t = Limits::default().presence_members_max)]
    presence_members_max: usize,

    /// Maximum age of a connection, in seconds: before it, clients are asked to connect again, so that a load balancer spreads
    /// them anew [default: any age]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, allow_negative_numbers = true)]
    connection_age_max: Option<Duration>,

    /// How long a client may take to end a connection that has reached its maximum age, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds, allow_negative_numbers = true)]
    connection_age_grace: Duration,
}

impl LimitArguments {
    /// Returns the limits. People need longer for a name than programs for a hello, so `--timeout` only ever lengthens their time.
    pub(super) fn limits(&self) -> Limits {
        let defaults = Limits::default();
        let handshake_timeout = self.timeout.unwrap_or(defaults.handshake_timeout);
        Limits {
            memory_bytes_max: self.memory_bytes_max.unwrap_or(defaults.memory_bytes_max),
            sessions_max: self.sessions_max,
            sessions_per_address_max: self.sessions_per_address_max,
            lag_bytes_max: self.lag_bytes_max,
            lag_messages_max: self.lag_messages_max,
            presence_members_max: self.presence_members_max,
            handshakes_per_address_per_second_max: self.handshakes_per_address_per_second_max,
            handshake_bytes_per_address_max: self.handshake_bytes_per_address_max,
            handshake_timeout,
            login_timeout: handshake_timeout.max(defaults.login_timeout),
            ..defaults
        }
    }

    /// Sets the maximum age of connections.
    pub(super) fn limit_age(&self, builder: ServerBuilder) -> ServerBuilder {
        match self.connection_age_max {
            Some(max) => builder.connection_age_max(max, self.connection_age_grace),
            None => builder,
        }
    }
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
            assert_eq!(limits.handshake_timeout, seconds(hello));
            assert_eq!(limits.login_timeout, seconds(name));
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
        assert_eq!(limits.sessions_max, 100_000);
        assert_eq!(limits.lag_bytes_max, 262_144);
        assert_eq!(limits.lag_messages_max, 10_000);
        assert_eq!(limits.presence_members_max, 500);
    }

    #[test]
    fn the_limits_of_an_address_are_flags() {
        let limits = limits(&[
            "--sessions-per-address-max=1",
            "--handshakes-per-address-per-second-max=2",
            "--handshake-bytes-per-address-max=3",
        ]);
        assert_eq!(limits.sessions_per_address_max, 1);
        assert_eq!(limits.handshakes_per_address_per_second_max, 2);
        assert_eq!(limits.handshake_bytes_per_address_max, 3);
    }
}
