//! The sessions of a lane that wait for their peers. Their number is kept within bounds, however many sessions there
//! are.
//!
//! A session is given a whole block at a time: a write of a quarter costs the kernel twice as much for each byte. Where
//! peers keep up, a block is written as soon as it is given, and nothing waits; where many do not, nobody is given more
//! until some have taken theirs. A session counts whole, because a rest of a block keeps the buffer of all of it.
//! Rejected: blocks that are the smaller the more sessions there are, which made everybody pay for what hardly ever
//! happens.

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
