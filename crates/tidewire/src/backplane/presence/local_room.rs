//! A room with members on this node, and its known members on other nodes.

use std::collections::HashMap;
use std::sync::Arc;

use tidewire_proto::message::MemberId;

use crate::backplane::author::Author;
use crate::room::SharedRoom;

/// A room with members on this node.
#[derive(Debug)]
pub(super) struct LocalRoom {
    shared: Arc<SharedRoom>,
    /// The known members on other nodes, by node and by their numbers there.
    remote: HashMap<Arc<str>, HashMap<MemberId, RemoteMember>>,
    /// The room is so large that the other nodes are told the number of members, and not who they are.
    is_counted: bool,
    /// The other nodes were asked for their members.
    has_asked: bool,
}

/// A member on another node.
#[derive(Clone, Debug)]
pub(super) struct RemoteMember {
    /// The number on this node.
    member: MemberId,
    shown: Arc<str>,
    /// Whether the members of this node were told of it. If not, its messages have its name.
    is_listed: bool,
}

impl RemoteMember {
    /// The number on this node.
    pub(super) fn member(&self) -> MemberId {
        self.member
    }

    /// The name that the members of this node see.
    pub(super) fn name(&self) -> &str {
        &self.shown
    }

    pub(super) fn is_listed(&self) -> bool {
        self.is_listed
    }
}

impl LocalRoom {
    pub(super) fn new(shared: Arc<SharedRoom>, has_asked: bool) -> Self {
        Self {
            shared,
            remote: HashMap::new(),
            is_counted: false,
            has_asked,
        }
    }

    pub(super) fn shared(&self) -> &Arc<SharedRoom> {
        &self.shared
    }

    /// Notes that the other nodes are asked for their members. Returns whether they were not before.
    pub(super) fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.has_asked, true)
    }

    /// Whether the other nodes are told only the number of members.
    pub(super) fn is_counted(&self) -> bool {
        self.is_counted
    }

    pub(super) fn set_counted(&mut self, is_counted: bool) {
        self.is_counted = is_counted;
    }

    pub(super) fn has_members_of(&self, node: &str) -> bool {
        self.remote.contains_key(node)
    }

    /// Whether a member of a node may be listed. A node lists more than it should if not; its messages have the names
    /// of their authors.
    pub(super) fn may_list(&mut self, node: &str, number: MemberId, listed_max: usize) -> bool {
        let Some(known) = self.remote.get_mut(node) else {
            return true;
        };
        if known.len() >= listed_max {
            known.retain(|_, known| known.is_listed);
        }
        known.len() < listed_max || known.contains_key(&number)
    }

    pub(super) fn find(&self, node: &str, number: MemberId) -> Option<&RemoteMember> {
        self.remote.get(node)?.get(&number)
    }

    /// Notes that the members of this node are told of a member.
    pub(super) fn list(
        &mut self,
        node: &Arc<str>,
        number: MemberId,
        member: MemberId,
        shown: Arc<str>,
    ) {
        let listed = RemoteMember {
            member,
            shown,
            is_listed: true,
        };
        let known = self.remote.entry(Arc::clone(node)).or_default();
        known.insert(number, listed);
    }

    /// Notes that a member is only counted from now on. Returns its number on this node.
    pub(super) fn unlist(&mut self, node: &str, number: MemberId) -> Option<MemberId> {
        let known = self.remote.get_mut(node)?.get_mut(&number)?;
        known.is_listed = false;
        Some(known.member)
    }

    pub(super) fn remove(&mut self, node: &str, number: MemberId) -> Option<RemoteMember> {
        self.remote.get_mut(node)?.remove(&number)
    }

    pub(super) fn remove_node(&mut self, node: &str) {
        self.remote.remove(node);
    }

    /// The numbers of the known members of a node, in their order.
    pub(super) fn numbers_of(&self, node: &str) -> Vec<MemberId> {
        let known = self.remote.get(node).into_iter().flatten();
        let mut numbers: Vec<MemberId> = known.map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the author of a message, and whether the author was unknown. Then `begin` returns the number and the
    /// name on this node.
    pub(super) fn author(
        &mut self,
        node: &Arc<str>,
        number: MemberId,
        begin: impl FnOnce() -> (MemberId, Arc<str>),
    ) -> (Author, bool) {
        let mut is_new = false;
        let known = self.remote.entry(Arc::clone(node)).or_default();
        let known = known.entry(number).or_insert_with(|| {
            is_new = true;
            let (member, shown) = begin();
            RemoteMember {
                member,
                shown,
                is_listed: false,
            }
        });
        let (member, name) = (known.member, Arc::clone(&known.shown));
        let author = match known.is_listed {
            true => Author::listed(member, name),
            false => Author::unlisted(member, name),
        };
        (author, is_new)
    }

    /// Forgets the numbers of authors that are not listed. They get others with their next messages.
    pub(super) fn forget_authors(&mut self) {
        for known in self.remote.values_mut() {
            known.retain(|_, known| known.is_listed);
        }
    }

    /// Shows a member with this number on this node under another name.
    pub(super) fn rename(&mut self, member: MemberId, shown: &Arc<str>) {
        for known in self.remote.values_mut().flat_map(HashMap::values_mut) {
            if known.member == member {
                known.shown = Arc::clone(shown);
            }
        }
    }

    /// The listed members on other nodes, in the order of their numbers here.
    pub(super) fn listed(&self) -> Vec<&RemoteMember> {
        let known = self.remote.values().flat_map(HashMap::values);
        let mut listed: Vec<&RemoteMember> = known.filter(|known| known.is_listed).collect();
        listed.sort_unstable_by_key(|known| known.member);
        listed
    }
}
