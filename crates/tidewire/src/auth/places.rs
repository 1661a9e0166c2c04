//! The sessions of each identity that has a limit of sessions, and the newcomers that wait for a place.
//!
//! Problem: a session of a vanished peer keeps its place until a timeout ends the session, and the peer is refused when
//! it reconnects. Approach: the newcomer waits for a short time, while the lanes of the oldest sessions check whether
//! their peers are still there. Each free place wakes all newcomers of the identity: the first takes the place, and the
//! others wait again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Identity;

/// A session's place among the sessions of its identity. Later places have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(u64);

/// The sessions of all identities that have a limit of sessions.
#[derive(Debug, Default)]
pub(crate) struct IdentitySessions(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_name: HashMap<Box<str>, Sessions>,
    last_place: u64,
}

/// The sessions of one identity, by their numbers.
#[derive(Default)]
struct Sessions {
    by_place: BTreeMap<Place, u64>,
    waiting: Vec<(u64, Wake)>,
}

/// Wakes a newcomer. It is called without a lock, from any lane.
pub(crate) type Wake = Box<dyn FnOnce() + Send>;

impl std::fmt::Debug for Sessions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Sessions")
            .field("by_place", &self.by_place)
            .field("waiting", &self.waiting.len())
            .finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoPlace;

impl IdentitySessions {
    /// Replaces the session's place of `former` by a place of `next`. If the identity has as many sessions as it may
    /// have, everything stays as it was. `None` is the place of a session that does not count.
    pub(crate) fn replace(
        &self,
        former: Option<(&Identity, Place)>,
        next: &Identity,
        session: u64,
    ) -> Result<Option<Place>, NoPlace> {
        let mut table = self.table();
        let Some(max) = next.own_limits().sessions_max else {
            let wakes = former.map(|(former, place)| table.take_out(former.name(), place));
            drop(table);
            wake_all(wakes.unwrap_or_default());
            return Ok(None);
        };
        let of_next = table.by_name.get(next.name());
        let is_same = former.is_some_and(|(former, _)| former.name() == next.name());
        let others = of_next.map_or(0, |it| it.by_place.len());
        let others = others.saturating_sub(usize::from(is_same));
        if others >= max {
            return Err(NoPlace);
        }
        if let Some((_, place)) = former.filter(|_| is_same) {
            return Ok(Some(place));
        }
        let wakes = former.map(|(former, place)| table.take_out(former.name(), place));
        table.last_place += 1;
        let place = Place(table.last_place);
        let sessions = table.by_name.entry(next.name().into()).or_default();
        sessions.by_place.insert(place, session);
        drop(table);
        wake_all(wakes.unwrap_or_default());
        Ok(Some(place))
    }

    /// Removes a session, and wakes newcomers that wait for its place.
    pub(crate) fn leave(&self, identity: &Identity, place: Place) {
        let wakes = self.table().take_out(identity.name(), place);
        wake_all(wakes);
    }

    /// Lets a newcomer wait for a place. Returns the sessions that may be replaced, oldest first; `None` if too many
    /// wait already.
    pub(crate) fn await_place(
        &self,
        identity: &Identity,
        session: u64,
        wake: Wake,
    ) -> Option<Vec<u64>> {
        let mut table = self.table();
        let max = identity.own_limits().sessions_max.unwrap_or(usize::MAX);
        let sessions = table.by_name.get_mut(identity.name());
        let Some(sessions) = sessions.filter(|it| it.by_place.len() >= max) else {
            // A place became free before the newcomer waited, so no later event would wake the newcomer.
            drop(table);
            wake();
            return Some(Vec::new());
        };
        if sessions.waiting.len() >= WAITING_MAX {
            return None;
        }
        sessions.waiting.push((session, wake));
        let asked = match identity.own_limits().replaces_oldest {
            false => ASKED_MAX,
            true => 1,
        };
        Some(sessions.by_place.values().take(asked).copied().collect())
    }

    /// Forgets a newcomer that waits no longer.
    pub(crate) fn forget_newcomer(&self, identity: &Identity, session: u64) {
        if let Some(sessions) = self.table().by_name.get_mut(identity.name()) {
            sessions.waiting.retain(|(waiting, _)| *waiting != session);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Removes a session. Returns the newcomers to wake.
    fn take_out(&mut self, name: &str, place: Place) -> Vec<(u64, Wake)> {
        let Some(sessions) = self.by_name.get_mut(name) else {
            return Vec::new();
        };
        sessions.by_place.remove(&place);
        let wakes = std::mem::take(&mut sessions.waiting);
        if sessions.by_place.is_empty() {
            self.by_name.remove(name);
        }
        wakes
    }
}

fn wake_all(wakes: Vec<(u64, Wake)>) {
    for (_, wake) in wakes {
        wake();
    }
}

/// Newcomers of one identity that wait for a place. Each causes work for its lane and for lanes of the oldest sessions.
const WAITING_MAX: usize = 16;

/// Sessions of an identity that are checked for vanished peers. The vanished peer may not be the oldest, and a user
/// with very many sessions must not make the server ping all sessions.
const ASKED_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::auth::{IdentityLimits, Permissions};

    fn limited(sessions_max: usize, replaces_oldest: bool) -> Identity {
        let limits = IdentityLimits {
            sessions_max: Some(sessions_max),
            replaces_oldest,
            ..IdentityLimits::default()
        };
        Identity::new("ann", Permissions::everything()).limits(limits)
    }

    #[test]
    fn an_identity_has_as_many_sessions_as_it_may_have() {
        let identity = limited(2, false);
        let sessions = IdentitySessions::default();
        let enter = |number| sessions.replace(None, &identity, number);
        let (one, other) = (enter(1).unwrap().unwrap(), enter(2).unwrap().unwrap());
        assert_eq!(enter(3), Err(NoPlace));
        sessions.leave(&identity, one);
        let third = enter(3).unwrap().unwrap();
        sessions.leave(&identity, other);
        sessions.leave(&identity, third);
        assert!(sessions.table().by_name.is_empty());
    }

    /// Regression: a session with a new identity lost its former place before it had a new place.
    #[test]
    fn a_session_that_gets_no_place_keeps_its_former_one() {
        let (former, next) = (limited(3, false), limited(2, false));
        let sessions = IdentitySessions::default();
        let places = [1, 2, 3].map(|number| {
            let place = sessions.replace(None, &former, number).unwrap();
            place.unwrap()
        });
        let change = |place, next: &Identity| sessions.replace(Some((&former, place)), next, 9);
        assert_eq!(change(places[0], &next), Err(NoPlace));
        assert_eq!(sessions.table().by_name["ann"].by_place.len(), 3);
        sessions.leave(&former, places[0]);
        assert_eq!(change(places[1], &next), Ok(Some(places[1])), "one of two");
        let unlimited = Identity::new("ann", Permissions::everything());
        assert_eq!(change(places[1], &unlimited), Ok(None));
        assert_eq!(sessions.table().by_name["ann"].by_place.len(), 1);
    }

    #[test]
    fn newcomers_wait_for_the_oldest_sessions_and_hear_of_a_free_place() {
        let sessions = IdentitySessions::default();
        let identity = limited(10, false);
        let places: Vec<Place> = (0..10)
            .map(|number| sessions.replace(None, &identity, number).unwrap().unwrap())
            .collect();
        let woken = Arc::new(AtomicUsize::new(0));
        let wake = || -> Wake {
            let woken = Arc::clone(&woken);
            Box::new(move || {
                woken.fetch_add(1, Ordering::Relaxed);
            })
        };
        let asked = sessions.await_place(&identity, 100, wake()).unwrap();
        assert_eq!(asked, (0..ASKED_MAX as u64).collect::<Vec<_>>());
        let replace = limited(10, true);
        assert_eq!(sessions.await_place(&replace, 101, wake()), Some(vec![0]));
        for number in 102..100 + WAITING_MAX as u64 {
            assert!(sessions.await_place(&identity, number, wake()).is_some());
        }
        assert!(sessions.await_place(&identity, 200, wake()).is_none());
        sessions.forget_newcomer(&identity, 100);
        sessions.leave(&identity, places[3]);
        assert_eq!(woken.load(Ordering::Relaxed), WAITING_MAX - 1);
    }

    /// Regression: a place that became free after a newcomer's check, and before the newcomer waited, woke no newcomer.
    /// Of an identity without sessions the newcomer was refused.
    #[test]
    fn a_newcomer_is_woken_at_once_if_a_place_got_free_before_it_waits() {
        for max in [1, 2] {
            let sessions = IdentitySessions::default();
            let identity = limited(max, false);
            let places: Vec<Place> = (0..max as u64)
                .map(|number| sessions.replace(None, &identity, number).unwrap().unwrap())
                .collect();
            assert_eq!(sessions.replace(None, &identity, 9), Err(NoPlace));
            sessions.leave(&identity, places[0]);
            let woken = Arc::new(AtomicUsize::new(0));
            let seen = Arc::clone(&woken);
            let wake: Wake = Box::new(move || {
                seen.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(sessions.await_place(&identity, 9, wake), Some(Vec::new()));
            assert_eq!(woken.load(Ordering::Relaxed), 1);
            assert!(sessions.replace(None, &identity, 9).is_ok());
        }
    }
}
