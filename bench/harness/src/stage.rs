//! How a program of ours speaks with the runner: the lines of the [contract](super::contract), said and heard.

use std::error::Error;
use std::io::{self, BufRead, Write};

use serde::Serialize;
use thiserror::Error;

use super::contract::{Account, Line, Measured};

/// The program's end of its standard streams.
#[expect(missing_debug_implementations, reason = "streams have none")]
pub struct Stage {
    input: Box<dyn BufRead + Send>,
    output: Box<dyn Write + Send>,
}

impl Stage {
    /// The standard streams of this process.
    pub fn standard() -> Self {
        Self::new(io::BufReader::new(io::stdin()), io::stdout())
    }

    /// Any streams, for tests.
    pub fn new(input: impl BufRead + Send + 'static, output: impl Write + Send + 'static) -> Self {
        Self {
            input: Box::new(input),
            output: Box::new(output),
        }
    }

    /// A server is ready at this address: says so, and gives its account whenever it is asked, until the runner ends
    /// it. Like all that follow, it fails if the streams broke: there is no runner any more.
    pub(crate) fn serve(
        &mut self,
        address: &str,
        mut account: impl FnMut() -> Account,
    ) -> Result<(), RoleError> {
        self.say(&Line::Ready(address.to_owned()))?;
        let mut line = String::new();
        loop {
            line.clear();
            match self.input.read_line(&mut line) {
                Ok(0) => return Ok(()),
                Ok(_) => self.say(&account())?,
                Err(error) => return Err(RoleError::failed("hear the benchmark", error)),
            }
        }
    }

    /// A driver is warm and starts to count.
    pub(crate) fn started(&mut self) -> Result<(), RoleError> {
        self.say(&Line::Started(true))
    }

    /// The same for a driver whose thread is the one that works.
    pub(crate) fn begin(&mut self) -> Result<Window<'_>, RoleError> {
        let allocated_before = allocated_bytes();
        self.started()?;
        Ok(Window {
            stage: self,
            allocated_before,
        })
    }

    /// A driver counts no more, and waits for what is still under way.
    pub(crate) fn stopped(&mut self) -> Result<(), RoleError> {
        self.say(&Line::Stopped(true))
    }

    /// Reports the counts of a driver, then waits until the runner has read the kernel's account of this process.
    pub(crate) fn measured(&mut self, measured: Measured) -> Result<(), RoleError> {
        self.say(&Line::Measured(measured))?;
        io::copy(&mut self.input, &mut io::sink())
            .map(drop)
            .or_failed("hear the benchmark")
    }

    /// Says one line.
    ///
    /// # Errors
    /// The streams broke: there is no runner any more.
    pub fn say(&mut self, value: &impl Serialize) -> Result<(), RoleError> {
        let line = serde_json::to_string(value).or_failed("speak")?;
        let said = writeln!(self.output, "{line}").and_then(|()| self.output.flush());
        said.or_failed("speak to the benchmark")
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
        source: Box<dyn Error + Send + Sync>,
    },
}

impl RoleError {
    /// `what` is the action that failed, as a verb and its object.
    pub(crate) fn failed(what: &str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed {
            what: what.to_owned(),
            source: source.into(),
        }
    }
}

/// Names the action whose error this is, as a verb and its object.
pub(crate) trait OrFailed<T> {
    fn or_failed(self, what: &str) -> Result<T, RoleError>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> OrFailed<T> for Result<T, E> {
    fn or_failed(self, what: &str) -> Result<T, RoleError> {
        self.map_err(|error| RoleError::failed(what, error))
    }
}

impl From<RoleError> for io::Error {
    fn from(error: RoleError) -> Self {
        Self::other(error)
    }
}

/// The window of a driver, which has begun.
pub(crate) struct Window<'s> {
    stage: &'s mut Stage,
    allocated_before: Option<u64>,
}

impl Window<'_> {
    /// Tells the runner that the window is over. Returns the bytes that this thread asked its allocator for within it,
    /// where the program counts them.
    pub(crate) fn end(self) -> Result<Option<u64>, RoleError> {
        let bytes = allocated_bytes().zip(self.allocated_before);
        self.stage.stopped()?;
        Ok(bytes.map(|(after, before)| after - before))
    }
}

/// Bytes that this thread has asked its allocator for, where the program counts them.
pub(crate) fn allocated_bytes() -> Option<u64> {
    tidewire_io::allocation::thread_allocations().map(|allocations| allocations.bytes)
}
