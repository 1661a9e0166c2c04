//! The cost of a message over several runs or parts.

use super::{Cost, LaneCost, MergeKind, StepDetail};

/// Shares of time are weighted by time, and costs of a message by messages.
pub(super) fn merged_cost(details: &[&StepDetail], kind: MergeKind) -> Cost {
    let secs = |detail: &StepDetail| detail.window.steady_secs;
    // All parts share one server, and it cannot say which work it did for which part.
    let servers = match kind {
        MergeKind::Runs => details,
        MergeKind::Parts => &[],
    };
    Cost {
        client_cpu_pct: mean(details, |detail| detail.cost.client_cpu_pct, secs),
        server_cpu_pct: mean(servers, |detail| detail.cost.server_cpu_pct, secs),
        client_ns_per_message: mean(details, |one| one.cost.client_ns_per_message, messages),
        server_ns_per_message: mean(servers, |one| one.cost.server_ns_per_message, messages),
        steal_pct: mean(details, |detail| detail.cost.steal_pct, secs),
        client_lanes: merge_lanes(details, |cost| cost.client_lanes),
        server_lanes: merge_lanes(servers, |cost| cost.server_lanes),
    }
}

fn merge_lanes(details: &[&StepDetail], side: fn(&Cost) -> Option<LaneCost>) -> Option<LaneCost> {
    let mean_of = |figure: fn(&LaneCost) -> Option<f64>| {
        mean(details, |detail| figure(&side(&detail.cost)?), messages)
    };
    Some(LaneCost {
        system_calls_per_message: mean_of(|lanes| Some(lanes.system_calls_per_message))?,
        allocations_per_message: mean_of(|lanes| lanes.allocations_per_message),
        allocated_bytes_per_message: mean_of(|lanes| lanes.allocated_bytes_per_message),
    })
}

fn mean(
    details: &[&StepDetail],
    value: impl Fn(&StepDetail) -> Option<f64>,
    weight: impl Fn(&StepDetail) -> f64,
) -> Option<f64> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for detail in details {
        sum += value(detail)? * weight(detail);
        weights += weight(detail);
    }
    (weights > 0.0).then(|| sum / weights)
}

fn messages(detail: &StepDetail) -> f64 {
    (detail.counts.steady_sent + detail.counts.steady_received) as f64
}
