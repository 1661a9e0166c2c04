//! Captures log output, for tests of messages that only a log shows.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// A log in memory: the lines written to it, or everything that this process has logged since [`Logs::capture`].
#[derive(Clone, Debug, Default)]
pub struct Logs {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Logs {
    /// Captures the log of the whole process from now on. Use it only in a test that has its process to itself.
    #[must_use]
    pub fn capture() -> Self {
        let logs = Self::default();
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(logs.clone())
            .init();
        logs
    }

    /// The log so far.
    #[must_use]
    pub fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl<'a> MakeWriter<'a> for Logs {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
