//! The highest rate that holds.
//!
//! A trial at a rate passes or fails, and near the limit it does so by luck. The search therefore lets two of
//! three trials decide a rate, brackets the limit by doubling from the lowest rate, halves the bracket (in
//! ratio) to the tolerance, and confirms what it found with further trials, stepping down where they disagree.
//! A trial whose measurement is invalid is no vote: it is repeated. A rate at which no vote can be had ends the search,
//! so no bracket is ever narrowed by a trial that says nothing about the server.
//! It takes a closure and moves no message itself, so that it can be tested against simulated servers.
//! Rejected: raising the rate in fixed steps until a trial fails, which takes most trials where they are of no
//! interest, and stops at the first unlucky one; and starting from the highest rate, which leaves a
//! system under test that needs minutes to recover.

use serde::Serialize;
use thiserror::Error;

/// Where to search, and how finely.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SearchPlan {
    /// Lowest rate of interest, in messages a second.
    pub min_rate: f64,
    /// Highest rate of interest, in messages a second.
    pub max_rate: f64,
    /// How close the bracket must be, as a share of the rate: 0.02 ends within 2 %.
    pub tolerance: f64,
    /// Further trials at the rate that was found. All but one in three must pass.
    pub confirmations: u32,
    /// Most trials, because each takes as long as a step.
    pub trials_max: u32,
}

impl SearchPlan {
    /// Searches from `min_rate` to `max_rate`, to 2 %, with three confirmations and at most 60 trials.
    pub fn between(min_rate: f64, max_rate: f64) -> Self {
        Self {
            min_rate,
            max_rate,
            tolerance: 0.02,
            confirmations: 3,
            trials_max: 60,
        }
    }

    /// Searches. `trial` runs a rate in messages a second and says whether it held.
    ///
    /// # Errors
    /// The error of a trial that could not be run at all. Nothing is known about its rate then.
    pub fn search<E>(self, trial: impl FnMut(f64) -> Result<Vote, E>) -> Result<SearchEnd, E> {
        let mut search = Search {
            plan: self,
            trial,
            trials: 0,
        };
        match search.run() {
            Ok(end) => Ok(end),
            Err(Stop::Exhausted(holds)) => Ok(SearchEnd::Exhausted { holds }),
            Err(Stop::Undecided { rate, holds }) => Ok(SearchEnd::Undecided { rate, holds }),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Whether there is something to search. A plan that fails this must not be searched.
    pub fn check(&self) -> Result<(), PlanError> {
        let wrong = if !(self.min_rate > 0.0 && self.max_rate.is_finite()) {
            "the rates must be above 0 and finite"
        } else if self.min_rate > self.max_rate {
            "the lowest rate is above the highest"
        } else if !(self.tolerance > 0.0 && self.tolerance < 1.0) {
            "the tolerance must be a share between 0 and 1"
        } else if self.trials_max == 0 {
            "not a single trial is allowed"
        } else {
            return Ok(());
        };
        Err(PlanError(wrong))
    }
}

/// The vote of one trial on its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// The rate held.
    Holds,
    /// The rate did not hold.
    Fails,
    /// The measurement is invalid, so the trial says nothing about the server.
    Invalid,
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SearchEnd {
    /// A rate holds, and one a little above it does not.
    Found {
        /// The highest rate that was confirmed, in messages a second.
        holds: f64,
        /// The lowest rate above it that did not hold.
        fails: f64,
    },
    /// Even the highest rate of interest holds: the limit lies above it.
    HoldsAtMax {
        /// The highest rate, in messages a second.
        holds: f64,
    },
    /// Even the lowest rate of interest does not hold.
    FailsAtMin {
        /// The lowest rate, in messages a second.
        fails: f64,
    },
    /// The trials were used up before the bracket was narrow, or before the rate was confirmed.
    Exhausted {
        /// The highest rate that held in two of three trials, in messages a second; it is not confirmed.
        holds: Option<f64>,
    },
    /// The trials of a rate were invalid again and again, so nobody knows whether the server holds it.
    Undecided {
        /// The rate that could not be decided, in messages a second.
        rate: f64,
        /// The highest rate that held in two of three trials: a lower bound, which is not confirmed.
        holds: Option<f64>,
    },
}

/// The plan is impossible. Correct it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("there is nothing to search: {0}")]
pub struct PlanError(&'static str);

struct Search<T> {
    plan: SearchPlan,
    trial: T,
    trials: u32,
}

/// The highest rate that held and the lowest above it that did not.
struct Bracket {
    holds: f64,
    fails: Option<f64>,
}

/// Why a search ends before its end.
enum Stop<E> {
    Exhausted(Option<f64>),
    Undecided { rate: f64, holds: Option<f64> },
    Failed(E),
}

impl<T, E> Search<T>
where
    T: FnMut(f64) -> Result<Vote, E>,
{
    fn run(&mut self) -> Result<SearchEnd, Stop<E>> {
        let (min, max) = (self.plan.min_rate, self.plan.max_rate);
        if !self.holds(min, None)? {
            return Ok(SearchEnd::FailsAtMin { fails: min });
        }
        let mut bracket = Bracket {
            holds: min,
            fails: None,
        };
        while bracket.fails.is_none() && bracket.holds < max {
            let next = (bracket.holds * 2.0).min(max);
            if self.holds(next, Some(bracket.holds))? {
                bracket.holds = next;
            } else {
                bracket.fails = Some(next);
            }
        }
        let mut steps = 1.0;
        loop {
            self.halve(&mut bracket)?;
            if self.is_confirmed(bracket.holds)? {
                return Ok(match bracket.fails {
                    Some(fails) => SearchEnd::Found {
                        holds: bracket.holds,
                        fails,
                    },
                    None => SearchEnd::HoldsAtMax {
                        holds: bracket.holds,
                    },
                });
            }
            match self.step_down(bracket.holds, &mut steps)? {
                Some(lower) => bracket = lower,
                None => return Ok(SearchEnd::FailsAtMin { fails: min }),
            }
        }
    }

    /// Narrows the bracket to the tolerance.
    fn halve(&mut self, bracket: &mut Bracket) -> Result<(), Stop<E>> {
        while let Some(fails) = bracket.fails
            && fails / bracket.holds > 1.0 + self.plan.tolerance
        {
            let middle = (bracket.holds * fails).sqrt();
            if self.holds(middle, Some(bracket.holds))? {
                bracket.holds = middle;
            } else {
                bracket.fails = Some(middle);
            }
        }
        Ok(())
    }

    /// Whether all but one in three further trials pass.
    fn is_confirmed(&mut self, rate: f64) -> Result<bool, Stop<E>> {
        let mut failed = 0;
        for _ in 0..self.plan.confirmations {
            let held = (failed == 0).then_some(rate);
            failed += u32::from(!self.vote(rate, held)?);
        }
        Ok(failed * 3 <= self.plan.confirmations)
    }

    /// A new bracket below a rate that held by luck. What held below it may have been luck as well, so the steps
    /// double until a rate holds now; nothing when none does.
    fn step_down(&mut self, from: f64, steps: &mut f64) -> Result<Option<Bracket>, Stop<E>> {
        let mut fails = from;
        while fails > self.plan.min_rate {
            let lower = from / (1.0 + self.plan.tolerance).powf(*steps);
            *steps *= 2.0;
            let lower = lower.max(self.plan.min_rate);
            if self.holds(lower, None)? {
                return Ok(Some(Bracket {
                    holds: lower,
                    fails: Some(fails),
                }));
            }
            fails = lower;
        }
        Ok(None)
    }

    /// Two of three votes decide.
    fn holds(&mut self, rate: f64, held: Option<f64>) -> Result<bool, Stop<E>> {
        let first = self.vote(rate, held)?;
        let second = self.vote(rate, held)?;
        if first == second {
            return Ok(first);
        }
        self.vote(rate, held)
    }

    /// Runs a rate until a trial of it is valid, and returns whether the rate held then.
    fn vote(&mut self, rate: f64, held: Option<f64>) -> Result<bool, Stop<E>> {
        for _ in 0..INVALID_MAX {
            if self.trials >= self.plan.trials_max {
                return Err(Stop::Exhausted(held));
            }
            self.trials += 1;
            match (self.trial)(rate).map_err(Stop::Failed)? {
                Vote::Holds => return Ok(true),
                Vote::Fails => return Ok(false),
                Vote::Invalid => {}
            }
        }
        Err(Stop::Undecided { rate, holds: held })
    }
}

/// Invalid trials of one rate in a row after which it counts as one that cannot be decided: a disturbance of the
/// machine has passed by then, and an instrument that is too slow for the rate stays so.
const INVALID_MAX: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;
    use std::io;

    /// How it ends, and after how many trials.
    fn search(plan: SearchPlan, mut held: impl FnMut(f64) -> bool) -> (SearchEnd, usize) {
        let mut trials = 0;
        let end = plan.search(|rate| {
            trials += 1;
            Ok::<_, Infallible>(vote(held(rate)))
        });
        (end.unwrap(), trials)
    }

    fn vote(held: bool) -> Vote {
        if held { Vote::Holds } else { Vote::Fails }
    }

    /// A server that holds a rate the more rarely the nearer it is to its limit.
    fn noisy(limit: f64, width: f64, seed: u64) -> impl FnMut(f64) -> bool {
        let mut random = fastrand::Rng::with_seed(seed);
        move |rate| {
            let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            rate < limit * (width * normal).exp()
        }
    }

    #[test]
    fn a_sharp_limit_is_found_within_the_tolerance() {
        let (end, trials) = search(SearchPlan::between(1_000.0, 1e6), |rate| rate <= 123_456.0);
        let SearchEnd::Found { holds, fails } = end else {
            panic!("{end:?}");
        };
        assert!(holds <= 123_456.0 && 123_456.0 < fails && fails / holds <= 1.02);
        assert!(trials <= 40, "{trials}");
    }

    #[test]
    fn limits_outside_the_range_are_told_apart() {
        let plan = SearchPlan::between(100.0, 1_000.0);
        assert_eq!(
            search(plan, |_| true).0,
            SearchEnd::HoldsAtMax { holds: 1_000.0 }
        );
        let lowest = SearchEnd::FailsAtMin { fails: 100.0 };
        assert_eq!(search(plan, |_| false), (lowest, 2));
    }

    #[test]
    fn a_noisy_server_is_found_near_its_limit() {
        let mut far = 0;
        for seed in 0..200 {
            let server = noisy(50_000.0, 0.03, seed);
            let plan = SearchPlan::between(1_000.0, 1e6);
            match search(plan, server).0 {
                SearchEnd::Found { holds, .. } => {
                    far += u32::from(!(45_000.0..=52_500.0).contains(&holds));
                }
                end => panic!("seed {seed}: {end:?}"),
            }
        }
        assert!(far <= 10, "{far} of 200 more than 5 % above or 10 % below");
    }

    #[test]
    fn a_stroke_of_luck_is_not_confirmed() {
        // Passes everything while the bracket narrows, and then only what it can really hold.
        let mut calls = 0;
        let plan = SearchPlan::between(100.0, 3_200.0);
        let (end, _) = search(plan, |rate| {
            calls += 1;
            calls <= 12 || rate <= 900.0
        });
        let SearchEnd::Found { holds, fails } = end else {
            panic!("{end:?}");
        };
        assert!(holds <= 900.0 && holds > 850.0 && fails > 900.0, "{end:?}");
    }

    #[test]
    fn an_invalid_trial_is_no_vote_and_is_repeated() {
        let plan = SearchPlan::between(100.0, 8_000.0);
        let server = |rate| vote(rate <= 1_000.0);
        let undisturbed = plan.search(|rate| Ok::<_, Infallible>(server(rate)));
        // The machine is disturbed for four trials at a time, which the bracket must not notice.
        let mut trials = 0;
        let plan = SearchPlan {
            trials_max: 1_000,
            ..plan
        };
        let disturbed = plan.search(|rate| {
            trials += 1;
            Ok::<_, Infallible>(match trials % 5 {
                0 => server(rate),
                _ => Vote::Invalid,
            })
        });
        assert_eq!(disturbed, undisturbed);
    }

    #[test]
    fn a_rate_that_cannot_be_decided_ends_the_search_and_fails_nothing() {
        // The instrument cannot measure above 300/s; the server holds 1,000/s.
        let invalid_above_300 = |rate| match rate {
            rate if rate > 300.0 => Vote::Invalid,
            rate => vote(rate <= 1_000.0),
        };
        let end = |min| {
            SearchPlan::between(min, 8_000.0)
                .search(|rate| Ok::<_, Infallible>(invalid_above_300(rate)))
                .unwrap()
        };
        let (rate, holds) = (400.0, Some(200.0));
        assert_eq!(end(100.0), SearchEnd::Undecided { rate, holds });
        assert_eq!(end(400.0), SearchEnd::Undecided { rate, holds: None });
    }

    #[test]
    fn trials_run_out_loudly() {
        let plan = SearchPlan {
            trials_max: 5,
            ..SearchPlan::between(100.0, 1e6)
        };
        let exhausted = SearchEnd::Exhausted { holds: Some(200.0) };
        assert_eq!(search(plan, |rate| rate < 5_000.0), (exhausted, 5));
    }

    #[test]
    fn impossible_plans_and_failed_trials_are_errors() {
        for plan in [
            SearchPlan::between(0.0, 1.0),
            SearchPlan::between(2.0, 1.0),
            SearchPlan::between(1.0, f64::INFINITY),
            SearchPlan {
                tolerance: 0.0,
                ..SearchPlan::between(1.0, 2.0)
            },
            SearchPlan {
                trials_max: 0,
                ..SearchPlan::between(1.0, 2.0)
            },
        ] {
            assert!(plan.check().is_err(), "{plan:?}");
        }
        let broken = SearchPlan::between(1.0, 2.0)
            .search(|_| Err::<Vote, _>(io::Error::other("no server")))
            .unwrap_err();
        assert_eq!(broken.to_string(), "no server");
    }

    proptest! {
        #[test]
        fn every_sharp_limit_is_bracketed(limit in 10.0_f64..1e7, min in 1.0_f64..1e4, span in 1.0_f64..1e3) {
            let max = min * span;
            let plan = SearchPlan { trials_max: 1_000, ..SearchPlan::between(min, max) };
            match search(plan, |rate| rate <= limit).0 {
                SearchEnd::Found { holds, fails } => {
                    prop_assert!(holds <= limit && limit < fails && fails <= holds * 1.021);
                }
                SearchEnd::HoldsAtMax { holds } => prop_assert!(holds == max && max <= limit),
                SearchEnd::FailsAtMin { fails } => prop_assert!(fails == min && limit < min),
                SearchEnd::Exhausted { .. } | SearchEnd::Undecided { .. } => {
                    prop_assert!(false, "a thousand trials suffice");
                }
            }
        }

        #[test]
        fn whatever_trials_are_invalid_no_end_says_what_no_valid_trial_showed(
            limit in 10.0_f64..1e5, share in 0.0_f64..1.0, seed in any::<u64>(),
        ) {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut held, mut failed) = (Vec::new(), Vec::new());
            let end = SearchPlan::between(50.0, 1e4).search(|rate| {
                if random.f64() < share {
                    return Ok::<_, Infallible>(Vote::Invalid);
                }
                let holds = rate <= limit;
                if holds { held.push(rate) } else { failed.push(rate) }
                Ok(vote(holds))
            });
            let (holds, fails) = match end.unwrap() {
                SearchEnd::Found { holds, fails } => (Some(holds), Some(fails)),
                SearchEnd::HoldsAtMax { holds } => (Some(holds), None),
                SearchEnd::FailsAtMin { fails } => (None, Some(fails)),
                SearchEnd::Exhausted { holds } | SearchEnd::Undecided { holds, .. } => (holds, None),
            };
            prop_assert!(holds.is_none_or(|rate| rate <= limit && held.contains(&rate)));
            prop_assert!(fails.is_none_or(|rate| rate > limit && failed.contains(&rate)));
        }
    }
}
