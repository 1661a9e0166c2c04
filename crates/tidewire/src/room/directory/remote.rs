//! Members of rooms on other nodes, in the directory.
//!
//! The node adds and removes them. Each has a member number of this server, so that clients see one range of numbers. A
//! name belongs to the members of this node first: a remote member is shown as `name@node` if a member of this node has
//! its name.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidewire_proto::message::MemberId;

use super::Directory;
use crate::broker::Addressee;
use crate::session::SessionId;

/// The members of a room on other nodes.
#[derive(Debug, Default)]
pub(super) struct RemoteMembers {
    listed: BTreeMap<MemberId, RemoteMember>,
    /// The listed members by the names that they have here. No two have the same name.
    by_shown: HashMap<Arc<str>, MemberId>,
    /// The number of members that are not listed, by node.
    counted: BTreeMap<Arc<str>, usize>,
}

/// A member of a room on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteMember {
    node: Arc<str>,
    /// Its number at its own node.
    number: MemberId,
    /// Its name at its own node.
    name: Arc<str>,
    /// Its name here.
    shown: Arc<str>,
}

/// A change of who is shown in a room, and the size of the room after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShownMember {
    member: MemberId,
    name: Arc<str>,
    members: usize,
}

impl ShownMember {
    pub(crate) fn member(&self) -> MemberId {
        self.member
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn is_among_more_than(&self, members: usize) -> bool {
        self.members > members
    }
}

impl RemoteMember {
    /// The member as the receiver of a message.
    pub(in crate::room) fn addressee(&self) -> Addressee<'_> {
        Addressee::Member {
            node: &self.node,
            member: self.number,
        }
    }
}

impl RemoteMembers {
    pub(in crate::room) fn len(&self) -> usize {
        self.listed() + self.counted.values().sum::<usize>()
    }

    pub(super) fn listed(&self) -> usize {
        self.listed.len()
    }

    /// Calls `visit` for the listed members with the names that they have here.
    pub(super) fn each_shown(&self, mut visit: impl FnMut(MemberId, &str)) {
        for (member, remote) in &self.listed {
            visit(*member, &remote.shown);
        }
    }
}

impl Directory {
    /// Whether a pattern has subscribers here whose messages come from other nodes, and not from a history.
    pub(crate) fn has_pattern(&self, pattern: &str) -> bool {
        let state = self.lock();
        let shared = state.topics.shared(pattern);
        shared.is_some_and(|shared| !shared.is_numbered_by_carrier())
    }

    /// Calls `visit` for the members of a room on this node.
    pub(crate) fn own_members(&self, room: &str, mut visit: impl FnMut(MemberId, &str)) {
        let state = self.lock();
        for (member, name) in state
            .rooms
            .get(room)
            .iter()
            .flat_map(|entry| &entry.members)
        {
            visit(*member, name);
        }
    }

    /// The number of members of a room on this node.
    pub(crate) fn own_count(&self, room: &str) -> usize {
        let state = self.lock();
        state.rooms.get(room).map_or(0, |entry| entry.members.len())
    }

    /// The session of the member with this number, if it is in the room.
    pub(crate) fn session_in(&self, room: &str, member: MemberId) -> Option<SessionId> {
        let name = self.lock().rooms.get(room)?.members.get(&member)?.clone();
        let (holder, session) = self.names.holder(&name)?;
        (holder == member).then_some(session)
    }

    /// Adds a remote member to a room under this number. Returns how it is shown. `None` if the room has no members
    /// here.
    pub(crate) fn add_remote(
        &self,
        room: &str,
        member: MemberId,
        (node, number): (&Arc<str>, MemberId),
        name: &str,
    ) -> Option<ShownMember> {
        // A session that takes the name after this look enters its room later, and then the node renames the member.
        let is_taken = self.names.find(name).is_some();
        let mut state = self.lock();
        if state.remote_listed >= REMOTE_MEMBERS_MAX {
            return None;
        }
        let entry = state.rooms.get_mut(room)?;
        let others = entry.remote.get_or_insert_default();
        let shown: Arc<str> = match is_taken || others.by_shown.contains_key(name) {
            true => format!("{name}@{node}").into(),
            false => name.into(),
        };
        let remote = RemoteMember {
            node: Arc::clone(node),
            number,
            name: name.into(),
            shown: Arc::clone(&shown),
        };
        others.by_shown.insert(Arc::clone(&shown), member);
        let is_new = others.listed.insert(member, remote).is_none();
        let members = entry.count();
        state.remote_listed += usize::from(is_new);
        Some(ShownMember {
            member,
            name: shown,
            members,
        })
    }

    /// Removes a remote member from a room. Returns how it was shown.
    pub(crate) fn remove_remote(&self, room: &str, member: MemberId) -> Option<ShownMember> {
        let mut state = self.lock();
        let entry = state.rooms.get_mut(room)?;
        let others = entry.remote.as_mut()?;
        let removed = others.listed.remove(&member)?;
        if others.by_shown.get(&removed.shown) == Some(&member) {
            others.by_shown.remove(&removed.shown);
        }
        let members = entry.count();
        state.remote_listed -= 1;
        Some(ShownMember {
            member,
            name: removed.shown,
            members,
        })
    }

    /// Sets how many members a node has in a room beside those that are listed.
    pub(crate) fn count_remote(&self, room: &str, node: &Arc<str>, count: usize) {
        let mut state = self.lock();
        if let Some(entry) = state.rooms.get_mut(room) {
            let counted = &mut entry.remote.get_or_insert_default().counted;
            match count {
                0 => drop(counted.remove(node)),
                count => drop(counted.insert(Arc::clone(node), count)),
            }
        }
    }

    /// Shows the remote member of this name with its node from now on, because a member of this node has the name.
    /// Returns how the member was shown, and how it is shown now.
    pub(crate) fn rename_remote(&self, room: &str, name: &str) -> Option<[ShownMember; 2]> {
        let mut state = self.lock();
        let entry = state.rooms.get_mut(room)?;
        let members = entry.count();
        let others = entry.remote.as_mut()?;
        let member = others.by_shown.remove(name)?;
        let remote = others.listed.get_mut(&member)?;
        let shown: Arc<str> = format!("{name}@{}", remote.node).into();
        let name = std::mem::replace(&mut remote.shown, Arc::clone(&shown));
        others.by_shown.insert(Arc::clone(&shown), member);
        let named = |name| ShownMember {
            member,
            name,
            members,
        };
        Some([named(name), named(shown)])
    }

    /// Returns the name of the room with this alias, and its remote member that is shown under `name`.
    pub(in crate::room) fn remote_named(
        &self,
        alias: u16,
        name: &str,
    ) -> Option<(Arc<str>, RemoteMember)> {
        let mut state = self.lock();
        let entry = state.room_at(alias)?;
        let remote = entry.remote.as_ref()?;
        let remote = remote.listed.get(remote.by_shown.get(name)?)?.clone();
        Some((Arc::clone(entry.shared.name()), remote))
    }
}

/// Members on other nodes that a server lists, in all its rooms. A member takes some 300 bytes.
const REMOTE_MEMBERS_MAX: usize = 1 << 21;
