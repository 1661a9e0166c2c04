//! A client for programs that are not lanes: threads, scripts, async tasks.
//!
//! The connection lives on its own lane. A call puts a submission into a bounded queue. The thread that waits for the
//! reply runs the lane's turns itself; the lane's own thread does when no thread waits (`waiting.rs`). The lane
//! publishes the replies of a turn in blocks. Each call returns a future that runs on any executor and has a blocking
//! twin.

mod builder;
mod dialing;
mod effect;
mod error;
mod event_queue;
mod events;
mod holdings;
mod link;
mod moving;
mod operation;
mod pending;
mod renewal;
pub(crate) mod reply;
mod request;
mod rooms;
mod service;
mod slots;
mod submissions;
mod subscription;
mod sync;
mod table;
mod unconfirmed;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use tidewire_io::clock::now_ns;
use tidewire_proto::body::GoAwayCode;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::connection::Farewell;
use tidewire_proto::message::Message;

pub use crate::dial::Backoff;
pub use builder::ClientBuilder;
pub use error::{Disconnected, RequestError};
pub use event_queue::WhenEventsFull;
pub use events::{ClientEvent, Event, Events, NextEvent, OwnedMessage};
pub use operation::{Closing, Connecting, Operation};
pub use reply::Reply;
pub(crate) use request::Payload;
pub use request::{Call, Request};
pub use rooms::{Join, Room};
pub use submissions::WhenWindowFull;
pub use subscription::{Subscribe, Subscription, TopicEvent, TopicMessage};

use crate::address::Endpoint;
use crate::limits::nanoseconds;
use crate::observe::Metrics;
use crate::server::Server;
use crate::session::{SendError, encode_within};
use link::{Control, Link};

/// A connection to a server, shared by any number of threads and tasks. Clones are handles to the same connection.
///
/// A thread that waits for its client does the client's work itself, one thread at a time, and wakes no other thread.
/// So [layers](ClientBuilder::layers), the wakers of tasks and the log may be called on any thread that waits: wait
/// with no lock that they take. When no thread waits, the client's own thread works: at once for messages and tasks,
/// and after 1 to 2 ms for a request that was sent and that nobody waits for.
///
/// A child by `fork` has no client of its parent: its calls fail at once, with [`RequestError::OtherProcess`] or
/// [`SendError::OtherProcess`], its events have ended, and a drop does nothing. Connect after the fork.
///
/// ```
/// use tidewire::Client;
///
/// let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
///     cx.reply(message.payload)
/// })?;
/// let client = Client::connect(&server.to_string()).wait()?; // or `.await?`
/// assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
/// client.send(b"no answer needed")?;
/// client.close().wait();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    link: Arc<Link>,
    codec: AnyCodec,
    /// Whether replies can be matched to requests. False over UDP without ids, because a reply may be lost.
    matches_replies: bool,
    request_timeout_ns: u64,
    close_timeout: Duration,
    linger: Duration,
    when_window_full: WhenWindowFull,
    /// Resolution of the coarse clock, in nanoseconds: the clock may be late by this much.
    coarse_tick_ns: u64,
    /// Last field, so that it is dropped last: dropping it joins the lane's thread.
    lane: Server,
}

impl Client {
    /// Connects with the native protocol and the default limits. Await the client, or [`wait`](Connecting::wait) for
    /// it.
    ///
    /// # Errors
    /// See [`ConnectError`](crate::ConnectError).
    pub fn connect(address: &str) -> Connecting {
        Self::builder().connect(address)
    }

    /// Starts the settings of a client.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Sends a message that has no reply: a payload as a one-way message, or any [`Message`], for example
    /// `Message::one_way(b"..").with_name("method")`. It costs a copy, and no system call while the lane is awake. It
    /// is written at the end of the lane's turn, together with other messages. It never waits.
    ///
    /// # Errors
    /// [`SendError::QueueFull`] if the queue to the lane is full, [`SendError::Ended`] if the client has ended, and
    /// [`SendError::Encode`] if the codec cannot express the message or it is too large. With `Ok` the message is on
    /// its way to the socket. If the connection ends first, an [`Event::Lost`] reports the loss. [`Client::flush`]
    /// confirms that the server has it.
    pub fn send<'a>(&self, message: impl Into<Message<'a>>) -> Result<(), SendError> {
        let Inner { link, codec, .. } = &*self.inner;
        let (limit, message) = (link.table.frame_bytes_max(), message.into());
        link.table
            .send(|out| encode_within(limit, out, |out| codec.encode(&message, out)))
    }

    /// Returns the endpoint of the last open connection: for a host name, the address that won. `None` before the first
    /// connection.
    ///
    /// ```
    /// use tidewire::Client;
    /// # let server = tidewire::serve("tcp://127.0.0.1:0", |_, _| Ok(()))?;
    /// # let port = server.addresses()[0].socket_address().unwrap().port();
    /// let client = Client::connect(&format!("tcp://localhost:{port}")).wait()?;
    /// assert_eq!(client.endpoint().as_ref(), Some(&server.addresses()[0]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        self.inner.link.endpoint()
    }

    /// Returns the counters of this client's lane.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.inner.lane.metrics()
    }

    /// Writes the queued messages, closes the connection and ends the client, at the latest after
    /// [`ClientBuilder::close_timeout`]. Messages that the server has not accepted by then are dropped, and
    /// [`Event::Lost`] has the number of one-way messages in the queue. A client that is [connecting
    /// lazily](ClientBuilder::connect_lazy) and has taken messages waits for its attempt to connect and sends them.
    /// Closing does not wait for the replies to requests. The remaining events, and [`Event::Ended`] after them, can
    /// still be taken. Dropping the last clone closes, too, but waits for [`ClientBuilder::linger`] at most, and does
    /// not report lost messages.
    ///
    /// The client begins to close at this call. Await the end, [`wait`](Closing::wait) for it, or ignore it.
    pub fn close(&self) -> Closing {
        self.begin_close(None)
    }

    /// Closes as [`Client::close`] does, and sends the server the reason: a code for programs, and a text for people of
    /// at most 255 bytes. A longer text is cut. The server's service sees
    /// [`CloseReason::GoAway`](crate::CloseReason::GoAway) with the code, and reads the text with
    /// [`SessionView::peer_farewell`](crate::SessionView::peer_farewell). Only `tw1` can express a reason. With other
    /// codecs this is a plain close. Only the first close of a client has an effect.
    pub fn close_with(&self, code: GoAwayCode, text: &str) -> Closing {
        self.begin_close(Some(Box::new(Farewell::new(code, text))))
    }

    fn begin_close(&self, farewell: Option<Box<Farewell>>) -> Closing {
        let timeout_ns = nanoseconds(self.inner.close_timeout);
        let at_ns = now_ns().saturating_add(timeout_ns);
        // The only error is that the client has ended already.
        let _ = self.inner.link.close_by(at_ns, Control::Close(farewell));
        Closing::new(self.clone())
    }
}

impl Drop for Inner {
    /// The link may outlive the client, because another thread can still hold a reference to it. In a child by `fork` a
    /// drop does nothing.
    fn drop(&mut self) {
        if !self.link.table.is_here() {
            return;
        }
        self.link.events.discard();
        request::drop_shares(&self.link);
        if !self.linger.is_zero() {
            let at_ns = now_ns().saturating_add(nanoseconds(self.linger));
            // The only error is that the client has ended already.
            let _ = self.link.close_by(at_ns, Control::Dropped);
            self.lane.leave();
        }
    }
}
