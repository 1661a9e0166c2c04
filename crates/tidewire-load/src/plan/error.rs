//! Why a run cannot begin.

use thiserror::Error;
use tidewire::limits::DATAGRAM_FRAME_BYTES_MAX;
use tidewire::{ConnectError, RequestError};
use tidewire_proto::setting::SettingError;

use crate::credentials::TokensError;

/// Why a scenario cannot be run with these options.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what failed and what to do")]
pub enum PlanError {
    #[error(transparent)]
    Tokens(#[from] TokensError),
    #[error(
        "step {0:?} cannot run with tokens: codec {1} has no place for them; use codec = \"tw1\", or let the server \
         know the agents by their address or Unix user"
    )]
    NoPlaceForTokens(String, &'static str),
    #[error("cannot log in at {0}")]
    Target(String, #[source] ConnectError),
    #[error("the server at {0} has no rooms; start one with `tidewire serve --app chat`")]
    NoRooms(String, #[source] RequestError),
    #[error(
        "step {step:?} needs {needed} descriptors but the limit is {limit}: raise it with `ulimit -n {needed}` \
         or lower the concurrency"
    )]
    Descriptors {
        step: String,
        needed: u64,
        limit: u64,
    },
    /// The codec's name or a parameter is wrong. A scenario that was read from a file has none such.
    #[error("step {0:?} cannot run")]
    Codec(String, #[source] SettingError),
    #[error(
        "step {0:?} cannot run over udp://: replies of {1} are matched by their order, which a lost datagram shifts; \
         use tcp://, or a codec with ids (tw1, json, srmp, srmp-rpc, uvrpc)"
    )]
    Unmatched(String, &'static str),
    #[error(
        "step {step:?} cannot run over udp://: its messages are frames of {bytes} bytes and a datagram holds {}; lower \
         payload_bytes",
        DATAGRAM_FRAME_BYTES_MAX
    )]
    TooLarge { step: String, bytes: usize },
    #[error(
        "step {step:?} cannot run: {codec} cannot carry its messages with payloads of {payload_bytes} bytes: {cause}; \
         lower payload_bytes, or use another codec"
    )]
    Unencodable {
        step: String,
        codec: &'static str,
        payload_bytes: u32,
        cause: String,
    },
    /// The messages of a fan-out reach the agents of all parts, so that their accounts can be closed only where this
    /// holds.
    #[error(
        "step {0:?} cannot be run in parts, because its messages reach the agents of all of them: {1}"
    )]
    Segment(String, &'static str),
    #[error(
        "step {0:?} has a fault for {1:?}, and this run starts no such process; let it start the cluster with \
         --serve, --nodes and --backplane nats"
    )]
    NoProcess(String, String),
    #[error(
        "the scenario gives its servers a history, and this run starts none; leave `history` out, or let it start \
         them with --serve"
    )]
    NoHistory,
    /// The causes of losses can be found only where each pair of agents is tracked.
    #[error(
        "step {0:?} has faults and too many agents to account for each pair; use at most 1,000 agents"
    )]
    Untracked(String),
    #[error("there is no server to test; name one with --target, or use --serve")]
    NoTarget,
    #[error("some targets are udp:// addresses and others are not; name targets of one kind")]
    MixedTargets,
}
