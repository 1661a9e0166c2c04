//! The sleeping lanes of this process that the turn of a lane has made work for.
//!
//! A turn that writes to a ring of a sleeping lane would wake that lane's thread. That costs two changes of thread
//! for a call. So the turn notes an [`Errand`] in place of the signal. After the turn, the thread visits the noted
//! lanes: it runs a turn of each lane that still offers its seat. To the others it sends the signals.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use tidewire_io::ring::{Attendant, Summons};

use super::Lead;
use crate::on_lane;
use crate::session::SessionTable;
use crate::transport::Transport;
use crate::transport::inproc::Doors;

/// An unsent signal to a session.
#[derive(Debug)]
pub(crate) struct Errand {
    lane: Weak<dyn Lead>,
    slot: usize,
    summons: Summons,
}

impl Errand {
    /// An errand whose signal nobody waits for.
    #[cfg(all(test, tidewire_model))]
    pub(super) fn in_model(lane: Weak<dyn Lead>) -> Self {
        let summons = Summons::in_model();
        Self {
            lane,
            slot: 0,
            summons,
        }
    }

    /// Takes the signal. The session is read without events from now on.
    pub(super) fn answer(self, table: &mut SessionTable, ready: &mut Vec<usize>) {
        let session = table.get_mut(self.slot);
        let Some(stream) = session.and_then(|session| session.stream.as_inproc()) else {
            return;
        };
        let was_awake = stream.is_awake();
        stream.answer(self.summons);
        if !was_awake {
            table.note_awake(self.slot, ready);
        }
    }
}

/// The attendant of a session.
#[derive(Debug)]
struct Door {
    lane: Weak<dyn Lead>,
    slot: usize,
}

/// Makes the doors of a lane.
#[derive(Debug)]
pub(super) struct LaneDoors(Weak<dyn Lead>);

impl LaneDoors {
    pub(super) fn new(lane: Weak<dyn Lead>) -> Self {
        Self(lane)
    }
}

impl Doors for LaneDoors {
    fn door(&self, slot: usize) -> Arc<dyn Attendant> {
        let lane = Weak::clone(&self.0);
        Arc::new(Door { lane, slot })
    }
}

impl Attendant for Door {
    fn summon(&self, summons: Summons) {
        // A thread that runs no lane has no end of a turn, and the signal is sent at once.
        if on_lane::is_lane() {
            let errand = Errand {
                lane: Weak::clone(&self.lane),
                slot: self.slot,
                summons,
            };
            let noted = ERRANDS.try_with(|errands| errands.borrow_mut().push_back(errand));
            IS_ANY.set(noted.is_ok());
        }
    }
}

thread_local! {
    /// Whether there may be errands, for a look that costs a load.
    static IS_ANY: Cell<bool> = const { Cell::new(false) };
    static ERRANDS: RefCell<VecDeque<Errand>> = RefCell::default();
}

/// Whether this thread may have errands.
#[inline]
pub(super) fn is_any() -> bool {
    IS_ANY.get()
}

/// Runs the lanes of the errands. The lane that runs on this thread gets its own errands by `answer`. Lanes that call
/// each other without end do not keep this thread: after some visits, errands become signals.
#[inline(never)]
pub(super) fn run(answer: &mut dyn FnMut(Errand)) {
    IS_ANY.set(false);
    for _ in 0..VISITS_AT_ONCE {
        let Some(errand) = take() else {
            return;
        };
        if on_lane::is_on(errand.lane.as_ptr().addr()) {
            answer(errand);
        } else if let Some(lane) = errand.lane.upgrade() {
            lane.attend(errand);
        }
    }
    IS_ANY.set(true);
    send();
}

/// Sends the signals of all errands.
#[inline]
pub(super) fn send() {
    if IS_ANY.replace(false) {
        while take().is_some() {}
    }
}

/// Takes an errand to the lane with this identity, if it is the next.
pub(super) fn take_of(lane: usize) -> Option<Errand> {
    let next = ERRANDS.try_with(|errands| {
        let is_here = |it: &mut Errand| it.lane.as_ptr().addr() == lane;
        errands.borrow_mut().pop_front_if(is_here)
    });
    next.ok()?
}

#[inline]
fn take() -> Option<Errand> {
    ERRANDS.try_with(|it| it.borrow_mut().pop_front()).ok()?
}

/// Most processes have fewer lanes.
const VISITS_AT_ONCE: usize = 64;
