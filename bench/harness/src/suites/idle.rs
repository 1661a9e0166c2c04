//! Memory of sessions at rest: the growth of the server's resident memory, as in the suite `memory`. The bare server
//! shows what TLS or WebSocket cost by themselves; the difference is ours.

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use tidewire::{Context, HandlerResult, Message};
use tidewire_io::clock::now_ns;
use tidewire_io::socket::{Listener, Stream};
use tidewire_load::process::ProcessSample;

use super::visitors::{HEADER_BYTES, QUESTION, Visitors};
use crate::contract::{Measured, Work};
use crate::plan::{Metric, RowPlan};
use crate::probes::{Link, echo};
use crate::stage::Stage;

/// The rows of a suite, whose `work` takes a mode and a number of connections.
pub(super) fn rows(quick: bool, work: impl Fn(&str, usize) -> Work) -> Vec<RowPlan> {
    let counts: &[usize] = if quick { &[1_000] } else { &[1_000, 10_000] };
    let row = |&connections: &usize| {
        let metric = Metric::least(USER_BYTES, "bytes");
        let id = format!("memory, {connections} idle sessions");
        RowPlan::new(id, work(IDLE, connections), metric).with_peers(None)
    };
    counts.iter().map(row).collect()
}

/// Whether a program of this work must use small pages.
pub(super) fn measures_memory(work: &Work) -> bool {
    work.mode == IDLE
}

pub(super) fn drive<L: Link>(
    mut visitors: Visitors<L>,
    work: &Work,
    stage: &mut Stage,
) -> io::Result<Measured> {
    stage.started()?;
    let from_ns = now_ns();
    let first = FIRST.min(work.connections / 2);
    connect(&mut visitors, 0..first)?;
    let before = visitors.ask_memory(0)?;
    connect(&mut visitors, first..work.connections)?;
    // The work of a server behind a handshake is over.
    thread::sleep(Duration::from_millis(work.warm_up_ms));
    let after = visitors.ask_memory(0)?;
    stage.stopped()?;
    let seconds = (now_ns() - from_ns) as f64 / 1e9;
    let each = after.saturating_sub(before) as f64 / (work.connections - first) as f64;
    let measured = Measured::verified(work.connections as u64, seconds, 0);
    Ok(measured.with_figure(USER_BYTES, each))
}

/// Connects these slots, some at a time, each with an echo.
fn connect<L: Link>(visitors: &mut Visitors<L>, slots: Range<usize>) -> io::Result<()> {
    let (mut next, mut connecting) = (slots.start, 0);
    let until_ns = now_ns() + TIMEOUT_NS;
    while next < slots.end || connecting > 0 {
        while next < slots.end && connecting < CONNECTING_MAX {
            visitors.begin(next)?;
            (next, connecting) = (next + 1, connecting + 1);
        }
        let events = visitors.turn()?;
        if events.iter().any(|(_, ns)| ns.is_none()) || now_ns() > until_ns {
            return Err(io::Error::other("the server does not answer everybody"));
        }
        connecting -= events.len();
    }
    Ok(())
}

/// Starts the bare server. It ends with the process: the runner's last word is the end of our input.
pub(super) fn serve_bare<L: Link>(
    listener: Listener,
    accept: impl Fn(Stream) -> io::Result<L> + Send + 'static,
) {
    let tell = |bytes: &mut [u8]| tell_memory(bytes.get_mut(HEADER_BYTES..));
    thread::spawn(move || {
        let never = AtomicBool::new(false);
        echo::serve_with(&listener, accept, tell, &never, &Default::default())
    });
}

/// Sends back what comes, and tells its memory if it is asked.
pub(super) fn answer(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    if !message.payload.starts_with(&QUESTION) {
        return cx.reply(message.payload);
    }
    let mut payload = message.payload.to_vec();
    tell_memory(Some(&mut payload));
    cx.reply(&payload)
}

/// Replaces a question by the resident memory of this process.
fn tell_memory(payload: Option<&mut [u8]>) {
    let asked = payload.and_then(|payload| payload.first_chunk_mut());
    if let Some(asked) = asked.filter(|asked| **asked == QUESTION) {
        let sample = ProcessSample::of_self().unwrap_or_default();
        *asked = sample.rss_bytes.to_le_bytes();
    }
}

/// The mode of these rows.
pub(super) const IDLE: &str = "idle";

pub(super) const USER_BYTES: &str = "user_bytes_per_session";

/// Sessions that are there before it is counted.
const FIRST: usize = 100;

/// Connections on their way at one time: fewer than a listener's backlog.
const CONNECTING_MAX: usize = 64;

const TIMEOUT_NS: u64 = 20_000_000_000;
