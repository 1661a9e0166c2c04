//! The conversation: the user's room, the effect of a line or an event, and the return to the room after a lost
//! connection.
//!
//! Requests block, at most for the client's request timeout: every answer of a chat server is immediate, and a
//! connection that ends fails them at once. This keeps the code sequential; a state machine of pending answers was
//! rejected for a program with one user.

use std::time::{Duration, Instant};

use tidewire::{
    Backoff, Client, Disconnected, Event, Kind, MemberId, OwnedMessage, RequestError, Room, RoomId,
    SendError,
};
use tidewire_proto::body::{ErrorCode, typed_name};
use tidewire_proto::message::{FLAG_PRIVATE, PresenceEvent};
use tidewire_proto::text::visible;

use super::command::{Command, HELP};
use super::members::Members;
use super::terminal::Screen;
use super::view::View;
use crate::failure::Failure;

/// A user's membership of a server's room, and their view of it.
pub(super) struct Conversation {
    client: Client,
    screen: Screen,
    view: View,
    name: String,
    room: String,
    /// The room's alias on this connection, or on the last one while `inside` is false.
    alias: RoomId,
    /// Whether the server has accepted us in the room on this connection.
    inside: bool,
    members: Members,
    /// Whether the connection has been open before. The first opening is not announced.
    opened_before: bool,
    /// Whether the user has been told that the connection is down.
    told_lost: bool,
    retry: Option<Retry>,
    /// Bytes sent since the last answer of the server.
    unanswered_bytes: usize,
    list_asked_at: Option<Instant>,
    /// Lines that were refused or not sent.
    refused: u64,
    /// Lines sent on this connection that the server has not confirmed by an answer.
    unanswered: u64,
    /// Lines sent on earlier connections that the server never confirmed.
    unconfirmed: u64,
}

/// The time of the next attempt to join, and the number of refusals so far.
#[derive(Clone, Copy)]
struct Retry {
    at: Instant,
    refusals: u32,
}

/// Whether the conversation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Quit,
}

/// An error means that the conversation cannot go on: the screen is closed, or the client ended.
type Result<T = ()> = anyhow::Result<T>;

impl Conversation {
    pub(super) fn new(
        client: Client,
        screen: Screen,
        view: View,
        name: String,
        room: String,
    ) -> Self {
        Self {
            client,
            screen,
            view,
            name,
            room,
            alias: RoomId(0),
            inside: false,
            members: Members::default(),
            opened_before: false,
            told_lost: false,
            retry: None,
            unanswered_bytes: 0,
            list_asked_at: None,
            refused: 0,
            unanswered: 0,
            unconfirmed: 0,
        }
    }

    /// Handles a successful join: at the start, after a change of room, or after a reconnect.
    pub(super) fn handle_entered(&mut self, joined: &Room) -> Result {
        self.alias = joined.id();
        self.inside = true;
        self.retry = None;
        let others = self.fetch_names().unwrap_or_default();
        let others: Vec<&str> = others
            .iter()
            .filter(|(member, _)| Some(*member) != joined.own_member())
            .map(|(_, name)| &**name)
            .collect();
        let count = joined.size_at_join().unwrap_or(0).max(others.len() + 1);
        let line = self.view.entered(&self.room, &self.name, &others, count);
        self.show(&line)
    }

    /// The time for the next call of [`Conversation::handle_retry`].
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry.map(|retry| retry.at)
    }

    pub(super) fn handle_retry(&mut self) -> Result<Flow> {
        let refusals = self.retry.take().map_or(0, |retry| retry.refusals);
        self.enter_again(refusals)?;
        Ok(Flow::Continue)
    }

    pub(super) fn handle_line(&mut self, line: &str) -> Result<Flow> {
        match Command::parse(line) {
            Command::Nothing => {}
            Command::Quit => return Ok(Flow::Quit),
            Command::Help => {
                for line in HELP {
                    self.notice(line)?;
                }
            }
            Command::Incomplete(usage) => self.unsent(&format!("write {usage}"))?,
            Command::Unknown(name) => {
                let name = visible(name.as_bytes());
                self.unsent(&format!("there is no command /{name}; /help lists them"))?;
            }
            Command::Say(text) => self.say(text)?,
            Command::Who => self.who()?,
            Command::Whisper { to, text } => self.whisper(to, text)?,
            Command::Join(room) => self.change_room(room)?,
        }
        Ok(Flow::Continue)
    }

    /// Handles the end of input: waits until the sent lines are confirmed or refused.
    pub(super) fn handle_end(&mut self) -> Result {
        if self.unanswered == 0 {
            return Ok(());
        }
        // Only the answer matters, which comes after a refusal of anything before it. A refused list is an answer too.
        match self.client.room(self.alias).members().wait() {
            Ok(_) | Err(RequestError::Refused { .. }) => Ok(()),
            Err(error) => {
                let lines = self.unanswered + self.unconfirmed;
                let what = format!("the last {lines} sent lines are not confirmed");
                Err(anyhow::Error::new(error).context(what))
            }
        }
    }

    /// The number of lines that were not sent or were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// The number of lines that were sent and neither confirmed nor refused.
    pub(super) fn unconfirmed(&self) -> u64 {
        self.unconfirmed
    }

    pub(super) fn handle_event(&mut self, event: Event) -> Result {
        match event {
            Event::Opened { .. } if !self.opened_before => self.opened_before = true,
            Event::Opened { .. } => {
                self.told_lost = false;
                // It may be another server now, with other numbers for other members.
                self.members.clear();
                self.notice("connected again")?;
                self.enter_again(0)?;
            }
            Event::Message(message) => self.handle_message(&message)?,
            Event::Presence {
                room,
                member,
                name,
                event,
            } => self.handle_presence(room, event, (member, &name))?,
            Event::Refused { text, .. } => self.handle_refusal(&text)?,
            Event::Gap { lost, .. } => self.show_gap(lost)?,
            Event::Closed { reason, text } => {
                if reason.is_final() {
                    let why = Disconnected { reason, text };
                    self.problem(&format!("the connection ended: {why}"))?;
                }
                // Some of the last lines may not have arrived, and no answer can say which.
                self.unconfirmed += std::mem::take(&mut self.unanswered);
                self.inside = false;
                self.retry = None;
            }
            Event::Reconnecting { delay, cause } => {
                let line = self.view.reconnecting(&cause, delay, self.told_lost);
                self.told_lost = true;
                self.show(&line)?;
            }
            Event::Lost { count } => self.show_gap(count)?,
            Event::Recovered { missing, .. } => match missing {
                Some(0) => self.notice("this was said meanwhile:")?,
                Some(count) => self.show_gap(count)?,
                None => self.notice("what was said meanwhile is missing, or a part of it")?,
            },
            Event::Ended => {
                return Err(Failure::other("the connection has ended for good", "").into());
            }
            _ => {}
        }
        Ok(())
    }

    fn handle_message(&mut self, message: &OwnedMessage) -> Result {
        match message.kind {
            Kind::Deliver if message.id == 0 && message.name.is_empty() => {
                let text = visible(&message.payload);
                self.notice(&format!("the room says: {text}"))
            }
            Kind::Deliver => {
                let name = match &*message.name {
                    "" => self.name_of(MemberId(message.id)),
                    // The message is older than our join, and its author may have left.
                    name => name.to_owned(),
                };
                let line = if message.flags & FLAG_PRIVATE == 0 {
                    self.view.message(&name, &message.payload)
                } else {
                    self.view.whispered(&name, &message.payload)
                };
                self.show(&line)
            }
            Kind::OneWay => {
                let text = visible(&message.payload);
                self.notice(&format!("the server says: {text}"))
            }
            _ => Ok(()),
        }
    }

    fn handle_refusal(&mut self, text: &str) -> Result {
        let text = visible(text.as_bytes());
        // This line is refused, so it is no longer unanswered.
        self.unanswered = self.unanswered.saturating_sub(1);
        self.unsent(&format!("the server refused your message: {text}"))
    }

    fn handle_presence(
        &mut self,
        room: RoomId,
        event: PresenceEvent,
        (member, name): (MemberId, &str),
    ) -> Result {
        // After a change of room, events of the old room may still arrive. Only their names are used.
        if !self.inside || room != self.alias {
            self.members.hear_of(member, name);
            return Ok(());
        }
        let line = match event {
            PresenceEvent::Here => {
                self.members.add(member, name);
                return Ok(());
            }
            PresenceEvent::Joined if self.members.add(member, name) => self.view.joined(name),
            // The list requested at joining already contained it.
            PresenceEvent::Joined => return Ok(()),
            PresenceEvent::Left => {
                self.members.remove(member, name);
                self.view.left(name)
            }
        };
        self.show(&line)
    }

    fn say(&mut self, text: &str) -> Result {
        if !self.may_send(text)? {
            return Ok(());
        }
        // A file from a pipe comes faster than a network takes it. An answer to a request means that the server has
        // read everything sent before, so the waiting bytes stay within the client's queues.
        if self.unanswered_bytes > UNANSWERED_BYTES_MAX {
            self.fetch_names();
        }
        self.unanswered_bytes += text.len() + MESSAGE_OVERHEAD_BYTES;
        loop {
            match self.client.room(self.alias).say(text.as_bytes()) {
                Ok(()) => {
                    self.unanswered += 1;
                    return Ok(());
                }
                Err(SendError::QueueFull) => std::thread::sleep(QUEUE_PAUSE),
                Err(error) => return Err(Failure::other(error.to_string(), "").into()),
            }
        }
    }

    fn whisper(&mut self, to: &str, text: &str) -> Result {
        if !self.may_send(text)? {
            return Ok(());
        }
        let to = &*typed_name(to);
        match self
            .client
            .room(self.alias)
            .whisper(to, text.as_bytes())
            .wait()
        {
            Ok(()) => {
                self.confirm();
                let line = self.view.whisper_sent(to, text);
                self.show(&line)
            }
            Err(RequestError::Refused {
                code: ErrorCode::NotFound,
                ..
            }) => {
                self.confirm();
                let to = visible(to.as_bytes());
                self.unsent(&format!("no member is called {to}; /who lists the names"))
            }
            // It was sent, and no answer is known.
            Err(error @ (RequestError::Closed(_) | RequestError::TimedOut)) => {
                self.unconfirmed += 1;
                let why = visible(error.to_string().as_bytes());
                self.problem(&format!("this may have been heard or not: {why}"))
            }
            Err(error) => self.not_done("this was not sent", &error),
        }
    }

    fn who(&mut self) -> Result {
        if !self.may_send("")? {
            return Ok(());
        }
        match self.client.room(self.alias).members().wait() {
            Ok(list) => {
                self.confirm();
                self.learn(&list);
                let names: Vec<&str> = list.iter().map(|(_, name)| &**name).collect();
                let line = self.view.roster(&self.room, &names);
                self.show(&line)
            }
            Err(error) => self.not_done("no list", &error),
        }
    }

    /// Joins the new room before leaving the old one: if it is refused, the user is still in a room.
    fn change_room(&mut self, room: &str) -> Result {
        if !self.may_send("")? {
            return Ok(());
        }
        let room = &*typed_name(room);
        if room == self.room {
            return self.notice("you are in that room already");
        }
        let joined = match self.client.join(room).named(&self.name).wait() {
            Ok(joined) => joined,
            Err(error) => return self.not_done("you stay where you are", &error),
        };
        let left = self.client.room(self.alias).leave().wait();
        self.room = room.to_owned();
        self.members.change_room();
        self.handle_entered(&joined)?;
        match left {
            Ok(()) => Ok(()),
            Err(error) => self.not_done("the old room was not left", &error),
        }
    }

    /// Joins the room again on a new connection.
    fn enter_again(&mut self, refusals: u32) -> Result {
        let error = match self.client.join(&self.room).named(&self.name).wait() {
            Ok(joined) => return self.handle_entered(&joined),
            Err(error) => error,
        };
        match error {
            // The connection was lost once more, and its next opening calls this again.
            RequestError::NotConnected
            | RequestError::CannotConnect { .. }
            | RequestError::Closed(_)
            | RequestError::Shutdown => Ok(()),
            // This connection was new before the first join, so that join's answer holds here.
            RequestError::Refused {
                code: ErrorCode::AlreadyJoined,
                ..
            } => {
                self.inside = true;
                Ok(())
            }
            // Most often the name is refused: the server holds it until it detects the end of the old connection.
            error => {
                let delay = RETRY.delay(refusals, fastrand::f64());
                self.retry = Some(Retry {
                    at: Instant::now() + delay,
                    refusals: refusals.saturating_add(1),
                });
                let again = format!("trying again in {:.1} s", delay.as_secs_f64());
                let why = visible(error.to_string().as_bytes());
                self.problem(&format!("not in the room yet; {again}: {why}"))
            }
        }
    }

    /// Returns whether a message can be sent now, and tells the user if not.
    fn may_send(&mut self, text: &str) -> Result<bool> {
        if !self.inside {
            self.unsent("not connected; this was not sent")?;
            return Ok(false);
        }
        if text.len() > TEXT_BYTES_MAX {
            let bytes = text.len();
            self.unsent(&format!(
                "{bytes} bytes are too long, {TEXT_BYTES_MAX} are allowed; this was not sent"
            ))?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Returns the name of a message's author. Large rooms do not announce new members, so the list is requested for an
    /// unknown number, though not for every message. Without a name, the number itself is shown.
    fn name_of(&mut self, id: MemberId) -> String {
        if self.members.name(id).is_none()
            && self.inside
            && self
                .list_asked_at
                .is_none_or(|at| at.elapsed() >= LIST_INTERVAL_MIN)
        {
            self.list_asked_at = Some(Instant::now());
            self.fetch_names();
        }
        match self.members.name(id) {
            Some(name) => name.to_owned(),
            None => format!("#{}", id.0),
        }
    }

    /// Requests the list of members. Returns `None` if the server refuses it, as it may for a large room.
    fn fetch_names(&mut self) -> Option<Vec<(MemberId, String)>> {
        let list = self.client.room(self.alias).members().wait();
        self.unanswered_bytes = 0;
        match list {
            Ok(list) => {
                self.confirm();
                self.learn(&list);
                Some(list)
            }
            Err(error) => {
                // The log escapes text, and the error may quote the server.
                let error = error.to_string();
                tracing::debug!(error, "no list of names");
                None
            }
        }
    }

    /// Handles an answer of the server: it has read all messages sent before.
    fn confirm(&mut self) {
        self.unanswered = 0;
        self.unanswered_bytes = 0;
    }

    fn learn(&mut self, list: &[(MemberId, String)]) {
        for (member, name) in list {
            self.members.add(*member, name);
        }
    }

    fn show_gap(&mut self, lost: u64) -> Result {
        let line = self.view.gap(lost);
        self.show(&line)
    }

    /// Tells the user that a command failed.
    fn not_done(&mut self, what: &str, error: &RequestError) -> Result {
        let why = visible(error.to_string().as_bytes());
        self.unsent(&format!("{what}: {why}"))
    }

    /// Counts a typed line that was not sent or was refused, and tells the user.
    fn unsent(&mut self, text: &str) -> Result {
        self.refused += 1;
        self.problem(text)
    }

    fn notice(&mut self, text: &str) -> Result {
        let line = self.view.notice(text);
        self.show(&line)
    }

    fn problem(&mut self, text: &str) -> Result {
        let line = self.view.problem(text);
        self.show(&line)
    }

    fn show(&mut self, line: &str) -> Result {
        Ok((self.screen)(line)?)
    }
}

/// Longest message, in bytes. It is well within every frame limit, and more than a person reads at once.
const TEXT_BYTES_MAX: usize = 64 * 1024;

/// A quarter of the default of `queue_bytes_max`. Above that limit the client drops what it cannot write.
const UNANSWERED_BYTES_MAX: usize = 256 * 1024;

/// The size of a frame's header, rounded up. It also bounds the number of empty messages that wait.
const MESSAGE_OVERHEAD_BYTES: usize = 64;

/// The pause while the client's queue is full.
const QUEUE_PAUSE: Duration = Duration::from_millis(1);

/// Minimum time between two lists requested for unknown numbers.
const LIST_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Pauses between attempts to join the room. The name of an ended connection is free after the idle timeout at the
/// latest.
const RETRY: Backoff = Backoff {
    first: Duration::from_millis(500),
    max: Duration::from_secs(5),
};
