//! The backend's record of a descriptor, and the way from a completion back to it.

use rustix::event::PollFlags;

use crate::poller::list::BROKEN;
use crate::poller::table::DescriptorTable;
use crate::poller::{Event, Interest, Token};

#[derive(Copy, Clone, Debug)]
pub(super) struct Registration {
    pub(super) token: Token,
    pub(super) interest: Interest,
    /// The generation of the request of this registration; zero while silent.
    pub(super) generation: u32,
    /// Whether the kernel has its request, or the submission queue does.
    pub(super) is_armed: bool,
    /// Whether the registration is in `listed`. A registration that is neither armed nor silent is always listed.
    pub(super) is_listed: bool,
    /// Whether the kernel refused to poll the descriptor, which is then reported until it is removed.
    pub(super) is_broken: bool,
    /// The last wait that reported the descriptor, and the index of the event.
    pub(super) reported: (u64, usize),
}

/// Identifies a request in its completions.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct RequestId {
    pub(super) number: u32,
    pub(super) generation: u32,
}

impl Registration {
    pub(super) const SILENT: Self = Self {
        token: Token(0),
        interest: Interest::NONE,
        generation: 0,
        is_armed: false,
        is_listed: false,
        is_broken: false,
        reported: (0, 0),
    };

    pub(super) fn event(&self, seen: PollFlags) -> Option<Event> {
        self.interest.event(
            self.token,
            seen.contains(PollFlags::IN),
            seen.contains(PollFlags::OUT),
            seen.intersects(BROKEN),
        )
    }
}

impl RequestId {
    pub(super) const fn to_user_data(self) -> u64 {
        ((self.generation as u64) << 32) | self.number as u64
    }

    pub(super) const fn from_user_data(user_data: u64) -> Self {
        Self {
            // The casts cut both halves on purpose.
            number: user_data as u32,
            generation: (user_data >> 32) as u32,
        }
    }

    /// Finds the registration of this request, if the request is still current.
    pub(super) fn find(
        self,
        registered: &mut DescriptorTable<Registration>,
    ) -> Option<&mut Registration> {
        registered
            .find_mut(self.number as usize)
            .filter(|registration| {
                self.generation != 0 && registration.generation == self.generation
            })
    }
}
