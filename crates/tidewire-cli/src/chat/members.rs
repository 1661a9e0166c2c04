//! Who has which number. Messages carry the number of their origin, presence and lists carry the names.
//!
//! Names are kept when somebody leaves, because a message that was on its way may still follow; they make
//! room when there are many.

use std::collections::HashMap;

use tidewire::MemberId;

/// The names seen so far.
#[derive(Debug, Default)]
pub(super) struct Members {
    names: HashMap<MemberId, Member>,
    /// How many names there may be before the absent are dropped again.
    names_max: usize,
}

#[derive(Debug, Default)]
struct Member {
    name: String,
    present: bool,
}

impl Members {
    /// Somebody is in this room. Returns whether that is news.
    pub(super) fn add(&mut self, id: MemberId, name: &str) -> bool {
        let member = self.entry(id, name);
        !std::mem::replace(&mut member.present, true)
    }

    /// Somebody is mentioned who need not be in this room.
    pub(super) fn hear_of(&mut self, id: MemberId, name: &str) {
        self.entry(id, name);
    }

    /// Somebody left this room.
    pub(super) fn remove(&mut self, id: MemberId, name: &str) {
        self.entry(id, name).present = false;
    }

    /// This user is in another room now: who comes into that one is news.
    pub(super) fn change_room(&mut self) {
        for member in self.names.values_mut() {
            member.present = false;
        }
    }

    /// The name of a member, here or gone.
    pub(super) fn name(&self, id: MemberId) -> Option<&str> {
        self.names.get(&id).map(|member| &*member.name)
    }

    /// Another server, or the same one started anew: its numbers mean other people.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The member with this number, absent if the number is new or means somebody else now.
    fn entry(&mut self, id: MemberId, name: &str) -> &mut Member {
        if self.names.len() >= self.names_max.max(NAMES_MAX) {
            self.names.retain(|_, member| member.present);
            // In a crowd of people present, looking through them all for each newcomer would cost the square.
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

/// Names remembered before those of people who left are dropped: far more than anyone reads.
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
    fn in_another_room_everyone_is_news_again_but_no_stranger() {
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
