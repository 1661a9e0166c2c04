//! The flags of a server's drain.

use std::time::Duration;

use clap::Args;
use tidewire::address::Successor;
use tidewire::{Server, Stopped};

use crate::units::parse_milliseconds;

/// How a server ends, and where its clients go.
#[derive(Clone, Debug, Args)]
pub(super) struct DrainArguments {
    /// How long sessions may take to finish after Ctrl-C, in milliseconds or as 2s
    #[arg(long, value_name = "TIME", value_parser = parse_milliseconds)]
    #[arg(default_value = "2000", allow_negative_numbers = true)]
    drain_ms: Duration,

    /// How long the server says that it is not ready, and goes on to serve, before it drains, in milliseconds or as 2s:
    /// as long as a load balancer needs to see it
    #[arg(long, value_name = "TIME", value_parser = parse_milliseconds)]
    #[arg(default_value = "0", allow_negative_numbers = true)]
    drain_delay_ms: Duration,

    /// Address of the server that clients connect to when this one drains, such as tls://b.example.com:8443: with the
    /// codec tw1 or json, for clients that follow such addresses and came by the same transport
    #[arg(long, value_name = "ADDR")]
    drain_to: Option<Successor>,
}

impl DrainArguments {
    /// The longest time from the first signal to the end of the drain.
    pub(super) fn time(&self) -> Duration {
        self.drain_delay_ms + self.drain_ms
    }

    /// How long the server serves on, not ready any more.
    pub(super) fn delay(&self) -> Duration {
        self.drain_delay_ms
    }

    /// The longest time for sessions to finish.
    pub(super) fn deadline(&self) -> Duration {
        self.drain_ms
    }

    pub(super) fn end(&self, server: Server) -> Stopped {
        match &self.drain_to {
            Some(successor) => server.shutdown_to(successor, self.drain_ms),
            None => server.shutdown(self.drain_ms),
        }
    }

    /// Warns at the start if no client would go there, because none comes by its transport.
    pub(super) fn warn_if_none_follows(&self, binds: &[String]) {
        let Some(successor) = self.drain_to.as_ref().map(ToString::to_string) else {
            return;
        };
        let scheme = |address: &str| {
            address
                .split_once("://")
                .map(|(scheme, _)| scheme.to_owned())
        };
        let of_bind = |bind: &String| scheme(bind).or(Some("tcp".to_owned()));
        if !binds.iter().any(|bind| of_bind(bind) == scheme(&successor)) {
            tracing::warn!(
                successor,
                "no client will go where --drain-to sends it: no --bind has the same transport"
            );
        }
    }
}
