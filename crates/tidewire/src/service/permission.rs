//! Whether the peer of a session may do what its message asks for.
//!
//! The lane asks once for consecutive messages of the same kind, channel and name. Each service says what its messages
//! mean: the same frame calls a method of one service and publishes to a topic of another.

use std::borrow::Cow;

use tidewire_proto::body::{ErrorCode, JoinBody, Since, SubscribeBody, validate_name};
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{Kind, Message, RoomId};
use tidewire_proto::text::visible;
use tidewire_proto::topic::{Pattern, validate_topic};

use crate::auth::Action;
use crate::room::RoomError;
use crate::service::{Context, HandlerError, HandlerResult};

/// The kind of action that a message asks for; see [`Service::action`](crate::Service::action).
///
/// ```
/// use std::sync::Arc;
/// use tidewire::auth::{Access, IdentityLimits, KnownPeers, Permissions, Users};
/// use tidewire::{ActionKind, Client, Context, HandlerResult, Kind, Message, Server, Service};
///
/// /// Its requests publish to the topic that is their name.
/// struct Gateway;
///
/// impl Service for Gateway {
///     fn on_message(&mut self, cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
///         cx.reply(b"published")
///     }
///
///     fn action(&self, _: &Context<'_>, message: &Message<'_>) -> ActionKind {
///         match message.kind {
///             Kind::Request => ActionKind::Publish,
///             kind => ActionKind::of(kind),
///         }
///     }
/// }
///
/// let sensors = Permissions { publish: Access::new(["sensor.*"], [])?, ..Permissions::nothing() };
/// let mut users = Users::new(sensors);
/// users.add("anonymous", None, IdentityLimits::default())?;
/// let server = Server::builder()
///     .authenticate(KnownPeers::new(Arc::new(users)).admit_anonymous())
///     .listen("tcp://127.0.0.1:0")?
///     .start_one(Gateway)?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// assert_eq!(client.request(b"21.5").method("sensor.7").wait()?.payload(), b"published");
/// assert!(client.request(b"21.5").method("alarm").wait().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActionKind {
    /// It publishes to the topic that is its name.
    Publish,
    /// It subscribes to the pattern in its payload.
    Subscribe,
    /// It joins the room in its payload.
    Join,
    /// It says something in the room that is its channel, or in the only room of its session.
    Say,
    /// It calls the method that is its name or its channel.
    Call,
    /// It needs no permission.
    Free,
}

impl ActionKind {
    /// Returns the action of a message of this kind if its service gives it no other meaning. Kinds that end something,
    /// and answers, need no permission. A kind that only servers send is a call: a service may look at its payload and
    /// not at its kind.
    #[must_use]
    pub fn of(kind: Kind) -> Self {
        match kind {
            Kind::Publish => Self::Publish,
            Kind::Subscribe => Self::Subscribe,
            Kind::Join => Self::Join,
            Kind::Say => Self::Say,
            Kind::Unsubscribe | Kind::Leave | Kind::Cancel | Kind::Reply | Kind::Error => {
                Self::Free
            }
            _ => Self::Call,
        }
    }

    /// The action of a message for a service that may look at no kind. Nothing is free there.
    pub(super) fn strictest(kind: Kind) -> Self {
        match Self::of(kind) {
            Self::Free => Self::Call,
            action => action,
        }
    }

    /// Whether the name and the channel of a message say what it asks for, so that equal ones need no further check.
    pub(crate) fn is_told_by_header(self) -> bool {
        matches!(self, Self::Publish | Self::Say | Self::Call)
    }

    /// Checks that the peer may do what its message asks for.
    pub(crate) fn check(self, cx: &mut Context<'_>, message: &Message<'_>) -> HandlerResult {
        match self {
            Self::Publish => {
                let checked = cx.check_permission(Action::Publish(message.name));
                // A malformed topic is refused as without users, for what it is.
                checked.map_err(|refusal| match validate_topic(message.name) {
                    Ok(()) => refusal,
                    Err(error) => RoomError::Topic(error).into(),
                })
            }
            Self::Subscribe => {
                let pattern = SubscribeBody::decode(Since::split(message)?.1)?.pattern;
                // A malformed one is refused with the rule that it breaks, and by the code that it has without users.
                Pattern::parse(pattern).map_err(RoomError::Topic)?;
                cx.check_permission(Action::Subscribe(pattern))
            }
            Self::Join => {
                let body = JoinBody::decode(Since::split(message)?.1)?;
                let checked = cx.check_permission(Action::Join(body.room));
                checked.map_err(|refusal| match validate_name(body.room) {
                    Ok(()) => refusal,
                    Err(error) => RoomError::RoomName(error).into(),
                })
            }
            Self::Say => {
                let room = match message.channel {
                    0 => cx.rooms().first_room(),
                    room => cx.session().is_in(RoomId(room)).then_some(room),
                };
                let room = room.and_then(|room| cx.rooms().name_of(RoomId(room)));
                let room = room.ok_or(RoomError::NotJoined)?;
                cx.check_permission(Action::Say(&room))
            }
            Self::Call => {
                let method = match message.name {
                    "" => Cow::Owned(format!("#{}", message.channel)),
                    name => Cow::Borrowed(name),
                };
                cx.check_permission(Action::Call(&method))
            }
            Self::Free => Ok(()),
        }
    }
}

impl Context<'_> {
    /// Checks that the peer of this session may do this. Everybody may do everything on a server that does not ask who
    /// its peers are. The lane has checked each message already; a handler checks what its payload asks for.
    ///
    /// # Errors
    /// A refusal with [`ErrorCode::Forbidden`].
    pub fn check_permission(&self, action: Action<'_>) -> HandlerResult {
        let ignores_case = self.codec().format().ignores_method_case;
        let is_allowed = self
            .session()
            .identity()
            .is_none_or(|identity| identity.permissions().allows(action, ignores_case));
        match is_allowed {
            true => Ok(()),
            false => Err(HandlerError::new(
                ErrorCode::Forbidden,
                visible(format!("you may not {action}").as_bytes()),
            )),
        }
    }
}
