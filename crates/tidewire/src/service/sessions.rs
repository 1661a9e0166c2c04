//! Sessions from any thread: find one by its id, send to it, close it, and send to groups of them.
//!
//! ```text
//!   any thread ── find ──▶ table, one lock per lane, touched at opening and closing
//!        │
//!        └─ send, close, broadcast ──▶ the lane's mailbox ──▶ the session's output, written at the turn's end
//!                                      wakes only a lane that sleeps
//! ```
//!
//! A sent message takes the same path as a deferred answer: the sender frames it, puts it into the lane's mailbox,
//! and the lane appends it. The mailbox type has no bound, but its content has: every message first reserves room in
//! its session, and the room is released when the bytes have left the output. So after `Ok` only the end of the
//! connection can prevent delivery, and [`SendError::QueueFull`] is known at once.
//!
//! Rejected: a channel for each session (the lane would have to poll all channels), and refusing messages on the lane
//! when an output is full (the sender would never learn of it).

use std::sync::Arc;

use tidewire_io::clock::Moment;
use tidewire_io::socket::PeerCredentials;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::connection::Farewell;
use tidewire_proto::message::Message;

use crate::address::Endpoint;
use crate::broker::BackplaneLink;
use crate::engine::ServerShared;
use crate::mailbox::LaneMessage;
use crate::service::Context;
use crate::session::{
    Broadcast, Predicate, SendError, SessionId, SessionShared, SessionView, Share, encode_within,
    prepare,
};
use crate::transport::TransportKind;

/// The open sessions of a server, for any thread. Clones refer to the same sessions.
///
/// [`Server::sessions`](crate::Server::sessions) and [`Context::sessions`] return it.
///
/// ```
/// use std::sync::mpsc;
/// use tidewire::{Client, Context, Event, Kind, Message, Server};
///
/// let (seen, ids) = mpsc::channel();
/// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start(move |_| {
///     let seen = seen.clone();
///     move |cx: &mut Context<'_>, message: Message<'_>| {
///         let _ = seen.send(cx.id());
///         cx.reply(message.payload)
///     }
/// })?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// client.request(b"hello").wait()?;
///
/// let session = server.sessions().find(ids.recv()?).expect("it is open");
/// session.send(b"news")?;
/// let news = loop {
///     if let Event::Message(message) = client.next_event().wait() { break message };
/// };
/// assert_eq!(news.payload, b"news");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sessions {
    shared: Arc<ServerShared>,
}

/// One session, for any thread. Clones refer to the same session. A handle does not keep the session open.
/// [`Sessions`] has an example.
#[derive(Clone, Debug)]
pub struct SessionHandle {
    shared: Arc<ServerShared>,
    pub(super) session: Arc<SessionShared>,
}

impl Sessions {
    pub(crate) fn new(shared: Arc<ServerShared>) -> Self {
        Self { shared }
    }

    /// The way to the node, if the server has a backplane.
    pub(super) fn link(&self) -> Option<&Arc<BackplaneLink>> {
        self.shared.lanes.link()
    }

    /// Returns the session with this id, if it is open.
    #[must_use]
    pub fn find(&self, id: SessionId) -> Option<SessionHandle> {
        let session = self.shared.sessions.find(id)?;
        Some(self.handle(session))
    }

    /// Returns all sessions that are open now, lane by lane. The list is a snapshot: sessions in it may end at any
    /// time.
    #[must_use]
    pub fn list(&self) -> Vec<SessionHandle> {
        let sessions = self.shared.sessions.list().into_iter();
        sessions.map(|session| self.handle(session)).collect()
    }

    /// Sends a message to the session with this id, as [`SessionHandle::send`] does.
    ///
    /// # Errors
    /// See [`SendError`]. Nothing was sent.
    pub fn send_to(&self, id: SessionId, message: &Message<'_>) -> Result<(), SendError> {
        self.find(id).ok_or(SendError::NotOpen)?.send(message)
    }

    /// Closes the session with this id, as [`SessionHandle::close`] does.
    ///
    /// # Errors
    /// [`SendError::NotOpen`] if the session is not open.
    pub fn close(&self, id: SessionId) -> Result<(), SendError> {
        self.find(id).ok_or(SendError::NotOpen)?.close()
    }

    /// Sends one message to every accepted session that `predicate` selects, on all lanes. The message is framed once
    /// and sent to each lane once. The predicate runs on the lanes when the message arrives there. It must not block.
    /// A panic in it is counted and logged, and that session does not get the message.
    ///
    /// A session gets the sends and broadcasts of one thread in their order. The report says how many sessions
    /// matched and how many of them had full queues; it is complete when all lanes have handled the message. See
    /// [`Broadcast`].
    ///
    /// ```
    /// use tidewire::{Client, Kind};
    ///
    /// struct Group(u32);
    ///
    /// let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
    ///     cx.set_state(Group(7));
    ///     cx.reply(message.payload)
    /// })?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// client.request(b"hello").wait()?;
    ///
    /// let is_in = |group: &Group| group.0 == 7;
    /// let broadcast = server.sessions().broadcast_where(move |session| session.state().is_some_and(is_in), b"news")?;
    /// let report = broadcast.wait(); // or `.await`
    /// assert_eq!((report.matched, report.queued), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The codec cannot express the message, or the broadcasts in flight use all of
    /// [`MemoryLimits::broadcast_bytes_max`](crate::limits::MemoryLimits::broadcast_bytes_max)
    /// ([`SendError::QueueFull`]). Nothing was sent.
    pub fn broadcast_where<'m>(
        &self,
        predicate: impl Fn(&SessionView<'_>) -> bool + Send + Sync + 'static,
        message: impl Into<Message<'m>>,
    ) -> Result<Broadcast, SendError> {
        let message = message.into();
        let (broadcast, shares) = prepare_shares(&self.shared, Box::new(predicate), &message)?;
        post_shares(&self.shared, shares);
        Ok(broadcast)
    }

    fn handle(&self, session: Arc<SessionShared>) -> SessionHandle {
        SessionHandle {
            shared: Arc::clone(&self.shared),
            session,
        }
    }
}

impl SessionHandle {
    /// Returns the session's id.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.session.id
    }

    /// Whether the session is still open for sends.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.session.is_open()
    }

    /// Returns the peer's address. Clients of a Unix socket and of the same process have none.
    #[must_use]
    pub fn peer(&self) -> Option<&Endpoint> {
        self.session.peer.as_deref()
    }

    /// Returns the process, user and group of a peer that connected through a Unix socket, as they were at that
    /// moment.
    #[must_use]
    pub fn peer_credentials(&self) -> Option<PeerCredentials> {
        self.session.credentials
    }

    /// Returns the kind of transport that carries the session.
    #[must_use]
    pub fn transport(&self) -> TransportKind {
        self.session.transport
    }

    /// Returns the index of the session's lane.
    #[must_use]
    pub fn lane(&self) -> usize {
        self.session.id.lane()
    }

    /// Returns the session's codec.
    #[must_use]
    pub fn codec(&self) -> &AnyCodec {
        self.shared.config.codecs.get(self.session.codec_number())
    }

    /// Whether a lane of this server opened the connection, and not the peer.
    #[must_use]
    pub fn is_outgoing(&self) -> bool {
        self.session.outgoing
    }

    /// Returns when the session's handshake was done.
    #[must_use]
    pub fn opened_at(&self) -> Moment {
        Moment::from_ns(self.session.opened_ns)
    }

    /// Sends a message. After `Ok` the message is on its way, after all earlier ones of this thread. Only the end of
    /// the session can prevent its delivery. It is then counted in
    /// [`sends_undelivered`](crate::metrics::Metrics::sends_undelivered), unless its lane had already taken it.
    /// Consecutive messages share one write.
    ///
    /// # Errors
    /// [`SendError::NotOpen`] if the session has ended, [`SendError::QueueFull`] if more than
    /// [`ConnectionLimits::queue_bytes_max`](crate::limits::ConnectionLimits::queue_bytes_max) bytes from other threads
    /// wait for its peer, and [`SendError::Encode`] if the codec cannot express the message. Nothing was sent.
    pub fn send<'m>(&self, message: impl Into<Message<'m>>) -> Result<(), SendError> {
        let (Self { shared, session }, message) = (self, message.into());
        if !session.is_open() {
            return Err(SendError::NotOpen);
        }
        let mut frame = shared.spare_frames.take();
        let encoded = encode_within(session.frame_bytes_max, &mut frame, |out| {
            shared
                .config
                .codecs
                .get(session.codec_number())
                .encode(&message, out)
        });
        if let Err(error) = encoded {
            shared.spare_frames.put(frame);
            return Err(error.into());
        }
        let bytes = frame.len() + LaneMessage::OVERHEAD_BYTES;
        if !session.reserve(bytes, shared.config.limits.connections.queue_bytes_max()) {
            shared.spare_frames.put(frame);
            return Err(SendError::QueueFull);
        }
        let message = LaneMessage::Send {
            session: Arc::clone(session),
            frame,
        };
        self.post(message)
    }

    /// Closes the session after everything that was sent or answered before, as [`Context::close`] does. Its service
    /// sees [`CloseReason::Service`](crate::CloseReason::Service). [`SessionHandle::close_with`] also sends the peer
    /// a reason.
    ///
    /// # Errors
    /// [`SendError::NotOpen`] if the session is not open.
    pub fn close(&self) -> Result<(), SendError> {
        self.end(None)
    }

    pub(super) fn end(&self, farewell: Option<Box<Farewell>>) -> Result<(), SendError> {
        if !self.session.is_open() {
            return Err(SendError::NotOpen);
        }
        if !self.session.begin_close() {
            // Another thread has already requested the close.
            return Ok(());
        }
        let id = self.session.id;
        self.post(LaneMessage::Close { id, farewell })
    }

    pub(super) fn post(&self, message: LaneMessage) -> Result<(), SendError> {
        let lanes = self.shared.lanes.all();
        let lane = lanes.get(self.lane()).ok_or(SendError::NotOpen)?;
        lane.post(message).map_err(|_| SendError::NotOpen)
    }
}

impl Context<'_> {
    /// Returns the sessions of the whole server. The value may be kept and given to other threads.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        Sessions::new(Arc::clone(&self.core.shared))
    }

    /// Sends a broadcast, as [`Sessions::broadcast_where`] does. This lane's sessions get it at once. Sessions of other
    /// lanes may get it before or after messages that this handler sends with [`Context::send_to`].
    ///
    /// Do not [wait](Broadcast::wait) for the report here: it would block the lane. Pass it to another thread or
    /// await it elsewhere.
    ///
    /// # Errors
    /// The errors of [`Sessions::broadcast_where`].
    pub fn broadcast_where<'m>(
        &mut self,
        predicate: impl Fn(&SessionView<'_>) -> bool + Send + Sync + 'static,
        message: impl Into<Message<'m>>,
    ) -> Result<Broadcast, SendError> {
        let (shared, message) = (Arc::clone(&self.core.shared), message.into());
        let (broadcast, mut shares) = prepare_shares(&shared, Box::new(predicate), &message)?;
        let own = shares
            .iter()
            .position(|(lane, _)| *lane == self.core.exchange.lane())
            .map(|index| shares.swap_remove(index).1);
        post_shares(&shared, shares);
        if let Some(share) = own {
            share.deliver(&mut self.core.sessions);
        }
        Ok(broadcast)
    }
}

/// Frames a message and makes a share of it for every lane.
fn prepare_shares(
    shared: &ServerShared,
    predicate: Predicate,
    message: &Message<'_>,
) -> Result<(Broadcast, Vec<(usize, Share)>), SendError> {
    let lanes = shared.lanes.all().len();
    let under_way = &shared.broadcast_bytes;
    prepare(&shared.config, under_way, lanes, predicate, message)
}

fn post_shares(shared: &ServerShared, shares: Vec<(usize, Share)>) {
    let lanes = shared.lanes.all();
    for (lane, share) in shares {
        if let Some(lane) = lanes.get(lane) {
            // A lane that has ended returns the share, and dropping the share reports that.
            drop(lane.post(LaneMessage::Broadcast(share)));
        }
    }
}
