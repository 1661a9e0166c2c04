//! Hooks of a chat: a program decides about joins and messages, and learns of leaves.

use std::borrow::Cow;
use std::sync::Arc;

use tidewire_proto::message::RoomId;

use super::Chat;
use crate::history::{History, HistoryPattern};
use crate::room::RoomError;
use crate::service::{Context, HandlerResult};
use crate::session::SessionId;

/// A message that a member is about to send to a room, as the hook of [`Chat::on_say`] sees it.
#[derive(Debug)]
pub struct ChatMessage<'a> {
    /// The name of the room.
    pub room: &'a str,
    /// The name of the author.
    pub from: &'a str,
    /// The name of the receiver of a whisper; `None` if the message is for the room.
    pub to: Option<&'a str>,
    /// The text of the message. A hook may change it.
    pub payload: Cow<'a, [u8]>,
}

pub(super) type JoinHook = Arc<dyn Fn(&mut Context<'_>, &str, &str) -> HandlerResult + Send + Sync>;

pub(super) type MessageHook =
    Arc<dyn Fn(&mut Context<'_>, &mut ChatMessage<'_>) -> HandlerResult + Send + Sync>;

pub(super) type LeaveHook = Arc<dyn Fn(&mut Context<'_>, &str, &str) + Send + Sync>;

impl Chat {
    /// Sends the room's earlier messages to each new member: the newest messages within the limits of `history`,
    /// before all later ones. Whispers are not kept.
    ///
    /// A member gets every message once, and all members get the messages in the same order. A member whose connection
    /// ends gets what it missed when it [joins](crate::Client::join) again. A client of `tw1` that does not know
    /// positions is refused.
    ///
    /// Over `tw1` a message of the history is a [`Kind::Deliver`](crate::Kind::Deliver) with its author's name,
    /// because the author may have left. Over other codecs it looks like any other message.
    ///
    /// ```
    /// use tidewire::{Chat, Client, Event, History, Kind, Server};
    ///
    /// let server = Server::builder()
    ///     .listen("tcp://127.0.0.1:0")?
    ///     .start_one(Chat::new().history(History::last(50)))?;
    /// let ada = Client::connect(&server.to_string()).wait()?;
    /// let room = ada.join("lobby").named("ada").wait()?.id();
    /// ada.room(room).say(b"is anybody here?")?;
    /// ada.room(room).members().wait()?; // Now the message of ada has been delivered.
    ///
    /// let bob = Client::connect(&server.to_string()).wait()?;
    /// bob.join("lobby").named("bob").wait()?;
    /// let told = loop {
    ///     if let Event::Message(message) = bob.next_event().wait()
    ///         && message.kind == Kind::Deliver { break message };
    /// };
    /// assert_eq!((&*told.name, &told.payload[..]), ("ada", &b"is anybody here?"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn history(self, history: History) -> Self {
        self.history_of(">", history)
    }

    /// As [`Self::history`], for the rooms whose names match a [pattern](tidewire_proto::topic): a name, or a prefix of
    /// a name with dots and a wildcard, such as `team.*`. Call it several times for several patterns; the first that
    /// matches a room counts. Other rooms keep no history.
    #[must_use]
    pub fn history_of(mut self, pattern: &str, history: History) -> Self {
        self.history_patterns
            .push(HistoryPattern::new(pattern, history));
        self
    }

    /// Sets a hook that is called with the names of the room and of the member before a session joins. An error
    /// refuses the join; its code and text are the answer. Names are checked after the hook, so it may see a name
    /// that is taken or not allowed. The hook runs on the lane's thread and must not block.
    ///
    /// ```
    /// use tidewire::{Chat, Client, ErrorCode, HandlerError, Server};
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(
    ///     Chat::new().on_join(|_, _room, name| match name {
    ///         "eve" => Err(HandlerError::new(ErrorCode::NameInvalid, "eve is banned")),
    ///         _ => Ok(()),
    ///     })
    /// )?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// assert!(client.join("lobby").named("eve").wait().is_err());
    /// assert!(client.join("lobby").named("ada").wait().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_join(
        mut self,
        hook: impl Fn(&mut Context<'_>, &str, &str) -> HandlerResult + Send + Sync + 'static,
    ) -> Self {
        self.hooks.join = Some(Arc::new(hook));
        self
    }

    /// Sets a hook that is called with each message before it is delivered, including whispers. It may change the
    /// message. An error refuses the message; its code and text go to the author. The hook runs on the lane's thread
    /// and must not block.
    ///
    /// The hook sees only messages that would be delivered without it: the author is in the room, the message is not
    /// too large, the server has memory for it, and a whisper has a receiver. The changed message may still be
    /// refused. A whisper may also be refused after the hook if its receiver is on another lane or its queue is full.
    ///
    /// ```
    /// use tidewire::{Chat, Client, ErrorCode, Event, HandlerError, Kind, Server};
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(
    ///     Chat::new().on_say(|_, message| match message.payload.is_empty() {
    ///         true => Err(HandlerError::new(ErrorCode::MalformedBody, "say something")),
    ///         false => {
    ///             message.payload.to_mut().make_ascii_uppercase();
    ///             Ok(())
    ///         }
    ///     })
    /// )?;
    /// let [ada, bob] = [(); 2].map(|()| Client::connect(&server.to_string()).wait());
    /// let (ada, bob) = (ada?, bob?);
    /// let room = ada.join("lobby").named("ada").wait()?;
    /// bob.join("lobby").named("bob").wait()?;
    /// room.say(b"hello")?;
    /// let heard = loop {
    ///     if let Event::Message(message) = bob.next_event().wait()
    ///         && message.kind == Kind::Deliver { break message };
    /// };
    /// assert_eq!(heard.payload, b"HELLO");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_say(
        mut self,
        hook: impl Fn(&mut Context<'_>, &mut ChatMessage<'_>) -> HandlerResult + Send + Sync + 'static,
    ) -> Self {
        self.hooks.message = Some(Arc::new(hook));
        self
    }

    /// Sets a hook that is called with the names of the room and of the member when a member leaves a room, once for
    /// each leave. The call is about the session that leaves. The hook runs on the lane's thread and must not block.
    ///
    /// If the member asks to leave, or its session ends, the hook runs just before the member leaves. If a handler
    /// removes the member by [`RoomActions::remove_member`](crate::RoomActions::remove_member) or
    /// [`RoomActions::leave`](crate::RoomActions::leave), the hook runs soon after that, on the
    /// member's own lane, before anything else from that member is handled. A lane that panics does not call the
    /// hook.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use tidewire::{Chat, Client, Server};
    ///
    /// let (sender, left) = mpsc::channel();
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start(|_| {
    ///     let sender = sender.clone();
    ///     Chat::new().on_leave(move |_, room, name| drop(sender.send(format!("{name} left {room}"))))
    /// })?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// client.join("lobby").named("ada").wait()?;
    /// client.close().wait();
    /// assert_eq!(left.recv()?, "ada left lobby");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_leave(
        mut self,
        hook: impl Fn(&mut Context<'_>, &str, &str) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.leave = Some(Arc::new(hook));
        self
    }

    /// Runs the hook on a message of this call's session, and then `say` with the accepted message.
    pub(super) fn with_message(
        &self,
        cx: &mut Context<'_>,
        room: RoomId,
        to: Option<&str>,
        payload: &[u8],
        say: impl FnOnce(&mut Context<'_>, &[u8]) -> HandlerResult,
    ) -> HandlerResult {
        let Some(hook) = &self.hooks.message else {
            return say(cx, payload);
        };
        // The hook is not called for messages that are refused anyway.
        let mut rooms = cx.core.rooms();
        match to {
            Some(to) => rooms.check_whisper(cx.call.id(), room.0, to)?,
            None => rooms.check_say(cx.call.id(), room.0, payload.len())?,
        }
        let (Some(room), Some(from)) = (cx.rooms().name_of(room), cx.rooms().name()) else {
            return Err(RoomError::NotJoined.into());
        };
        let mut message = ChatMessage {
            room: &room,
            from: &from,
            to,
            payload: Cow::Borrowed(payload),
        };
        hook(cx, &mut message)?;
        say(cx, &message.payload)
    }

    /// Calls the hook for each room that a handler removed this session from. In a call without a session, it does
    /// this for all sessions.
    pub(super) fn tell_departures(&self, cx: &mut Context<'_>) {
        let Some(hook) = &self.hooks.leave else {
            return;
        };
        let only = (cx.call.id() != SessionId::NONE).then_some(cx.call.id());
        while let Some(left) = cx.core.rooms().take_departure(only) {
            left.tell(|id, room, name| match only {
                Some(_) => hook(cx, room, name),
                None => hook(&mut cx.core.context(id), room, name),
            });
        }
    }

    /// Calls the hook before the session of this call leaves a room.
    pub(super) fn note_leave(&self, cx: &mut Context<'_>, room: RoomId) {
        if let Some(hook) = &self.hooks.leave
            && cx.session().is_in(room)
            && let (Some(room), Some(name)) = (cx.rooms().name_of(room), cx.rooms().name())
        {
            hook(cx, &room, &name);
        }
    }
}
