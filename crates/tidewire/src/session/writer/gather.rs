//! One gathered write: offers a session's output and its room logs to the socket, and accounts for the bytes that were
//! taken.

use std::io::{self, ErrorKind, IoSlice};

use super::{Offer, Writer};
use crate::observe::LaneCounters;
use crate::session::{Logs, Output, Outputs, Session};
use crate::transport::{AnyTransport, Transport};

/// The result of a write attempt.
pub(super) enum WriteOutcome {
    Bytes(usize),
    /// The layers of the stream accepted this many bytes, and still hold some of them.
    Held(usize),
    Blocked,
    Failed(ErrorKind),
}

impl Writer {
    /// Writes the output of a session that is in no room. Returns false if the socket is full.
    #[inline]
    pub(super) fn write_own(
        &self,
        session: &mut Session,
        outputs: &mut Outputs,
    ) -> Result<bool, ErrorKind> {
        let output = outputs.of_mut(session.id.slot());
        let offered = output.len();
        if offered == 0 {
            return session.flush_layers();
        }
        let wrote = attempt(&mut session.stream, &self.counters, |stream| {
            stream.write(output.unsent())
        });
        match wrote {
            WriteOutcome::Bytes(count) | WriteOutcome::Held(count) => {
                let (_, delivered) = account_own(session, output, &self.counters, count);
                self.counters.room_delivered.add(delivered);
                Ok(count == offered && matches!(wrote, WriteOutcome::Bytes(_)))
            }
            WriteOutcome::Blocked => Ok(false),
            WriteOutcome::Failed(kind) => Err(kind),
        }
    }

    /// Writes the output and the room logs of a session in one call. It is a separate function, because most sessions
    /// are in no room, and creating many empty slices is a sixth of the cost of a small write.
    #[inline(never)]
    pub(super) fn write_gathered(
        &self,
        session: &mut Session,
        outputs: &Outputs,
        logs: &Logs,
    ) -> (Offer, WriteOutcome) {
        let (output, counters) = (outputs.of(session.id.slot()), &self.counters);
        write_slices::<SLICES_USUAL>(session, output, logs, counters)
            .or_else(|| write_slices::<SLICES_MAX>(session, output, logs, counters))
            .unwrap_or((Offer::default(), WriteOutcome::Bytes(0)))
    }

    /// Accounts for `written` bytes: first of the session's own output, then of its rooms in their order.
    #[inline(always)]
    pub(super) fn account(
        &self,
        session: &mut Session,
        outputs: &mut Outputs,
        logs: &mut Logs,
        written: usize,
    ) {
        let slot = session.id.slot();
        let (mut rest, mut delivered) =
            account_own(session, outputs.of_mut(slot), &self.counters, written);
        for membership in &mut session.memberships {
            if rest == 0 {
                break;
            }
            let Some(log) = logs.get_mut(membership.log()) else {
                continue;
            };
            let subscriber = &mut membership.subscriber;
            let behind = subscriber.bytes_behind(log);
            let part = rest.min(usize::try_from(behind).unwrap_or(usize::MAX));
            rest -= part;
            let output = match (part as u64) < behind {
                // The rest of a torn frame goes into the output.
                true => outputs.with_buffer(slot),
                false => outputs.of_mut(slot),
            };
            delivered += output.take_torn(|out| subscriber.advance(log, part, out));
        }
        self.counters.room_delivered.add(delivered);
    }
}

/// Accounts for written bytes of the session's own output. Returns the number of written bytes that belong to rooms,
/// and the number of room messages that have now left the output.
#[inline(always)]
pub(super) fn account_own(
    session: &Session,
    output: &mut Output,
    counters: &LaneCounters,
    written: usize,
) -> (usize, u64) {
    counters.writes.add(1);
    counters.bytes_out.add(written as u64);
    let own = written.min(output.len());
    output.consume(own);
    output.release_outside(session.profile.shared.as_deref());
    let mut delivered = 0;
    if output.is_empty() {
        delivered = output.take_room_messages();
    }
    (written - own, delivered)
}

/// Offers a session's output and room messages in one write. Returns `None` if that needs more than `COUNT` slices.
/// With [`SLICES_MAX`] it writes the first slices instead.
#[inline(always)]
fn write_slices<const COUNT: usize>(
    session: &mut Session,
    output: &Output,
    logs: &Logs,
    counters: &LaneCounters,
) -> Option<(Offer, WriteOutcome)> {
    let Session {
        stream,
        memberships,
        ..
    } = session;
    let mut slices = [IoSlice::new(&[]); COUNT];
    let (mut count, mut bytes, mut has_more) = (0, 0, false);
    if !output.is_empty() {
        slices[0] = IoSlice::new(output.unsent());
        (count, bytes) = (1, output.len());
    }
    for membership in memberships {
        let Some(log) = logs.get(membership.log()) else {
            continue;
        };
        membership.subscriber.gather(log, |slice| {
            has_more |= count == COUNT;
            if count < COUNT {
                slices[count] = IoSlice::new(slice);
                count += 1;
                bytes += slice.len();
            }
            !has_more
        });
    }
    if has_more && COUNT < SLICES_MAX {
        return None;
    }
    let wrote = match slices[..count] {
        [] => WriteOutcome::Bytes(0),
        // The plain call is cheaper.
        [whole] => attempt(stream, counters, |stream| stream.write(&whole)),
        ref pieces => attempt(stream, counters, |stream| stream.write_vectored(pieces)),
    };
    Some((Offer { bytes, has_more }, wrote))
}

/// Writes once, and retries on EINTR.
#[inline(always)]
pub(super) fn attempt(
    stream: &mut AnyTransport,
    counters: &LaneCounters,
    mut write: impl FnMut(&mut AnyTransport) -> io::Result<usize>,
) -> WriteOutcome {
    loop {
        counters.system_calls.add(stream.system_calls());
        match write(stream) {
            Ok(written) if stream.pending_bytes() > 0 => return WriteOutcome::Held(written),
            Ok(written) => return WriteOutcome::Bytes(written),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return WriteOutcome::Blocked,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return WriteOutcome::Failed(error.kind()),
        }
    }
}

/// Slices that most gathered writes need: a sweep has one or two segments.
pub(in crate::session) const SLICES_USUAL: usize = 3;

/// Most slices of one gathered write. Own messages split a sweep into several slices.
pub(in crate::session) const SLICES_MAX: usize = 32;
