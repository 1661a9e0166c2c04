//! The same work of peers with an identity, whose messages are checked against its permissions.

use tidewire::auth::{Access, AuthOutcome, AuthRequest, Authenticate, Identity, Permissions};

/// Admits every peer with the same permissions.
pub(super) struct Permitted(Permissions);

impl Permitted {
    /// Some topics are allowed and one of them is denied, so that no check can be left out.
    pub(super) fn new() -> Result<Self, tidewire::SettingError> {
        let topics = Access::new(["news.>", "market.>"], ["market.secret"])?;
        Ok(Self(Permissions {
            publish: topics.clone(),
            subscribe: topics,
            ..Permissions::nothing()
        }))
    }
}

impl Authenticate for Permitted {
    fn authenticate(&self, _: &mut AuthRequest<'_>) -> AuthOutcome {
        AuthOutcome::admit(Identity::new("counted", self.0.clone()))
    }
}
