//! For unit tests: what a piece of code logs on this thread.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::subscriber::with_default;

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines that `run` logs, as text.
pub(crate) fn logged(run: impl FnOnce()) -> String {
    let kept = Kept::default();
    let lines = kept.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || lines.clone())
        .finish();
    with_default(subscriber, run);
    let bytes = kept.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}
