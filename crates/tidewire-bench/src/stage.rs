//! How a program of ours speaks with the runner: the lines of the [contract](super::contract), said and heard.

use std::io::{self, BufRead, Write};

use serde::Serialize;
use thiserror::Error;

use super::contract::{Account, Measured, Said};
use crate::probes::Edge;

/// The program's end of its standard streams.
pub struct Stage {
    input: Box<dyn BufRead + Send>,
    output: Box<dyn Write + Send>,
}

impl Stage {
    /// The standard streams of this process.
    #[must_use]
    pub fn standard() -> Self {
        Self::new(io::BufReader::new(io::stdin()), io::stdout())
    }

    /// Any streams, for tests.
    #[must_use]
    pub fn new(input: impl BufRead + Send + 'static, output: impl Write + Send + 'static) -> Self {
        Self {
            input: Box::new(input),
            output: Box::new(output),
        }
    }

    /// A server is ready at this address: says so, and gives its account whenever it is asked, until the runner ends it.
    ///
    /// # Errors
    /// The streams broke: there is no runner any more.
    pub fn serve(
        &mut self,
        address: &str,
        mut account: impl FnMut() -> Account,
    ) -> Result<(), RoleError> {
        self.say(&Said::Ready(address.to_owned()))?;
        let mut line = String::new();
        loop {
            line.clear();
            match self.input.read_line(&mut line) {
                Ok(0) => return Ok(()),
                Ok(_) => self.say(&account())?,
                Err(error) => return Err(RoleError::failed("hear the benchmark")(error)),
            }
        }
    }

    /// A driver is warm and starts to count.
    ///
    /// # Errors
    /// As [`Stage::serve`].
    pub fn started(&mut self) -> Result<(), RoleError> {
        self.say(&Said::Started(true))
    }

    /// A driver counts no more, and waits for what is still under way.
    ///
    /// # Errors
    /// As [`Stage::serve`].
    pub fn stopped(&mut self) -> Result<(), RoleError> {
        self.say(&Said::Stopped(true))
    }

    /// Reports the counts of a driver, then waits until the runner has read the kernel's account of this process.
    ///
    /// # Errors
    /// As [`Stage::serve`].
    pub fn measured(&mut self, measured: Measured) -> Result<(), RoleError> {
        self.say(&Said::Measured(measured))?;
        io::copy(&mut self.input, &mut io::sink())
            .map(drop)
            .map_err(RoleError::failed("hear the benchmark"))
    }

    /// Says one line.
    ///
    /// # Errors
    /// As [`Stage::serve`].
    pub fn say(&mut self, value: &impl Serialize) -> Result<(), RoleError> {
        let failed = RoleError::failed("speak to the benchmark");
        let line = serde_json::to_string(value).map_err(RoleError::failed("speak"))?;
        writeln!(self.output, "{line}")
            .and_then(|()| self.output.flush())
            .map_err(failed)
    }
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Stage").finish_non_exhaustive()
    }
}

/// A part could not be played. It goes to standard error and ends the program.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RoleError {
    /// No program of ours can do this work.
    #[error("{0}")]
    Unsupported(String),
    /// Something that the work needs failed.
    #[error("cannot {what}")]
    Failed {
        /// The action that failed, as a verb and its object.
        what: String,
        /// The error of the system or the library.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl RoleError {
    /// An error for `map_err`: `what` is the action that failed, as a verb and its object.
    pub fn failed<E>(what: &str) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        // Made for every message that might fail, so the text is copied only when one does.
        move |source| Self::Failed {
            what: what.to_owned(),
            source: source.into(),
        }
    }
}

/// The window of a driver: tells the runner when it begins and ends, and what this thread allocated meanwhile.
#[derive(Debug)]
pub struct Window<'s> {
    stage: &'s mut Stage,
    at_start: Option<u64>,
    within: Option<u64>,
}

impl<'s> Window<'s> {
    /// Of a driver that has not begun to count.
    pub fn new(stage: &'s mut Stage) -> Self {
        Self {
            stage,
            at_start: None,
            within: None,
        }
    }

    /// An end of the window is here.
    ///
    /// # Errors
    /// As [`Stage::serve`].
    pub fn at(&mut self, edge: Edge) -> Result<(), RoleError> {
        match edge {
            Edge::Start => {
                self.at_start = allocated_bytes();
                self.stage.started()
            }
            Edge::End => {
                let bytes = allocated_bytes().zip(self.at_start);
                self.within = bytes.map(|(after, before)| after - before);
                self.stage.stopped()
            }
        }
    }

    /// The same for a probe, which knows only errors of the system.
    ///
    /// # Errors
    /// As [`Stage::serve`].
    pub fn at_edge(&mut self, edge: Edge) -> io::Result<()> {
        self.at(edge).map_err(io::Error::other)
    }

    /// The bytes that this thread asked its allocator for within the window, where the program counts them.
    #[must_use]
    pub fn allocated_bytes(&self) -> Option<u64> {
        self.within
    }
}

/// Bytes that this thread has asked its allocator for, where the program counts them.
#[must_use]
pub fn allocated_bytes() -> Option<u64> {
    tidewire_io::allocation::thread_allocations().map(|allocations| allocations.bytes)
}
