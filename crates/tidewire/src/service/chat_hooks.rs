//! What a program can say about a chat: who may come in, what may be said, and who has left.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Chat, Context, HandlerResult};
use crate::room::{History, RoomError};
use crate::session::SessionId;

/// A message that a member is about to say in a room, as the hook of [`Chat::on_say`] sees it.
#[derive(Debug)]
pub struct ChatMessage<'a> {
    /// The name of the room.
    pub room: &'a str,
    /// The name of the member who says it.
    pub from: &'a str,
    /// The name of the only member who gets it; `None` if it is for the room.
    pub to: Option<&'a str>,
    /// The message. A hook may change it.
    pub payload: Cow<'a, [u8]>,
}

/// The hooks of a chat. None of them costs anything before it is set.
#[derive(Clone, Default)]
pub(super) struct Hooks {
    pub(super) join: Option<JoinHook>,
    pub(super) message: Option<MessageHook>,
    pub(super) leave: Option<LeaveHook>,
}

pub(super) type JoinHook = Arc<dyn Fn(&mut Context<'_>, &str, &str) -> HandlerResult + Send + Sync>;

pub(super) type MessageHook =
    Arc<dyn Fn(&mut Context<'_>, &mut ChatMessage<'_>) -> HandlerResult + Send + Sync>;

pub(super) type LeaveHook = Arc<dyn Fn(&mut Context<'_>, &str, &str) + Send + Sync>;

impl Chat {
    /// Tells whoever joins a room what was said there before: the newest messages within the limits of `history`, in front of
    /// everything that is said later. Whispers are not kept.
    ///
    /// A member hears every message once. What is on its way between lanes at the moment of a join comes as a live
    /// message, behind the history, though somebody else may have said something of the history later. What one member
    /// says is always in order.
    ///
    /// Over `tw1` a message of the history is a [`Kind::Deliver`](crate::Kind::Deliver) that has its author's name, because the
    /// author may have left; over other codecs it looks like any other.
    ///
    /// ```
    /// use tidewire::{Chat, Client, Event, History, Kind, Server};
    ///
    /// let server = Server::builder()
    ///     .listen("tcp://127.0.0.1:0")?
    ///     .start(|_| Chat::new().history(History::last(50)))?;
    /// let ada = Client::connect(&server.to_string()).wait()?;
    /// let room = ada.join("lobby", "ada").wait()?.room;
    /// ada.say(room, b"is anybody here?")?;
    /// ada.list(room).wait()?; // What ada said is said by now.
    ///
    /// let bob = Client::connect(&server.to_string()).wait()?;
    /// bob.join("lobby", "bob").wait()?;
    /// let told = loop {
    ///     if let Event::Message(message) = bob.next_event().wait()
    ///         && message.kind == Kind::Deliver { break message };
    /// };
    /// assert_eq!((&*told.name, &told.payload[..]), ("ada", &b"is anybody here?"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn history(mut self, history: History) -> Self {
        self.history = Some(history);
        self
    }

    /// Calls `hook` with the names of the room and of the member before somebody joins. An error refuses it, and its code and
    /// text are the answer. Names are checked after it, so it may see one that is taken or not allowed. It runs on the
    /// lane's thread and must not block, like a handler.
    ///
    /// ```
    /// use tidewire::{Chat, Client, ErrorCode, HandlerError, Server};
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start(|_| {
    ///     Chat::new().on_join(|_, _room, name| match name {
    ///         "eve" => Err(HandlerError::new(ErrorCode::NameInvalid, "eve is banned")),
    ///         _ => Ok(()),
    ///     })
    /// })?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// assert!(client.join("lobby", "eve").wait().is_err());
    /// assert!(client.join("lobby", "ada").wait().is_ok());
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

    /// Calls `hook` with each message before anybody gets it, whispers too. It may change what is said; an error refuses the
    /// message, and its code and text go to the member who wanted to say it. It runs as that of [`Chat::on_join`].
    ///
    /// It sees only what would be said without it: by a member of the room, not too large for it, while there is memory for it, and
    /// to somebody who is there. What it puts in its place may be refused after it. So may a whisper whose receiver is on
    /// another lane, or takes no more for now.
    ///
    /// ```
    /// use tidewire::{Chat, Client, ErrorCode, Event, HandlerError, Kind, Server};
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start(|_| {
    ///     Chat::new().on_say(|_, message| match message.payload.is_empty() {
    ///         true => Err(HandlerError::new(ErrorCode::MalformedBody, "say something")),
    ///         false => {
    ///             message.payload.to_mut().make_ascii_uppercase();
    ///             Ok(())
    ///         }
    ///     })
    /// })?;
    /// let [ada, bob] = [(); 2].map(|()| Client::connect(&server.to_string()).wait());
    /// let (ada, bob) = (ada?, bob?);
    /// let room = ada.join("lobby", "ada").wait()?.room;
    /// bob.join("lobby", "bob").wait()?;
    /// ada.say(room, b"hello")?;
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

    /// Calls `hook` with the names of the room and of the member when somebody leaves a room, once for each time and each room.
    /// The call is about the session that leaves. It runs as that of [`Chat::on_join`].
    ///
    /// Where the member asks to leave, and where its session ends for whatever reason, that is just before it leaves. Where a
    /// handler takes it out, by [`Context::remove_member`] or [`Context::leave`], it is soon after that, on the member's own
    /// lane, and before anything else that the member does. A lane that panics tells nobody.
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
    /// client.join("lobby", "ada").wait()?;
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

    /// Runs the hook for what the session of this call is about to say, and then `say` with what may be said.
    pub(super) fn with_message(
        &self,
        cx: &mut Context<'_>,
        room: u16,
        to: Option<&str>,
        payload: &[u8],
        say: impl FnOnce(&mut Context<'_>, &[u8]) -> HandlerResult,
    ) -> HandlerResult {
        let Some(hook) = &self.hooks.message else {
            return say(cx, payload);
        };
        // What is refused anyway is not the hook's business.
        let mut rooms = cx.core.rooms();
        match to {
            Some(to) => rooms.check_whisper(cx.id, room, to)?,
            None => rooms.check_say(cx.id, room, payload.len())?,
        }
        let (Some(room), Some(from)) = (cx.room_name(room), cx.member_name()) else {
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

    /// Tells the hook of the rooms that a handler took the session of this call out of, or, in a call without one, any session.
    pub(super) fn tell_departures(&self, cx: &mut Context<'_>) {
        let Some(hook) = &self.hooks.leave else {
            return;
        };
        let only = (cx.id != SessionId::NONE).then_some(cx.id);
        while let Some(left) = cx.core.rooms().take_departure(only) {
            match only {
                Some(_) => hook(cx, &left.room, &left.name),
                None => hook(&mut cx.core.context(left.id), &left.room, &left.name),
            }
        }
    }

    /// The session of this call is about to leave a room.
    pub(super) fn note_leave(&self, cx: &mut Context<'_>, room: u16) {
        if let Some(hook) = &self.hooks.leave
            && cx.is_in_room(room)
            && let (Some(room), Some(name)) = (cx.room_name(room), cx.member_name())
        {
            hook(cx, &room, &name);
        }
    }
}
