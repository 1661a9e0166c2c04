//! Collects the lines that code logs on this thread, for unit tests.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::subscriber::with_default;

/// A writer that keeps its bytes. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl LogBuffer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn logged(run: impl FnOnce()) -> String {
    let kept = LogBuffer::default();
    let lines = kept.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || lines.clone())
        .finish();
    with_default(subscriber, run);
    kept.text()
}
