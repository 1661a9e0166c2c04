//! Memory of sessions: what a server's process grows by when so many connect, idle or each with an echo on its way.
//!
//! The server tells its resident memory when it is asked with an empty message: when the first hundred sessions are
//! there, so that what it has once for all is not counted, and again at the end. The growth divided by the sessions
//! that came between is the figure, so it holds everything that a session costs its process, what the allocator keeps
//! for itself included; in pages of 4 KiB, because with huge ones memory comes in steps that are more than a thousand
//! sessions. Within one process it is both ends. What the kernel needs is told apart, and only as well as it can be:
//! the growth of its unreclaimable slabs and of the memory of its sockets (`/proc/meminfo`, `/proc/net/sockstat`), for
//! both ends and the whole machine. There is no limit to compare with.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use tidewire::{
    Client, CloseReason, ConnectError, Context, Endpoint, HandlerResult, Kind, Message, Moment,
    Server, Service,
};
use tidewire_io::clock::now_ns;
use tidewire_load::format::describe;
use tidewire_load::process::ProcessSample;

use crate::contract::{Measured, Work};
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::stage::{OrFailed, Stage};

pub(super) const SUITE: Suite = Suite {
    name: "memory",
    about: "bytes of a session, idle and active, by transport",
    rows,
    serve,
    drive,
};

/// The state that the lane of the sessions shares with the driver's thread.
#[derive(Default)]
struct HolderShared {
    /// How many sessions there are to be.
    wanted: AtomicUsize,
    /// Whether every reply is followed by the next message.
    is_active: AtomicBool,
    sent: AtomicU64,
    answered: AtomicU64,
    /// Replies that are not the message.
    wrong: AtomicU64,
    failure: OnceLock<String>,
}

/// The sessions of one lane.
struct Holder {
    endpoint: Endpoint,
    shared: Arc<HolderShared>,
    sessions: Vec<tidewire::SessionId>,
    connecting: usize,
    was_active: bool,
    /// Messages on their way at once when all are active.
    at_once: usize,
    /// The session that is next, where not all may have a message under way.
    turn: usize,
}

fn rows(quick: bool) -> Vec<RowPlan> {
    let mut rows = Vec::new();
    for transport in ["tcp", "udp", "ipc", "inproc"] {
        // The rings of more would take more memory mappings than a process may have by default.
        let most = if transport == "inproc" { 5_000 } else { 10_000 };
        for connections in [1_000, most] {
            for mode in [IDLE, ACTIVE] {
                let work = Work {
                    mode: mode.to_owned(),
                    connections,
                    message_bytes: 32,
                    ..super::timed(quick, &SUITE, transport, "")
                };
                let id = format!("{transport}, {connections} {mode} sessions");
                let row = RowPlan::new(id, work, BYTES);
                rows.push(row.with_limit(None).with_peers(None));
            }
        }
    }
    if quick {
        rows.retain(|row| (row.work.transport.as_str(), row.work.connections) == ("tcp", 1_000));
    }
    rows
}

fn serve(_: Side, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    super::need_descriptors(work)?;
    super::serve_ours(&start_server(work)?, stage)
}

fn start_server(work: &Work) -> Result<Server, RoleError> {
    super::start_server(work, || answer)
}

/// Sends back what it gets, and for nothing at all its resident memory.
fn answer(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    if !message.payload.is_empty() {
        return cx.reply(message.payload);
    }
    let sample = ProcessSample::of_self().unwrap_or_default();
    cx.reply(&sample.rss_bytes.to_le_bytes())
}

fn drive(_: Side, address: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    super::need_descriptors(work)?;
    let (_server, address) = super::reach(work, address, start_server)?;
    let control = Client::connect(&address).wait().or_failed("connect")?;
    let shared = Arc::new(HolderShared::default());
    let endpoint = super::endpoint(&address)?;
    let at_once = match work.transport.as_str() {
        "udp" => DATAGRAMS_AT_ONCE.min(work.connections),
        _ => work.connections,
    };
    let holder = Server::builder()
        .limits(super::limits(work))
        .start_boxed(|_| {
            Box::new(Holder {
                endpoint: endpoint.clone(),
                shared: Arc::clone(&shared),
                sessions: Vec::with_capacity(work.connections),
                connecting: 0,
                was_active: false,
                at_once,
                turn: 0,
            })
        })
        .or_failed("start the sessions")?;
    // Each session has its first message while it is being held, so that the window begins with the first of them.
    stage.started()?;
    let from_ns = now_ns();
    let first = FIRST.min(work.connections / 2);
    shared.hold(first, &holder)?;
    let before = (resident_bytes(&control)?, kernel_bytes());
    shared.hold(work.connections, &holder)?;
    thread::sleep(Duration::from_millis(work.warm_up_ms));
    let is_active = work.mode == ACTIVE;
    shared.is_active.store(is_active, Ordering::Release);
    holder.waker(0).wake();
    thread::sleep(Duration::from_millis(work.measure_ms));
    let after = (resident_bytes(&control)?, kernel_bytes());
    shared.is_active.store(false, Ordering::Release);
    let seconds = (now_ns() - from_ns) as f64 / 1e9;
    let messages = shared.answered.load(Ordering::Acquire);
    stage.stopped()?;
    // A message that does not come back is lost; the wait for it ends.
    let _ = shared.wait_until(|| shared.unanswered() == 0);
    let lost = shared.unanswered() + shared.wrong.load(Ordering::Acquire);
    let grown = (work.connections - first) as f64;
    let each = |after: u64, before: u64| after.saturating_sub(before) as f64 / grown;
    let measured = Measured::verified(messages, seconds, lost)
        .with_figure(USER_BYTES, each(after.0, before.0))
        .with_figure("kernel_bytes_per_session", each(after.1, before.1));
    stage.measured(measured)
}

/// The resident memory of the server's process.
fn resident_bytes(control: &Client) -> Result<u64, RoleError> {
    let what = "ask the server for its memory";
    let reply = control.request(&[]).wait().or_failed(what)?;
    let bytes: Result<[u8; 8], _> = reply.payload().try_into();
    bytes.map(u64::from_le_bytes).or_failed(what)
}

/// The bytes that the kernel has in unreclaimable slabs and for sockets; 0 where it does not tell.
fn kernel_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let sockstat = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    slab_bytes(&meminfo) + socket_bytes(&sockstat)
}

fn slab_bytes(meminfo: &str) -> u64 {
    let of = |line: &str| {
        line.strip_prefix("SUnreclaim:")?
            .split_ascii_whitespace()
            .next()?
            .parse()
            .ok()
    };
    meminfo.lines().find_map(of).unwrap_or(0_u64) * 1_024
}

/// Lines such as `TCP: inuse 3 orphan 0 tw 0 alloc 4 mem 2` count the memory of queues in pages.
fn socket_bytes(sockstat: &str) -> u64 {
    let pages = sockstat.lines().filter_map(|line| {
        let (_, after) = line.split_once(" mem ")?;
        after.split_ascii_whitespace().next()?.parse::<u64>().ok()
    });
    pages.sum::<u64>() * rustix::param::page_size() as u64
}

impl HolderShared {
    fn fail(&self, text: String) {
        // Only the first one counts.
        let _ = self.failure.set(text);
    }

    /// Waits until so many sessions have had their first reply.
    fn hold(&self, sessions: usize, holder: &Server) -> Result<(), RoleError> {
        self.wanted.store(sessions, Ordering::Release);
        holder.waker(0).wake();
        self.wait_until(|| self.answered.load(Ordering::Acquire) >= sessions as u64)
    }

    fn unanswered(&self) -> u64 {
        let answered = self.answered.load(Ordering::Acquire);
        self.sent.load(Ordering::Acquire).saturating_sub(answered)
    }

    fn wait_until(&self, is_so: impl Fn() -> bool) -> Result<(), RoleError> {
        let failed = |text: &str| Err(RoleError::failed("hold the sessions", text));
        let until_ns = now_ns() + TIMEOUT_NS;
        while !is_so() {
            match self.failure.get() {
                Some(text) => return failed(text),
                None if now_ns() > until_ns => {
                    return failed("the server does not answer everybody");
                }
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
        Ok(())
    }
}

impl Holder {
    /// Whether there are to be more sessions, and not too many are on their way.
    fn may_connect(&self) -> bool {
        let wanted = self.shared.wanted.load(Ordering::Acquire);
        self.connecting < CONNECTING_MAX && self.sessions.len() + self.connecting < wanted
    }

    fn connect_more(&mut self, cx: &mut Context<'_>) {
        while self.may_connect() {
            if let Err(error) = cx.connections().connect(&self.endpoint) {
                return self.shared.fail(describe(&error));
            }
            self.connecting += 1;
        }
    }

    fn say(&self, cx: &mut Context<'_>, session: tidewire::SessionId) {
        let message = Message::with_id(Kind::Request, 0, 1, WORD);
        self.shared.sent.fetch_add(1, Ordering::Release);
        if let Err(error) = cx.send_to(session, &message) {
            self.shared.fail(describe(&error));
        }
    }
}

impl Service for Holder {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        let session = cx.id();
        self.connecting -= 1;
        self.sessions.push(session);
        self.say(cx, session);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if message.kind != Kind::Reply || message.payload != WORD {
            self.shared.wrong.fetch_add(1, Ordering::Release);
        }
        self.shared.answered.fetch_add(1, Ordering::Release);
        if self.was_active && self.shared.is_active.load(Ordering::Acquire) {
            let mut session = cx.id();
            if self.at_once < self.sessions.len() {
                session = self.sessions[self.turn];
                self.turn = (self.turn + 1) % self.sessions.len();
            }
            self.say(cx, session);
        }
        Ok(())
    }

    fn on_close(&mut self, _: &mut Context<'_>, reason: CloseReason) {
        self.shared.fail(format!("a session ended: {reason}"));
    }

    fn on_connect_failed(&mut self, _: &mut Context<'_>, error: ConnectError) {
        self.shared.fail(describe(&error));
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        self.connect_more(cx);
        if !self.was_active && self.shared.is_active.load(Ordering::Acquire) {
            self.was_active = true;
            for index in 0..self.at_once {
                self.say(cx, self.sessions[index]);
            }
            self.turn = self.at_once % self.sessions.len();
        }
        None
    }

    fn has_work(&self) -> bool {
        let is_new = !self.was_active && self.shared.is_active.load(Ordering::Acquire);
        is_new || self.may_connect()
    }
}

const BYTES: Metric = Metric::least(USER_BYTES, "bytes");

const USER_BYTES: &str = "user_bytes_per_session";

const IDLE: &str = "idle";
const ACTIVE: &str = "active";

/// The message that a session sends and receives.
const WORD: &[u8; 32] = b"nothing new, thank you, and you?";

/// Connections on their way at one time: fewer than a listener's backlog.
const CONNECTING_MAX: usize = 128;

/// Sessions that are there before it is counted.
const FIRST: usize = 100;

/// Datagrams on their way at once: fewer than the server's socket holds, for what it does not hold is lost. All
/// sessions get their turns.
const DATAGRAMS_AT_ONCE: usize = 128;

const TIMEOUT_NS: u64 = 30_000_000_000;

#[cfg(test)]
mod tests {
    use super::super::played::play_until;
    use super::*;

    #[test]
    fn sessions_of_every_transport_are_held_and_all_they_say_comes_back() {
        for RowPlan { id, mut work, .. } in rows(false) {
            work.connections = 20;
            (work.warm_up_ms, work.measure_ms) = (1, 20);
            // One word each, and one more where they are active.
            let words = if work.mode == ACTIVE { 40 } else { 20 };
            let measured = play_until(&SUITE, Side::Tidewire, work, |measured| {
                measured.messages >= words
            });
            assert!(measured.figures.contains_key(USER_BYTES), "{id}");
        }
    }

    #[test]
    fn what_the_kernel_says_is_read_as_it_means_it() {
        assert_eq!(
            slab_bytes("Slab: 9 kB\nSUnreclaim:     108 kB\n"),
            108 << 10
        );
        let page_bytes = rustix::param::page_size() as u64;
        let sockstat =
            "sockets: used 24\nTCP: inuse 2 orphan 0 tw 259 alloc 2 mem 196\nUDP: inuse 0 mem 23\n";
        assert_eq!(socket_bytes(sockstat), 219 * page_bytes);
        assert_eq!(slab_bytes("") + socket_bytes(""), 0);
    }
}
