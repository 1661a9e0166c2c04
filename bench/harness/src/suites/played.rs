//! Suites played within a test: both parts as threads, which speak through pipes as they do with the runner.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::contract::{Account, Line, Measured, Work};
use crate::plan::{RoleError, RowPlan, Side, Suite};
use crate::stage::Stage;

/// The result of a run of a row.
#[derive(Debug)]
pub(super) struct PlayResult {
    pub(super) measured: Measured,
    /// The server's account at the end, where there is a server.
    pub(super) account: Account,
}

/// A part that plays on a thread of its own.
struct Player {
    said: BufReader<PipeReader>,
    asks: PipeWriter,
    thread: JoinHandle<Result<(), RoleError>>,
}

impl Player {
    fn start(part: impl FnOnce(&mut Stage) -> Result<(), RoleError> + Send + 'static) -> Self {
        let (input, asks) = pipe().unwrap();
        let (said, output) = pipe().unwrap();
        let mut stage = Stage::new(BufReader::new(input), output);
        Self {
            said: BufReader::new(said),
            asks,
            thread: std::thread::spawn(move || part(&mut stage)),
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }

    /// Ends it; an error of its own is worth more than the line that did not come.
    fn finish(self) {
        let Self { said, asks, thread } = self;
        drop((said, asks));
        thread.join().unwrap().unwrap();
    }
}

/// Plays the long rows with no more than so many connections, the limits and ours, each until something has come.
pub(super) fn play_long_rows(suite: &'static Suite, connections_max: usize) {
    let few = |row: &RowPlan| row.work.connections <= connections_max;
    for row in (suite.rows)(false).into_iter().filter(few) {
        let limits = row.limits.into_iter().map(|bare| (Side::Bare, bare.work));
        for (side, work) in limits.chain([(Side::Tidewire, row.work)]) {
            let work = Work {
                warm_up_ms: 2,
                measure_ms: 10,
                ..work
            };
            play_until(suite, side, work, |measured| measured.messages > 0);
        }
    }
}

/// Plays every quick row of a suite of layers with few clients. It loses nothing.
pub(super) fn play_few_clients(suite: &'static Suite) {
    loses_nothing(suite, |work| {
        work.subscribers = work.subscribers.min(10);
        work.connections = work.connections.min(20);
        (work.warm_up_ms, work.measure_ms) = (20, work.measure_ms.min(50));
    });
}

/// Plays our side of every long row of a suite of layers with few clients, each until something has come.
pub(super) fn play_long_rows_with_few_clients(suite: &'static Suite) {
    for mut row in (suite.rows)(false) {
        row.work.subscribers = row.work.subscribers.min(4);
        row.work.connections = row.work.connections.min(4);
        row.work.rate_per_sec = row.work.rate_per_sec.min(1_000.0);
        (row.work.warm_up_ms, row.work.measure_ms) = (5, row.work.measure_ms.min(20));
        play_until(suite, Side::Tidewire, row.work, |measured| {
            measured.messages > 0
        });
    }
}

/// Plays the work with `side` in both parts.
pub(super) fn play(suite: &'static Suite, side: Side, work: &Work) -> PlayResult {
    let mut server = None;
    let mut address = "-".to_owned();
    if work.has_server() {
        let serve = work.clone();
        let mut player = Player::start(move |stage| (suite.serve)(side, &serve, stage));
        let line = player.line();
        let Ok(Line::Ready(ready)) = serde_json::from_str(&line) else {
            player.finish();
            panic!("{line:?} in place of an address");
        };
        address = ready;
        server = Some(player);
    }
    let drive = work.clone();
    let mut driver = Player::start(move |stage| (suite.drive)(side, &address, &drive, stage));
    let started = serde_json::from_str::<Line>(&driver.line()).ok();
    let mut measured = None;
    if started == Some(Line::Started(true)) {
        let mut said = serde_json::from_str(&driver.line()).ok();
        if said == Some(Line::Stopped(true)) {
            said = serde_json::from_str(&driver.line()).ok();
        }
        if let Some(Line::Measured(figures)) = said {
            measured = Some(figures);
        }
    }
    let mut account = Account::default();
    let sent = measured.as_ref().and_then(|measured| measured.sent);
    if let Some(server) = &mut server {
        // One-way messages may still be under way; a loss shows at the end.
        let until = Instant::now() + SETTLE_MAX;
        loop {
            server.asks.write_all(b"\n").unwrap();
            account = serde_json::from_str(&server.line()).unwrap();
            if sent.is_none_or(|sent| account.messages >= Some(sent)) || Instant::now() > until {
                break;
            }
        }
    }
    driver.finish();
    if let Some(server) = server {
        server.finish();
    }
    PlayResult {
        measured: measured.expect("the driver said what it measured"),
        account,
    }
}

/// Plays the work in a window that grows until the run found `enough`: how much a machine that does something else gets
/// done in a time is not what is tested. Nothing may be lost in any of the runs.
pub(super) fn play_until(
    suite: &'static Suite,
    side: Side,
    mut work: Work,
    enough: impl Fn(&Measured) -> bool,
) -> Measured {
    for _ in 0..GROWTHS_MAX {
        let PlayResult { measured, account } = play(suite, side, &work);
        let lost = (measured.lost, measured.verified);
        assert_eq!(lost, (0, true), "{side:?}, {work:?}: {measured:?}");
        if let Some(sent) = measured.sent {
            // One-way messages are in the server's account only.
            assert_eq!(account.messages, Some(sent), "{side:?}, {work:?}");
            if sent > 0 {
                return measured;
            }
        } else if enough(&measured) {
            assert!(measured.seconds > 0.0, "{side:?}: {measured:?}");
            return measured;
        }
        work.measure_ms *= 4;
    }
    panic!("{side:?} never has enough: {work:?}");
}

/// Plays every quick row with both programs, cut down by `small`, and expects that nothing is lost.
pub(super) fn loses_nothing(suite: &'static Suite, small: impl Fn(&mut Work)) {
    for RowPlan { work, limits, .. } in (suite.rows)(true) {
        let limits = limits.into_iter().map(|bare| (Side::Bare, bare.work));
        for (side, mut work) in limits.chain([(Side::Tidewire, work)]) {
            small(&mut work);
            play_until(suite, side, work, |measured| measured.messages > 0);
        }
    }
}

/// Longest wait for what was sent one way, however busy the machine is.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// From 50 ms to 50 s.
const GROWTHS_MAX: usize = 6;
