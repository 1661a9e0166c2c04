//! Events of a client: messages, opening, closing, reconnecting. This module also has the ways to take the events of
//! clients and of subscriptions.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::{FusedStream, Stream};
use tidewire_proto::body::{ErrorCode, GapBody, PlacementBody, PresenceBody};
use tidewire_proto::message::{Kind, MemberId, Message, PresenceEvent, RoomId, SubscriptionId};

use super::Client;
use super::event_queue::{EventQueue, Queued, Waiter};
use crate::broker::Position;
use crate::on_lane;
use crate::session::CloseReason;

/// Something that happened at a client. [`Client::next_event`] and [`Client::events`] have examples.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The connection is open. After a reconnect, rooms must be joined again. A room that keeps a history then sends
    /// the messages in between, see [`Event::Recovered`].
    Opened {
        /// The server's description of itself, if the codec transmits one.
        agent: String,
    },
    /// A message that answers no request.
    Message(OwnedMessage),
    /// The server refused a message without a reply: to a room, a topic, or one way. [`Client::flush`] reports the
    /// first such refusal, too.
    Refused {
        /// The number of the room or method that the message was for; 0 if it had none.
        channel: u16,
        /// The reason, for programs.
        code: ErrorCode,
        /// The number of the reason on the wire. It says more than the code for codecs with numbers of their own.
        number: i32,
        /// The reason, for people. It is foreign text: pass it through [`visible`](tidewire_proto::text::visible)
        /// before you show it.
        text: String,
    },
    /// A member is in a room, came into it, or left it.
    Presence {
        /// The room.
        room: RoomId,
        /// The number of the member in the room.
        member: MemberId,
        /// The name of the member.
        name: String,
        /// The kind of news.
        event: PresenceEvent,
    },
    /// The server dropped messages before the next one of this channel, by the policy for slow subscribers.
    Gap {
        /// The number of the room or subscription.
        channel: u16,
        /// The number of dropped messages.
        lost: u64,
    },
    /// The connection ended, or the server refused it for good.
    Closed {
        /// The reason. If it [is final](CloseReason::is_final), no attempt to connect follows.
        reason: CloseReason,
        /// The server's explanation, or empty. It is foreign text: pass it through
        /// [`visible`](tidewire_proto::text::visible) before you show it.
        text: Arc<str>,
    },
    /// The next attempt to connect follows after a pause.
    Reconnecting {
        /// Length of the pause.
        delay: Duration,
        /// The error.
        cause: String,
    },
    /// The credentials of this connection expire soon, and the server will then end the connection. A client now
    /// requests newer credentials from its [provider](crate::auth::Credentials::provider), if any.
    CredentialsExpire {
        /// The time that is left.
        left: Duration,
    },
    /// Events were dropped at this position, because the application did not take them.
    Lost {
        /// Number of dropped events.
        count: u64,
    },
    /// A room that keeps a history was joined again. The messages that were said in between, and that the server still
    /// has, follow.
    Recovered {
        /// The room.
        room: RoomId,
        /// The number of missing messages; `None` if the server does not know it.
        missing: Option<u64>,
    },
    /// A handler of the server has put this client into a room. Its messages follow as [`Event::Message`] with this
    /// channel, and its members as [`Event::Presence`], until the connection ends or [`Event::Removed`].
    Joined {
        /// The room, for [`Client::room`].
        room: RoomId,
        /// The name of the room.
        room_name: String,
        /// The name of this client in the room.
        name: String,
        /// The number of this client in the room.
        member: MemberId,
        /// The number of members.
        members: usize,
    },
    /// A handler of the server has subscribed this client to a pattern. The messages follow as [`Event::Message`] with
    /// this channel, until the connection ends or [`Event::Removed`].
    Subscribed {
        /// The subscription.
        subscription: SubscriptionId,
        /// The pattern.
        pattern: String,
    },
    /// A handler of the server has taken this client out of a room, or has ended a subscription that a handler made.
    Removed {
        /// The number of the room or subscription.
        channel: u16,
    },
    /// The client has ended. No event follows.
    Ended,
}

/// A message that owns its name and its payload, taken from [`Event::Message`]. [`Sessions`](crate::Sessions) has an
/// example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedMessage {
    /// The kind of the message.
    pub kind: Kind,
    /// Bits whose meaning depends on the kind.
    pub flags: u8,
    /// Alias of a method, topic or room.
    pub channel: u16,
    /// Request id or origin.
    pub id: u32,
    /// Name of the method or topic. Empty if the channel identifies it.
    pub name: String,
    /// The payload.
    pub payload: Vec<u8>,
    /// The position of a message of a room that keeps a history, in the events of a client.
    pub position: Option<Position>,
}

/// An event that [`NextEvent`] takes: [`Event`] or [`TopicEvent`](crate::TopicEvent). Other types cannot implement it.
///
/// ```
/// use std::time::Duration;
///
/// use tidewire::{ClientEvent, NextEvent};
///
/// /// The next event of a client or of a subscription, within a second.
/// fn soon<E: ClientEvent>(next: NextEvent<'_, E>) -> Option<E> {
///     next.wait_for(Duration::from_secs(1))
/// }
/// ```
pub trait ClientEvent: Queued {}

/// The next event of a client or of a subscription, as [`Client::next_event`] and
/// [`Subscription::next_event`](crate::Subscription::next_event) give it: a future for any executor, with blocking
/// twins.
///
/// After the end it returns [`Event::Ended`] or [`TopicEvent::Ended`](crate::TopicEvent::Ended) at once, every time.
///
/// # Cancel safety
/// An event is taken when the future is ready, and not before. Dropping it earlier loses none.
#[derive(Debug)]
#[must_use = "it takes no event unless it is awaited or waited for"]
pub struct NextEvent<'a, E: ClientEvent> {
    queue: &'a EventQueue<E>,
    waiter: Waiter,
}

/// The events of a client as a stream, made by [`Client::events`]. It keeps its client alive.
///
/// The stream ends instead of returning [`Event::Ended`]. A poll after the end returns `None` again.
///
/// # Cancel safety
/// An event is taken when a poll is ready with it. Dropping a pending `next()` loses none.
#[derive(Debug)]
pub struct Events {
    client: Client,
    waiter: Waiter,
    has_ended: bool,
}

impl<'a, E: ClientEvent> NextEvent<'a, E> {
    pub(super) fn new(queue: &'a EventQueue<E>) -> Self {
        Self {
            queue,
            waiter: Waiter::default(),
        }
    }

    /// Blocks until there is an event.
    ///
    /// # Panics
    /// On a lane, because it would stop all sessions of the lane.
    #[must_use]
    pub fn wait(self) -> E {
        on_lane::refuse_to_wait();
        self.queue.next(None).unwrap_or_else(E::ended)
    }

    /// Blocks until there is an event. Returns `None` if the timeout passes first. With [`Duration::ZERO`] it does not
    /// block.
    ///
    /// # Panics
    /// On a lane, unless the timeout is zero.
    #[must_use]
    pub fn wait_for(self, timeout: Duration) -> Option<E> {
        if !timeout.is_zero() {
            on_lane::refuse_to_wait();
        }
        self.queue.next(Some(timeout))
    }
}

impl<E: ClientEvent> Future for NextEvent<'_, E> {
    type Output = E;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<E> {
        let queue = self.queue;
        queue.poll_next(&mut self.waiter, cx)
    }
}

impl<E: ClientEvent> Drop for NextEvent<'_, E> {
    fn drop(&mut self) {
        self.queue.forget(&mut self.waiter);
    }
}

impl Client {
    /// Returns the next event: await it, or wait for it. Several threads or tasks share the events; each event goes to
    /// one of them.
    ///
    /// ```
    /// # use tidewire::{Client, Event};
    /// # let server = tidewire::serve("tcp://127.0.0.1:0", |_, _| Ok(()))?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// assert!(matches!(client.next_event().wait(), Event::Opened { .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_event(&self) -> NextEvent<'_, Event> {
        NextEvent::new(&self.inner.link.events)
    }

    /// Returns the events as a stream. One thread can serve many clients with it: an executor polls the streams of all
    /// of them, and is woken for each that has an event.
    ///
    /// ```
    /// use std::future::poll_fn;
    /// use std::pin::Pin;
    ///
    /// use futures_core::Stream; // `StreamExt` of other crates has `next`
    /// use tidewire::{Client, Event};
    ///
    /// async fn count_messages(client: &Client) -> usize {
    ///     let mut events = client.events();
    ///     let mut messages = 0;
    ///     while let Some(event) = poll_fn(|cx| Pin::new(&mut events).poll_next(cx)).await {
    ///         messages += usize::from(matches!(event, Event::Message(_)));
    ///     }
    ///     messages
    /// }
    /// ```
    #[must_use]
    pub fn events(&self) -> Events {
        Events {
            client: self.clone(),
            waiter: Waiter::default(),
            has_ended: false,
        }
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let Self {
            client,
            waiter,
            has_ended,
        } = self.get_mut();
        poll_stream(&client.inner.link.events, waiter, has_ended, cx)
    }
}

impl FusedStream for Events {
    fn is_terminated(&self) -> bool {
        self.has_ended
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.client.inner.link.events.forget(&mut self.waiter);
    }
}

/// Polls the next item of a stream of this queue.
pub(super) fn poll_stream<E: Queued>(
    queue: &EventQueue<E>,
    waiter: &mut Waiter,
    has_ended: &mut bool,
    cx: &mut Context<'_>,
) -> Poll<Option<E>> {
    queue.poll_next(waiter, cx).map(|event| {
        *has_ended = event == E::ended();
        (!*has_ended).then_some(event)
    })
}

impl OwnedMessage {
    /// The room of the channel, for kinds of messages about a room.
    #[must_use]
    pub fn room(&self) -> RoomId {
        RoomId(self.channel)
    }
}

impl From<Message<'_>> for OwnedMessage {
    fn from(message: Message<'_>) -> Self {
        Self {
            kind: message.kind,
            flags: message.flags,
            channel: message.channel,
            id: message.id,
            name: message.name.to_owned(),
            payload: message.payload.to_vec(),
            position: None,
        }
    }
}

impl Event {
    /// The event for a message that answers nothing. A gap without a readable number counts as one lost message.
    pub(super) fn of_message(message: &Message<'_>) -> Self {
        if message.kind == Kind::Gap {
            return Self::Gap {
                channel: message.channel,
                lost: GapBody::decode(message.payload).map_or(1, |body| body.lost),
            };
        }
        if message.kind == Kind::Presence
            && let Ok(body) = PresenceBody::decode(message.payload)
        {
            return Self::Presence {
                room: message.room(),
                member: body.member,
                name: body.name.to_owned(),
                event: body.event,
            };
        }
        Self::Message((*message).into())
    }

    pub(super) fn of_placement(channel: u16, placement: &PlacementBody<'_>) -> Self {
        match *placement {
            PlacementBody::Joined {
                member,
                members,
                room,
                name,
            } => Self::Joined {
                room: RoomId(channel),
                room_name: room.to_owned(),
                name: name.to_owned(),
                member,
                members: members as usize,
            },
            PlacementBody::Subscribed { pattern } => Self::Subscribed {
                subscription: SubscriptionId(channel),
                pattern: pattern.to_owned(),
            },
            PlacementBody::Out => Self::Removed { channel },
        }
    }
}

impl ClientEvent for Event {}

impl Queued for Event {
    fn lost(count: u64) -> Self {
        Self::Lost { count }
    }

    fn ended() -> Self {
        Self::Ended
    }

    fn missing(&self) -> u64 {
        match self {
            Self::Lost { count } => *count,
            Self::Gap { lost, .. } => *lost,
            Self::Recovered { missing, .. } => missing.unwrap_or(0),
            _ => 0,
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Opened { agent: text } | Self::Reconnecting { cause: text, .. } => text.len(),
            Self::Message(message) => message.name.len() + message.payload.len(),
            Self::Joined {
                room_name, name, ..
            } => room_name.len() + name.len(),
            Self::Subscribed { pattern, .. } => pattern.len(),
            Self::Presence { name: text, .. } | Self::Refused { text, .. } => text.len(),
            Self::Closed { text, .. } => text.len(),
            Self::CredentialsExpire { .. }
            | Self::Lost { .. }
            | Self::Gap { .. }
            | Self::Removed { .. }
            | Self::Recovered { .. }
            | Self::Ended => 0,
        }
    }

    fn topic(&self) -> Option<&Arc<str>> {
        None
    }
}
