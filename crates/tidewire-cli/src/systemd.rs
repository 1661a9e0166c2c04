//! The conversation of a server with systemd: ready, reloading, stopping, alive; and the sockets that systemd passes.
//!
//! A thread of its own sends all notices, because the socket of a service manager that does not read takes only a few,
//! and the next one would block. Without `NOTIFY_SOCKET` in the environment there is no thread.
//!
//! The thread is the watchdog, too. It feeds systemd only if every lane has turned since it last did. A lane whose
//! handler does not return is not fed, and systemd restarts the server after `WatchdogSec=`.

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tidewire::Server;
use tidewire::metrics::{Inspector, Metrics};
use tidewire::socket::PassedSocket;
use tidewire_command::threads;

use crate::failure::Failure;

/// Tells systemd about a server. Without systemd it does nothing.
#[derive(Debug)]
pub(crate) struct Notifier {
    thread: Option<SyncSender<Notice>>,
}

#[derive(Debug)]
enum Notice {
    Reloading,
    Reloaded,
    /// The server ends, within this time. The sender is told when systemd knows.
    Stopping(Duration, SyncSender<()>),
}

impl Notifier {
    /// Tells systemd that the server is ready, once every lane has turned, and begins to feed its watchdog.
    ///
    /// # Errors
    /// The system refused the thread.
    pub(crate) fn start(server: &Server) -> io::Result<Self> {
        if env::var_os("NOTIFY_SOCKET").is_none_or(|path| path.is_empty()) {
            return Ok(Self { thread: None });
        }
        let (thread, notices) = mpsc::sync_channel(NOTICES_MAX);
        let manager = Manager::new(server, sd_notify::watchdog_enabled(), sd_notify::notify);
        threads::start("systemd", move || manager.run(&notices))?;
        Ok(Self {
            thread: Some(thread),
        })
    }

    /// Settings are read again, until [`Self::reloaded`].
    pub(crate) fn reloading(&self) {
        self.tell(Notice::Reloading);
    }

    pub(crate) fn reloaded(&self) {
        self.tell(Notice::Reloaded);
    }

    /// The server ends within this time. Returns when systemd has been told, or does not read its socket.
    pub(crate) fn stopping(&self, within: Duration) {
        if self.thread.is_none() {
            return;
        }
        let (told, is_told) = mpsc::sync_channel(1);
        self.tell(Notice::Stopping(within, told));
        let _ = is_told.recv_timeout(STOPPING_TIMEOUT);
    }

    fn tell(&self, notice: Notice) {
        if let Some(thread) = &self.thread {
            // Only a service manager that does not read lets notices pile up, and it would not read this one either.
            let _ = thread.try_send(notice);
        }
    }
}

/// The thread's side. It sends with `S`.
#[derive(Debug)]
struct Manager<S> {
    send: S,
    inspector: Inspector,
    /// The time between two looks at the lanes.
    interval: Duration,
    /// Whether systemd waits for signs of life.
    feeds: bool,
    /// The last status that was sent.
    status: String,
    /// The lanes that have not turned since systemd was last fed. `None` after it was.
    awaited: Option<Vec<usize>>,
    /// The stuck lanes that the log has named.
    told: Vec<usize>,
    /// A notice could not be sent, and the log says so.
    has_failed: bool,
}

impl<S: Fn(&[NotifyState<'_>]) -> io::Result<()>> Manager<S> {
    fn new(server: &Server, watchdog: Option<Duration>, send: S) -> Self {
        let mut inspector = server.inspector();
        // The first look finds no lane. It begins the watch.
        inspector.stuck_lanes();
        Self {
            send,
            inspector,
            interval: interval(watchdog),
            feeds: watchdog.is_some(),
            status: String::new(),
            awaited: None,
            told: Vec::new(),
            has_failed: false,
        }
    }

    fn run(mut self, notices: &Receiver<Notice>) {
        wait_for_all(&mut self.inspector);
        self.send(&[NotifyState::Ready]);
        self.send_status();
        let mut look_at = Instant::now() + self.interval;
        loop {
            match notices.recv_timeout(look_at.saturating_duration_since(Instant::now())) {
                Ok(notice) => self.pass_on(notice),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    look_at = Instant::now() + self.interval;
                    self.look();
                }
            }
        }
    }

    /// Looks at the lanes, and feeds the watchdog once each of them has turned since it was last fed. They need not
    /// turn in the same interval: long handlers of several lanes seldom end together.
    fn look(&mut self) {
        let stuck = self.inspector.stuck_lanes();
        let mut awaited = self.awaited.take().unwrap_or_else(|| stuck.clone());
        awaited.retain(|lane| stuck.contains(lane));
        if self.feeds && awaited.is_empty() {
            self.send(&[NotifyState::Watchdog]);
        } else if let Some(lane) = awaited.iter().find(|lane| !self.told.contains(lane)) {
            let interval = self.interval;
            tracing::warn!(
                lane,
                ?interval,
                "a lane does not turn, so the watchdog of systemd is not fed; look which handler takes this long"
            );
        }
        self.awaited = Some(awaited).filter(|lanes| !lanes.is_empty());
        self.told = stuck;
        self.send_status();
    }

    fn send_status(&mut self) {
        let status = status(&self.inspector.metrics());
        if status != self.status {
            self.send(&[NotifyState::Status(&status)]);
            self.status = status;
        }
    }

    fn pass_on(&mut self, notice: Notice) {
        match notice {
            // Units of `Type=notify-reload` need the time, to tell this reload from an earlier one.
            Notice::Reloading => match NotifyState::monotonic_usec_now() {
                Ok(now) => self.send(&[NotifyState::Reloading, now]),
                Err(_) => self.send(&[NotifyState::Reloading]),
            },
            Notice::Reloaded => self.send(&[NotifyState::Ready]),
            Notice::Stopping(within, told) => {
                let within = u32::try_from(within.as_micros()).unwrap_or(u32::MAX);
                self.send(&[
                    NotifyState::Stopping,
                    NotifyState::ExtendTimeoutUsec(within),
                    NotifyState::Status("draining"),
                ]);
                // The server may not wait any more.
                let _ = told.send(());
            }
        }
    }

    fn send(&mut self, states: &[NotifyState<'_>]) {
        if let Err(error) = (self.send)(states)
            && !self.has_failed
        {
            self.has_failed = true;
            tracing::warn!(%error, "cannot tell systemd about this server: NOTIFY_SOCKET names no socket that takes it");
        }
    }
}

/// Waits until each lane has turned once. A lane whose service never returns is waited for: systemd's own time limit
/// ends that.
fn wait_for_all(inspector: &mut Inspector) {
    let mut waiting = inspector.stuck_lanes();
    while !waiting.is_empty() {
        thread::sleep(START_INTERVAL);
        let stuck = inspector.stuck_lanes();
        waiting.retain(|lane| stuck.contains(lane));
    }
}

/// The line that `systemctl status` shows.
fn status(metrics: &Metrics) -> String {
    let open = metrics
        .sessions_opened
        .saturating_sub(metrics.sessions_closed());
    format!("sessions: {open}")
}

/// The interval of looks at the lanes: several in the time of the watchdog.
fn interval(watchdog: Option<Duration>) -> Duration {
    watchdog.map_or(STATUS_INTERVAL, |within| {
        (within / LOOKS_PER_WATCHDOG).clamp(START_INTERVAL, STATUS_INTERVAL)
    })
}

/// Takes the sockets that systemd has passed. The variables that name them are gone afterwards, so that no child takes
/// them, too.
///
/// # Errors
/// A descriptor is no socket that a server can listen on.
pub(crate) fn passed_sockets() -> Result<Vec<PassedSocket>, Failure> {
    let mut descriptors = ListenFd::from_env();
    (0..descriptors.len())
        .map(|index| {
            let socket = take(&mut descriptors, index).map_err(|error| error.to_string())?;
            PassedSocket::new(socket).map_err(|error| error.to_string())
        })
        .collect::<Result<_, String>>()
        .map_err(|error| {
            let remedy = "look at the socket unit, and start this server by it";
            Failure::configuration(format!("LISTEN_FDS: {error}"), remedy)
        })
}

fn take(descriptors: &mut ListenFd, index: usize) -> io::Result<OwnedFd> {
    // A descriptor of another kind stays for the next try; the last error tells what it is not.
    if let Ok(Some(socket)) = descriptors.take_tcp_listener(index) {
        return Ok(socket.into());
    }
    if let Ok(Some(socket)) = descriptors.take_unix_listener(index) {
        return Ok(socket.into());
    }
    match descriptors.take_udp_socket(index)? {
        Some(socket) => Ok(socket.into()),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Notices that may wait for the thread.
const NOTICES_MAX: usize = 64;

/// The longest time between two status lines, and between two looks at the lanes.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// The time between two looks at lanes that start, and the shortest of all.
const START_INTERVAL: Duration = Duration::from_millis(2);

/// Looks at the lanes in the time of the watchdog. A busy machine may make one or two of them late.
const LOOKS_PER_WATCHDOG: u32 = 4;

/// The longest time for which the end of a server waits for systemd to take the notice.
const STOPPING_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tidewire::{Client, Context, Message};
    use tidewire_testkit::wait_until;

    use super::*;

    /// A manager that keeps what it sends.
    fn manager<'a>(
        server: &Server,
        sent: &'a RefCell<Vec<String>>,
    ) -> Manager<impl Fn(&[NotifyState<'_>]) -> io::Result<()> + use<'a>> {
        Manager::new(server, Some(Duration::from_secs(1)), |states| {
            sent.borrow_mut()
                .extend(states.iter().map(ToString::to_string));
            Ok(())
        })
    }

    /// Looks at the lanes once. Returns whether the watchdog was fed.
    fn looks_well<S: Fn(&[NotifyState<'_>]) -> io::Result<()>>(
        manager: &mut Manager<S>,
        sent: &RefCell<Vec<String>>,
    ) -> bool {
        sent.borrow_mut().clear();
        manager.look();
        sent.borrow().iter().any(|state| state == "WATCHDOG=1")
    }

    #[test]
    fn a_lane_in_a_handler_that_blocks_is_not_fed() {
        let (entered, is_entered) = mpsc::channel();
        let (leave, may_leave) = mpsc::channel::<()>();
        let mut ends = Some((entered, may_leave));
        let server = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
        let server = server.start(|_| {
            let (entered, may_leave) = ends.take().unwrap();
            move |cx: &mut Context<'_>, message: Message<'_>| {
                entered.send(()).unwrap();
                may_leave.recv().unwrap();
                cx.reply(message.payload)
            }
        });
        let server = server.unwrap();
        let sent = RefCell::new(Vec::new());
        let mut manager = manager(&server, &sent);
        let mut look = || looks_well(&mut manager, &sent);
        wait_until("an idle lane is fed", || look().then_some(()));
        let client = Client::connect(&server.to_string()).wait().unwrap();
        let request = client.request(b"x").send();
        is_entered.recv().unwrap();
        // It may have turned just before this look.
        look();
        for _ in 0..10 {
            assert!(!look(), "{:?}", sent.borrow());
        }
        leave.send(()).unwrap();
        assert_eq!(request.wait().unwrap().payload(), b"x");
        wait_until("it is fed again", || look().then_some(()));
        wait_until("the status has the session", || {
            sent.borrow_mut().clear();
            manager.status.clear();
            manager.send_status();
            sent.borrow()
                .contains(&"STATUS=sessions: 1".to_owned())
                .then_some(())
        });
    }

    /// The bug: the watchdog was fed only if all lanes had turned in one interval. Handlers of several lanes that are
    /// shorter than the watchdog's time, but seldom end together, had the server killed.
    #[test]
    fn lanes_that_block_in_turns_are_fed() {
        let (entered, is_entered) = mpsc::channel();
        let mut releases = Vec::new();
        let server = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
        let server = server.lanes(2).start(|_| {
            let entered = entered.clone();
            let (release, may_leave) = mpsc::channel::<()>();
            releases.push(release);
            move |cx: &mut Context<'_>, message: Message<'_>| {
                entered.send(cx.lane()).unwrap();
                may_leave.recv().unwrap();
                cx.reply(message.payload)
            }
        });
        let server = server.unwrap();
        let sent = RefCell::new(Vec::new());
        let mut manager = manager(&server, &sent);
        // Connections go to the lanes in turns.
        let clients: Vec<Client> = (0..2)
            .map(|_| Client::connect(&server.to_string()).wait().unwrap())
            .collect();
        wait_until("idle lanes are fed", || {
            looks_well(&mut manager, &sent).then_some(())
        });
        let first = clients[0].request(b"x").send();
        let lane = is_entered.recv().unwrap();
        // On a busy machine the other lane may seem stuck for a while, too.
        wait_until("only the first lane is stuck", || {
            looks_well(&mut manager, &sent);
            (manager.awaited.as_deref() == Some(&[lane])).then_some(())
        });
        let mut look = || looks_well(&mut manager, &sent);
        let second = clients[1].request(b"y").send();
        assert_ne!(is_entered.recv().unwrap(), lane, "another lane");
        assert!(!look() && !look(), "the first lane has not turned");
        releases[lane].send(()).unwrap();
        assert_eq!(first.wait().unwrap().payload(), b"x");
        wait_until("the first lane has turned", || look().then_some(()));
        releases[1 - lane].send(()).unwrap();
        assert_eq!(second.wait().unwrap().payload(), b"y");
    }

    #[test]
    fn several_looks_fit_into_the_time_of_the_watchdog() {
        assert_eq!(interval(None), STATUS_INTERVAL);
        let seconds = Duration::from_secs;
        assert_eq!(interval(Some(seconds(8))), seconds(2));
        assert_eq!(interval(Some(seconds(600))), STATUS_INTERVAL);
        assert_eq!(interval(Some(Duration::ZERO)), START_INTERVAL);
    }
}
