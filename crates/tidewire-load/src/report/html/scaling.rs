//! Scaling: the rate against concurrency, and the p99 against the offered rate.

use crate::format::{per_second, thousands};
use crate::page::figure::{Cell, Chart, NO_VALUE, Table};
use crate::page::plot::Plot;
use crate::page::scale::Axis;
use crate::report::{LATENCY_KIND_NONE, Report, StepReport};
use crate::statistics::{
    Bootstrap, LEVELS_MIN, Percentile, ScalabilityError, ScalabilityFit, ScalePoint,
};

/// Draws the rate against concurrency, with the fitted law if the steps are a sweep.
pub(super) fn against_concurrency(report: &Report) -> Result<Chart, String> {
    let steps = sweep(report)?;
    let points: Vec<ScalePoint> = steps
        .iter()
        .map(|step| ScalePoint {
            concurrency: f64::from(step.concurrency),
            throughput: throughput(step),
        })
        .collect();
    let fit = ScalabilityFit::of(&points, Bootstrap::default());
    let mut plot = scaling_plot(&points, &fit);
    let mut table = Table::new("step, agents, messages a second, fitted".split(", "));
    for (step, point) in steps.iter().zip(&points) {
        let (name, agents) = (&step.step_name, thousands(u64::from(step.concurrency)));
        let fitted = fit.as_ref().ok();
        let fitted = fitted.map(|fit| fit.throughput(point.concurrency));
        let told = per_second(point.throughput);
        let law = fitted.map_or_else(|| NO_VALUE.to_owned(), per_second);
        let tip = format!("{name}\n{agents} agents\n{told}\nfitted {law}");
        plot.dot((point.concurrency, point.throughput), "s1", tip);
        table.row(vec![
            Cell::from(name.clone()),
            agents.into(),
            point.throughput.into(),
            fitted.into(),
        ]);
    }
    let about = match fit {
        Ok(fit) => format!(
            "The Universal Scalability Law through {} levels, {:.1} % off on average: {}. Contention σ {:.4}, \
                 coherence κ {:.6}.",
            fit.levels, fit.deviation_pct, fit.knee, fit.sigma.value, fit.kappa.value
        ),
        Err(error) => format!("No law is fitted: {error}."),
    };
    Ok(plot.drawn(about, table))
}

/// The axes, and the curve of the law or, without one, a faint line from point to point.
fn scaling_plot(points: &[ScalePoint], fit: &Result<ScalabilityFit, ScalabilityError>) -> Plot {
    let x = Axis::logarithmic(
        "agents, logarithmic",
        points.iter().map(|point| point.concurrency),
    );
    let (low, high) = x.scale.ends();
    let measured = points.iter().map(|one| (one.concurrency, one.throughput));
    let (name, class, points): (_, _, Vec<(f64, f64)>) = match fit {
        Ok(fit) => {
            let agents = (0..=60).map(|index| low * (high / low).powf(f64::from(index) / 60.0));
            let rates = agents.map(|agents| (agents, fit.throughput(agents)));
            let drawn = rates.filter(|(_, rate)| rate.is_finite() && *rate >= 0.0);
            ("fitted law", "s0", drawn.collect())
        }
        Err(_) => ("", "s1 faint", measured.clone().collect()),
    };
    let drawn = measured.chain(points.iter().copied());
    let most = drawn.map(|(_, rate)| rate).fold(0.0, f64::max);
    let y = Axis::from_zero("messages a second", most);
    let mut plot = Plot::new("Rate against concurrency", x, y);
    plot.line(name, class, vec![points]);
    plot
}

/// Draws the p99 of open steps against their offered rate, with the limit.
pub(super) fn tail_against_offered(report: &Report) -> Result<Chart, String> {
    let steps = open_steps(report)?;
    let limit = shared_limit(&steps);
    let known = steps.iter().filter_map(|(_, p99)| match p99 {
        Percentile::Known { ms } | Percentile::Above { ms } => Some(*ms),
        _ => None,
    });
    let offered = steps.iter().map(|(step, _)| step.theoretical_tps);
    // An infinite value stands at the upper edge, so no number and no limit may stand there.
    let most = known.clone().chain(limit).fold(0.0, f64::max);
    let unknown = steps
        .iter()
        .any(|(_, p99)| !matches!(p99, Percentile::Known { .. }));
    let above = unknown.then_some(most * 4.0);
    let y = Axis::logarithmic("p99 in ms, logarithmic", known.chain(limit).chain(above));
    let top = y.scale.ends().1;
    let x = Axis::from_zero("offered messages a second", offered.fold(0.0, f64::max));
    let mut plot = Plot::new("p99 against offered rate", x, y);
    if let Some(limit) = limit {
        plot.rule(limit, "limit", format!("limit {limit} ms"));
    }
    let mut table = Table::new("step, offered/s, sent/s, p99 ms, limit ms".split(", "));
    let mut path = Vec::new();
    for (step, p99) in &steps {
        let place = match p99 {
            Percentile::Known { ms } => (step.theoretical_tps, *ms),
            _ => (step.theoretical_tps, top),
        };
        path.push(place);
        let [offered, sent] = [step.theoretical_tps, step.steady.send_tps].map(per_second);
        let (name, kept) = (&step.step_name, step.keeps_slo());
        let doubt = match step.is_disturbed() {
            true => ", disturbed",
            false => "",
        };
        let tip = format!("{name}\noffered {offered}\nsent {sent}\np99 {p99} ms{doubt}");
        plot.dot(place, if kept { "s1" } else { "s2 broken" }, tip);
        table.row(vec![
            Cell::from(step.step_name.clone()),
            step.theoretical_tps.into(),
            step.steady.send_tps.into(),
            (*p99).into(),
            p99_limit(step).into(),
        ]);
    }
    plot.line("", "s1 faint", vec![path]);
    let about = "Scheduled p99, from when messages were due. Open rings broke a limit. Dots at the upper edge are infinite or \
                 above the recorded range.";
    Ok(plot.drawn(about, table))
}

/// Returns the open steps whose p99 is known, by their offered rate.
fn open_steps(report: &Report) -> Result<Vec<(&StepReport, Percentile)>, String> {
    let mut steps: Vec<(&StepReport, Percentile)> = Vec::new();
    for step in &report.steps {
        let detail = &step.detail;
        if detail.is_open()
            && step.theoretical_tps > 0.0
            && !matches!(detail.times.scheduled.p99, Percentile::TooFew { .. })
        {
            steps.push((step, detail.times.scheduled.p99));
        }
    }
    steps.sort_by(|(one, _), (other, _)| one.theoretical_tps.total_cmp(&other.theoretical_tps));
    let rate = |step: Option<&(&StepReport, _)>| step.map(|(step, _)| step.theoretical_tps);
    if rate(steps.first()) == rate(steps.last()) {
        return Err("it needs open steps with a p99 at two offered rates or more".to_owned());
    }
    Ok(steps)
}

/// Returns the limit, if all steps have the same one. One line cannot show several.
fn shared_limit(steps: &[(&StepReport, Percentile)]) -> Option<f64> {
    let mut limits = steps.iter().map(|(step, _)| p99_limit(step));
    let first = limits.next().flatten()?;
    limits.all(|limit| limit == Some(first)).then_some(first)
}

fn p99_limit(step: &StepReport) -> Option<f64> {
    step.detail.slo.limits.p99_ms
}

/// Returns the steps that differ only in their concurrency, by concurrency.
fn sweep(report: &Report) -> Result<Vec<&StepReport>, String> {
    let reason = format!(
        "it needs steps that differ in their concurrency alone, two for a chart and {LEVELS_MIN} for a fit"
    );
    let mut steps: Vec<&StepReport> = report
        .steps
        .iter()
        .filter(|step| throughput(step) > 0.0)
        .collect();
    steps.sort_by_key(|step| step.concurrency);
    let work = |step: &StepReport| {
        let mut work = step.detail.workload.clone();
        // These follow from the concurrency.
        (work.offered_tps, work.in_flight_allowed) = (None, None);
        work
    };
    let first = steps.first().map(|step| work(step));
    let is_like_first = |step: &&StepReport| Some(work(step)) == first && !step.detail.is_open();
    let same = steps.iter().all(is_like_first);
    let levels = steps.chunk_by(|one, next| one.concurrency == next.concurrency);
    if !same || levels.count() < 2 {
        return Err(reason);
    }
    Ok(steps)
}

/// Returns the throughput of a step: arrivals, or sent messages if there are no replies.
fn throughput(step: &StepReport) -> f64 {
    if step.latency_kind == LATENCY_KIND_NONE {
        step.steady.send_tps
    } else {
        step.steady.receive_tps.unwrap_or(0.0)
    }
}
