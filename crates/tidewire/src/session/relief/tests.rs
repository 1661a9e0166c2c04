use tidewire_io::socket::Stream;
use tidewire_proto::connection::{Connection, Delivery, Phase};
use tidewire_proto::room::Policy;

use crate::config::CodecNumber;
use crate::history::{History, HistoryPattern, Record, TopicHistory};
use crate::lane::{Lane, lane};
use crate::limits::Limits;
use crate::mailbox::BatchEntry;
use crate::memory::Pressure;
use crate::observe::DropReason;
use crate::room::RoomError;
use crate::server::Server;
use crate::service::Service;
use crate::session::{CloseReason, SessionId};
use crate::transport::Arrival;

const SIXTEENTH: usize = 1 << 20;
const ENDED: Phase = Phase::Closed(CloseReason::MemoryLimit);

/// A lane of a server with a limit of 16 MiB.
fn small_lane() -> Lane<impl Service> {
    let mut limits = Limits::default();
    limits.memory.set_bytes_max(16 * SIXTEENTH);
    limits.rooms.set_lag_bytes_max(u64::MAX);
    lane(&Server::builder().limits(limits))
}

/// Subscribes a session whose socket is full.
fn stall<S: Service>(lane: &mut Lane<S>, topic: &str, policy: Policy) -> (usize, Stream) {
    let (slot, far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    lane.core
        .rooms()
        .topics()
        .subscribe(id, topic, Some(policy))
        .unwrap();
    lane.core.sessions[slot]
        .connection
        .output_mut()
        .handle_blocked();
    (slot, far)
}

/// Publishes this many bytes without a session.
fn publish<S: Service>(lane: &mut Lane<S>, topic: &str, bytes: usize) {
    const PIECE: usize = 32 * 1024 - 64;
    for _ in 0..bytes.div_ceil(PIECE) {
        let nobody = SessionId::NONE;
        lane.core
            .rooms()
            .topics()
            .publish(nobody, topic, &[7; PIECE])
            .unwrap();
    }
}

fn phase<S: Service>(lane: &Lane<S>, slot: usize) -> Phase {
    lane.core.sessions[slot].connection.phase()
}

#[test]
fn the_slowest_subscribers_lose_memory_and_the_others_stay() {
    let mut lane = small_lane();
    let (far_behind, _far) = stall(&mut lane, "a", Policy::Disconnect);
    let (behind, _near) = stall(&mut lane, "b", Policy::Disconnect);
    let (keeps_up, _end) = lane.open_session();
    publish(&mut lane, "a", 9 * SIXTEENTH);
    publish(&mut lane, "b", 2 * SIXTEENTH);
    lane.core.settle_memory();
    assert_eq!(phase(&lane, far_behind), Phase::Open, "there is room");
    publish(&mut lane, "b", SIXTEENTH + SIXTEENTH / 2);
    assert_eq!(lane.core.sessions.relief.memory.refresh(), Pressure::High);
    lane.core.settle_memory();
    assert_eq!(phase(&lane, far_behind), ENDED);
    assert_eq!(phase(&lane, behind), Phase::Open);
    assert_eq!(phase(&lane, keeps_up), Phase::Open);
    assert_eq!(lane.core.sessions.relief.memory.refresh(), Pressure::Normal);
    let counters = &lane.core.counters;
    assert!(counters.room_dropped[DropReason::Memory as usize].read() > 0);
}

#[test]
fn a_subscriber_whose_policy_drops_loses_messages_and_stays() {
    for policy in Policy::ALL.into_iter().filter(|policy| policy.drops()) {
        let mut lane = small_lane();
        let (slot, _far) = stall(&mut lane, "a", policy);
        publish(&mut lane, "a", 13 * SIXTEENTH);
        lane.core.settle_memory();
        assert_eq!(phase(&lane, slot), Phase::Open, "{policy}");
        assert_eq!(lane.core.sessions.relief.memory.refresh(), Pressure::Normal);
        let counters = &lane.core.counters;
        let dropped = counters.room_dropped[DropReason::Memory as usize].read();
        assert_eq!(dropped, counters.room_offered.read());
        // The notice of its losses is sent before any message.
        lane.core.sessions[slot].connection.handle_writable(1);
        lane.core.sessions.flush(slot);
        assert_eq!(lane.core.counters.gaps_announced.read(), 1);
    }
}

/// The table of the latest messages is charged, and it is freed with the last subscriber that pays.
#[test]
fn a_conflated_subscriber_pays_with_what_is_kept_of_each_topic() {
    let mut lane = small_lane();
    let (slot, _far) = stall(&mut lane, "md.>", Policy::ConflateByTopic);
    let before = lane.core.sessions.relief.memory.bytes();
    for number in 0..8 {
        publish(&mut lane, &format!("md.{number}"), SIXTEENTH);
        lane.core.sessions.pass_time(1_000_000_000);
        lane.core.rooms().deliveries().sweep_due();
    }
    // Of each mebibyte one message stays.
    let held = lane.core.sessions.relief.memory.bytes() - before;
    assert!((8 * 32 * 1024..4 * SIXTEENTH).contains(&held), "{held}");
    let mut number = 0;
    while lane.core.sessions.relief.memory.refresh() == Pressure::Normal {
        publish(&mut lane, &format!("md.x{number}"), 1);
        lane.core.rooms().deliveries().sweep_all();
        number += 1;
    }
    lane.core.settle_memory();
    assert_eq!(phase(&lane, slot), Phase::Open);
    assert_eq!(lane.core.sessions.relief.memory.refresh(), Pressure::Normal);
    let counters = &lane.core.counters;
    let dropped = counters.room_dropped[DropReason::Memory as usize].read();
    assert_eq!(dropped, counters.room_offered.read());
    lane.core.sessions[slot].connection.handle_writable(1);
    lane.core.sessions.flush(slot);
    assert_eq!(lane.core.counters.gaps_announced.read(), 1);
}

#[test]
fn the_newest_half_frames_go_first_and_those_that_are_small_stay() {
    let mut lane = small_lane();
    let mut slots = Vec::new();
    let mut ends = Vec::new();
    for number in 0..14 {
        let (slot, far) = lane.open_session();
        let bytes = if number == 13 { 100 } else { SIXTEENTH };
        let connection = &mut lane.core.sessions[slot].connection;
        connection.input_mut().keep(vec![7; bytes], 1);
        lane.core.sessions.charge_kept(slot);
        slots.push(slot);
        ends.push(far);
    }
    lane.core.settle_memory();
    let phases: Vec<Phase> = slots.iter().map(|slot| phase(&lane, *slot)).collect();
    assert!(phases[..9].iter().all(|phase| *phase == Phase::Open));
    assert!(phases[9..13].iter().all(|phase| *phase == ENDED));
    assert_eq!(phases[13], Phase::Open, "a small one releases nothing");
}

#[test]
fn the_kind_that_holds_most_pays_and_of_handshakes_the_newest() {
    let mut lane = small_lane();
    let (behind, _far) = stall(&mut lane, "a", Policy::Disconnect);
    publish(&mut lane, "a", SIXTEENTH);
    let mut ends = Vec::new();
    let mut unopened = Vec::new();
    for _ in 0..100 {
        let (near, far) = Stream::pair().unwrap();
        assert!(lane.core.shared.limiter.enter(None));
        let connection = Connection::accepted(
            lane.core.config.codecs.rules(CodecNumber::MAIN),
            Delivery::Reliable,
            1,
        );
        let slot = lane
            .core
            .insert(near.into(), CodecNumber::MAIN, None, connection)
            .unwrap();
        let connection = &mut lane.core.sessions[slot].connection;
        connection.input_mut().keep(vec![7; SIXTEENTH / 8], 1);
        let sessions = &mut lane.core.sessions;
        sessions
            .relief
            .charge_buffers(&sessions.table[slot], &sessions.outputs);
        unopened.push(slot);
        ends.push(far);
    }
    lane.core.settle_memory();
    assert_eq!(phase(&lane, behind), Phase::Open);
    let closed = |slot: &usize| phase(&lane, *slot) == ENDED;
    let first = unopened.iter().position(closed).unwrap();
    assert!((60..80).contains(&first), "{first}");
    assert!(unopened[first..].iter().all(closed), "the newest ones");
}

#[test]
fn at_the_limit_logs_and_subscriptions_do_not_grow_and_then_they_do_again() {
    let mut lane = small_lane();
    let (slot, _far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    lane.core.rooms().topics().subscribe(id, "a", None).unwrap();
    // Memory that relief cannot release.
    let memory = &mut lane.core.sessions.relief.memory;
    memory.resize(0, 16 * SIXTEENTH);
    let refused = lane.core.rooms().topics().publish(id, "a", b"news");
    assert_eq!(refused, Err(RoomError::OutOfMemory));
    let refused = lane.core.rooms().topics().subscribe(id, "b", None);
    assert_eq!(refused, Err(RoomError::OutOfMemory));
    assert_eq!(lane.core.counters.memory_refused_messages.read(), 1);
    let memory = &mut lane.core.sessions.relief.memory;
    memory.resize(16 * SIXTEENTH, 0);
    assert_eq!(
        lane.core.rooms().topics().publish(id, "a", b"news"),
        Ok(false)
    );
    assert!(lane.core.rooms().topics().subscribe(id, "b", None).is_ok());
    assert_eq!(phase(&lane, slot), Phase::Open);
}

/// Regression: a lane took messages that other lanes had recorded without regard to memory if its members had several
/// codecs, because such a message comes without a frame.
#[test]
fn messages_that_come_from_a_history_wait_there_while_memory_is_full() {
    let mut lane = small_lane();
    let (slot, _far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    let kept = vec![HistoryPattern::new("a", History::default())];
    lane.core.rooms().histories().keep_topics(kept);
    let alias = lane.core.rooms().topics().subscribe(id, "a", None).unwrap();
    lane.core
        .rooms()
        .histories()
        .open_topic(id, alias, None, false);
    lane.core
        .rooms()
        .topics()
        .publish(id, "a", b"news")
        .unwrap();
    let histories = lane.core.rooms.open().directory().histories();
    let Some(TopicHistory::Here(history)) = histories.topic("a", || None) else {
        panic!("the topic keeps a history");
    };
    let message = Record::without_author(&[7; SIXTEENTH / 64]);
    history.record(&mut history.lock(), &message, 1);
    lane.core.sessions.relief.memory.resize(0, 16 * SIXTEENTH);
    lane.core.rooms().deliver_entry(&BatchEntry::Recorded {
        alias,
        number: 2,
        author: SessionId::NONE,
        frame: &[],
    });
    assert_eq!(lane.core.counters.room_offered.read(), 1);
    lane.core.sessions.relief.memory.resize(16 * SIXTEENTH, 0);
    lane.core.settle_memory();
    lane.core.rooms().release_held(&mut Vec::new());
    assert_eq!(lane.core.counters.room_offered.read(), 2);
}

#[test]
fn a_publisher_waits_for_the_end_of_the_turn_while_memory_is_short() {
    let mut lane = small_lane();
    let (slot, _far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    lane.core.rooms().topics().subscribe(id, "a", None).unwrap();
    lane.core.sessions.relief.memory.resize(0, 13 * SIXTEENTH);
    assert_eq!(
        lane.core.rooms().topics().publish(id, "a", b"news"),
        Ok(true)
    );
    assert!(!lane.core.sessions[slot].connection.may_read());
    lane.core.settle_memory();
    assert!(lane.core.sessions[slot].connection.may_read());
    assert_eq!(lane.core.sessions.table.take_resumed(), [slot]);
    lane.core.sessions.relief.memory.resize(13 * SIXTEENTH, 0);
}

/// Regression: relief in the middle of a turn ended the pressure, and then the end of the turn did not keep buffers
/// again.
#[test]
fn buffers_are_kept_again_when_the_pressure_ended_within_a_turn() {
    let mut lane = small_lane();
    let (_slot, _far) = stall(&mut lane, "a", Policy::Disconnect);
    publish(&mut lane, "a", 13 * SIXTEENTH);
    lane.core.sessions.relief_pass().relieve();
    assert_eq!(
        lane.core.sessions.relief.memory.pressure(),
        Pressure::Normal
    );
    lane.turn();
    lane.core.sessions.outputs.put_buffer(vec![0; 100]);
    assert!(lane.core.sessions.outputs.spare_bytes() >= 100);
}

#[test]
fn newcomers_are_told_and_counted_while_memory_is_short() {
    let mut lane = small_lane();
    let (near, mut far) = Stream::pair().unwrap();
    lane.core.sessions.relief.memory.resize(0, 12 * SIXTEENTH);
    let arrival = Arrival::unlisted(near.into());
    lane.core.assign(arrival, &mut Vec::new());
    assert!(lane.core.sessions.table.is_empty());
    let counters = &lane.core.counters;
    assert_eq!(counters.memory_refused_sessions.read(), 1);
    assert_eq!(counters.sessions_refused.read(), 1);
    let mut told = [0; 256];
    let count = far.read(&mut told).unwrap();
    let text = String::from_utf8_lossy(&told[..count]);
    assert!(text.contains("short of memory"), "{text:?}");
    lane.core.sessions.relief.memory.resize(12 * SIXTEENTH, 0);
}

/// Regression: up to 1,024 replies of any size waited for a deferred one, a gigabyte for one session.
#[test]
fn replies_that_wait_in_line_are_bounded_in_bytes() {
    let mut limits = Limits::default();
    limits.connections.set_queue_bytes_max(SIXTEENTH);
    let codec = tidewire_proto::codec::AnyCodec::by_name("length-field").unwrap();
    let mut lane = lane(&Server::builder().codec(codec).limits(limits));
    let (slot, mut far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    let mut cx = lane.core.context(id);
    let first = cx.defer();
    let mut replies = 0;
    while !cx.call.is_stopped() {
        cx.reply(&[7; 60_000]).unwrap();
        replies += 1;
    }
    drop(cx);
    assert!(replies <= 18, "{replies}");
    assert!(!lane.core.sessions[slot].connection.may_read());
    lane.core.sessions.charge_kept(slot);
    assert!(lane.core.sessions.relief.memory.bytes() > SIXTEENTH);
    first.reply(b"at last").unwrap();
    lane.turn();
    assert_eq!(lane.core.sessions[slot].unanswered_count(), 0);
    // Reading resumes when its peer has taken the replies.
    let mut buffer = vec![0; 1 << 20];
    while !lane.core.sessions[slot].connection.may_read() {
        assert!(far.read(&mut buffer).unwrap() > 0);
        let now_ns = lane.core.sessions.timers.now_ns();
        lane.core.sessions[slot].connection.handle_writable(now_ns);
        lane.core.sessions.flush(slot);
    }
}

/// All charges are released again: a difference would add up over the life of a server.
#[test]
fn nothing_stays_charged_when_all_sessions_are_gone() {
    let mut lane = small_lane();
    let mut random = fastrand::Rng::with_seed(7);
    let mut sessions = Vec::new();
    for step in 0..3_000 {
        if sessions.len() < 12 {
            let (slot, far) = lane.open_session();
            sessions.push((slot, lane.core.sessions[slot].id, far));
        }
        let (slot, id, _) = sessions[random.usize(..sessions.len())];
        let topic = ["a", "b", "c"][random.usize(..3)];
        let policy = Policy::ALL[random.usize(..4)];
        // Each call may be refused: the session is closed, or subscribed already.
        match random.u8(..10) {
            0 => drop(
                lane.core
                    .rooms()
                    .topics()
                    .subscribe(id, topic, Some(policy)),
            ),
            1 => drop(lane.core.rooms().join(id, topic, &slot.to_string(), None)),
            2..6 => drop(lane.core.rooms().topics().publish(
                id,
                topic,
                &vec![7; random.usize(..60_000)],
            )),
            6 => lane.core.sessions[slot]
                .connection
                .output_mut()
                .handle_blocked(),
            7 => {
                let session = &mut lane.core.sessions[slot];
                session.connection.handle_writable(1);
                lane.core.sessions.flush(slot);
                let sessions = &mut lane.core.sessions;
                sessions
                    .relief
                    .charge_logs_of(&sessions.table[slot], &mut sessions.logs);
            }
            8 => {
                let kept = vec![7; random.usize(..200_000)];
                lane.core.sessions[slot]
                    .connection
                    .input_mut()
                    .keep(kept, 1);
                lane.core.sessions.charge_kept(slot);
            }
            _ if step % 7 == 0 => lane.core.sessions.table.close(slot, CloseReason::Service),
            _ => {}
        }
        if step % 5 == 0 {
            let now_ns = lane.core.sessions.timers.now_ns();
            lane.core.sessions.timers.set_time(now_ns + 10_000_000);
            lane.turn();
            let table = &lane.core.sessions.table;
            sessions.retain(|(slot, id, _)| table.get(*slot).is_some_and(|it| it.id == *id));
        }
    }
    assert!(lane.core.counters.closed[CloseReason::MemoryLimit.index()].read() > 0);
    lane.close_all();
    lane.core.sessions.outputs.keep_spare(false);
    lane.core.settle_memory();
    assert_eq!(lane.core.sessions.relief.memory.bytes(), 0);
    assert_eq!(lane.core.shared.memory.bytes(), 0);
}
