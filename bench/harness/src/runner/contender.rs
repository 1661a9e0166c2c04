//! The contenders of a row, their results so far, and the row's result made of them.

use std::collections::BTreeMap;

use super::BenchOptions;
use crate::climb::Climb;
use crate::contract::{Driver, Work};
use crate::hold::holds;
use crate::plan::{BareLoop, RowPlan};
use crate::program::{DROPS, Program};
use crate::report::{Figures, LimitFigures, PeerFigures, RowResult};
use crate::run::{Cast, Outcome};
use crate::suites;

/// A contender in a row.
pub(super) struct Contender<'a> {
    pub(super) name: String,
    pub(super) cast: Cast<'a>,
    pub(super) work: &'a Work,
    /// The mode of a peer's offer; `None` for Tidewire's programs.
    pub(super) mode: Option<&'a str>,
    /// The loop, if it is one of the limit's.
    bare: Option<&'a BareLoop>,
    /// The results of the rounds, from the first on, without gaps: a contender that failed or was stopped makes no
    /// further run. In a row that climbs these are only the rounds that held, so they are not paired with the rounds
    /// of others.
    outcomes: Vec<Outcome>,
    error: Option<String>,
    /// Its state in a row that climbs.
    climb: Option<Climb>,
}

impl Contender<'_> {
    /// Whether it is still on its way up.
    pub(super) fn climbs(&self) -> bool {
        let climb = self.climb.as_ref();
        climb.is_some_and(|climb| !climb.is_up()) && self.error.is_none()
    }

    /// Whether it should make more of these runs.
    pub(super) fn has_less_than(&self, runs: usize) -> bool {
        self.outcomes.len() < runs && self.error.is_none()
    }

    /// Whether it made no run at all.
    pub(super) fn has_nothing(&self) -> bool {
        self.outcomes.is_empty() && self.error.is_none()
    }

    /// Whether it held the offered rate in all its runs.
    pub(super) fn holds(&self) -> bool {
        self.error.is_none() && self.outcomes.iter().all(|run| holds(&run.measured))
    }

    /// Returns the work of its next run.
    pub(super) fn work_now(&self) -> Work {
        let mut work = self.work.clone();
        if let Some(rate_per_sec) = self.climb.as_ref().and_then(Climb::rate) {
            work.rate_per_sec = rate_per_sec;
        }
        if let Some(mode) = self.mode {
            mode.clone_into(&mut work.mode);
            if self.cast.kind == Driver::Own {
                suites::in_own_format(&mut work);
            }
        }
        work
    }

    /// Notes the result of a run, or the reason of its failure.
    pub(super) fn take(&mut self, run: Result<Outcome, String>) {
        let Some(climb) = &mut self.climb else {
            match run {
                Ok(outcome) => self.outcomes.push(outcome),
                Err(why) => self.error = Some(why),
            }
            return;
        };
        let seen = run.as_ref().map_err(String::as_str);
        if !climb.is_up() {
            climb.climb(seen);
        } else if !climb.stay(seen) {
            self.outcomes.clear();
        } else if let Ok(outcome) = run
            && holds(&outcome.measured)
        {
            self.outcomes.push(outcome);
        }
        if climb.rate().is_none() {
            self.error = Some(climb.why_none());
        }
    }
}

/// The contenders of a row: the limit, Tidewire, and the peers that offer it.
pub(super) fn contenders<'a>(options: &'a BenchOptions, plan: &'a RowPlan) -> Vec<Contender<'a>> {
    let contender = |name: &str, server: &'a Program, driver, kind, work| Contender {
        name: name.to_owned(),
        cast: Cast {
            server,
            driver,
            kind,
        },
        work,
        mode: None,
        bare: None,
        outcomes: Vec::new(),
        error: None,
        climb: (!plan.climbs.is_empty()).then(|| Climb::new(plan.climbs)),
    };
    let mut contenders = Vec::new();
    for limit in &plan.limits {
        let bare = &options.bare;
        let name = match limit.name.as_str() {
            "" => LIMIT.to_owned(),
            name => format!("{LIMIT} ({name})"),
        };
        contenders.push(Contender {
            bare: Some(limit),
            ..contender(&name, bare, bare, Driver::Own, &limit.work)
        });
    }
    if let Some(tidewire) = &options.tidewire {
        let work = &plan.work;
        contenders.push(contender(OURS, tidewire, tidewire, Driver::Own, work));
    }
    if let Some(work) = &plan.peers {
        for peer in &options.peers {
            for offer in peer.offers_for(work) {
                let mut name = peer.description.name.clone();
                if offer.mode == DROPS {
                    name.push_str(" (drops)");
                }
                let driver = if offer.driver == Driver::Own {
                    peer
                } else {
                    &options.bare
                };
                contenders.push(Contender {
                    mode: Some(&offer.mode),
                    ..contender(&name, peer, driver, offer.driver, work)
                });
            }
        }
    }
    contenders
}

/// Combines their results.
pub(super) fn results(plan: &RowPlan, contenders: Vec<Contender<'_>>) -> RowResult {
    let (mut tidewire, mut limits) = (Figures::default(), LimitFigures::default());
    let mut peers = BTreeMap::new();
    for contender in contenders {
        let message_bytes = contender.work_now().message_bytes;
        let mut figures = Figures::of(plan, &contender.outcomes, contender.error);
        figures.weigh(plan, message_bytes);
        figures.tries = contender.climb.map(Climb::into_tries).unwrap_or_default();
        match (contender.bare, contender.mode) {
            (Some(bare), _) => limits.add(plan, &bare.name, figures),
            (None, None) => tidewire = figures,
            (None, Some(_)) => {
                let peer = PeerFigures {
                    version: contender.cast.server.description.version.clone(),
                    ratio: None,
                    ratio_ci95: None,
                    drops: contender.mode == Some(DROPS),
                    figures,
                };
                peers.insert(contender.name, peer);
            }
        }
    }
    RowResult::of(plan, tidewire, limits, peers)
}

/// The name of the bare loops among the contenders.
const LIMIT: &str = "limit";

/// The name of Tidewire among the contenders.
const OURS: &str = "tidewire";
