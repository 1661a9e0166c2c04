//! Attacks on the memory account from one address and from fifty, with victims of other addresses.

use std::net::SocketAddr;

use tidewire_io::descriptors::raise_descriptor_limit;
use tidewire_io::socket::Stream;
use tidewire_proto::connection::Phase;

use crate::address::Endpoint;
use crate::config::CodecNumber;
use crate::lane::{Lane, lane};
use crate::limits::Limits;
use crate::memory::Pressure;
use crate::room::RoomError;
use crate::server::Server;
use crate::service::Service;
use crate::session::{CloseReason, SessionId, open_connection};

const LIMIT: usize = 4 << 20;

/// Victims have these addresses; attackers have those from 100 on.
const BEFORE: u8 = 1;
const AFTER: u8 = 2;

/// A session of the test, with the peer's end.
struct Opened {
    slot: usize,
    id: SessionId,
    far: Stream,
}

fn open<S: Service>(lane: &mut Lane<S>, number: u8) -> Option<Opened> {
    let (near, far) = Stream::pair().unwrap();
    let peer = Endpoint::from(SocketAddr::from(([127, 0, 1, number], 1)));
    lane.core
        .admission
        .count_in(&mut lane.core.sessions, Some(&peer), true)
        .ok()?;
    let slot = lane
        .core
        .insert(
            near.into(),
            CodecNumber::MAIN,
            Some(peer),
            open_connection(),
        )
        .unwrap();
    lane.core.enter(slot);
    let id = lane.core.sessions[slot].id;
    Some(Opened { slot, id, far })
}

fn is_open<S: Service>(lane: &Lane<S>, session: &Opened) -> bool {
    let found = lane.core.sessions.table.find(session.id);
    found.is_some_and(|session| session.connection.phase() == Phase::Open)
}

/// Publishes from a victim to itself. Nothing is refused, and everything comes.
fn exchange<S: Service>(lane: &mut Lane<S>, victim: &mut Opened, topic: &str) {
    let mut bytes = [0; 4_096];
    for _ in 0..20 {
        lane.core
            .rooms()
            .topics()
            .publish(victim.id, topic, &[7; 100])
            .unwrap();
        lane.turn();
        assert!(victim.far.read(&mut bytes).unwrap() >= 100);
    }
}

fn small_lane() -> Lane<impl Service> {
    raise_descriptor_limit().unwrap();
    let mut limits = Limits::default();
    limits.memory.set_bytes_max(LIMIT);
    lane(&Server::builder().limits(limits))
}

fn victim<S: Service>(lane: &mut Lane<S>, number: u8, topic: &str) -> Opened {
    let mut victim = open(lane, number).expect("it has its share");
    lane.core
        .rooms()
        .topics()
        .subscribe(victim.id, topic, None)
        .unwrap();
    exchange(lane, &mut victim, topic);
    victim
}

fn assert_conserved<S: Service>(lane: &Lane<S>) {
    let counters = &lane.core.counters;
    assert_eq!(counters.room_delivered.read(), counters.room_offered.read());
    assert_eq!(counters.memory_refused_messages.read(), 0);
}

/// Regression: 1,254 sessions of one address with 256 subscriptions each kept all newcomers out for as long as they
/// stayed.
#[test]
fn idle_sessions_with_subscriptions_are_refused_before_others_notice_anything() {
    for attackers in [1, 50] {
        let mut lane = small_lane();
        let mut before = victim(&mut lane, BEFORE, "before");
        let mut held = Vec::new();
        let mut refused = 0;
        for round in 0..40_000 {
            let number = 100 + (round % attackers) as u8;
            match open(&mut lane, number) {
                Some(session) => held.push(session),
                None => refused += 1,
            }
            let Some(last) = held.last() else { continue };
            for topic in 0..256 {
                // It is refused once memory is short.
                let _ = lane
                    .core
                    .rooms()
                    .topics()
                    .subscribe(last.id, &format!("s.{topic}"), None);
            }
            lane.turn();
            if refused > 200 {
                break;
            }
        }
        assert!(refused > 200, "{refused}");
        let more = lane.core.rooms().join(held[0].id, "room", "name", None);
        assert_eq!(more, Err(RoomError::OutOfMemory));
        exchange(&mut lane, &mut before, "before");
        let mut after = victim(&mut lane, AFTER, "after");
        for number in 0..50 {
            let topic = format!("more.{number}");
            lane.core
                .rooms()
                .topics()
                .subscribe(after.id, &topic, None)
                .unwrap();
        }
        exchange(&mut lane, &mut after, "after");
        assert!(is_open(&lane, &before) && is_open(&lane, &after));
        // A holder of too much stays while nobody needs it. Fifty may pass their shares by one session each.
        let stayed = held
            .iter()
            .filter(|session| is_open(&lane, session))
            .count();
        assert!(
            stayed == held.len() || attackers > 1,
            "{stayed} of {}",
            held.len()
        );
        assert!(
            held[..attackers]
                .iter()
                .all(|session| is_open(&lane, session)),
            "the oldest"
        );
        assert_conserved(&lane);
    }
}

/// Regression: when the sessions were open before, their memory grew until nothing could grow, and the publications of
/// others were refused.
#[test]
fn at_full_the_newest_sessions_of_those_above_their_share_make_room() {
    for attackers in [1, 50] {
        let mut lane = small_lane();
        let mut before = victim(&mut lane, BEFORE, "before");
        let open = |number: usize| open(&mut lane, 100 + (number % attackers) as u8).unwrap();
        let held: Vec<Opened> = (0..400).map(open).collect();
        for session in &held {
            if !is_open(&lane, session) {
                continue;
            }
            let connection = &mut lane.core.sessions[session.slot].connection;
            // Less than costs a session its connection for itself.
            connection.input_mut().keep(vec![7; 16_000], 1);
            lane.core.sessions.charge_kept(session.slot);
            lane.turn();
            assert!(lane.core.sessions.relief.memory.refresh() < Pressure::Full);
        }
        exchange(&mut lane, &mut before, "before");
        let mut after = victim(&mut lane, AFTER, "after");
        exchange(&mut lane, &mut after, "after");
        let closed = lane.core.counters.closed[CloseReason::MemoryLimit.index()].read();
        let stayed = held
            .iter()
            .take_while(|session| is_open(&lane, session))
            .count();
        assert!(closed > 100, "{closed}");
        let gone = held[stayed..]
            .iter()
            .filter(|session| !is_open(&lane, session));
        assert_eq!(gone.count() as u64, closed);
        if attackers == 1 {
            assert_eq!(closed as usize, held.len() - stayed, "the newest");
        }
        assert!(is_open(&lane, &before));
        assert_conserved(&lane);
    }
}

/// Behind a proxy all clients have one address, and nobody else wants memory.
#[test]
fn a_single_address_loses_no_idle_session_to_itself() {
    let mut lane = small_lane();
    let held: Vec<Opened> = (0..236).map(|_| open(&mut lane, 100).unwrap()).collect();
    for session in &held {
        let connection = &mut lane.core.sessions[session.slot].connection;
        connection.input_mut().keep(vec![7; 16_000], 1);
        lane.core.sessions.charge_kept(session.slot);
        lane.turn();
    }
    assert_eq!(lane.core.sessions.relief.memory.refresh(), Pressure::Full);
    assert!(held.iter().all(|session| is_open(&lane, session)));
    assert!(open(&mut lane, 100).is_none(), "no newcomer of its own");
    assert!(open(&mut lane, AFTER).is_some(), "others have their share");
}
