//! The hidden command that plays the benchmark's own two programs: `tidewire-bench program SIDE PART …`.

use std::process::ExitCode;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use tidewire_bench::contract::{Description, Offer, Work};
use tidewire_bench::plan::{Side, Suite};
use tidewire_bench::stage::Stage;
use tidewire_bench::suites::{self, SUITES};
use tidewire_command::failure::Failure;

/// The program, and its part.
#[derive(Args, Debug)]
pub(crate) struct RoleArguments {
    /// The program.
    #[arg(value_parser = PossibleValuesParser::new(Side::ALL.map(Side::name)))]
    side: String,
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Print the abilities of the program.
    Describe,
    /// Play the server.
    Serve {
        /// The work, as JSON.
        work: String,
    },
    /// Play the driver.
    Drive {
        /// The address of the server.
        address: String,
        /// The work, as JSON.
        work: String,
    },
}

pub(crate) fn run(arguments: &RoleArguments) -> anyhow::Result<ExitCode> {
    let is_bare = arguments.side == Side::Bare.name();
    let side = if is_bare { Side::Bare } else { Side::Tidewire };
    let mut stage = Stage::standard();
    match &arguments.part {
        Part::Describe => stage.say(&describe(side))?,
        Part::Serve { work } => {
            let (suite, work) = understood(work)?;
            (suite.serve)(side, &work, &mut stage)?;
        }
        Part::Drive { address, work } => {
            let (suite, work) = understood(work)?;
            (suite.drive)(side, address, &work, &mut stage)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn understood(work: &str) -> anyhow::Result<(&'static Suite, Work)> {
    let work: Work = serde_json::from_str(work).context("cannot understand the work")?;
    let suite = suites::by_name(&work.suite).map_err(|_| {
        let what = format!("there is no suite `{}`", work.suite);
        Failure::configuration(what, "see `tidewire-bench --list`")
    })?;
    Ok((suite, work))
}

fn add(offers: &mut Vec<Offer>, work: Work) {
    let mut known = offers.iter_mut();
    match known.find(|offer| offer.suite == work.suite && offer.mode == work.mode) {
        Some(offer) if offer.transports.contains(&work.transport) => {}
        Some(offer) => offer.transports.push(work.transport),
        None => offers.push(Offer {
            suite: work.suite,
            transports: vec![work.transport],
            mode: work.mode,
            driver: Default::default(),
        }),
    }
}

fn describe(side: Side) -> Description {
    let mut offers: Vec<Offer> = Vec::new();
    for suite in SUITES {
        for row in (suite.rows)(false) {
            let works = match side {
                Side::Bare => row.limits.into_iter().map(|bare| bare.work).collect(),
                Side::Tidewire => vec![row.work],
            };
            works.into_iter().for_each(|work| add(&mut offers, work));
        }
    }
    Description {
        name: side.name().to_owned(),
        version: tidewire_command::VERSION.to_owned(),
        offers,
    }
}
