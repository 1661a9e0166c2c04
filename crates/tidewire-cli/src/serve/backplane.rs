//! The flags of a server that is a node of a cluster.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use tidewire::ServerBuilder;
use tidewire::backplane::NodeSettings;
use tidewire_nats::Nats;

use super::history::HistoryRule;
use crate::failure::Failure;

/// The flags of a node.
#[derive(Debug, Args)]
pub(super) struct BackplaneArguments {
    /// Share rooms and topics with other servers over the NATS at this address, nats://HOST:PORT or tls://HOST:PORT,
    /// with USER:PASSWORD@ or TOKEN@ in front of the host. Use the variable to hide a password from other users of this
    /// machine
    #[arg(long, value_name = "URL")]
    #[arg(env = "TIDEWIRE_BACKPLANE", hide_env_values = true)]
    backplane: Option<String>,

    /// The id of this server among those of the cluster, of letters, digits, - and _ [default: a random one]
    #[arg(long, value_name = "ID")]
    node: Option<String>,

    /// The prefix of all subjects in NATS. Servers with another prefix are another cluster
    #[arg(long, value_name = "PREFIX", default_value = "tidewire")]
    backplane_prefix: String,

    /// The file with the credentials for NATS, as nsc writes it
    #[arg(long, value_name = "FILE")]
    backplane_credentials: Option<PathBuf>,

    /// The file with the certificates of the authorities that NATS is trusted by, in PEM [default: those of the system]
    #[arg(long, value_name = "FILE")]
    backplane_ca: Option<PathBuf>,

    /// The number of NATS servers that keep each history that this server makes. With 3, histories go on while one of
    /// three is gone
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=5), default_value_t = 1)]
    backplane_replicas: usize,

    /// Wait at the start until NATS can be reached, instead of failing
    #[arg(long)]
    backplane_wait: bool,

    /// While NATS is gone: local delivers messages to the clients of this server only, and keeps those of
    /// rooms and topics with a history until NATS is back; fail refuses them
    #[arg(long, value_name = "POLICY", value_enum, default_value = "local")]
    backplane_cut_off: CutOff,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CutOff {
    Local,
    Fail,
}

impl BackplaneArguments {
    pub(super) fn is_node(&self) -> bool {
        self.backplane.is_some()
    }

    /// Makes the server a node that has these services, if there is a backplane.
    pub(super) fn join(
        &self,
        builder: ServerBuilder,
        kept: &[HistoryRule],
        services: Vec<String>,
    ) -> anyhow::Result<ServerBuilder> {
        let Some(address) = &self.backplane else {
            if let Some(node) = &self.node {
                let what = format!("the node {node} has no other nodes");
                let remedy = "add --backplane nats://HOST:PORT, or leave --node out";
                return Err(Failure::configuration(what, remedy).into());
            }
            return Ok(builder);
        };
        let wrong = |error: &dyn std::fmt::Display, remedy: &'static str| {
            Failure::configuration(error.to_string(), remedy)
        };
        let nats = Nats::new(address).map_err(|error| wrong(&error, "correct --backplane"))?;
        let nats = nats
            .prefix(&self.backplane_prefix)
            .map_err(|error| wrong(&error, "correct --backplane-prefix"))?;
        let mut nats = nats
            .stream_replicas(self.backplane_replicas)
            .wait_at_start(self.backplane_wait);
        if let Some(path) = &self.backplane_credentials {
            nats = nats.credentials_file(path);
        }
        if let Some(path) = &self.backplane_ca {
            nats = nats.authority_file(path);
        }
        let random = || format!("n-{:016x}", fastrand::u64(..));
        let id = self.node.clone().unwrap_or_else(random);
        let mut settings =
            NodeSettings::new(&id).map_err(|error| wrong(&error, "correct --node"))?;
        settings.services = services;
        settings.refuses_when_cut_off = matches!(self.backplane_cut_off, CutOff::Fail);
        settings.keeps_histories = !kept.is_empty();
        tracing::info!(node = id, "sharing rooms and topics with other servers");
        Ok(builder.backplane(nats, settings))
    }
}
