//! Checks before a run begins.

use tidewire::{AnyCodec, Endpoint};
use tidewire_io::descriptors::descriptor_limit;
use tidewire_proto::codec::Codec;

use super::codec::{check_frames, codec_of};
use super::{PlanError, RunOptions};
use crate::ledger::needs_checksums;
use crate::scenario::{Scenario, Step};

/// Whether the servers of these options are reached by datagrams, if a scenario can be run against them.
pub(super) fn targets(scenario: &Scenario, options: &RunOptions) -> Result<bool, PlanError> {
    let mut targets = options.targets.iter();
    let is_datagrams = |target: &Endpoint| matches!(target, Endpoint::Udp(_));
    let first = targets.next().ok_or(PlanError::NoTarget)?;
    if targets.any(|other| is_datagrams(other) != is_datagrams(first)) {
        return Err(PlanError::MixedTargets);
    }
    if scenario.history.is_some() && options.processes.is_empty() {
        return Err(PlanError::NoHistory);
    }
    Ok(is_datagrams(first))
}

/// The codec of a step, if the step can be run with these options.
pub(super) fn step(
    scenario: &Scenario,
    step: &Step,
    options: &RunOptions,
    is_datagrams: bool,
) -> Result<AnyCodec, PlanError> {
    if !step.faults.is_empty() && needs_checksums(step.concurrency as usize) {
        return Err(PlanError::Untracked(step.name.clone()));
    }
    if step.pattern.is_fan_out()
        && !options.segment.is_whole()
        && let Some(reason) = hindrance(scenario, step, options)
    {
        return Err(PlanError::Segment(step.name.clone(), reason));
    }
    let codec = codec_of(step, is_datagrams)?;
    if options.tokens.is_some() && !codec.format().begins_with_hello() {
        return Err(PlanError::NoPlaceForTokens(step.name.clone(), codec.name()));
    }
    check_frames(step, &codec, is_datagrams)?;
    let pipes = options.processes.len() as u64 * DESCRIPTORS_OF_PROCESS;
    let agents = u64::from(options.segment.count(step.concurrency));
    let needed = agents + pipes + DESCRIPTORS_RESERVED;
    let limit = descriptor_limit().soft;
    if limit < needed {
        return Err(PlanError::Descriptors {
            step: step.name.clone(),
            needed,
            limit,
        });
    }
    Ok(codec)
}

/// Why a fan-out cannot be run in parts.
fn hindrance(scenario: &Scenario, step: &Step, options: &RunOptions) -> Option<&'static str> {
    if options.start_at.is_none() {
        Some("give all parts the same --start-at, which also names their room")
    } else if scenario.version < 2 {
        Some("its times are those of all deliveries; write the scenario with version = 2")
    } else if step.slow_receivers > 0 {
        Some("slow receivers belong to no part; leave slow_receivers out")
    } else if needs_checksums(step.concurrency as usize) {
        Some("there are too many pairs of agents to account for each; use at most 1,000 agents")
    } else {
        None
    }
}

/// The three pipes to a process, and its handle.
const DESCRIPTORS_OF_PROCESS: u64 = 4;

/// Descriptors besides the agents': standard streams, pollers, wakers, files.
const DESCRIPTORS_RESERVED: u64 = 64;
