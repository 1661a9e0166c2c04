//! The names of members. A name belongs to one session of the server until the session ends.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewire_proto::body::name_skeleton;
use tidewire_proto::message::MemberId;

use crate::auth::Guard;
use crate::session::{Member, SessionId};

/// The names in use, and the numbers of members.
#[derive(Debug)]
pub(crate) struct Names {
    table: Mutex<NameTable>,
    /// Knows the names that belong to identities.
    guard: Option<Arc<Guard>>,
}

#[derive(Debug, Default)]
struct NameTable {
    holders: HashMap<Arc<str>, (MemberId, SessionId)>,
    /// Skeletons of the names. They prevent two names in use from looking alike.
    skeletons: HashSet<String>,
    member_last: u32,
}

/// A name is not available.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NameConflict {
    /// Another session has the name.
    Taken,
    /// The name looks like a name that is in use.
    Confusable,
}

impl Names {
    pub(super) fn new(guard: Option<Arc<Guard>>) -> Self {
        Self {
            table: Mutex::default(),
            guard,
        }
    }

    fn lock(&self) -> MutexGuard<'_, NameTable> {
        // A panic while the lock is held leaves the maps consistent enough to serve other sessions.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a name belongs to an identity, so that only that identity may use it.
    pub(in crate::room) fn is_reserved(&self, name: &str) -> bool {
        let guard = self.guard.as_ref();
        guard.is_some_and(|guard| guard.is_reserved(name))
    }

    /// Reserves a name for a session.
    pub(crate) fn claim(&self, name: &str, session: SessionId) -> Result<Member, NameConflict> {
        let skeleton = name_skeleton(name);
        let mut table = self.lock();
        if table.holders.contains_key(name) {
            return Err(NameConflict::Taken);
        }
        if !table.skeletons.insert(skeleton) {
            return Err(NameConflict::Confusable);
        }
        let member = Member::new(table.next_member(), name.into());
        let name = Arc::clone(member.name());
        table.holders.insert(name, (member.id(), session));
        Ok(member)
    }

    pub(in crate::room) fn release(&self, member: &Member) {
        let skeleton = name_skeleton(member.name());
        let mut table = self.lock();
        if table.holders.remove(member.name()).is_some() {
            table.skeletons.remove(&skeleton);
        }
    }

    pub(super) fn holder(&self, name: &str) -> Option<(MemberId, SessionId)> {
        self.lock().holders.get(name).copied()
    }

    pub(crate) fn find(&self, name: &str) -> Option<SessionId> {
        self.holder(name).map(|(_, session)| session)
    }

    pub(crate) fn next_member(&self) -> MemberId {
        self.lock().next_member()
    }
}

impl NameTable {
    fn next_member(&mut self) -> MemberId {
        self.member_last = self.member_last.wrapping_add(1);
        MemberId(self.member_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_unique_until_it_is_released() {
        let names = Names::new(None);
        let [one, other] = [1, 2].map(|slot| SessionId::new(0, slot, 1));
        let alice = names.claim("alice", one).unwrap();
        assert_eq!(
            names.claim("alice", other).unwrap_err(),
            NameConflict::Taken
        );
        assert_eq!(names.find("alice"), Some(one));
        names.release(&alice);
        assert!(names.claim("alice", other).is_ok());
    }

    #[test]
    fn names_that_look_alike_are_not_in_use_together() {
        let names = Names::new(None);
        let session = |slot| SessionId::new(0, slot, 1);
        let real = names.claim("admin1", session(1)).unwrap();
        let is_confusable = |name, slot| {
            let claimed = names.claim(name, session(slot));
            claimed.is_err_and(|it| it == NameConflict::Confusable)
        };
        assert!(is_confusable("adminl", 2));
        assert!(names.claim("admin2", session(2)).is_ok());
        names.release(&real);
        assert!(names.claim("adminl", session(2)).is_ok());
        // A released name does not affect a name that looks like it.
        names.release(&real);
        assert!(is_confusable("admin1", 1));
    }
}
