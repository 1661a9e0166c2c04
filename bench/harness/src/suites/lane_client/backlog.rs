//! The sessions of a lane that wait for their peers. Their number is kept within bounds, however many sessions there
//! are.
//!
//! A session gets a whole block at a time: a write of a quarter of a block costs the kernel twice as much for each byte.
//! If the peers keep up, each block is written at once. If many peers do not keep up, no session gets a block until some
//! peers have taken theirs. A session with a rest counts as a whole block, because the rest keeps the buffer of the
//! block. Rejected: blocks that shrink as sessions grow. Every session paid for a rare case.

use crate::probes::BLOCK_BYTES;

/// Number of sessions that had something waiting when each was last looked at: since then they have only become fewer.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    sessions: usize,
}

impl Backlog {
    /// Whether something waits for a session now, as it shall remember.
    pub(super) fn note(&mut self, remembered: &mut bool, waits: bool) {
        self.sessions = self.sessions - usize::from(*remembered) + usize::from(waits);
        *remembered = waits;
    }

    /// Whether sessions may be given more.
    pub(super) fn has_room(&self) -> bool {
        self.sessions < SESSIONS_MAX
    }
}

/// Sessions that wait before none is given any more: 160 MiB in blocks.
const SESSIONS_MAX: usize = (160 << 20) / BLOCK_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_more_is_given_while_too_many_wait_until_peers_take_it() {
        let mut backlog = Backlog::default();
        let mut sessions = vec![false; SESSIONS_MAX];
        for _ in 0..2 {
            for waits in &mut sessions {
                assert!(backlog.has_room());
                // It goes on waiting, which counts once.
                backlog.note(waits, true);
                backlog.note(waits, true);
            }
            assert!(!backlog.has_room());
            for waits in &mut sessions {
                backlog.note(waits, false);
                backlog.note(waits, false);
                assert!(backlog.has_room());
            }
            assert_eq!(backlog.sessions, 0);
        }
    }
}
