//! Setting up authentication: which authenticator a server asks, and when it asks again.

use std::sync::Arc;

use super::{Server, ServerBuilder};
use crate::auth::{Authenticate, SharedAuthenticator};
use crate::mailbox::LaneMessage;

impl ServerBuilder {
    /// Sets the authenticator, which identifies peers. Default: none, and every peer may do everything.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidewire::auth::{ByUnixUser, IdentityLimits, Permissions, Users};
    /// use tidewire::{PubSub, Server};
    ///
    /// let mut users = Users::new(Permissions::everything());
    /// users.add("root", None, IdentityLimits::default())?;
    /// let root_only = ByUnixUser::new(Arc::new(users)).with(0, "root");
    /// let server = Server::builder().authenticate(root_only);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn authenticate(mut self, authenticator: impl Authenticate) -> Self {
        self.authenticator = Some(SharedAuthenticator(Arc::new(authenticator)));
        self
    }
}

impl Server {
    /// Asks the authenticator about every session again. Call it after its users or tokens have changed. Sessions get
    /// their new permissions and limits. A session whose identity is gone, or that has a room or subscription that is
    /// no longer permitted, ends with [`CloseReason::Unauthenticated`](crate::CloseReason::Unauthenticated).
    pub fn reauthenticate(&self) {
        for (lane, thread) in self.lanes.iter().zip(&self.threads) {
            if !thread.is_finished() {
                lane.post_waiting(LaneMessage::Reauthenticate);
            }
        }
    }
}
