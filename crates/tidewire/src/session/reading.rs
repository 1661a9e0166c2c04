//! Reading a session once.

use std::io::{self, ErrorKind};

use super::{Session, Timers};
use crate::observe::LaneCounters;
use crate::transport::Transport;

/// The outcome of one read.
pub(crate) enum Read {
    Bytes(usize),
    Nothing,
    End,
    Failed(io::Error),
}

impl Session {
    /// Reads once, and notes the sign of life.
    #[inline]
    pub(crate) fn read_once(
        &mut self,
        buffer: &mut [u8],
        timers: &mut Timers,
        counters: &LaneCounters,
    ) -> Read {
        loop {
            counters.system_calls.add(self.stream.system_calls());
            match self.stream.read(buffer) {
                Ok(0) => return Read::End,
                Ok(count) => {
                    self.connection.timing_mut().note_input(timers.read_clock());
                    counters.bytes_in.add(count as u64);
                    return Read::Bytes(count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.stream.take_heard() {
                        // An answer to a layer's ping is a sign of life like any other input.
                        self.connection.timing_mut().note_input(timers.read_clock());
                    }
                    return Read::Nothing;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Read::Failed(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidewire_proto::codec::Codec;
    use tidewire_proto::connection::Phase;
    use tidewire_proto::message::{Kind, Message};

    use crate::lane::{Lane, lane};
    use crate::limits::Limits;
    use crate::server::Server;

    const SECOND_NS: u64 = 1_000_000_000;

    /// The pause comes from the application, so the peer is not blamed for it.
    #[test]
    fn a_session_that_the_service_paused_is_not_idle_and_its_half_frame_not_late() {
        let mut limits = Limits::default();
        limits.connections.set_idle_timeout(Duration::from_secs(60));
        limits
            .connections
            .set_frame_timeout(Duration::from_secs(10));
        limits.connections.set_heartbeat(Duration::ZERO);
        let mut lane = lane(&Server::builder().limits(limits));
        let (slot, mut far) = lane.open_session();
        let id = lane.core.sessions[slot].id;
        let started_ns = lane.core.sessions.timers.now_ns();
        let mut frames = Vec::new();
        for id in 1..=2 {
            let request = Message::with_id(Kind::Request, 0, id, b"question");
            let codec = lane.core.config.codecs.main();
            codec.encode(&request, &mut frames).unwrap();
        }
        let half = frames.len() / 4;
        assert_eq!(far.write(&frames[..half]).unwrap(), half);
        lane.read_session(slot);
        lane.core.context(id).pause_reading();
        assert_eq!(far.write(&frames[half..]).unwrap(), frames.len() - half);
        for seconds in [100, 200, 1_000] {
            lane.core
                .sessions
                .timers
                .set_time(started_ns + seconds * SECOND_NS);
            lane.turn();
            lane.read_session(slot);
            let phase = lane.core.sessions[slot].connection.phase();
            assert_eq!(phase, Phase::Open);
            assert_eq!(lane.core.counters.frames_in.read(), 0);
        }
        lane.core.context(id).resume_reading(id);
        lane.turn();
        assert_eq!(lane.core.counters.frames_in.read(), 2);
        let resumed_ns = started_ns + 1_000 * SECOND_NS;
        let is_open_at = |lane: &mut Lane<_>, seconds: u64| {
            let at_ns = resumed_ns + seconds * SECOND_NS;
            lane.core.sessions.timers.set_time(at_ns);
            lane.turn();
            lane.core.sessions.table.slot_of(id).is_some()
        };
        assert!(
            is_open_at(&mut lane, 59),
            "the time of silence starts at the resume"
        );
        // A late timer check lets the lane read once more.
        let is_open = (60..65).map(|seconds| is_open_at(&mut lane, seconds));
        assert!(!is_open.last().unwrap());
    }
}
