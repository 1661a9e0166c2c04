//! The pauses between questions to other nodes.

/// Decides how often a question is repeated while it is needed: each wait lasts for twice as many heartbeats as the one
/// before. So answers that overload a cluster do not overload it again and again.
#[derive(Debug, Default)]
pub(super) struct Spacing {
    wait: u32,
    left: u32,
}

impl Spacing {
    /// Whether a question may go out at once, because none has for a while.
    pub(super) fn begin(&mut self) -> bool {
        let is_first = self.wait == 0;
        if is_first {
            (self.wait, self.left) = (1, 1);
        }
        is_first
    }

    /// Whether the waits have reached their longest time.
    pub(super) fn is_longest(&self) -> bool {
        self.wait == WAIT_BEATS_MAX
    }

    /// Counts a heartbeat. Returns whether a question is due, if one is needed.
    pub(super) fn beat(&mut self, is_needed: bool) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        if !is_needed {
            self.wait = 0;
            return false;
        }
        self.wait = (self.wait * 2).clamp(1, WAIT_BEATS_MAX);
        self.left = self.wait - 1;
        true
    }
}

/// Most heartbeats between two questions.
const WAIT_BEATS_MAX: u32 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_that_are_needed_again_and_again_are_spaced() {
        let mut spacing = Spacing::default();
        let mut due: Vec<u32> = (0..200).filter(|_| spacing.beat(true)).collect();
        due.truncate(8);
        assert_eq!(due, [0, 1, 3, 7, 15, 31, 61, 91]);
        (0..WAIT_BEATS_MAX).for_each(|_| assert!(!spacing.beat(false)));
        assert!(spacing.begin() && !spacing.begin());
        assert!(!spacing.beat(true) && spacing.beat(true));
    }
}
