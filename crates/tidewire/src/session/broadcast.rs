//! Broadcasts: one message for all sessions that a predicate selects.
//!
//! The sender frames the message once for each codec of the server. Each lane gets the frames and the predicate, checks
//! its own sessions, and adds its result to the report. So the predicate sees the current state of sessions, and no
//! lane needs data of another. The sender may wait for the report, await it, or ignore it.
//!
//! Rejected: selecting on the sender's side, from the table of sessions. The table would have to hold current names and
//! rooms of every session for all threads, and still could not tell which outputs are full.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::Message;

use super::{LaneSessions, SendError, SessionView, encode_within};
use crate::config::{Codecs, Config};
use crate::on_lane;

/// A broadcast that was started by [`Sessions::broadcast_where`](crate::Sessions::broadcast_where), which has an
/// example. [Wait](Self::wait) for its report, or await it. Dropping it changes nothing.
#[derive(Debug)]
pub struct Broadcast {
    tally: Arc<Tally>,
}

/// The outcome of a broadcast. Every session that matched is in one of the other counts. Returned by
/// [`Broadcast::wait`]. [`Sessions::broadcast_where`](crate::Sessions::broadcast_where) has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BroadcastReport {
    /// Sessions that the predicate selected.
    pub matched: u64,
    /// Of these, sessions whose output got the message.
    pub queued: u64,
    /// Of these, sessions whose output was full; see
    /// [`ConnectionLimits::queue_bytes_max`](crate::limits::ConnectionLimits::queue_bytes_max).
    pub full: u64,
    /// Of these, sessions that accept only smaller frames.
    pub too_large: u64,
    /// Of these, sessions whose codec cannot express the message.
    pub inexpressible: u64,
    /// Lanes that ended before they got the message, with all their sessions.
    pub lanes_ended: u64,
}

/// One lane's part of a broadcast. If it is dropped before delivery, it counts its lane as ended.
#[derive(Debug)]
pub(crate) struct Share {
    announcement: Arc<Announcement>,
    is_delivered: bool,
}

/// The part of a broadcast that all lanes share.
struct Announcement {
    /// The frame of each codec of the server.
    frames: Vec<Result<Vec<u8>, EncodeError>>,
    predicate: Predicate,
    tally: Arc<Tally>,
    /// Bytes of all unfinished broadcasts of the server; `cost_bytes` of them belong to this one.
    under_way: Arc<AtomicUsize>,
    cost_bytes: usize,
}

pub(crate) type Predicate = Box<dyn Fn(&SessionView<'_>) -> bool + Send + Sync>;

#[derive(Debug, Default)]
struct Tally {
    state: Mutex<TallyState>,
    is_complete: Condvar,
}

#[derive(Debug, Default)]
struct TallyState {
    report: BroadcastReport,
    lanes_left: usize,
    waker: Option<Waker>,
}

impl Broadcast {
    /// The report so far, and whether it is complete.
    #[must_use]
    pub fn report(&self) -> (BroadcastReport, bool) {
        let state = self.tally.lock();
        (state.report, state.lanes_left == 0)
    }

    /// Blocks until all lanes have handled the message.
    ///
    /// # Panics
    /// On a lane: two lanes that wait for each other would wait for ever.
    #[must_use]
    pub fn wait(&self) -> BroadcastReport {
        on_lane::refuse_to_wait();
        let mut state = self.tally.lock();
        while state.lanes_left > 0 {
            let waited = self.tally.is_complete.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.report
    }
}

impl Future for Broadcast {
    type Output = BroadcastReport;

    fn poll(self: Pin<&mut Self>, task: &mut std::task::Context<'_>) -> Poll<BroadcastReport> {
        let mut state = self.tally.lock();
        if state.lanes_left == 0 {
            return Poll::Ready(state.report);
        }
        state.waker = Some(task.waker().clone());
        Poll::Pending
    }
}

impl BroadcastReport {
    fn add(&mut self, part: &Self) {
        self.matched += part.matched;
        self.queued += part.queued;
        self.full += part.full;
        self.too_large += part.too_large;
        self.inexpressible += part.inexpressible;
        self.lanes_ended += part.lanes_ended;
    }
}

impl Share {
    /// Sends the broadcast to the matching sessions of this lane.
    pub(crate) fn deliver(self, sessions: &mut LaneSessions) {
        let LaneSessions {
            table,
            outputs,
            logs,
            writer,
            counters,
            ..
        } = sessions;
        let Announcement {
            frames, predicate, ..
        } = &*self.announcement;
        let mut part = BroadcastReport::default();
        for (slot, session) in table {
            let connection = &session.connection;
            let is_addressed = connection.may_send() && !connection.handshake().is_outgoing();
            if !is_addressed {
                continue;
            }
            let chosen = catch_unwind(AssertUnwindSafe(|| {
                predicate(&SessionView::of(Some(session)))
            }));
            if chosen.is_err() {
                counters.handler_panics.add(1);
                tracing::error!(
                    session = %session.id,
                    "the predicate of a broadcast panicked; the session does not get it"
                );
            }
            if !chosen.unwrap_or(false) {
                continue;
            }
            part.matched += 1;
            let frame = match &frames[Codecs::index(session.codec_number())] {
                Ok(frame) => frame,
                Err(EncodeError::PayloadTooLarge { .. }) => {
                    part.too_large += 1;
                    continue;
                }
                Err(_) => {
                    part.inexpressible += 1;
                    continue;
                }
            };
            writer.bring_forward(session, outputs, logs);
            if outputs.is_full(slot) {
                part.full += 1;
            } else if frame.len() > session.connection.handshake().frame_bytes_max() {
                part.too_large += 1;
            } else {
                part.queued += 1;
                outputs.append_frames(slot, frame);
                outputs.list(slot);
            }
        }
        counters.broadcast_matched.add(part.matched);
        counters.broadcast_queued.add(part.queued);
        counters.broadcast_full.add(part.full);
        counters.broadcast_too_large.add(part.too_large);
        counters.broadcast_inexpressible.add(part.inexpressible);
        self.complete(&part);
    }

    fn complete(mut self, part: &BroadcastReport) {
        self.is_delivered = true;
        self.announcement.tally.add(part);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if !self.is_delivered {
            self.announcement.tally.add(&BroadcastReport {
                lanes_ended: 1,
                ..BroadcastReport::default()
            });
        }
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        self.under_way.fetch_sub(self.cost_bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Announcement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Announcement")
            .field("frames", &self.frames.len())
            .finish_non_exhaustive()
    }
}

impl Tally {
    fn lock(&self) -> MutexGuard<'_, TallyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one lane's result.
    fn add(&self, part: &BroadcastReport) {
        let mut state = self.lock();
        state.report.add(part);
        state.lanes_left -= 1;
        if state.lanes_left == 0 {
            self.is_complete.notify_all();
            if let Some(waker) = state.waker.take() {
                drop(state);
                waker.wake();
            }
        }
    }
}

/// Frames a message with each codec and creates a share of it for every lane.
pub(crate) fn prepare(
    config: &Config,
    under_way: &Arc<AtomicUsize>,
    lanes: usize,
    predicate: Predicate,
    message: &Message<'_>,
) -> Result<(Broadcast, Vec<(usize, Share)>), SendError> {
    let limit = config.limits.connections.frame_bytes_max();
    let frame_with = |codec: &AnyCodec| {
        let mut frame = Vec::new();
        let encoded = encode_within(limit, &mut frame, |out| codec.encode(message, out));
        encoded.map(|()| frame)
    };
    let frames: Vec<_> = config.codecs.all().map(frame_with).collect();
    if frames.iter().all(Result::is_err)
        && let Some(Err(error)) = frames.first()
    {
        return Err((*error).into());
    }
    let frame_bytes: usize = frames.iter().flatten().map(Vec::len).sum();
    let cost_bytes = frame_bytes + BROADCAST_OVERHEAD_BYTES;
    let tally = Arc::new(Tally {
        state: Mutex::new(TallyState {
            lanes_left: lanes,
            ..TallyState::default()
        }),
        ..Tally::default()
    });
    let held = under_way.fetch_add(cost_bytes, Ordering::Relaxed);
    // From here on, dropping the announcement releases the bytes, also if it is refused.
    let announcement = Arc::new(Announcement {
        frames,
        predicate,
        tally: Arc::clone(&tally),
        under_way: Arc::clone(under_way),
        cost_bytes,
    });
    // A single broadcast is always accepted, however large it is.
    if held > 0 && held + cost_bytes > config.limits.memory.broadcast_bytes_max() {
        return Err(SendError::QueueFull);
    }
    let share = |lane| {
        let announcement = Arc::clone(&announcement);
        let is_delivered = false;
        let share = Share {
            announcement,
            is_delivered,
        };
        (lane, share)
    };
    Ok((Broadcast { tally }, (0..lanes).map(share).collect()))
}

/// Bytes that a broadcast counts beside its frame, so that empty ones are bounded, too.
const BROADCAST_OVERHEAD_BYTES: usize = 256;
