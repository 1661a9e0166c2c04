//! The users of a server by name, with their permissions and limits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tidewire_proto::body::name_skeleton;

use super::{Identity, IdentityLimits, Permissions, TableBytes};
use tidewire_proto::setting::SettingError;

/// The users that a server knows. Authenticators turn names into identities with it.
///
/// ```
/// use tidewire::auth::{Access, Action, IdentityLimits, Permissions, Users};
///
/// let default_permissions = Permissions {
///     publish: Access::new(["dev.{name}.>"], [])?,
///     ..Permissions::nothing()
/// };
/// let mut users = Users::new(default_permissions);
/// users.add("ann", None, IdentityLimits::default())?;
/// users.add("root", Some(&Permissions::everything()), IdentityLimits::default())?;
/// let ann = users.identity("ann").expect("she is known");
/// assert!(ann.permissions().allows(Action::Publish("dev.ann.temperature"), false));
/// assert!(users.identity("eve").is_none());
/// # Ok::<(), tidewire::SettingError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Users {
    default_permissions: Arc<Permissions>,
    /// The permissions are shared by all sessions of the user, because a configuration may make them large.
    by_name: HashMap<Box<str>, (Arc<Permissions>, IdentityLimits)>,
    /// The skeletons of the names, so that no peer takes a name that looks alike.
    skeletons: HashSet<String>,
}

impl Users {
    /// No user. Users that are added without permissions of their own have these.
    #[must_use]
    pub fn new(default_permissions: Permissions) -> Self {
        Self {
            default_permissions: Arc::new(default_permissions),
            ..Self::default()
        }
    }

    /// Adds a user with permissions of its own and the usual limits, or replaces the one of this name.
    ///
    /// ```
    /// use tidewire::auth::{Permissions, Users};
    ///
    /// let users = Users::new(Permissions::nothing()).with("admin", &Permissions::everything())?;
    /// # assert!(users.identity("admin").is_some());
    /// # Ok::<(), tidewire::SettingError>(())
    /// ```
    ///
    /// # Errors
    /// The name does not fit a pattern with `{name}`.
    pub fn with(mut self, name: &str, permissions: &Permissions) -> Result<Self, SettingError> {
        self.add(name, Some(permissions), IdentityLimits::default())?;
        Ok(self)
    }

    /// Adds a user, or replaces the user of this name. `None` means the default permissions.
    ///
    /// # Errors
    /// The name does not fit a pattern with `{name}`.
    pub fn add(
        &mut self,
        name: &str,
        permissions: Option<&Permissions>,
        limits: IdentityLimits,
    ) -> Result<(), SettingError> {
        let permissions = match permissions {
            Some(own) => Arc::new(own.of(name)?),
            None => self.default_permissions.shared_of(name)?,
        };
        self.by_name.insert(name.into(), (permissions, limits));
        self.skeletons.insert(name_skeleton(name));
        Ok(())
    }

    /// The identity of a user. [`Identity::ANONYMOUS`] is anonymous.
    #[must_use]
    pub fn identity(&self, name: &str) -> Option<Identity> {
        let (permissions, limits) = self.by_name.get(name)?;
        let permissions = Arc::clone(permissions);
        let identity = match name {
            Identity::ANONYMOUS => Identity::anonymous(permissions),
            name => Identity::new(name, permissions),
        };
        Some(identity.limits(*limits))
    }

    /// The identity of the user of this name, or an identity with the default permissions without such a user.
    ///
    /// # Errors
    /// The name does not fit a pattern with `{name}`.
    pub fn identity_or_default(&self, name: &str) -> Result<Identity, SettingError> {
        match self.identity(name) {
            Some(identity) => Ok(identity),
            None => Ok(Identity::new(
                name,
                self.default_permissions.shared_of(name)?,
            )),
        }
    }

    /// The names of all users, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(|name| &**name)
    }

    pub(super) fn measure(&self, tables: &mut TableBytes) {
        let own = |permissions: &Permissions, tables: &mut TableBytes| {
            tables.add(permissions.held_bytes());
        };
        tables.add_shared(&self.default_permissions, own);
        type Entry = (Box<str>, (Arc<Permissions>, IdentityLimits));
        tables.add(self.by_name.capacity() * size_of::<Entry>());
        tables.add(self.skeletons.capacity() * size_of::<String>());
        for (name, (permissions, _)) in &self.by_name {
            // A skeleton is about as long as its name.
            tables.add(2 * name.len());
            tables.add_shared(permissions, own);
        }
    }

    /// Whether the name is, or looks like, a user's name.
    #[must_use]
    pub fn is_reserved(&self, name: &str) -> bool {
        self.skeletons.contains(&name_skeleton(name))
    }
}
