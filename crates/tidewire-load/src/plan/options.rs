//! How to run a scenario: the servers, and all settings that are not the scenario's.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use tidewire::Endpoint;
use tidewire::address::Address;
use tidewire::tls::ClientTls;
use tidewire_io::poller::PollerChoice;

use super::process::ServerProcess;
use crate::clock::Clock;
use crate::credentials::TokenSource;
use crate::environment::Environment;
use crate::ledger::LATE_MS;
use crate::segment::Segment;

/// How to run a scenario.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The servers: one, or the nodes of a cluster, over which the agents are spread.
    pub targets: Vec<Endpoint>,
    /// The addresses of the targets as they were given, in the same order. If there are some, the run connects to each
    /// before its first step, and takes the endpoint that answers: a host name may have several.
    pub names: Vec<Address>,
    /// The authorities that the agents trust at a `tls://` address, and the certificate that they show.
    pub tls: ClientTls,
    /// Where the agents get their tokens, if a server knows them by tokens.
    pub tokens: Option<TokenSource>,
    /// Seed of every random choice.
    pub seed: u64,
    /// Client lanes.
    pub lanes: usize,
    /// Cores to keep the client lanes on, in turn; empty leaves them to the system.
    pub cores: Vec<usize>,
    /// Poller of the client lanes.
    pub poller: PollerChoice,
    /// How long the server may take to let the first agent in, and then nobody, before it counts as silent.
    pub answer_timeout: Duration,
    /// The share of the scenario that is run here.
    pub segment: Segment,
    /// Wall-clock time at which the first step begins to send, for parts that shall do so together. It is translated to
    /// the monotonic clock once.
    pub start_at: Option<SystemTime>,
    /// A delivery later than this after its intended time counts as late, in milliseconds.
    pub late_ms: u64,
    /// The processes that were started for the run, whose use of the machine shall be reported.
    pub processes: Vec<Arc<dyn ServerProcess>>,
    /// Where times come from.
    pub clock: Clock,
    /// Machine and build, for the report.
    pub environment: Environment,
    /// Set from outside to stop early; the report then says so.
    pub stop: Arc<AtomicBool>,
}

impl RunOptions {
    /// One client lane and the default grace times.
    pub fn new(targets: Vec<Endpoint>) -> Self {
        Self {
            targets,
            names: Vec::new(),
            tls: ClientTls::new(),
            tokens: None,
            seed: 0,
            lanes: 1,
            cores: Vec::new(),
            poller: PollerChoice::default(),
            answer_timeout: ANSWER_TIMEOUT,
            segment: Segment::WHOLE,
            start_at: None,
            late_ms: LATE_MS,
            processes: Vec::new(),
            clock: Clock::default(),
            environment: Environment::detect(env!("CARGO_PKG_VERSION"), "unknown"),
            stop: Arc::new(AtomicBool::new(false)),
        }
    }

    /// The addresses of the servers, for people.
    pub fn addresses(&self) -> String {
        let texts: Vec<String> = self.targets.iter().map(ToString::to_string).collect();
        texts.join(", ")
    }
}

/// Many agents may log in to a server on a busy machine; one that says nothing for so long is silent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
