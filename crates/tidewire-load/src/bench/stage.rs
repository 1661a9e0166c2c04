//! How a program of ours speaks with the runner: the lines of the [contract](super::contract), said and heard.

use std::io::{self, BufRead, Write};

use serde::Serialize;

use super::contract::{Account, Measured, Said};
use super::plan::RoleError;

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

    /// What a driver counted; then it stays until the runner has read the kernel's account of it.
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

/// Bytes that this thread has asked its allocator for, where the program counts them.
#[must_use]
pub fn allocated_bytes() -> Option<u64> {
    tidewire::io::allocation::thread_allocations().map(|allocations| allocations.bytes)
}
