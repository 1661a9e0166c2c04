//! Why a run cannot begin.

use thiserror::Error;
use tidewire::socket::DATAGRAM_FRAME_BYTES_MAX;
use tidewire::{ConnectError, RequestError};
use tidewire_proto::setting::SettingError;

use crate::credentials::TokensError;

/// Why a scenario cannot be run with these options.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The tokens of the agents cannot be got.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The codec has no place for the tokens.
    #[error(
        "step {0:?} cannot run with tokens: codec {1} has no place for them; use codec = \"tw1\", or let the server \
         know the agents by their address or Unix user"
    )]
    NoPlaceForTokens(String, &'static str),
    /// The server cannot be reached or does not speak the native protocol.
    #[error("cannot log in at {0}")]
    Target(String, #[source] ConnectError),
    /// The server has no rooms, so that there is nothing to measure. Start one with `tidewire serve --app chat`.
    #[error("the server at {0} has no rooms; start one with `tidewire serve --app chat`")]
    NoRooms(String, #[source] RequestError),
    /// The scenario needs more connections than this process may open.
    #[error(
        "step {step:?} needs {needed} descriptors but the limit is {limit}: raise it with `ulimit -n {needed}` \
         or lower the concurrency"
    )]
    Descriptors {
        /// Name of the step.
        step: String,
        /// Descriptors it needs.
        needed: u64,
        /// Descriptors this process may open.
        limit: u64,
    },
    /// The codec's name or a parameter is wrong. A scenario that was read from a file has none such.
    #[error("step {0:?} cannot run")]
    Codec(String, #[source] SettingError),
    /// Requests that are matched by their order, over a transport that may lose some.
    #[error(
        "step {0:?} cannot run over udp://: replies of {1} are matched by their order, which a lost datagram shifts; \
         use tcp://, or a codec with ids (tw1, json, srmp, srmp-rpc, uvrpc)"
    )]
    Unmatched(String, &'static str),
    /// Messages that no datagram holds.
    #[error(
        "step {step:?} cannot run over udp://: its messages are frames of {bytes} bytes and a datagram holds {}; lower \
         payload_bytes",
        DATAGRAM_FRAME_BYTES_MAX
    )]
    TooLarge {
        /// Name of the step.
        step: String,
        /// Bytes of a message with its frame.
        bytes: usize,
    },
    /// Messages that the codec cannot carry. Lower `payload_bytes`, or name another codec.
    #[error(
        "step {step:?} cannot run: {codec} cannot carry its messages with payloads of {payload_bytes} bytes: {cause}; \
         lower payload_bytes, or use another codec"
    )]
    Unencodable {
        /// Name of the step.
        step: String,
        /// Name of the codec.
        codec: &'static str,
        /// Bytes of each payload.
        payload_bytes: u32,
        /// The reason of the codec.
        cause: String,
    },
    /// The messages of a fan-out reach the agents of all parts, so that their accounts can be closed only where this
    /// holds.
    #[error(
        "step {0:?} cannot be run in parts, because its messages reach the agents of all of them: {1}"
    )]
    Segment(String, &'static str),
    /// A fault has no process that this run started.
    #[error(
        "step {0:?} has a fault for {1:?}, and this run starts no such process; let it start the cluster with \
         --serve, --nodes and --backplane nats"
    )]
    NoProcess(String, String),
    /// The scenario sets the histories of servers, and the run starts none.
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
    /// The options name no server. Name at least one.
    #[error("there is no server to test; name one with --target, or use --serve")]
    NoTarget,
    /// The nodes are reached in ways that frame messages differently. Name addresses of one kind.
    #[error("some targets are udp:// addresses and others are not; name targets of one kind")]
    MixedTargets,
}
