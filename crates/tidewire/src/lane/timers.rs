//! Handles the timers that fired: those of sessions, paused listeners, upstreams, blocked rooms and services.

use tidewire_proto::connection::PauseReason;

use crate::session::{ServiceTimer, SessionId, TimerKey};

use super::Lane;
use crate::service::{Service, handle_upstream_timer, run_answers};

impl<S: Service> Lane<S> {
    pub(crate) fn handle_timers(&mut self) {
        let mut expired = std::mem::take(&mut self.expired);
        self.core.sessions.timers.fire_due(&mut expired);
        for key in expired.drain(..) {
            let core = &mut self.core;
            match key {
                TimerKey::Session(id) => core.sessions.check_session(id),
                TimerKey::Listener(index) => core.acceptor.resume(&mut core.sessions, index),
                TimerKey::Proxied(index) => {
                    let (sessions, admission) = (&mut core.sessions, &core.admission);
                    core.acceptor.expire_header(index, sessions, admission);
                }
                TimerKey::Upstream(number) => {
                    handle_upstream_timer(core, number);
                    run_answers(core);
                }
                TimerKey::BlockedRoom(alias) => core.rooms().deliveries().end_block(alias),
                TimerKey::Histories => core.rooms().histories().expire(),
                TimerKey::QuietLogs => core.rooms().deliveries().release_quiet(),
                TimerKey::Rate(id) => {
                    if let Some(slot) = core.sessions.table.slot_of(id) {
                        core.sessions.resume_reading(slot, PauseReason::Rate);
                    }
                }
                TimerKey::WallClock => core.wall_clock.check(&mut core.sessions),
                TimerKey::Place(id) => core.guard().end_place(id),
                TimerKey::GiveWay(id) => {
                    let (sessions, lanes) = (&mut core.sessions, &core.exchange.lanes);
                    core.places.look_for_answer(sessions, lanes, id);
                }
                TimerKey::Names => core.rooms().joins().look_for_names(),
                TimerKey::Service(timer) => self.handle_service_timer(timer),
            }
        }
        self.expired = expired;
    }

    fn handle_service_timer(&mut self, timer: ServiceTimer) {
        let sessions = &mut self.core.sessions;
        let Some((id, token)) = sessions.timers.fire_service(timer) else {
            return;
        };
        if id != SessionId::NONE && sessions.table.slot_of(id).is_none() {
            return;
        }
        self.service.call(&mut self.core, id, |core, service| {
            let mut context = match id {
                SessionId::NONE => core.context_without_session(),
                id => core.context(id),
            };
            service.on_timer(&mut context, token);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidewire_io::poller::{Event, Token};
    use tidewire_proto::codec::Codec;
    use tidewire_proto::connection::Phase;
    use tidewire_proto::message::{Kind, Message, RoomId};

    use super::*;
    use crate::lane::lane;
    use crate::limits::Limits;
    use crate::observe::DropReason;
    use crate::server::Server;
    use crate::session::CloseReason;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn a_slow_subscriber_is_not_idle_while_it_takes_bytes() {
        let mut limits = Limits::default();
        limits.connections.set_idle_timeout(Duration::from_secs(60));
        limits.connections.set_heartbeat(Duration::ZERO);
        let mut lane = lane(&Server::builder().limits(limits));
        let (slot, mut far) = lane.open_session();
        let started_ns = lane.core.sessions.timers.now_ns();
        lane.core.sessions.append_bytes(slot, &vec![0; 8 << 20]);
        lane.core.sessions.outputs.list(slot);
        lane.core.sessions.flush_dirty();
        assert!(
            lane.core.sessions[slot]
                .connection
                .output()
                .state()
                .is_blocked(),
            "more than the socket takes"
        );

        let mut at_ns = started_ns;
        let mut buffer = vec![0; 1 << 20];
        for _ in 0..3 {
            // The peer never sends, but within every timeout it accepts some of the output.
            at_ns += 50 * SECOND_NS;
            lane.core.sessions.timers.set_time(at_ns);
            assert!(far.read(&mut buffer).unwrap() > 0);
            let event = Event {
                token: Token(slot),
                readable: false,
                writable: true,
            };
            lane.handle_session_event(slot, event);
            lane.core.sessions.timers.set_time(at_ns + 30 * SECOND_NS);
            lane.handle_timers();
            assert_eq!(lane.core.sessions[slot].connection.phase(), Phase::Open);
        }
        // The first check comes long after its time, so the lane reads once more before it decides.
        for seconds in [61, 63] {
            lane.core
                .sessions
                .timers
                .set_time(at_ns + seconds * SECOND_NS);
            assert_eq!(lane.core.sessions[slot].connection.phase(), Phase::Open);
            lane.handle_timers();
        }
        let ended = Phase::Closed(CloseReason::IdleTimeout);
        assert_eq!(
            lane.core.sessions[slot].connection.phase(),
            ended,
            "it took no more"
        );
    }

    /// Regression: turns, reads and sweeps used the system's time instead of the time that the test had set.
    #[test]
    fn a_turn_a_read_and_a_sweep_go_by_the_time_of_the_test() {
        let mut lane = lane(&Server::builder());
        let (slot, mut far) = lane.open_session();
        let set_ns = lane.core.sessions.timers.now_ns() + 1_000 * SECOND_NS;
        lane.core.sessions.timers.set_time(set_ns);
        lane.turn();
        assert_eq!(lane.core.sessions.timers.now_ns(), set_ns);
        let ping = Message::new(Kind::Ping, 0, &[]);
        let mut frame = Vec::new();
        lane.core
            .config
            .codecs
            .main()
            .encode(&ping, &mut frame)
            .unwrap();
        assert_eq!(far.write(&frame).unwrap(), frame.len());
        lane.read_session(slot);
        assert_eq!(lane.core.sessions.timers.now_ns(), set_ns);
        let id = lane.core.sessions[slot].id;
        let alias = lane
            .core
            .rooms()
            .join(id, "lobby", "ada", None)
            .unwrap()
            .room;
        lane.core.rooms().say(id, alias.0, b"news").unwrap();
        lane.core.sessions.timers.set_time(set_ns + SECOND_NS);
        lane.core.rooms().deliveries().sweep_due();
        assert_eq!(lane.core.sessions.timers.now_ns(), set_ns + SECOND_NS);
        assert_eq!(lane.core.counters.sweeps.read(), 1);
    }

    /// Regression: 10,000 sessions that came within 2 s were pinged within 3 of each 20 s.
    #[test]
    fn pings_of_sessions_that_came_at_once_are_spread_over_the_interval() {
        const COUNT: usize = 320;
        const MOMENTS: usize = 16;
        let mut lane = lane(&Server::builder());
        let mut peers: Vec<_> = (0..COUNT).map(|_| lane.open_session()).collect();
        let mut now_ns = lane.core.sessions.timers.now_ns();
        for (slot, _) in &peers {
            lane.core.sessions[*slot]
                .connection
                .timing_mut()
                .note_input(now_ns);
            lane.core.sessions.arm_timer(*slot);
        }
        let mut pong = Vec::new();
        let codec = lane.core.config.codecs.main().clone();
        codec
            .encode(&Message::new(Kind::Pong, 0, &[]), &mut pong)
            .unwrap();
        // In the first period some have not been silent for long enough at their moment.
        let period_ns = 20 * SECOND_NS * 7 / 8;
        let mut pinged = [[0; MOMENTS]; 3];
        for moment in 0..3 * MOMENTS {
            now_ns += period_ns / MOMENTS as u64;
            lane.core.sessions.timers.set_time(now_ns);
            lane.handle_timers();
            lane.core.sessions.flush_dirty();
            for (slot, far) in &mut peers {
                if far.read(&mut [0; 100]).is_ok() {
                    pinged[moment / MOMENTS][moment % MOMENTS] += 1;
                    far.write(&pong).unwrap();
                    lane.read_session(*slot);
                }
            }
        }
        for period in &pinged[1..] {
            assert_eq!(period.iter().sum::<usize>(), COUNT, "{pinged:?}");
            let most = period.iter().max().unwrap();
            assert!(*most <= 2 * COUNT / MOMENTS, "{pinged:?}");
        }
    }

    /// Regression: the lane closed peers whose pongs waited unread, and peers that had got no ping.
    #[test]
    fn a_lane_that_stalled_beyond_the_idle_timeout_closes_no_live_peer() {
        let mut lane = lane(&Server::builder());
        let (slot, mut far) = lane.open_session();
        let started_ns = lane.core.sessions.timers.now_ns();
        let look = |lane: &mut Lane<_>, seconds: u64| {
            lane.core
                .sessions
                .timers
                .set_time(started_ns + seconds * SECOND_NS);
            lane.handle_timers();
            lane.core.sessions.flush_dirty();
            lane.core.sessions[slot].connection.phase()
        };
        assert_eq!(look(&mut lane, 100), Phase::Open, "it may read first");
        assert_eq!(look(&mut lane, 102), Phase::Open, "it asks first");
        let mut ping = [0; 100];
        assert_eq!(far.read(&mut ping).unwrap(), 8, "a ping without payload");
        assert_eq!(
            look(&mut lane, 108),
            Phase::Open,
            "the peer has time to answer"
        );
        let ended = Phase::Closed(CloseReason::IdleTimeout);
        for seconds in 109..120 {
            look(&mut lane, seconds);
        }
        assert_eq!(look(&mut lane, 120), ended, "it did not answer");
    }

    #[test]
    fn a_drain_cuts_off_who_was_not_swept_to_and_who_was_not_heard() {
        let mut limits = Limits::default();
        limits.connections.set_queue_bytes_max(0);
        limits.rooms.set_presence_members_max(0);
        let mut lane = lane(&Server::builder().limits(limits));
        let ((ada, mut ada_end), (bob, mut bob_end)) = (lane.open_session(), lane.open_session());
        let mut alias = RoomId(0);
        for (slot, name) in [(ada, "ada"), (bob, "bob")] {
            let id = lane.core.sessions[slot].id;
            alias = lane
                .core
                .rooms()
                .join(id, "lobby", name, None)
                .unwrap()
                .room;
        }
        assert_eq!(lane.core.sessions.count_unfinished(), 0);
        let id = lane.core.sessions[ada].id;
        lane.core.rooms().say(id, alias.0, b"news").unwrap();
        assert_eq!(
            lane.core.sessions.count_unfinished(),
            1,
            "bob, and not who said it"
        );
        lane.core.sessions.pass_time(SECOND_NS);
        lane.core.rooms().deliveries().sweep_due();
        assert_eq!(lane.core.sessions.count_unfinished(), 0);
        assert!(bob_end.read(&mut [0; 100]).unwrap() > 0);

        // The peer sends two and a half requests. After each reply reading pauses until the reply is written.
        let mut questions = Vec::new();
        for id in 1..=3 {
            let question = Message::with_id(Kind::Request, 0, id, b"question");
            let codec = lane.core.config.codecs.main();
            codec.encode(&question, &mut questions).unwrap();
        }
        questions.truncate(questions.len() - 4);
        assert_eq!(ada_end.write(&questions).unwrap(), questions.len());
        for unfinished in [1, 0] {
            lane.read_session(ada);
            lane.core.sessions.flush(ada);
            assert!(lane.core.sessions.outputs.of(ada).is_empty());
            assert!(lane.core.sessions[ada].connection.input().has_frames());
            assert_eq!(lane.core.sessions.count_unfinished(), unfinished);
        }

        let id = lane.core.sessions[ada].id;
        lane.core.rooms().say(id, alias.0, b"more").unwrap();
        // Bob's socket counts as full, so that the last sweep does not write the message.
        lane.core.sessions[bob]
            .connection
            .output_mut()
            .handle_blocked();
        lane.core.drain(lane.core.sessions.timers.now_ns());
        lane.check_drained();
        assert!(lane.core.ending.stops());
        lane.end_in_order();
        assert_eq!(lane.core.counters.sessions_cut_off.read(), 1);
        let counters = &lane.core.counters;
        let lost = counters.room_dropped[DropReason::Closed as usize].read();
        assert_eq!((counters.room_delivered.read(), lost), (1, 1));
        assert_eq!(counters.room_offered.read(), 2);
    }
}
