//! How the sender of one-way messages learns what arrived: by asking over a connection of its own.
//!
//! A sender that only counts what it sent knows nothing of what a library has queued, dropped or lost. So the server
//! has a second listener, where each byte asks for the counts; they are asked for when the window begins, when it ends,
//! and at last until nothing more comes. Rejected: acknowledgements on the measured connection, which most of these
//! libraries cannot send back on a one-way pattern.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::numbered::Counts;
use crate::window::PATIENCE;
use crate::{Console, Measured, Window, now_ns};

/// The sender's side.
#[derive(Debug)]
pub struct Control {
    stream: TcpStream,
}

impl Control {
    /// Server: listens for a sender that asks, on a thread of its own, and lets the console answer by the same counts. Returns
    /// the address for [`Control::split`], to be appended to that of the library.
    ///
    /// # Errors
    /// No port is free.
    pub fn serve(address: &str, counts: Arc<Counts>, console: &Console) -> Result<String> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("the listener for counts")?;
        let port = listener.local_addr().context("its port")?.port();
        console.count_by(Arc::clone(&counts));
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                // A sender that is gone asks no more; the next one may.
                let _ = answer(stream, &counts);
            }
        });
        Ok(format!("{address}{MARK}{port}"))
    }

    /// Sender: the library's part of an address, and the connection on which to ask.
    ///
    /// # Errors
    /// The address names no port for it, or nobody listens there.
    pub fn split(address: &str) -> Result<(&str, Self)> {
        let Some((address, port)) = address.rsplit_once(MARK) else {
            bail!("'{address}' does not say where to ask for counts");
        };
        let port: u16 = port.parse().context("the port where to ask for counts")?;
        let stream = TcpStream::connect(("127.0.0.1", port)).context("asking for counts")?;
        stream.set_nodelay(true).context("asking for counts")?;
        Ok((address, Self { stream }))
    }

    /// Sender: measures what arrives in `window` while `send` sends, on this thread or others, until the window is over
    /// and returns how many messages it sent. Then waits for what is still on its way.
    ///
    /// # Errors
    /// `send` fails, or the server is gone.
    pub fn measure(self, window: &Window, send: impl FnOnce() -> Result<u64>) -> Result<Measured> {
        let Self { mut stream } = self;
        let asking = {
            let window = window.clone();
            std::thread::spawn(move || -> Result<_> {
                sleep_until(window.from_ns());
                let (before, from_ns) = (ask(&mut stream)?, now_ns());
                sleep_until(window.until_ns());
                let (after, until_ns) = (ask(&mut stream)?, now_ns());
                Ok((stream, after.0 - before.0, until_ns - from_ns))
            })
        };
        let sent = send()?;
        let Ok(asked) = asking.join() else {
            bail!("the thread that asks for counts panicked");
        };
        let (mut stream, messages, elapsed_ns) = asked?;
        let lost = wait_for(&mut stream, sent)?;
        Ok(Measured {
            messages,
            seconds: elapsed_ns as f64 / 1e9,
            verified: true,
            lost,
            allocated_bytes: Some(window.allocated_bytes()),
            ..Measured::default()
        })
    }
}

/// Waits until all that was sent came, or nothing more comes. Returns how many did not come as they should: the missing
/// ones or, if those are more, the ones that came twice, late or changed (of which each may also be a missing one).
fn wait_for(stream: &mut TcpStream, sent: u64) -> Result<u64> {
    let (mut last, mut since_ns) = (ask(stream)?, now_ns());
    while last.0 < sent && now_ns() - since_ns < PATIENCE.as_nanos() as u64 {
        std::thread::sleep(Duration::from_millis(1));
        let next = ask(stream)?;
        if next != last {
            (last, since_ns) = (next, now_ns());
        }
    }
    let (right, wrong) = last;
    Ok(sent.saturating_sub(right).max(wrong))
}

/// Server: answers until the sender is gone.
fn answer(mut stream: TcpStream, counts: &Counts) -> std::io::Result<()> {
    let mut question = [0];
    stream.set_nodelay(true)?;
    while stream.read(&mut question)? > 0 {
        let mut reply = [0; 16];
        reply[..8].copy_from_slice(&counts.right().to_le_bytes());
        reply[8..].copy_from_slice(&counts.wrong().to_le_bytes());
        stream.write_all(&reply)?;
    }
    Ok(())
}

/// Sender: how many came right, and how many wrong.
fn ask(stream: &mut TcpStream) -> Result<(u64, u64)> {
    let mut reply = [0; 16];
    stream
        .write_all(&[1])
        .and_then(|()| stream.read_exact(&mut reply))
        .context("the server does not say what it has counted")?;
    let number = |half: &[u8]| {
        half.iter()
            .rev()
            .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
    };
    Ok((number(&reply[..8]), number(&reply[8..])))
}

fn sleep_until(at_ns: u64) {
    std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
}

/// Between the library's address and the port for counts.
const MARK: &str = "#";
