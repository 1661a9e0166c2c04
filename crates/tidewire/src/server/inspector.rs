//! Figures of a server, its lanes, sessions and rooms for any thread, for dashboards and watchdogs.
//!
//! The lanes are asked by their mailboxes and answer between their other work, in pieces of bounded size. So nothing is
//! counted for this while messages move, and a server that is not asked pays nothing. Rejected: figures that the lanes
//! publish all the time, because each session would need atomics that nobody reads. Rejected: reading a lane's sessions
//! from another thread under a lock, because every message would then take it.
//!
//! A stuck lane is found without its answer, by a counter that lanes have anyway, of their system calls: a lane makes
//! one in every turn when it waits. An idle lane sleeps and makes none, so a check wakes all lanes, and the next check
//! looks whether they have turned. Rejected: a time stamp at each turn, because a turn may be a single message.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidewire_io::clock::now_ns;

use super::operation::Readiness;
use super::{ServeError, Server};
use crate::backplane::NodeFigures;
use crate::engine::ServerShared;
use crate::mailbox::{Inspection, LaneAnswer, LaneMessage, LanesAsked, Question, RoomFigures};
use crate::observe::{Metrics, MetricsReader};
use crate::session::{LaneFigures, SessionFigures};

/// Reads a server from any thread, also after the server has stopped. [`Server::inspector`] returns it. Clones read the
/// same server.
///
/// Counters and the state of the server are read at once. [`Self::lanes`], [`Self::sessions`] and [`Self::rooms`] ask
/// the lanes, so no lane may call them. One question runs at a time, and the others wait for it.
///
/// ```
/// use std::time::Duration;
/// use tidewire::Client;
///
/// let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
///     cx.reply(message.payload)
/// })?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// client.request(b"hello").wait()?;
///
/// let inspector = server.inspector();
/// let lanes = inspector.lanes(Duration::from_secs(10));
/// assert_eq!(lanes[0].unwrap().sessions, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Inspector {
    shared: Arc<ServerShared>,
    metrics: MetricsReader,
    node: Option<Arc<Mutex<NodeFigures>>>,
    readiness: Readiness,
    /// The system calls of each lane at the last look for stuck lanes. Empty before the first.
    seen: Vec<u64>,
}

impl Server {
    /// Returns a handle that reads the counters and the state of the server, and asks its lanes for figures of
    /// themselves, their sessions and rooms. It outlives the server.
    #[must_use]
    pub fn inspector(&self) -> Inspector {
        Inspector {
            shared: Arc::clone(&self.shared),
            metrics: self.metrics.clone(),
            node: self.node.as_ref().map(|node| Arc::clone(node.figures())),
            readiness: self.readiness.clone(),
            seen: Vec::new(),
        }
    }
}

impl Inspector {
    /// Reads the counters of all lanes at this moment.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.metrics.read()
    }

    /// Reads the counters of each lane at this moment, in the order of the lanes. The three figures of memory belong to
    /// the whole server, and are 0 here.
    ///
    /// ```
    /// use tidewire::{Context, Message, Server};
    ///
    /// let server = Server::builder().lanes(2).start(|_| |_: &mut Context<'_>, _: Message<'_>| Ok(()))?;
    /// assert_eq!(server.inspector().lane_metrics().len(), 2);
    /// # Ok::<(), tidewire::ServeError>(())
    /// ```
    #[must_use]
    pub fn lane_metrics(&self) -> Vec<Metrics> {
        self.metrics.read_lanes()
    }

    /// Whether the server takes new clients, for the health checks of a load balancer: every lane runs, and
    /// [`Stopper::withdraw`](crate::Stopper::withdraw) was not called.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.readiness.is_ready()
    }

    /// Returns the indices of the lanes that have not turned since the last call, for a watchdog. The first call begins
    /// the watch, and finds none. An idle lane is woken to turn once. A lane that has ended is not stuck.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
    /// #     cx.reply(message.payload)
    /// # })?;
    /// let mut inspector = server.inspector();
    /// assert!(inspector.stuck_lanes().is_empty());
    /// std::thread::sleep(Duration::from_millis(10));
    /// for lane in inspector.stuck_lanes() {
    ///     println!("lane {lane} has not turned for 10 ms");
    /// }
    /// # Ok::<(), tidewire::ServeError>(())
    /// ```
    pub fn stuck_lanes(&mut self) -> Vec<usize> {
        let lanes = self.readiness.lanes();
        let counts = self.metrics.lanes().iter().map(|it| it.system_calls.read());
        let before = std::mem::replace(&mut self.seen, counts.collect());
        lanes.iter().for_each(|lane| lane.waker.wake());
        let is_stuck =
            |lane: &usize| before[*lane] == self.seen[*lane] && !lanes[*lane].is_retired();
        (0..before.len()).filter(is_stuck).collect()
    }

    /// Returns what the server knew of its cluster at the last heartbeat; `None` without a backplane.
    #[must_use]
    pub fn node(&self) -> Option<NodeFigures> {
        let figures = self.node.as_ref()?.lock();
        // No code under the lock panics.
        Some(figures.unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Asks every lane for its figures, and waits for the answers up to `within`. A lane that has ended, or that does
    /// not turn, has none. A call costs a lane one message and one system call; it also reads eight bytes for each
    /// session.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tidewire::{Context, Message};
    /// # let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
    /// #     cx.reply(message.payload)
    /// # })?;
    /// let lanes = server.inspector().lanes(Duration::from_secs(10));
    /// assert_eq!(lanes[0].map(|lane| lane.sessions), Some(0), "no client is connected");
    /// # Ok::<(), tidewire::ServeError>(())
    /// ```
    #[must_use]
    pub fn lanes(&self, within: Duration) -> Vec<Option<LaneFigures>> {
        let mut round = Round::begin(&self.shared, within);
        let mut figures = vec![None; self.shared.lanes.all().len()];
        let asked_ns = now_ns();
        let question = Question::Lane { asked_ns };
        let asked = (0..figures.len()).filter(|lane| round.ask(*lane, question).is_ok());
        let mut left = asked.count();
        while left > 0 {
            let Some((lane, answered)) = round.next() else {
                break;
            };
            left -= 1;
            if let LaneAnswer::Lane(found) = answered {
                figures[lane] = Some(found);
            }
        }
        figures
    }

    /// Calls `visit` with every open session, lane by lane. It asks for 256 at a time, and the lanes do their other
    /// work in between. So the figures of two sessions are not of the same moment, and a session that opens meanwhile
    /// may be missing. `within` is the longest time for one piece.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tidewire::Client;
    /// # let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
    /// #     cx.reply(message.payload)
    /// # })?;
    /// # let client = Client::connect(&server.to_string()).wait()?;
    /// # client.request(b"hello").wait()?;
    /// let mut slowest = None;
    /// server.inspector().sessions(Duration::from_secs(10), |session| {
    ///     slowest = slowest.max(Some((session.queued_bytes, session.id)));
    /// })?;
    /// assert_eq!(slowest.unwrap().0, 0, "it takes everything");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ServeError::LaneEnded`] or [`ServeError::LaneLate`]. The sessions of other lanes were visited, and some of
    /// that lane's.
    pub fn sessions(
        &self,
        within: Duration,
        mut visit: impl FnMut(SessionFigures),
    ) -> Result<(), ServeError> {
        self.pieces(
            within,
            |from| Question::Sessions { from },
            |answered| {
                let LaneAnswer::Sessions(figures, next) = answered else {
                    return None;
                };
                figures.into_iter().for_each(&mut visit);
                next
            },
        )
    }

    /// Returns the rooms, topics and patterns that have members, by their numbers. `within` is the longest time for one
    /// piece, as for [`Self::sessions`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tidewire::{Client, PubSub, Server};
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(PubSub::new())?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// let subscription = client.subscribe("weather.>").wait()?;
    /// let rooms = server.inspector().rooms(Duration::from_secs(10))?;
    /// assert_eq!((rooms[0].name.as_str(), rooms[0].members), ("weather.>", 1));
    /// # drop(subscription);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ServeError::LaneEnded`] or [`ServeError::LaneLate`].
    pub fn rooms(&self, within: Duration) -> Result<Vec<RoomFigures>, ServeError> {
        let mut rooms = BTreeMap::new();
        self.pieces(
            within,
            |from| Question::Rooms { from },
            |answered| {
                let LaneAnswer::Rooms(pieces, next) = answered else {
                    return None;
                };
                for piece in pieces {
                    match rooms.entry(piece.alias) {
                        Entry::Vacant(entry) => drop(entry.insert(piece)),
                        Entry::Occupied(mut entry) => entry.get_mut().add(&piece),
                    }
                }
                next
            },
        )?;
        let directory = &self.shared.directory;
        let named = rooms.into_values().filter_map(|mut room: RoomFigures| {
            if !room.is_topic {
                // A room that has just lost its last member has no name any more.
                room.name = directory.name_of(room.alias)?.into();
            }
            Some(room)
        });
        Ok(named.collect())
    }

    /// Asks lane after lane, piece after piece. `take` returns where the next piece begins.
    fn pieces(
        &self,
        within: Duration,
        question: impl Fn(usize) -> Question,
        mut take: impl FnMut(LaneAnswer) -> Option<usize>,
    ) -> Result<(), ServeError> {
        for lane in 0..self.shared.lanes.all().len() {
            let mut from = Some(0);
            while let Some(start) = from {
                let mut round = Round::begin(&self.shared, within);
                round.ask(lane, question(start))?;
                let (_, answered) = round.next().ok_or_else(|| round.failure(lane))?;
                from = take(answered);
            }
        }
        Ok(())
    }
}

/// Questions that are answered until one deadline. While it lives, no other thread asks.
struct Round<'a> {
    shared: &'a ServerShared,
    asked: MutexGuard<'a, LanesAsked>,
    deadline: Instant,
    /// `None` when all questions were asked, so that a lane that ends without an answer is noticed.
    reply: Option<Sender<(usize, LaneAnswer)>>,
    answers: Receiver<(usize, LaneAnswer)>,
}

impl<'a> Round<'a> {
    fn begin(shared: &'a ServerShared, within: Duration) -> Self {
        let (reply, answers) = mpsc::channel();
        Self {
            shared,
            asked: shared
                .inspecting
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
            deadline: Instant::now() + within,
            reply: Some(reply),
            answers,
        }
    }

    fn ask(&self, lane: usize, question: Question) -> Result<(), ServeError> {
        let reply = self.reply.as_ref();
        let inspection = reply.and_then(|it| Inspection::new(question, lane, &self.asked, it));
        let inspection = inspection.ok_or(ServeError::LaneLate { lane })?;
        let message = LaneMessage::Inspect(Box::new(inspection));
        let mailbox = &self.shared.lanes.all()[lane];
        mailbox
            .post(message)
            .map_err(|_| ServeError::LaneEnded { lane })
    }

    fn next(&mut self) -> Option<(usize, LaneAnswer)> {
        self.reply = None;
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.answers.recv_timeout(left).ok()
    }

    /// The reason why a lane did not answer.
    fn failure(&self, lane: usize) -> ServeError {
        match self.shared.lanes.all()[lane].is_retired() {
            true => ServeError::LaneEnded { lane },
            false => ServeError::LaneLate { lane },
        }
    }
}
