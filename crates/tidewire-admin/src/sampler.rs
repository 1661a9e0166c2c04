//! Reads a server: counters at once, and lanes, sessions and rooms by asking the lanes.
//!
//! A sample costs each lane one message. A *walk* over all sessions and rooms costs more, so it is repeated only after
//! a hundred times the time that it took. So a lane spends less than one percent of its time on walks, with any number
//! of sessions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tidewire::metrics::{Inspector, LaneFigures, Metrics, RoomFigures, SessionFigures};
use tidewire::tls::TlsAcceptor;
use tidewire::{CloseReason, ServeError, Sessions};

use crate::model::{
    Certificate, Identity, Lane, Memory, Node, Overview, Rates, Room, Session, SessionCounts, Tops,
    Turns,
};

/// A server, as the admin server reads it.
#[derive(Debug)]
pub(crate) struct Sampler {
    pub(crate) inspector: Inspector,
    pub(crate) sessions: Sessions,
    tls: Option<TlsAcceptor>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    started: Instant,
    last: Option<Sample>,
    /// The answer times of the slowest lane, of the last samples.
    answers_ms: VecDeque<f64>,
    tops: Tops,
    walked: Option<Instant>,
    /// The beginning of the last walk, which may have failed or may still run.
    walk_began: Option<Instant>,
    /// The overview of the last sample, for requests that come soon after it.
    overview: Option<(Instant, Arc<Overview>)>,
}

#[derive(Debug)]
struct Sample {
    at: Instant,
    sum: Metrics,
    lanes: Vec<Metrics>,
    cpu: Vec<Option<Duration>>,
}

/// Whether the lanes turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Healthy,
    /// Healthy, and no new clients are wanted.
    Draining,
    /// Healthy, and cut off from the other servers of its cluster.
    CutOff,
    /// This lane has ended or does not turn.
    Stuck(usize),
}

impl Sampler {
    pub(crate) fn new(server: &tidewire::Server) -> Self {
        Self {
            inspector: server.inspector(),
            sessions: server.sessions(),
            tls: server.tls_acceptor(),
            state: Mutex::new(State {
                started: Instant::now(),
                last: None,
                answers_ms: VecDeque::new(),
                tops: Tops::default(),
                walked: None,
                walk_began: None,
                overview: None,
            }),
        }
    }

    pub(crate) fn expiry(&self) -> Option<SystemTime> {
        self.tls.as_ref()?.expiry()
    }

    /// Returns the state of the server, at most one second old. It waits for the lanes.
    pub(crate) fn overview(&self) -> Arc<Overview> {
        let mut state = self.lock();
        if let Some((at, overview)) = &state.overview
            && at.elapsed() < SAMPLE_AGE_MAX
        {
            return Arc::clone(overview);
        }
        let overview = Arc::new(self.sample(&mut state));
        state.overview = Some((Instant::now(), Arc::clone(&overview)));
        overview
    }

    /// Whether the lanes turn, at most one second ago.
    pub(crate) fn health(&self) -> Health {
        let overview = self.overview();
        match overview.lanes.iter().find(|lane| !lane.turns) {
            Some(lane) => Health::Stuck(lane.lane),
            None if !self.inspector.is_ready() => Health::Draining,
            None if overview.node.as_ref().is_some_and(|node| node.cut_off) => Health::CutOff,
            None => Health::Healthy,
        }
    }

    /// Walks over the sessions and rooms for the lists of the longest, if the last walk is old enough.
    pub(crate) fn walk(&self) {
        let began = Instant::now();
        {
            let mut state = self.lock();
            let pause = Duration::from_secs_f64(state.tops.walk_ms / 1e3 * WALK_PAUSE_FACTOR);
            if state
                .walk_began
                .is_some_and(|at| at.elapsed() < pause.max(SAMPLE_AGE_MAX))
            {
                return;
            }
            state.walk_began = Some(began);
        }
        let found = self.find_tops();
        let walk_ms = began.elapsed().as_secs_f64() * 1e3;
        let mut state = self.lock();
        let Ok(tops) = found else {
            state.tops.walk_ms = walk_ms;
            return;
        };
        state.tops = Tops { walk_ms, ..tops };
        state.walked = Some(Instant::now());
    }

    fn find_tops(&self) -> Result<Tops, ServeError> {
        let mut slowest: Vec<(u64, SessionFigures)> = Vec::new();
        self.inspector.sessions(ANSWER_TIME_MAX, |session| {
            let behind = behind(&session);
            if behind == 0 {
                return;
            }
            slowest.push((behind, session));
            if slowest.len() >= 2 * TOP {
                keep_top(&mut slowest);
            }
        })?;
        keep_top(&mut slowest);
        let rooms = self.inspector.rooms(ANSWER_TIME_MAX)?;
        let (topics, rooms): (Vec<_>, Vec<_>) = rooms.into_iter().partition(|it| it.is_topic);
        Ok(Tops {
            slowest: slowest.iter().map(|(_, it)| Session::of(it)).collect(),
            rooms: largest(rooms),
            topics: largest(topics),
            ..Tops::default()
        })
    }

    fn sample(&self, state: &mut State) -> Overview {
        let lanes = self.inspector.lanes(ANSWER_TIME_MAX);
        let sample = Sample {
            at: Instant::now(),
            sum: self.inspector.metrics(),
            lanes: self.inspector.lane_metrics(),
            cpu: lanes.iter().map(|it| it.map(|it| it.cpu)).collect(),
        };
        let answers = lanes
            .iter()
            .map(|it| it.map(|it| milliseconds(it.answered_after)));
        let slowest = answers.flatten().reduce(f64::max);
        if let Some(slowest) = slowest {
            if state.answers_ms.len() == ANSWERS_KEPT {
                state.answers_ms.pop_front();
            }
            state.answers_ms.push_back(slowest);
        }
        let overview = self.describe(state, &sample, &lanes, slowest);
        state.last = Some(sample);
        overview
    }

    fn describe(
        &self,
        state: &State,
        sample: &Sample,
        lanes: &[Option<LaneFigures>],
        slowest: Option<f64>,
    ) -> Overview {
        let last = state.last.as_ref();
        let sum = &sample.sum;
        let closed = sum.sessions_closed();
        let tops = Tops {
            age_seconds: state.walked.map_or(0.0, |at| at.elapsed().as_secs_f64()),
            ..state.tops.clone()
        };
        Overview {
            at_ms: since_1970_ms(wall_clock()),
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: state.started.elapsed().as_secs_f64(),
            ready: self.inspector.is_ready() && lanes.iter().all(Option::is_some),
            interval_seconds: last.map_or(0.0, |last| interval(last, sample)),
            rates: last.map_or_else(Rates::default, |last| rates(last, sample)),
            sessions: SessionCounts {
                open: sum.sessions_opened.saturating_sub(closed),
                opened: sum.sessions_opened,
                refused: sum.sessions_refused,
            },
            turns: turns(&state.answers_ms, slowest),
            lanes: (0..lanes.len())
                .map(|lane| describe_lane(lane, lanes[lane], last, sample))
                .collect(),
            memory: memory(sum, lanes),
            in_flight: i64::try_from(sum.room_in_flight()).unwrap_or(i64::MAX),
            dropped: by_reason(&Metrics::ROOM_DROP_REASONS, &sum.room_dropped),
            datagrams_dropped: by_reason(&Metrics::DATAGRAM_DROP_REASONS, &sum.datagrams_dropped),
            closed: by_reason(&CloseReason::NAMES, &sum.closed),
            identity: Identity {
                authenticated: sum.authenticated,
                auth_refused: sum.auth_refused,
                forbidden: sum.forbidden,
                auth_reloads: sum.auth_reloads,
                auth_reloads_refused: sum.auth_reloads_refused,
                handshakes_refused: sum.handshakes_refused,
            },
            certificate: self.expiry().map(certificate),
            node: self.inspector.node().map(|node| Node::of(&node, sum)),
            tops,
            counters: sum
                .counters()
                .map(|(name, _, count)| (name, count))
                .collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that wait for the peer of a session.
pub(crate) fn behind(session: &SessionFigures) -> u64 {
    session.queued_bytes as u64 + session.lag.map_or(0, |lag| lag.bytes)
}

fn keep_top(sessions: &mut Vec<(u64, SessionFigures)>) {
    sessions.sort_by_key(|(behind, _)| std::cmp::Reverse(*behind));
    sessions.truncate(TOP);
}

fn largest(mut rooms: Vec<RoomFigures>) -> Vec<Room> {
    rooms.sort_by(|one, other| {
        let order = other.members.cmp(&one.members);
        order.then_with(|| one.name.cmp(&other.name))
    });
    rooms.iter().take(TOP).map(Room::of).collect()
}

fn describe_lane(
    lane: usize,
    figures: Option<LaneFigures>,
    last: Option<&Sample>,
    sample: &Sample,
) -> Lane {
    let before = last.and_then(|last| Some((last, last.lanes.get(lane)?)));
    let rate = |count: fn(&Metrics) -> u64| {
        before.map_or(0.0, |(last, metrics)| {
            count(&sample.lanes[lane]).saturating_sub(count(metrics)) as f64
                / interval(last, sample)
        })
    };
    let load = before.and_then(|(last, _)| {
        let used = sample.cpu[lane]?.saturating_sub(last.cpu[lane]?);
        Some((used.as_secs_f64() / interval(last, sample)).min(1.0))
    });
    Lane {
        lane,
        turns: figures.is_some(),
        answer_ms: figures.map(|it| milliseconds(it.answered_after)),
        load,
        sessions: figures.map(|it| it.sessions),
        memory_bytes: figures.map(|it| it.memory_bytes),
        frames_in_rate: rate(|it| it.frames_in),
        delivered_rate: rate(|it| it.room_delivered),
    }
}

fn rates(last: &Sample, now: &Sample) -> Rates {
    let grown =
        |count: fn(&Metrics) -> u64| count(&now.sum).saturating_sub(count(&last.sum)) as f64;
    let rate = |count: fn(&Metrics) -> u64| grown(count) / interval(last, now);
    let messages = grown(|it| it.chat_messages) + grown(|it| it.published);
    Rates {
        frames_in: rate(|it| it.frames_in),
        bytes_in: rate(|it| it.bytes_in),
        bytes_out: rate(|it| it.bytes_out),
        chat_messages: rate(|it| it.chat_messages),
        published: rate(|it| it.published),
        delivered: rate(|it| it.room_delivered),
        dropped: rate(Metrics::room_dropped_total),
        opened: rate(|it| it.sessions_opened),
        closed: rate(Metrics::sessions_closed),
        system_calls: rate(|it| it.system_calls),
        fan_out: (messages > 0.0).then(|| grown(|it| it.room_offered) / messages),
    }
}

fn memory(sum: &Metrics, lanes: &[Option<LaneFigures>]) -> Memory {
    let total = |bytes: fn(&LaneFigures) -> usize| lanes.iter().flatten().map(bytes).sum::<usize>();
    let (sessions, kept) = (total(|it| it.session_bytes), total(|it| it.kept_bytes));
    let common = total(|it| it.common_bytes);
    let all = total(|it| it.memory_bytes);
    Memory {
        // Lanes tell the server's account in steps. Until then the sum of the kinds is larger.
        bytes: sum.memory_bytes.max(all as u64),
        bytes_max: sum.memory_bytes_max,
        pressure_changes: sum.memory_pressure_changes,
        sessions,
        kept,
        common,
        rooms: all.saturating_sub(sessions + kept + common),
    }
}

fn turns(answers_ms: &VecDeque<f64>, last: Option<f64>) -> Turns {
    let mut sorted: Vec<f64> = answers_ms.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    Turns {
        last_ms: last,
        p50_ms: sorted.get(sorted.len() / 2).copied(),
        max_ms: sorted.last().copied(),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "people and certificates live by the wall clock"
)]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

fn certificate(expires: SystemTime) -> Certificate {
    let left = match expires.duration_since(wall_clock()) {
        Ok(left) => left.as_secs_f64(),
        Err(over) => -over.duration().as_secs_f64(),
    };
    Certificate {
        expires_ms: since_1970_ms(expires),
        days_left: left / 86_400.0,
    }
}

fn by_reason(names: &[&'static str], counts: &[u64]) -> BTreeMap<&'static str, u64> {
    names.iter().copied().zip(counts.iter().copied()).collect()
}

fn interval(last: &Sample, now: &Sample) -> f64 {
    now.at.duration_since(last.at).as_secs_f64().max(1e-3)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn since_1970_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// The age up to which a sample is used again. A little less than the interval of events, so that each of them is new.
const SAMPLE_AGE_MAX: Duration = Duration::from_millis(900);

/// The longest time for a lane to answer. Handlers may not block, so a turn takes milliseconds.
pub(crate) const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// Answer times that are kept: one minute.
const ANSWERS_KEPT: usize = 60;

/// Entries of each list of the longest.
const TOP: usize = 10;

/// The time between two walks, in times of a walk.
const WALK_PAUSE_FACTOR: f64 = 100.0;
