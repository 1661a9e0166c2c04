//! The rest of a thread that looked for frames within its process and found none.
//!
//! Between two cores the next frame is a few hundred nanoseconds away, and a thread that gives its core up at once,
//! where others want it as well, is without it for their whole turn: milliseconds for every frame that is not there
//! yet. A thread that never does may keep away the one it waits for. So it looks on for longer than a frame takes, and
//! only then gives way.

use std::hint::spin_loop;
use std::thread;

/// How often a thread has looked in vain.
#[derive(Debug)]
pub(in super::super) struct Rest {
    looks: u32,
    /// From so many on it gives way.
    looks_max: u32,
}

impl Rest {
    /// Gives way at once where there are more threads than cores: then whoever is waited for is not running.
    pub(super) fn new(gives_way: bool) -> Self {
        Self {
            looks: 0,
            looks_max: if gives_way { 0 } else { LOOKS_MAX },
        }
    }

    /// Rests behind a look that found so many frames.
    pub(super) fn after(&mut self, frames: usize) {
        if self.gives_way_after(frames) {
            thread::yield_now();
        } else if frames == 0 {
            spin_loop();
        }
    }

    fn gives_way_after(&mut self, frames: usize) -> bool {
        if frames > 0 {
            self.looks = 0;
            return false;
        }
        let gives_way = self.looks == self.looks_max;
        self.looks += u32::from(!gives_way);
        gives_way
    }
}

/// Looks in vain that take some 20 µs with one ring: many times as long as a frame is on its way.
const LOOKS_MAX: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_way_at_once_or_behind_many_looks_in_vain() {
        let mut crowded = Rest::new(true);
        assert_eq!(
            [0, 1, 0].map(|frames| crowded.gives_way_after(frames)),
            [true, false, true]
        );
        let mut rest = Rest::new(false);
        for _ in 0..2 {
            let in_vain = |rest: &mut Rest| rest.gives_way_after(0);
            assert!((0..LOOKS_MAX).all(|_| !in_vain(&mut rest)));
            assert!((0..3).all(|_| in_vain(&mut rest)));
            // A frame, and it looks on as long as before.
            assert!(!rest.gives_way_after(1));
        }
    }
}
