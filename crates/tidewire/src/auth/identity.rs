//! An identity, and a session's copy of its settings.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use tidewire_proto::limits::TOPIC_BYTES_MAX;
use tidewire_proto::message::{Kind, Message};

use super::Permissions;
use super::places::Place;
use crate::limits::{Rate, RateLimit, SharedBucket};
use tidewire_proto::setting::SettingError;

/// The name of a peer, and its permissions. [`SessionView::identity`](crate::SessionView::identity) returns it.
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
    /// Shared by the sessions of a user, because a configuration may make them large.
    permissions: Arc<Permissions>,
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
    /// A JWT, by the key of its signature and the requirements for tokens of this key.
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
///
/// ```
/// use tidewire::auth::{Identity, IdentityLimits, Permissions};
///
/// let limits = IdentityLimits { sessions_max: Some(1), replaces_oldest: true, ..IdentityLimits::default() };
/// let player = Identity::new("ann", Permissions::everything()).limits(limits);
/// assert!(player.own_limits().replaces_oldest);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct IdentityLimits {
    /// Sessions of the identity on the whole server.
    pub sessions_max: Option<usize>,
    /// Whether a new session replaces the oldest when all sessions of the identity are in use, or when another session
    /// of the identity has its name in the rooms. If true, the oldest session ends at once, even if it is in use, and
    /// its client is told not to reconnect. If false, the oldest silent sessions are pinged, and the first that does
    /// not answer in 2 s ends; if all answer, the new session is refused. That requires a codec with pings, such as
    /// `tw1`.
    pub replaces_oldest: bool,
    /// Patterns that each of its sessions may be subscribed to.
    pub subscriptions_max: Option<usize>,
    /// Rooms that each of its sessions may be in.
    pub rooms_max: Option<usize>,
    /// The messages and bytes that all its sessions together may send in a second, in place of the server's rate limit.
    /// Peers of [`Identity::ANONYMOUS`] share the limit per address.
    pub rate: Option<RateLimit>,
}

impl Identity {
    /// An identity without its own limits that never expires. Many identities with the same `Arc` of permissions share
    /// one copy.
    #[must_use]
    pub fn new(name: &str, permissions: impl Into<Arc<Permissions>>) -> Self {
        Self {
            name: name.into(),
            permissions: permissions.into(),
            limits: IdentityLimits::default(),
            expires_at: None,
            is_anonymous: false,
            proof: None,
        }
    }

    /// An identity for peers that are not known. They may choose a name in a chat, but none of an identity.
    #[must_use]
    pub fn anonymous(permissions: impl Into<Arc<Permissions>>) -> Self {
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

    /// The identity's own limits.
    #[must_use]
    pub fn own_limits(&self) -> &IdentityLimits {
        &self.limits
    }

    /// When its sessions end; `None` for never.
    #[must_use]
    pub fn expiry(&self) -> Option<SystemTime> {
        self.expires_at
    }

    /// Whether it is the identity of all unknown peers.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.is_anonymous
    }

    /// Notes the proof of the identity, so that a reload can withdraw it.
    pub(crate) fn proved_by(mut self, proof: Proof) -> Self {
        self.proof = Some(proof);
        self
    }

    pub(crate) fn proof(&self) -> Option<&Proof> {
        self.proof.as_ref()
    }

    /// The identity's name in chats. Anonymous peers choose their name.
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
    pub fn check(&self) -> Result<(), SettingError> {
        self.rate
            .as_ref()
            .map_or(Ok(()), |rate| rate.rate().map(drop))
    }
}

/// The identity of a session, and the last message that it was allowed to send.
#[derive(Debug)]
pub(crate) struct Admitted {
    identity: Arc<Identity>,
    /// The session's place among the sessions of the identity; `None` if sessions are not counted.
    place: Option<Place>,
    /// The rate limit of the identity, and the use by its sessions.
    rate: Option<(Rate, Arc<SharedBucket>)>,
    may_all: bool,
    /// Messages with this kind, channel and name need no further look-up.
    last: Option<(Kind, u16)>,
    last_name: String,
    held_bytes: usize,
}

impl Admitted {
    pub(crate) fn new(
        identity: Arc<Identity>,
        place: Option<Place>,
        rate: Option<(Rate, Arc<SharedBucket>)>,
    ) -> Self {
        let may_all = identity.permissions.is_everything();
        Self {
            held_bytes: Self::bytes_of(&identity, may_all),
            place,
            rate,
            may_all,
            identity,
            last: None,
            last_name: String::new(),
        }
    }

    /// The memory that a session takes for its identity. Shared memory, such as the permissions of a configured user,
    /// is not counted for each session.
    fn bytes_of(identity: &Arc<Identity>, may_all: bool) -> usize {
        let last_name = if may_all { 0 } else { TOPIC_BYTES_MAX };
        let is_shared = Arc::strong_count(identity) > 1;
        let own = match is_shared {
            true => 0,
            false => size_of::<Identity>() + identity.name.len(),
        };
        let has_own_permissions = !is_shared && Arc::strong_count(&identity.permissions) == 1;
        let permissions = match has_own_permissions {
            true => identity.permissions.held_bytes(),
            false => 0,
        };
        size_of::<Self>() + last_name + own + permissions
    }

    #[inline]
    pub(crate) fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// The identity with the place that the session has among its sessions.
    pub(crate) fn placed(&self) -> Option<(&Identity, Place)> {
        Some((&self.identity, self.place?))
    }

    /// Takes the place of the session, which is given up.
    pub(crate) fn take_place(&mut self) -> Option<Place> {
        self.place.take()
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Forgets the last message, because its channel may mean another room from now on.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    pub(crate) fn rate(&self) -> Option<Rate> {
        self.rate.as_ref().map(|(rate, _)| *rate)
    }

    pub(crate) fn bucket(&self) -> Option<&SharedBucket> {
        self.rate.as_ref().map(|(_, bucket)| &**bucket)
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Access, Users};

    #[test]
    fn only_equal_messages_need_no_look_up() {
        let identity = Identity::new("ann", Permissions::everything());
        let mut admitted = Admitted::new(Arc::new(identity), None, None);
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

    /// Regression: each session had a copy of its user's permissions, which the memory account did not see.
    #[test]
    fn permissions_are_shared_or_counted() {
        let patterns: Vec<String> = (0..300)
            .map(|number| format!("sensor.{number}.>"))
            .collect();
        let publish = Access::new(patterns.iter().map(String::as_str), []).unwrap();
        let large = Permissions {
            publish,
            ..Permissions::nothing()
        };
        let mut users = Users::new(Permissions::nothing());
        users
            .add("ann", Some(&large), IdentityLimits::default())
            .unwrap();
        let [one, other] = [(); 2].map(|()| Arc::new(users.identity("ann").unwrap()));
        assert!(Arc::ptr_eq(&one.permissions, &other.permissions));
        let shared = Admitted::new(one, None, None).held_bytes();
        assert!(shared < 1_000, "{shared}");
        let own = Admitted::new(Arc::new(Identity::new("ann", large)), None, None).held_bytes();
        assert!(own > 300 * size_of::<usize>() * 4, "{own}");
        let of_name = Users::new(Permissions {
            publish: Access::new(["dev.{name}.>"], []).unwrap(),
            ..Permissions::nothing()
        });
        let dev = Arc::new(of_name.identity_or_default("7").unwrap());
        let dev = Admitted::new(dev, None, None).held_bytes();
        assert!(dev > shared, "{dev}");
    }
}
