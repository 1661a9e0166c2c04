//! An identity, and how many sessions it has.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tidewire_proto::message::{Kind, Message};

use super::Permissions;
use crate::limits::{Rate, RateLimit, RateLimitError};

/// The name of a peer, and what it may do. [`Context::identity`](crate::Context::identity) returns it.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tidewire::auth::{Identity, IdentityLimits, Permissions};
///
/// let hour = SystemTime::now() + Duration::from_secs(3_600);
/// let sensor = Identity::new("sensor-7", Permissions::everything())
///     .limits(IdentityLimits { sessions_max: Some(2), ..IdentityLimits::default() })
///     .expires_at(hour);
/// assert_eq!(sensor.name(), "sensor-7");
/// ```
#[derive(Clone, Debug)]
pub struct Identity {
    name: Box<str>,
    permissions: Permissions,
    limits: IdentityLimits,
    expires_at: Option<SystemTime>,
    is_anonymous: bool,
    /// The proof, if a ready-made authenticator admitted it.
    proof: Option<Proof>,
}

/// The proof of an identity. After a reload its authenticator finds by it whether the identity is still proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// A token, by the first bytes of its hash.
    Token([u8; 8]),
    /// A JWT, by the key that it is signed by and what a token of this key must fit.
    #[cfg(feature = "jwt")]
    Jwt([u8; 8]),
    /// A name in a certificate.
    Certificate(Box<str>),
    /// A user id, over a Unix socket.
    UnixUser(u32),
    /// An address.
    Address(IpAddr),
}

/// The limits of an identity. `None` means that only the server's limits hold.
/// [`Identity`] has an example.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdentityLimits {
    /// Sessions of the identity on the whole server.
    pub sessions_max: Option<usize>,
    /// Patterns that each of its sessions may be subscribed to.
    pub subscriptions_max: Option<usize>,
    /// Rooms that each of its sessions may be in.
    pub rooms_max: Option<usize>,
    /// The messages and bytes that each of its sessions may send in a second, in place of the server's rate limit.
    pub rate: Option<RateLimit>,
}

impl Identity {
    /// An identity without limits of its own that never expires.
    #[must_use]
    pub fn new(name: &str, permissions: Permissions) -> Self {
        Self {
            name: name.into(),
            permissions,
            limits: IdentityLimits::default(),
            expires_at: None,
            is_anonymous: false,
            proof: None,
        }
    }

    /// An identity for peers that are not known. They may choose a name in a chat, but none of an identity.
    #[must_use]
    pub fn anonymous(permissions: Permissions) -> Self {
        Self {
            is_anonymous: true,
            ..Self::new(Self::ANONYMOUS, permissions)
        }
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: IdentityLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets when sessions of this identity end, unless their clients send newer credentials before.
    #[must_use]
    pub fn expires_at(mut self, time: SystemTime) -> Self {
        self.expires_at = Some(time);
        self
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the permissions.
    #[must_use]
    pub fn permissions(&self) -> &Permissions {
        &self.permissions
    }

    /// Its limits.
    #[must_use]
    pub fn own_limits(&self) -> &IdentityLimits {
        &self.limits
    }

    /// When its sessions end; `None` for never.
    #[must_use]
    pub fn expiry(&self) -> Option<SystemTime> {
        self.expires_at
    }

    /// Whether it stands for all peers that are not known.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.is_anonymous
    }

    /// Notes what proved it, so that this can be withdrawn.
    pub(crate) fn proved_by(mut self, proof: Proof) -> Self {
        self.proof = Some(proof);
        self
    }

    pub(crate) fn proof(&self) -> Option<&Proof> {
        self.proof.as_ref()
    }

    /// This identity for a session that does not count any more.
    pub(crate) fn uncounted(&self) -> Self {
        let sessions_max = None;
        let limits = IdentityLimits {
            sessions_max,
            ..self.limits
        };
        self.clone().limits(limits)
    }

    /// The name that it has in chats. Anonymous peers choose one.
    pub(crate) fn chat_name(&self) -> Option<&str> {
        (!self.is_anonymous).then_some(&self.name)
    }

    /// The name of the identity of all peers that are not known.
    pub const ANONYMOUS: &'static str = "anonymous";
}

impl IdentityLimits {
    /// Checks the rate.
    ///
    /// # Errors
    /// The rate allows nothing, or limits nothing.
    pub fn check(&self) -> Result<(), RateLimitError> {
        self.rate
            .as_ref()
            .map_or(Ok(()), |rate| rate.rate().map(drop))
    }
}

/// The identity of a session, and the last message that it was allowed to send.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) identity: Arc<Identity>,
    /// The rate limit of the identity.
    rate: Option<Rate>,
    may_all: bool,
    /// Messages with this kind, channel and name need no further look-up.
    last: Option<(Kind, u16)>,
    last_name: String,
}

impl Admitted {
    pub(crate) fn new(identity: Arc<Identity>) -> Self {
        Self {
            rate: identity.limits.rate.and_then(|rate| rate.rate().ok()),
            may_all: identity.permissions.is_everything(),
            identity,
            last: None,
            last_name: String::new(),
        }
    }

    /// Forgets the last message, because its channel may mean another room from now on.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    pub(crate) fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Whether the identity may do everything.
    pub(crate) fn may_all(&self) -> bool {
        self.may_all
    }

    /// Whether messages must be checked before the service gets them.
    pub(crate) fn is_checked(&self) -> bool {
        !self.may_all || self.rate.is_some()
    }

    /// Whether the message is of the same kind, channel and name as the last one that was allowed.
    #[inline]
    pub(crate) fn is_last(&self, message: &Message<'_>) -> bool {
        self.last == Some((message.kind, message.channel)) && self.last_name == message.name
    }

    /// Keeps the kind, channel and name of an allowed message.
    pub(crate) fn note(&mut self, message: &Message<'_>) {
        self.last = Some((message.kind, message.channel));
        self.last_name.clear();
        self.last_name.push_str(message.name);
    }
}

/// The number of sessions of each identity that has a limit of sessions.
#[derive(Debug, Default)]
pub(crate) struct IdentitySessions(Mutex<HashMap<Box<str>, usize>>);

impl IdentitySessions {
    /// Counts a session in as `next`, and out as `former`. If the identity has as many sessions as it may have, everything
    /// stays as it was, and the answer is false.
    pub(crate) fn replace(&self, former: Option<&Identity>, next: &Identity) -> bool {
        let mut counts = self.counts();
        if let Some(former) = former {
            count_out(&mut counts, former);
        }
        let count = counts.get(&next.name).copied().unwrap_or(0);
        let has_room = next.limits.sessions_max.is_none_or(|max| count < max);
        let now = if has_room { Some(next) } else { former };
        if let Some(now) = now.filter(|it| it.limits.sessions_max.is_some()) {
            *counts.entry(now.name.clone()).or_default() += 1;
        }
        has_room
    }

    /// Counts a session out.
    pub(crate) fn leave(&self, identity: &Identity) {
        count_out(&mut self.counts(), identity);
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Box<str>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count_out(counts: &mut HashMap<Box<str>, usize>, identity: &Identity) {
    if identity.limits.sessions_max.is_none() {
        return;
    }
    if let Some(count) = counts.get_mut(&identity.name) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&identity.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(sessions_max: usize) -> Identity {
        let limits = IdentityLimits {
            sessions_max: Some(sessions_max),
            ..IdentityLimits::default()
        };
        Identity::new("ann", Permissions::everything()).limits(limits)
    }

    #[test]
    fn an_identity_has_as_many_sessions_as_it_may_have() {
        let identity = limited(2);
        let sessions = IdentitySessions::default();
        assert!(sessions.replace(None, &identity) && sessions.replace(None, &identity));
        assert!(!sessions.replace(None, &identity));
        sessions.leave(&identity);
        assert!(sessions.replace(None, &identity));
        sessions.leave(&identity);
        sessions.leave(&identity);
        assert!(sessions.counts().is_empty());
    }

    /// Regression: a session whose identity changed was counted out before the new one had a place.
    #[test]
    fn a_session_that_gets_no_place_keeps_its_former_one() {
        let (former, next) = (limited(3), limited(2));
        let sessions = IdentitySessions::default();
        for _ in 0..3 {
            assert!(sessions.replace(None, &former));
        }
        assert!(!sessions.replace(Some(&former), &next));
        assert_eq!(sessions.counts()["ann"], 3);
        sessions.leave(&former);
        assert!(sessions.replace(Some(&former), &next), "one of two");
        assert_eq!(sessions.counts()["ann"], 2);
        let unlimited = next.uncounted();
        assert!(sessions.replace(Some(&next), &unlimited));
        sessions.leave(&unlimited);
        assert_eq!(sessions.counts()["ann"], 1);
    }

    #[test]
    fn only_equal_messages_need_no_look_up() {
        let identity = Identity::new("ann", Permissions::everything());
        let mut admitted = Admitted::new(Arc::new(identity));
        let message = Message::with_id(Kind::Request, 0, 1, b"").with_name("add");
        assert!(!admitted.is_last(&message));
        admitted.note(&message);
        assert!(admitted.is_last(&Message { id: 2, ..message }));
        assert!(!admitted.is_last(&Message {
            channel: 1,
            ..message
        }));
        assert!(!admitted.is_last(&message.with_name("sub")));
        let one_way = Message {
            kind: Kind::OneWay,
            ..message
        };
        assert!(!admitted.is_last(&one_way));
    }
}
