//! Tests of requests in every state, without a lane's thread.

use tidewire_io::socket::Stream;

use super::*;
use crate::Limits;
use crate::client::effect::Effect;
use crate::client::event_queue::EventBounds;
use crate::client::submissions::Submission;
use crate::client::table::RequestTable;
use crate::engine::Core;
use crate::lane::lane;
use crate::server::Server;

/// A client without a thread: the test runs its turns.
struct Rig {
    link: Arc<Link>,
    pending: Pending,
}

impl Rig {
    /// Creates a client with an open session of this lane.
    fn new(core: &Core, slot: usize, ids: RequestIds, pending_max: usize) -> Self {
        let table = RequestTable::new(1 << 20, false);
        let link = Arc::new(Link::new(table, EventBounds::default()));
        let mut pending = Pending::new(Arc::clone(&link), ids, pending_max, false);
        pending.session = Some(core.sessions[slot].id);
        Self { link, pending }
    }

    /// Submits a request that waits if the window is full.
    fn ask(&self) -> SlotId {
        let mut head = RequestHead::due_at(u64::MAX);
        head.when_full = WhenWindowFull::Wait;
        self.link.table.submit(head, "", b"payload").unwrap()
    }

    /// Processes the submissions as the lane does.
    fn run(&mut self, core: &mut Core) {
        let mut cx = core.context_without_session();
        let mut batch = Submissions::default();
        self.link.table.refill(&mut batch, &mut 0);
        while !batch.is_empty() {
            self.pending.send_all(&mut cx, &mut batch);
            match batch.take() {
                Some((Submission::Abandon(slot), _)) => self.pending.abandon(&mut cx, slot),
                None => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends a block of new requests, and the queued requests as far as there is room.
    fn send_both(&mut self, core: &mut Core, batch: &mut Submissions<Control>) {
        let mut cx = core.context_without_session();
        self.pending.send_all(&mut cx, batch);
        self.pending.send_queued(&mut cx);
    }

    /// Sends queued requests and completes the outcomes, as the lane does at the end of a turn.
    fn end_turn(&mut self, core: &mut Core) {
        let mut cx = core.context_without_session();
        self.pending.send_queued(&mut cx);
        self.link.table.complete(&mut self.pending.completions);
    }
}

const WAYS: [RequestIds; 3] = [RequestIds::Bits32, RequestIds::Bits8, RequestIds::None];

/// Regression: each abandoned request was searched for, and dropping n requests cost the lane n² steps. The test drops
/// the last request first, which a search finds last.
#[test]
fn dropping_many_requests_takes_no_search_for_each() {
    const WINDOW: usize = 60;
    const REQUESTS: usize = 200;
    for ids in WAYS {
        let mut lane = lane(&Server::builder());
        let (session, _peer) = lane.open_session();
        let core = &mut lane.core;
        let mut rig = Rig::new(core, session, ids, WINDOW);
        let slots: Vec<SlotId> = (0..REQUESTS).map(|_| rig.ask()).collect();
        rig.run(core);
        let pending = &rig.pending;
        assert_eq!(pending.sent.len(), WINDOW, "{ids:?}");
        assert_eq!(pending.queued.len(), REQUESTS - WINDOW, "{ids:?}");
        for (id, sent) in pending.sent.iter() {
            let slot = sent.head.slot.unwrap();
            assert_eq!(pending.sent_ids.get(slot), Some(&id), "{ids:?}");
        }
        for slot in slots.iter().rev() {
            rig.link.table.abandon(*slot);
        }
        rig.run(core);
        assert_eq!(rig.pending.sent.len(), 0, "{ids:?}");
        // The queue is walked at the end of the turn.
        assert_eq!(rig.pending.queued.len(), REQUESTS - WINDOW, "{ids:?}");
        rig.end_turn(core);
        assert!(rig.pending.queued.is_empty(), "{ids:?}");
        assert!(!rig.link.table.has_abandoned(), "{ids:?}");
        // All requests are completed, so none counts as abandoned and all slots are free.
        let table = &rig.link.table;
        assert!(!slots.iter().any(|slot| table.is_abandoned(Some(*slot))));
        let again: Vec<SlotId> = (0..4 * REQUESTS + 64).map(|_| rig.ask()).collect();
        assert!(slots.iter().all(|slot| again.contains(slot)));
    }
}

/// A server that goes away refuses requests that it has not processed.
#[test]
fn a_request_put_back_waits_for_the_next_connection_unless_it_is_abandoned() {
    let mut lane = lane(&Server::builder());
    let (session, _peer) = lane.open_session();
    let core = &mut lane.core;
    let mut rig = Rig::new(core, session, RequestIds::Bits32, 8);
    rig.pending.reconnects = true;
    let [once, sent_again, abandoned] = [false, true, true].map(|idempotent| {
        let mut head = RequestHead::due_at(u64::MAX);
        head.idempotent = idempotent;
        rig.link.table.submit(head, "", b"payload").unwrap()
    });
    rig.run(core);
    let id_of = |rig: &Rig, slot: SlotId| *rig.pending.sent_ids.get(slot).unwrap();
    let [once_id, other_id, abandoned_id] =
        [once, sent_again, abandoned].map(|slot| id_of(&rig, slot));
    rig.pending.session = None;
    assert!(!rig.pending.put_back(once_id), "it is not idempotent");
    assert!(rig.pending.put_back(other_id) && rig.pending.put_back(abandoned_id));
    assert_eq!((rig.pending.sent.len(), rig.pending.queued.len()), (1, 2));
    rig.link.table.abandon(abandoned);
    rig.run(core);
    rig.end_turn(core);
    assert_eq!((rig.pending.sent.len(), rig.pending.queued.len()), (1, 1));
    assert!(!rig.link.table.is_abandoned(Some(abandoned)));
    rig.pending.session = Some(core.sessions[session].id);
    rig.end_turn(core);
    assert!(rig.pending.queued.is_empty());
    let again = rig.pending.sent.find_mut(id_of(&rig, sent_again));
    assert_eq!(again.unwrap().head.slot, Some(sent_again));
}

/// Regression: all requests were appended before the first write.
#[test]
fn requests_are_written_block_by_block() {
    let mut lane = lane(&Server::builder());
    let (session, mut peer) = lane.open_session();
    let core = &mut lane.core;
    let (mut rig, mut batch) = large_requests(core, session);
    let mut received = 0;
    for sent in (2..=LARGE_REQUESTS).step_by(2) {
        rig.pending
            .send_all(&mut core.context_without_session(), &mut batch);
        assert_eq!(rig.pending.sent.len(), sent);
        assert_eq!(core.sessions.outputs.of(session).len(), 0, "it was written");
        received += drain(&mut peer);
    }
    assert!(batch.is_empty());
    assert_eq!(received, LARGE_REQUESTS * (12 + LARGE_BYTES));
}

#[test]
fn requests_without_room_stay_where_they_are_until_there_is_some() {
    let mut limits = Limits::default();
    limits.connections.set_queue_bytes_max(LARGE_BYTES);
    let mut lane = lane(&Server::builder().limits(limits));
    let (session, mut peer) = lane.open_session();
    let core = &mut lane.core;
    let (mut rig, mut batch) = large_requests(core, session);
    let (mut received, mut times_full) = (0, 0);
    while !batch.is_empty() {
        let id = core.sessions[session].id;
        let mut cx = core.context_without_session();
        rig.pending.send_all(&mut cx, &mut batch);
        if cx.is_full(id) {
            cx.flush(id);
        }
        if cx.is_full(id) {
            times_full += 1;
            let sent = rig.pending.sent.len();
            rig.pending.send_all(&mut cx, &mut batch);
            assert_eq!(rig.pending.sent.len(), sent, "there is no room");
            received += drain(&mut peer);
            cx.flush(id);
        }
    }
    let mut cx = core.context_without_session();
    let id = cx.core.sessions[session].id;
    while received < LARGE_REQUESTS * (12 + LARGE_BYTES) {
        cx.flush(id);
        received += drain(&mut peer);
    }
    assert!(times_full > 0 && rig.pending.completions.is_empty());
    assert_eq!(rig.pending.sent.len(), LARGE_REQUESTS);
    assert_eq!(received, LARGE_REQUESTS * (12 + LARGE_BYTES));
}

/// Regression: each attempt to send a request took an id, which was then missing, and counted as refused.
#[test]
fn a_request_that_finds_no_room_takes_no_id_and_is_not_refused() {
    const REQUESTS: usize = 4;
    let mut limits = Limits::default();
    limits.connections.set_queue_bytes_max(LARGE_BYTES / 2);
    let mut lane = lane(&Server::builder().limits(limits));
    let (session, mut peer) = lane.open_session();
    let core = &mut lane.core;
    let mut rig = Rig::new(core, session, RequestIds::Bits32, 2 * REQUESTS);
    let head = RequestHead::due_at(u64::MAX);
    for _ in 0..REQUESTS {
        rig.link.table.submit(head, "", &[7; LARGE_BYTES]).unwrap();
        rig.pending
            .enqueue(RequestCopy::new(&head, "", &[8; LARGE_BYTES]));
    }
    let mut batch = Submissions::default();
    rig.link.table.refill(&mut batch, &mut 0);
    // The output is full after the first request of the block.
    core.sessions[session]
        .connection
        .output_mut()
        .handle_blocked();
    for _ in 0..3 {
        rig.send_both(core, &mut batch);
        assert_eq!(rig.pending.sent.len(), 1);
    }
    let now_ns = core.sessions.timers.now_ns();
    core.sessions[session].connection.handle_writable(now_ns);
    let mut received = 0;
    while received < 2 * REQUESTS * (12 + LARGE_BYTES) {
        rig.send_both(core, &mut batch);
        core.sessions.flush(session);
        received += drain(&mut peer);
    }
    assert_eq!(core.counters.sends_refused.read(), 0);
    let mut ids: Vec<u32> = rig.pending.sent.iter().map(|(id, _)| id).collect();
    ids.sort_unstable();
    let mut without_gaps = Correlator::for_ids(RequestIds::Bits32, 2 * REQUESTS);
    let expected = [(); 2 * REQUESTS].map(|()| without_gaps.insert(()).unwrap());
    assert_eq!(ids, expected);
    assert!(rig.pending.queued.is_empty() && rig.pending.completions.is_empty());
}

/// Regression: queued requests were appended up to the queue's limit before the first write.
#[test]
fn waiting_requests_are_written_block_by_block() {
    const REQUESTS: usize = 4;
    let mut lane = lane(&Server::builder());
    let (session, mut peer) = lane.open_session();
    let core = &mut lane.core;
    let mut rig = Rig::new(core, session, RequestIds::Bits32, REQUESTS);
    let head = RequestHead::due_at(u64::MAX);
    for _ in 0..REQUESTS {
        rig.pending
            .enqueue(RequestCopy::new(&head, "", &[7; LARGE_BYTES]));
    }
    rig.end_turn(core);
    assert_eq!(core.counters.writes.read(), 2, "two requests make a block");
    assert_eq!(core.sessions.outputs.of(session).len(), 0);
    assert_eq!(rig.pending.sent.len(), REQUESTS);
    assert!(rig.pending.queued.is_empty() && rig.pending.completions.is_empty());
    assert_eq!(drain(&mut peer), REQUESTS * (12 + LARGE_BYTES));
}

/// Regression: names did not count, so requests without payload never filled a block.
#[test]
fn names_fill_a_block_as_payloads_do() {
    const NAME: &str = "a.name.of.sixty.four.bytes.that.is.a.bit.long.for.a.method.name!";
    const BLOCK: usize = BLOCK_BYTES / NAME.len();
    let mut lane = lane(&Server::builder());
    let (session, mut peer) = lane.open_session();
    let core = &mut lane.core;
    let mut rig = Rig::new(core, session, RequestIds::Bits32, 2 * BLOCK);
    let head = RequestHead::due_at(u64::MAX);
    for _ in 0..2 * BLOCK {
        rig.link.table.submit(head, NAME, b"").unwrap();
    }
    let mut batch = Submissions::default();
    rig.link.table.refill(&mut batch, &mut 0);
    let mut received = 0;
    for blocks in 1..=2 {
        rig.pending
            .send_all(&mut core.context_without_session(), &mut batch);
        assert_eq!(rig.pending.sent.len(), blocks * BLOCK);
        assert_eq!(core.sessions.outputs.of(session).len(), 0, "it was written");
        received += drain(&mut peer);
    }
    assert!(batch.is_empty());
    assert_eq!(received, 2 * BLOCK * (12 + 1 + NAME.len()));
}

/// Submits large requests: two fill a block, and all together are more than a socket takes at once.
fn large_requests(core: &Core, session: usize) -> (Rig, Submissions<Control>) {
    let rig = Rig::new(core, session, RequestIds::Bits32, LARGE_REQUESTS);
    for _ in 0..LARGE_REQUESTS {
        let head = RequestHead::due_at(u64::MAX);
        rig.link.table.submit(head, "", &[7; LARGE_BYTES]).unwrap();
    }
    let mut batch = Submissions::default();
    rig.link.table.refill(&mut batch, &mut 0);
    (rig, batch)
}

/// Reads all available bytes and returns their number.
fn drain(peer: &mut Stream) -> usize {
    let (mut bytes, mut received) = (vec![0; 1 << 20], 0);
    while let Ok(count @ 1..) = peer.read(&mut bytes) {
        received += count;
    }
    received
}

const LARGE_BYTES: usize = BLOCK_BYTES / 2;
const LARGE_REQUESTS: usize = 30;

/// Regression: an abandonment may arrive after the answer, when another request has the slot.
#[test]
fn a_request_is_not_given_up_for_the_one_before_it_in_its_slot() {
    for ids in WAYS {
        let mut lane = lane(&Server::builder());
        let (session, _peer) = lane.open_session();
        let core = &mut lane.core;
        let mut rig = Rig::new(core, session, ids, 1);
        let (first, waiting) = (rig.ask(), rig.ask());
        rig.run(core);
        let (id, _) = rig.pending.sent.iter().next().unwrap();
        let answered = rig.pending.take_answered(id).unwrap();
        assert_eq!(answered.slot, Some(first), "{ids:?}");
        // The application abandons it just before the reply comes.
        rig.link.table.abandon(first);
        let completions = &mut rig.pending.completions;
        rig.link
            .table
            .reply(completions, answered.slot, 0, b"reply");
        rig.end_turn(core);
        // The cursor visits all other slots before it reuses this slot.
        let others = std::iter::from_fn(|| Some(rig.ask()).filter(|slot| *slot != first)).count();
        rig.run(core);
        rig.end_turn(core);
        let sent: Vec<_> = rig.pending.sent.iter().collect();
        let [(_, SentRequest { head, .. })] = sent[..] else {
            panic!("{ids:?}: {sent:?}");
        };
        assert_eq!(head.slot, Some(waiting), "{ids:?}");
        assert_eq!(rig.pending.queued.len(), others + 1, "{ids:?}");
        for _ in 0..=others {
            let (id, _) = rig.pending.sent.iter().next().unwrap();
            rig.pending.take_answered(id).unwrap();
            rig.end_turn(core);
        }
        let (_, SentRequest { head, .. }) = rig.pending.sent.iter().next().unwrap();
        assert_eq!(head.slot, Some(first), "{ids:?}");
    }
}

/// Regression: answers were matched by the codec, but requests were sent by the kind of their ids.
#[test]
fn answers_match_requests_by_ids_or_by_order() {
    for ids in WAYS {
        let mut lane = lane(&Server::builder());
        let (session, _peer) = lane.open_session();
        let core = &mut lane.core;
        let mut rig = Rig::new(core, session, ids, 1);
        let plain = Message::new(Kind::OneWay, 0, b"");
        let reply = Message::with_id(Kind::Reply, 0, 7, b"");
        assert_eq!(
            rig.pending.answered_id(&plain),
            None,
            "{ids:?}: no reply is pending"
        );
        rig.ask();
        rig.run(core);
        let oldest = (ids == RequestIds::None).then_some(0);
        assert_eq!(rig.pending.answered_id(&plain), oldest, "{ids:?}");
        assert_eq!(rig.pending.answered_id(&reply), Some(7), "{ids:?}");
    }
}

#[test]
fn room_in_the_queue_is_free_as_soon_as_a_request_is_abandoned() {
    let mut lane = lane(&Server::builder());
    let (session, _peer) = lane.open_session();
    let core = &mut lane.core;
    let mut rig = Rig::new(core, session, RequestIds::Bits32, 1);
    let mut waiting = Vec::new();
    for _ in 0..=QUEUED_MAX {
        waiting.push(rig.ask());
        rig.run(core);
    }
    assert_eq!(rig.pending.queued.len(), QUEUED_MAX);
    assert!(rig.pending.completions.is_empty());
    rig.ask();
    rig.run(core);
    assert!(!rig.pending.completions.is_empty(), "one is refused");
    rig.end_turn(core);
    rig.link.table.abandon(waiting[QUEUED_MAX / 2]);
    rig.ask();
    rig.run(core);
    let slots: Vec<SlotId> = rig.pending.completions.outcomes().collect();
    assert_eq!(slots, [waiting[QUEUED_MAX / 2]], "none is refused");
    rig.end_turn(core);
    assert_eq!(rig.pending.queued.len(), QUEUED_MAX);
}

/// Regression: a call whose answer was lost over UDP used up a part of the window as long as the client lived.
#[test]
fn a_call_with_an_effect_that_is_never_answered_leaves_its_place_in_the_end() {
    for is_dropped in [false, true] {
        let mut lane = lane(&Server::builder());
        let (session, _peer) = lane.open_session();
        let core = &mut lane.core;
        let mut rig = Rig::new(core, session, RequestIds::Bits32, 1);
        let mut head = RequestHead::due_at(now_ns() + if is_dropped { 1 << 40 } else { 0 });
        (head.kind, head.effect) = (Kind::Join, Effect::of(Kind::Join));
        let slot = rig.link.table.submit(head, "", b"body").unwrap();
        rig.run(core);
        if is_dropped {
            rig.link.table.abandon(slot);
            rig.run(core);
        }
        let mut cx = core.context_without_session();
        rig.pending.expire(&mut cx, now_ns(), |_| ());
        assert_eq!(rig.pending.sent.len(), 1, "its answer is listened for");
        let due_ns = rig.pending.next_deadline_ns().unwrap_or(u64::MAX);
        assert!(due_ns > now_ns() + nanoseconds(LATE_ANSWER_TIMEOUT) / 2);
        let mut told = 0;
        rig.pending.expire(&mut cx, due_ns, |_| told += 1);
        assert_eq!((rig.pending.sent.len(), told), (0, 1), "{is_dropped}");
        assert_eq!(rig.pending.next_deadline_ns(), None);
        rig.link.table.complete(&mut rig.pending.completions);
        if !is_dropped {
            let outcome = rig.link.table.poll(slot, None).unwrap();
            assert_eq!(*outcome.unwrap_err(), RequestError::TimedOut);
        }
    }
}
