//! The memory of the tables of an authenticator.

use std::collections::HashSet;
use std::sync::Arc;

/// A sum of the memory of tables. Several authenticators may share a table, which counts once.
///
/// ```
/// use std::sync::Arc;
/// use tidewire::auth::{Authenticate, Chain, IdentityLimits, KnownPeers, Permissions, TableBytes, Users};
///
/// let measured = |authenticator: &dyn Authenticate| {
///     let mut tables = TableBytes::default();
///     authenticator.measure(&mut tables);
///     tables.bytes()
/// };
/// let mut users = Users::new(Permissions::everything());
/// users.add("ann", None, IdentityLimits::default())?;
/// let users = Arc::new(users);
/// let once = measured(&KnownPeers::new(Arc::clone(&users)));
/// let twice = Chain::new().then(KnownPeers::new(Arc::clone(&users))).then(KnownPeers::new(users));
/// assert!(once > 0 && measured(&twice) == once);
/// # Ok::<(), tidewire::SettingError>(())
/// ```
#[derive(Debug, Default)]
pub struct TableBytes {
    bytes: usize,
    /// The places of shared tables that are counted.
    shared: HashSet<usize>,
}

impl TableBytes {
    /// Adds the memory of a table.
    pub fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Lets `measure` add the memory of a table, unless it was measured before.
    pub fn add_shared<T>(&mut self, table: &Arc<T>, measure: impl FnOnce(&T, &mut Self)) {
        if self.shared.insert(Arc::as_ptr(table).addr()) {
            measure(table, self);
        }
    }

    /// The sum.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
