//! The table of a lane's sessions, by slot.
//!
//! It is a [`Slab`] whose index is inlined. That of the slab itself is not: its panic keeps the compiler from it in builds without
//! link-time optimisation. A turn with one message looks up its session some twenty times, which took 200 instructions of 2,900.

use std::ops::{Deref, DerefMut, Index, IndexMut};

use slab::{Iter, IterMut, Slab};

use super::Session;

#[derive(Debug, Default)]
pub(crate) struct SessionSlab(Slab<Session>);

impl Deref for SessionSlab {
    type Target = Slab<Session>;

    #[inline]
    fn deref(&self) -> &Slab<Session> {
        &self.0
    }
}

impl DerefMut for SessionSlab {
    #[inline]
    fn deref_mut(&mut self) -> &mut Slab<Session> {
        &mut self.0
    }
}

impl Index<usize> for SessionSlab {
    type Output = Session;

    #[inline(always)]
    fn index(&self, slot: usize) -> &Session {
        match self.0.get(slot) {
            Some(session) => session,
            None => no_session(slot),
        }
    }
}

impl IndexMut<usize> for SessionSlab {
    #[inline(always)]
    fn index_mut(&mut self, slot: usize) -> &mut Session {
        match self.0.get_mut(slot) {
            Some(session) => session,
            None => no_session(slot),
        }
    }
}

impl<'a> IntoIterator for &'a SessionSlab {
    type Item = (usize, &'a Session);
    type IntoIter = Iter<'a, Session>;

    fn into_iter(self) -> Iter<'a, Session> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a mut SessionSlab {
    type Item = (usize, &'a mut Session);
    type IntoIter = IterMut<'a, Session>;

    fn into_iter(self) -> IterMut<'a, Session> {
        self.0.iter_mut()
    }
}

#[cold]
#[inline(never)]
fn no_session(slot: usize) -> ! {
    panic!("there is no session in slot {slot}")
}
