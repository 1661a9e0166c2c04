//! Whether a server answers, and has what a scenario needs.

use tidewire::limits::ConnectionLimits;
use tidewire::{AnyCodec, Client, Endpoint, RequestError, RoomId};
use tidewire_proto::body::ErrorCode;

use super::{PlanError, RunOptions, StepPlan};
use crate::scenario::{Pattern, Scenario, Step};

/// Connects to each target with the codec of the first step. Returns the endpoints that answer. A run that can measure
/// nothing must not take its time.
pub(super) fn reach(
    scenario: &Scenario,
    first: Option<&StepPlan>,
    options: &RunOptions,
) -> Result<Vec<Endpoint>, PlanError> {
    let codec = first.map_or(AnyCodec::default(), |plan| plan.codec.clone());
    let targets = 0..options.targets.len();
    let reached = targets.map(|index| try_out(scenario, index, codec.clone(), options));
    reached.collect()
}

/// Sees whether there is a server, and whether it has the rooms that a chat needs.
fn try_out(
    scenario: &Scenario,
    index: usize,
    codec: AnyCodec,
    options: &RunOptions,
) -> Result<Endpoint, PlanError> {
    let target = &options.targets[index];
    let name = options.names.get(index).map(ToString::to_string);
    let address = &name.unwrap_or_else(|| target.to_string());
    let mut limits = ConnectionLimits::default();
    limits.set_handshake_timeout(options.answer_timeout);
    let mut builder = Client::builder();
    if let Some(source) = &options.tokens
        && let Some(token) = source.get()?.first()
    {
        builder = builder.credentials(token.clone());
    }
    let client = builder
        .codec(codec)
        .tls(options.tls.clone())
        .poller(options.poller)
        .limits(limits)
        .request_timeout(options.answer_timeout)
        .connect(address)
        .wait()
        .map_err(|source| PlanError::Target(address.to_owned(), source))?;
    let reached = client.endpoint().unwrap_or_else(|| target.clone());
    let needs_rooms = |step: &Step| step.pattern == Pattern::Chat;
    if !scenario.steps.iter().any(needs_rooms) {
        client.close().wait();
        return Ok(reached);
    }
    // A server with rooms knows this question, though its answer to somebody who is in none is a refusal. To join would
    // be one login more than the report accounts for.
    let asked = client.room(RoomId(0)).members().wait();
    client.close().wait();
    match asked {
        Err(
            source @ (RequestError::Refused {
                code: ErrorCode::Unsupported | ErrorCode::NotFound | ErrorCode::MethodNotFound,
                ..
            }
            | RequestError::MalformedReply
            | RequestError::TimedOut),
        ) => Err(PlanError::NoRooms(address.to_owned(), source)),
        // Whatever else is the matter with it, the report will tell.
        _ => Ok(reached),
    }
}
