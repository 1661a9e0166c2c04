//! Services: the application's code that handles messages.

mod async_service;
mod boxed;
mod call;
mod chat;
mod closing;
mod connection_actions;
mod context;
mod error;
mod part;
mod permission;
mod pubsub;
mod reading;
mod room_actions;
mod router;
mod sender;
mod session_address;
mod sessions;
mod state;
mod timer_actions;
mod topic_actions;
mod upstream;

use tidewire_io::clock::Moment;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::message::{Kind, Message};

pub use async_service::{AsyncRequest, AsyncService};
pub(crate) use boxed::BoxedService;
use call::CallState;
pub use call::Deferred;
pub use chat::{Chat, ChatMessage};
pub use connection_actions::ConnectionActions;
pub use context::Context;
pub(crate) use error::refusal;
pub use error::{HandlerError, HandlerResult};
pub use part::Part;
pub use permission::ActionKind;
pub use pubsub::PubSub;
pub use room_actions::RoomActions;
pub use router::{Methods, Router};
pub use sender::SessionSender;
pub use session_address::SessionAddress;
pub use sessions::{SessionHandle, Sessions};
pub use timer_actions::TimerActions;
pub use topic_actions::TopicActions;
pub use upstream::{Upstream, UpstreamError};
pub(crate) use upstream::{
    UpstreamSessions, end_idle_upstreams, forget_asker, handle_node_answer, handle_upstream_end,
    handle_upstream_found, handle_upstream_timer, run_answers,
};

use crate::session::CloseReason;
use crate::transport::ConnectError;

/// The application's code behind a lane's sessions. Each lane has its own instance, so its state needs no lock. State
/// that all lanes must see is behind an `Arc` that the instances share, and is atomic or locked. A lock that is held
/// for long makes lanes wait for each other.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tidewire::{Client, Context, HandlerResult, Message, Server, Service};
///
/// #[derive(Clone, Default)]
/// struct Visitors(Arc<AtomicU64>);
///
/// impl Service for Visitors {
///     fn on_open(&mut self, _: &mut Context<'_>) {
///         self.0.fetch_add(1, Ordering::Relaxed);
///     }
///
///     fn on_message(&mut self, cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
///         cx.reply(self.0.load(Ordering::Relaxed).to_string().as_bytes())
///     }
/// }
///
/// let visitors = Visitors::default();
/// let server = Server::builder()
///     .lanes(2)
///     .listen("tcp://127.0.0.1:0")?
///     .start(|_| visitors.clone())?;
/// let _first = Client::connect(&server.to_string()).wait()?;
/// let second = Client::connect(&server.to_string()).wait()?;
/// assert_eq!(second.request(b"how many?").wait()?.payload(), b"2");
/// assert_eq!(visitors.0.load(Ordering::Relaxed), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A method must not block: while it runs, the lane serves no other session. It runs on the lane's own thread, or on
/// the thread of a caller in the same process while the lane sleeps. One thread at a time runs a lane.
///
/// # Panics
/// A panic ends the session that the call is about, after the answers given so far. Its reason is
/// [`CloseReason::HandlerPanicked`], [`Metrics::handler_panics`](crate::metrics::Metrics::handler_panics) counts it,
/// and the log has its text. All other sessions go on.
///
/// The service goes on, too, although the panic may have left one of its fields in the middle of a change. A service
/// that must not go on so repairs itself, or begins anew, in [`Self::on_panic`]. What belongs to a session is safest in
/// the session ([`Context::set_state`]): it ends with the session that panicked.
///
/// The lane ends only if [`Self::on_panic`] panics, if [`Self::on_turn`] panics in three turns in a row, or if
/// [`Self::has_work`] panics. The lane's sessions are then closed as `lane_failed`, another lane takes its listeners
/// over, and [`Server::wait`](crate::Server::wait) returns an error.
pub trait Service: Send + 'static {
    /// Called when a session is ready for messages: it is accepted or connected, and its handshake is done.
    fn on_open(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Handles a message of any kind. The message borrows the lane's receive buffer and is valid during this call
    /// only.
    ///
    /// The default calls [`Self::on_request`] or [`Self::on_one_way`] and refuses every other kind with
    /// [`ErrorCode::Unsupported`]. Implement either this method or those two: if a service implements this one, the
    /// other two are not called.
    ///
    /// # Errors
    /// A [`HandlerError`] is counted. If the message was a request, it is also sent back as a typed error.
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match message.kind {
            Kind::Request => self.on_request(cx, message),
            Kind::OneWay => self.on_one_way(cx, message),
            _ => Err(not_handled(NO_SUCH_KIND)),
        }
    }

    /// Handles a request. Its sender waits for [`Context::reply`], now or through [`Context::defer`].
    ///
    /// The default refuses the request with [`ErrorCode::Unsupported`]. Codecs whose messages have no kinds, such as
    /// `lines` and `raw`, pass every message to [`Self::on_one_way`].
    ///
    /// ```
    /// use tidewire::{Client, Context, HandlerResult, Message, Server, Service};
    ///
    /// #[derive(Default)]
    /// struct Sum(u64);
    ///
    /// impl Service for Sum {
    ///     fn on_request(&mut self, cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
    ///         cx.reply(self.0.to_string().as_bytes())
    ///     }
    ///
    ///     fn on_one_way(&mut self, _: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    ///         self.0 += message.payload.len() as u64;
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(Sum::default())?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// client.send(b"12345")?;
    /// assert_eq!(client.request(b"how many bytes?").wait()?.payload(), b"5");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Self::on_message`].
    fn on_request(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let _ = (cx, message);
        Err(not_handled(NO_REQUESTS))
    }

    /// Handles a one-way message. Its sender waits for no answer, unless the codec cannot tell the message from a
    /// request.
    ///
    /// The default refuses the message and counts it in [`Metrics::refused`](crate::metrics::Metrics::refused).
    ///
    /// # Errors
    /// A [`HandlerError`] is counted. It is sent to the peer only if the codec has no ids, because the sender may
    /// then wait for an answer.
    fn on_one_way(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let _ = (cx, message);
        Err(not_handled(NO_ONE_WAY))
    }

    /// Returns what a message asks for, so that the lane checks whether the peer may do that. It is called only for
    /// peers whose [permissions](crate::auth::Permissions) do not allow everything, and once for consecutive messages
    /// of the same kind, channel and name. If the payload matters too, return [`ActionKind::Free`] for what needs no
    /// permission and the same kind for everything else. The default is that of the message's kind, and a call for
    /// kinds that need no permission of [`Chat`](crate::Chat) and [`PubSub`](crate::PubSub): this service may handle
    /// them otherwise.
    fn action(&self, cx: &Context<'_>, message: &Message<'_>) -> ActionKind {
        let _ = cx;
        ActionKind::strictest(message.kind)
    }

    /// Called when a timer fires that [`Context::timers`] set with this token. The
    /// call is about the session of the timer. For a timer of the lane, [`Context::id`] is
    /// [`SessionId::NONE`](crate::SessionId::NONE).
    fn on_timer(&mut self, cx: &mut Context<'_>, token: u64) {
        let _ = (cx, token);
    }

    /// Called when an open session has ended. Sends to it are ignored from now on.
    fn on_close(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        let _ = (cx, reason);
    }

    /// Called when a connection of [`Context::connections`] failed. The call is about its session, which ends after it.
    fn on_connect_failed(&mut self, cx: &mut Context<'_>, error: ConnectError) {
        let _ = (cx, error);
    }

    /// Called after a call of this service has panicked, before any other call. The panic may have left `self` in the
    /// middle of a change. The default keeps `self` as it is, which is right for a service without state of its own,
    /// for state that is behind an `Arc`, and where each change is complete before anything can panic. Other services
    /// repair what may be torn, or begin anew:
    ///
    /// ```
    /// use tidewire::{Context, HandlerResult, Message, Service};
    ///
    /// #[derive(Default)]
    /// struct Totals {
    ///     readings: u64,
    ///     bytes: u64,
    /// }
    ///
    /// impl Service for Totals {
    ///     fn on_one_way(&mut self, _: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    ///         self.readings += 1;
    ///         let text = std::str::from_utf8(message.payload).expect("devices send text");
    ///         self.bytes += text.len() as u64;
    ///         Ok(())
    ///     }
    ///
    ///     fn on_panic(&mut self, _: &mut Context<'_>) {
    ///         *self = Self::default();
    ///     }
    /// }
    /// ```
    ///
    /// The call is about no session. If it panics, the lane ends.
    fn on_panic(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Called once per turn of the lane, after its messages. Returns the time at which it must run again even if
    /// nothing happens.
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        let _ = cx;
        None
    }

    /// Whether another thread has left work for `on_turn`. The lane calls it again after it has announced that it
    /// will sleep, so that a wake at that moment is not lost.
    fn has_work(&self) -> bool {
        false
    }
}

/// Returns the closure. It fixes the types of the arguments, so that they need no annotation where a service is
/// expected.
///
/// ```
/// use tidewire::{Client, Server, handler};
///
/// let server = Server::builder()
///     .listen("tcp://127.0.0.1:0")?
///     .start_one(handler(|cx, message| cx.reply(message.payload)))?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn handler<F>(closure: F) -> F
where
    F: FnMut(&mut Context<'_>, Message<'_>) -> HandlerResult + Send + 'static,
{
    closure
}

impl<F> Service for F
where
    F: FnMut(&mut Context<'_>, Message<'_>) -> HandlerResult + Send + 'static,
{
    /// A closure handles messages of every kind in the same way, so each of them is a call.
    #[inline]
    fn action(&self, _: &Context<'_>, _: &Message<'_>) -> ActionKind {
        ActionKind::Call
    }

    #[inline]
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        self(cx, message)
    }

    #[inline]
    fn on_request(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        self(cx, message)
    }

    #[inline]
    fn on_one_way(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        self(cx, message)
    }
}

/// Returns the refusal of a message that the service has no method for.
#[cold]
fn not_handled(text: &'static str) -> HandlerError {
    HandlerError::new(ErrorCode::Unsupported, text)
}

const NO_REQUESTS: &str = "this service takes no requests";

const NO_ONE_WAY: &str = "this service takes no one-way messages";

const NO_SUCH_KIND: &str = "this service takes requests and one-way messages only";
