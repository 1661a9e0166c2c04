//! From the figures of all runs to a verdict: are they comparable, and has anything changed?

use super::metric::NoFigure;
use super::run::{Run, StepRun};
use super::{
    Metric, MetricComparison, NOISE_FLOOR, NoiseRecord, Obstacle, RunSet, StepComparison, Verdict,
};
use crate::statistics::{Bootstrap, MedianInterval, Outliers, RatioInterval, Sides};

/// The two sides and how they are compared.
pub(super) struct Judge<'c> {
    pub(super) base: &'c RunSet,
    pub(super) new: &'c RunSet,
    pub(super) paired: bool,
    pub(super) noise: Option<&'c NoiseRecord>,
    pub(super) bootstrap: Bootstrap,
}

impl Judge<'_> {
    /// The step that stands at `index` in the first run of the base.
    pub(super) fn step(&self, index: usize) -> StepComparison {
        let first = &self.base.runs[0].steps[index];
        let mut compared = StepComparison {
            step_name: first.step_name.clone(),
            ..StepComparison::default()
        };
        let found = [self.base, self.new].map(|side| steps_of(side, first));
        let [base, new] = match found {
            [Ok(base), Ok(new)] => [base, new],
            [Err(obstacle), _] | [_, Err(obstacle)] => {
                compared.obstacle = Some(obstacle);
                return compared;
            }
        };
        compared.obstacle = base
            .iter()
            .chain(&new)
            .find_map(|step| difference((&self.base.runs[0], first), *step));
        if compared.obstacle.is_some() {
            return compared;
        }
        for (side, steps) in [("base", &base), ("new", &new)] {
            let amiss = steps.iter().filter(|(_, step)| !step.problems.is_empty());
            let count = amiss.clone().count();
            if let Some((_, step)) = amiss.into_iter().next() {
                let (runs, problem) = (steps.len(), &step.problems[0]);
                compared.notes.push(format!(
                    "{count} of {runs} runs of the {side} side have problems; the first: {problem}"
                ));
            }
        }
        compared.metrics = Metric::ALL
            .into_iter()
            .filter_map(|metric| self.metric(metric, first, &base, &new))
            .collect();
        compared
    }

    /// Nothing when neither side has the metric at all.
    fn metric(
        &self,
        metric: Metric,
        step: &StepRun,
        base: &[(&Run, &StepRun)],
        new: &[(&Run, &StepRun)],
    ) -> Option<MetricComparison> {
        let figures = |steps: &[(&Run, &StepRun)]| -> Vec<Result<f64, NoFigure>> {
            steps.iter().map(|(_, step)| step.figure(metric)).collect()
        };
        let (base, new) = (figures(base), figures(new));
        let unmeasured = |figure: &Result<f64, NoFigure>| *figure == Err(NoFigure::NotMeasured);
        if base.iter().chain(&new).all(unmeasured) {
            return None;
        }
        let noise = self
            .noise
            .and_then(|noise| noise.share(&step.step_name, step.concurrency, metric));
        let mut compared = MetricComparison {
            metric,
            base: None,
            new: None,
            base_outliers: None,
            new_outliers: None,
            ratio: None,
            noise: noise.unwrap_or(NOISE_FLOOR),
            noise_is_recorded: noise.is_some(),
            verdict: Verdict::NotComparable,
            obstacle: None,
        };
        let all = |figures: Vec<Result<f64, NoFigure>>| -> Result<Vec<f64>, NoFigure> {
            figures.into_iter().collect()
        };
        match (all(base), all(new)) {
            (Ok(base), Ok(new)) => self.judge(&mut compared, &base, &new),
            (Err(missing), _) | (_, Err(missing)) => {
                compared.obstacle = Some(match missing {
                    NoFigure::NotMeasured => Obstacle::NotMeasured,
                    NoFigure::TooFewSamples => Obstacle::TooFewSamples,
                });
            }
        }
        Some(compared)
    }

    fn judge(&self, compared: &mut MetricComparison, base: &[f64], new: &[f64]) {
        let pairs: Vec<(f64, f64)> = base.iter().copied().zip(new.iter().copied()).collect();
        let sides = if self.paired {
            Sides::Paired(&pairs)
        } else {
            Sides::Unpaired { base, new }
        };
        compared.base = MedianInterval::of(base, self.bootstrap);
        compared.new = MedianInterval::of(new, self.bootstrap);
        compared.base_outliers = Outliers::among(base);
        compared.new_outliers = Outliers::among(new);
        compared.ratio = RatioInterval::of(sides, self.bootstrap);
        let Some(ratio) = compared.ratio else {
            compared.obstacle = Some(Obstacle::NotMeasured);
            return;
        };
        if !sides.suffice() {
            compared.obstacle = Some(Obstacle::TooFewRuns {
                base: base.len(),
                new: new.len(),
                needed: sides.needed(),
            });
            return;
        }
        compared.verdict = verdict(ratio, compared.noise, compared.metric);
    }
}

pub(super) fn verdict(ratio: RatioInterval, noise: f64, metric: Metric) -> Verdict {
    let beyond_noise = ratio.ratio > 1.0 + noise || ratio.ratio < 1.0 / (1.0 + noise);
    if ratio.includes_one() || !beyond_noise {
        Verdict::NoChangeFound
    } else if (ratio.ratio > 1.0) == metric.larger_is_better() {
        Verdict::Better
    } else {
        Verdict::Worse
    }
}

fn steps_of<'s>(side: &'s RunSet, like: &StepRun) -> Result<Vec<(&'s Run, &'s StepRun)>, Obstacle> {
    side.runs
        .iter()
        .map(|run| {
            let mut named = run
                .steps
                .iter()
                .filter(|step| step.step_name == like.step_name);
            let what = match (named.next(), named.next()) {
                (Some(step), None) => return Ok((run, step)),
                (Some(_), Some(_)) => "the name of this step is not unique",
                (None, _) => "a run lacks this step",
            };
            Err(Obstacle::OtherScenario {
                what: what.to_owned(),
            })
        })
        .collect()
}

impl StepRun {
    pub(super) fn figure(&self, metric: Metric) -> Result<f64, NoFigure> {
        let figure = self.figures.get(&metric).copied();
        figure.unwrap_or(Err(NoFigure::NotMeasured))
    }
}

/// The difference that makes a step of a run another measurement than the first one of the base.
fn difference(first: (&Run, &StepRun), other: (&Run, &StepRun)) -> Option<Obstacle> {
    let unlike = |what: &str, base: &str, new: &str| {
        (base != new).then(|| format!("{what} {base} and {new}"))
    };
    let differing = first.1.setting.iter().find_map(|(what, base)| {
        let new = other.1.setting.get(what)?;
        unlike(what, base, new)
    });
    if let Some(what) = differing {
        return Some(Obstacle::OtherScenario { what });
    }
    let (base, new) = (&first.0.env, &other.0.env);
    let cores = || unlike("cores", &base.cores.to_string(), &new.cores.to_string());
    if let Some(what) = unlike("processor", &base.cpu, &new.cpu).or_else(cores) {
        return Some(Obstacle::OtherMachine { what });
    }
    if let Some(why) = &other.1.invalid {
        let why = why.clone();
        return Some(Obstacle::Invalid { why });
    }
    let (base_secs, new_secs) = (first.1.secs, other.1.secs);
    let apart = (base_secs - new_secs).abs();
    let is_other = apart > WINDOW_SECS && apart > base_secs.max(new_secs) * WINDOW_SHARE;
    is_other.then_some(Obstacle::OtherWindow {
        base_secs,
        new_secs,
    })
}

/// Shares of a step's length that may differ: connecting and draining take as long as they take.
const WINDOW_SHARE: f64 = 0.2;

/// Seconds that may differ however short a step is. A server that drains slowly is to be found worse, not
/// incomparable.
const WINDOW_SECS: f64 = 3.0;
