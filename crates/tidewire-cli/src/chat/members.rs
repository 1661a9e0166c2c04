//! The numbers and names of members. Messages carry the number of their author, presence and lists carry the names.
//!
//! A name is kept when its member leaves, because a message that was on its way may still follow. Such names are
//! dropped when there are many.

use std::collections::HashMap;

use tidewire::MemberId;

/// The names seen so far.
#[derive(Debug, Default)]
pub(super) struct Members {
    names: HashMap<MemberId, Member>,
    /// The number of names at which those of absent members are dropped.
    names_max: usize,
}

#[derive(Debug, Default)]
struct Member {
    name: String,
    present: bool,
}

impl Members {
    /// Notes a member of this room. Returns whether the member is new.
    pub(super) fn add(&mut self, id: MemberId, name: &str) -> bool {
        let member = self.entry(id, name);
        !std::mem::replace(&mut member.present, true)
    }

    /// Notes a name whose member need not be in this room.
    pub(super) fn hear_of(&mut self, id: MemberId, name: &str) {
        self.entry(id, name);
    }

    /// Notes that a member left this room.
    pub(super) fn remove(&mut self, id: MemberId, name: &str) {
        self.entry(id, name).present = false;
    }

    /// Notes that the user is in another room now, in which all members are new.
    pub(super) fn change_room(&mut self) {
        for member in self.names.values_mut() {
            member.present = false;
        }
    }

    pub(super) fn name(&self, id: MemberId) -> Option<&str> {
        self.names.get(&id).map(|member| &*member.name)
    }

    /// Forgets all members: with another or a restarted server, numbers belong to other members.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the member with this number. It is absent if the number is new or belongs to another name now.
    fn entry(&mut self, id: MemberId, name: &str) -> &mut Member {
        if self.names.len() >= self.names_max.max(NAMES_MAX) {
            self.names.retain(|_, member| member.present);
            // With many members present, a search for absent ones at every new member would cost the square.
            self.names_max = 2 * self.names.len();
        }
        let member = self.names.entry(id).or_default();
        if member.name != name {
            *member = Member {
                name: name.to_owned(),
                present: false,
            };
        }
        member
    }
}

/// The number of names from which on those of absent members are dropped: far more than a person reads.
const NAMES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coming_twice_is_news_once() {
        let mut members = Members::default();
        assert!(members.add(MemberId(1), "bob"));
        assert!(!members.add(MemberId(1), "bob"));
        members.remove(MemberId(1), "bob");
        assert_eq!(members.name(MemberId(1)), Some("bob"));
        assert!(members.add(MemberId(1), "bob"));
        assert!(
            members.add(MemberId(1), "carol"),
            "the number was given anew"
        );
        assert_eq!(members.name(MemberId(2)), None);
    }

    #[test]
    fn another_room_announces_its_members_again_and_keeps_their_names() {
        let mut members = Members::default();
        members.add(MemberId(1), "bob");
        members.change_room();
        members.hear_of(MemberId(1), "bob");
        assert_eq!(members.name(MemberId(1)), Some("bob"));
        assert!(members.add(MemberId(1), "bob"));
    }

    #[test]
    fn the_absent_make_room() {
        let mut members = Members::default();
        members.add(MemberId(0), "stays");
        for id in 1..=u32::try_from(NAMES_MAX).unwrap() {
            members.remove(MemberId(id), "gone");
        }
        members.add(MemberId(u32::MAX), "new");
        assert_eq!(members.name(MemberId(0)), Some("stays"));
        assert!(members.names.len() < 10, "{}", members.names.len());
    }
}
