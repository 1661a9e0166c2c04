//! The author of a message, as the members of this node see it.

use std::sync::Arc;

use tidewire_proto::message::MemberId;

/// The author of a message.
#[derive(Clone, Debug)]
pub(super) struct Author {
    member: MemberId,
    name: Arc<str>,
    is_listed: bool,
}

impl Author {
    /// A member that the members of this node were told of.
    pub(super) fn listed(member: MemberId, name: impl Into<Arc<str>>) -> Self {
        Self {
            member,
            name: name.into(),
            is_listed: true,
        }
    }

    /// A member that the members of this node were not told of. Frames of its messages have its name.
    pub(super) fn unlisted(member: MemberId, name: impl Into<Arc<str>>) -> Self {
        Self {
            member,
            name: name.into(),
            is_listed: false,
        }
    }

    /// The room itself, or the publisher of a topic, who has no name.
    pub(super) fn nameless() -> Self {
        Self::listed(MemberId(0), "")
    }

    pub(super) fn member(&self) -> MemberId {
        self.member
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_listed(&self) -> bool {
        self.is_listed
    }
}
