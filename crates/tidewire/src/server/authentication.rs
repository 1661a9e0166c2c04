//! Setting up authentication: which authenticator a server asks, and when it asks again.

use std::fmt;

use super::{Server, ServerBuilder};
use crate::auth::{Authenticate, SharedAuthenticator};
use crate::mailbox::LaneMessage;

impl ServerBuilder {
    /// Sets the authenticator, which identifies peers. Default: none, and every peer may do everything.
    /// [`Server::replace_authenticator`] replaces it while the server runs.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidewire::Server;
    /// use tidewire::auth::{IdentityLimits, KnownPeers, Permissions, Users};
    ///
    /// let mut users = Users::new(Permissions::everything());
    /// users.add("root", None, IdentityLimits::default())?;
    /// let root_only = KnownPeers::new(Arc::new(users)).unix_user(0, "root");
    /// let server = Server::builder().authenticate(root_only);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn authenticate(mut self, authenticator: impl Authenticate) -> Self {
        self.authenticator = Some(SharedAuthenticator::new(authenticator));
        self
    }
}

impl Server {
    /// Uses the next authenticator from now on, and asks it about every session. If the next one could not be made, the
    /// former one stays, the log has the error, and
    /// [`auth_reloads_refused`](crate::metrics::Metrics::auth_reloads_refused) counts it.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidewire::SettingError;
    /// use tidewire::auth::{IdentityLimits, KnownPeers, Permissions, Users};
    /// use tidewire::{Client, PubSub, Server};
    ///
    /// fn admit(permissions: &Permissions) -> Result<KnownPeers, SettingError> {
    ///     let mut users = Users::default();
    ///     users.add("anonymous", Some(permissions), IdentityLimits::default())?;
    ///     Ok(KnownPeers::new(Arc::new(users)).admit_anonymous())
    /// }
    ///
    /// let server = Server::builder()
    ///     .authenticate(admit(&Permissions::everything())?)
    ///     .listen("tcp://127.0.0.1:0")?
    ///     .start_one(PubSub::new())?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// client.subscribe("news").wait()?;
    ///
    /// // From now on peers may do nothing, and the session of the client ends.
    /// server.replace_authenticator(admit(&Permissions::nothing()))?;
    /// let newcomer = Client::connect(&server.to_string()).wait()?;
    /// assert!(newcomer.subscribe("news").wait().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error of `next`.
    ///
    /// # Panics
    /// The server has no authenticator, so it admits all peers without a question.
    pub fn replace_authenticator<E: fmt::Display>(
        &self,
        next: Result<impl Authenticate, E>,
    ) -> Result<(), E> {
        match next {
            Ok(next) => {
                let guard = self.shared.guard.as_ref();
                let guard = guard.expect("a server that was built with an authenticator");
                guard.replace(next);
                self.reauthenticate();
                tracing::info!("the users were read again");
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "the new users cannot be used; the former users stay");
                self.metrics.first_lane().auth_reloads_refused.add_shared(1);
                Err(error)
            }
        }
    }

    /// Asks the authenticator about every session again. Call it after its users or tokens have changed. Sessions get
    /// their new permissions and limits. A session whose identity is gone, or that has a room or subscription that is
    /// no longer permitted, ends with [`CloseReason::Unauthenticated`](crate::CloseReason::Unauthenticated).
    pub fn reauthenticate(&self) {
        self.metrics.first_lane().auth_reloads.add_shared(1);
        self.shared.hold_tables();
        for (lane, thread) in self.lanes.iter().zip(&self.threads) {
            if !thread.is_finished() {
                lane.post_waiting(LaneMessage::Reauthenticate);
            }
        }
    }
}
