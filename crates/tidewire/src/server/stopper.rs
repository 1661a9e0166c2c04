//! The end of a server from any thread or handler: a handle that asks for the end, and a future that waits for it.

use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tidewire_io::clock::now_ns;

use super::operation::Readiness;
use crate::lane::Ended;
use crate::limits::nanoseconds;
use crate::mailbox::LaneMessage;
use crate::transport::inproc;

/// Ends a server from any thread, task or handler. Clones are handles to the same server, and keep it neither running
/// nor in memory. [`Server::stopper`](crate::Server::stopper) gives it.
///
/// ```
/// use std::time::Duration;
/// use tidewire::Client;
///
/// let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| cx.reply(message.payload))?;
/// let stopper = server.stopper();
/// let client = Client::connect(&server.to_string()).wait()?;
/// std::thread::spawn(move || stopper.shutdown(Duration::from_secs(5)));
/// # client.close().wait();
/// let metrics = server.wait()?; // or `server.stopped().await`
/// assert_eq!(metrics.sessions_opened, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stopper {
    readiness: Readiness,
    /// In-process names. They become free when the server stops.
    names: Arc<Mutex<Vec<inproc::Bound>>>,
    ended: Arc<Ended>,
}

impl Stopper {
    pub(super) fn new(readiness: Readiness) -> Self {
        Self {
            readiness,
            names: Arc::default(),
            ended: Arc::default(),
        }
    }

    /// Says from now on that the server is not [ready](crate::metrics::Inspector::is_ready). The server goes on to
    /// serve and to accept; a load balancer that asks sends new clients elsewhere. [`Self::shutdown`] does this, too.
    ///
    /// ```
    /// let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| cx.reply(message.payload))?;
    /// let inspector = server.inspector();
    /// assert!(inspector.is_ready());
    /// server.stopper().withdraw(); // and after a while `server.shutdown(..)`
    /// assert!(!inspector.is_ready());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn withdraw(&self) {
        self.readiness.withdraw();
    }

    /// Begins the end of the server, and does not wait for it: the server stops accepting, sends every peer a go-away,
    /// lets sessions finish until `deadline`, and ends. Later calls change nothing.
    pub fn shutdown(&self, deadline: Duration) {
        let deadline_ns = now_ns().saturating_add(nanoseconds(deadline));
        self.tell(&|| LaneMessage::Drain { deadline_ns });
    }

    /// Returns a future that is ready when all lanes have ended. [`Server::wait`](crate::Server::wait) is its blocking
    /// twin, and returns at once then. Dropping the future changes nothing.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let ended = Arc::clone(&self.ended);
        poll_fn(move |cx| match ended.is_over(cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
    }

    /// Whether the lanes are in this process. They are not in a child by `fork`, where another thread may have held a
    /// lock, which stays locked for ever.
    pub(super) fn is_here(&self) -> bool {
        self.readiness.lanes().iter().all(|lane| lane.is_here())
    }

    /// Sends a message to all lanes. It waits for none of them.
    pub(super) fn tell(&self, message: &dyn Fn() -> LaneMessage) {
        if !self.is_here() {
            return;
        }
        self.leave();
        for lane in self.readiness.lanes() {
            // A lane that has ended ignores the message.
            lane.post_to_itself(message());
        }
    }

    /// Says that the server takes no new clients, and frees its in-process names.
    pub(super) fn leave(&self) {
        self.readiness.withdraw();
        self.names().clear();
    }

    pub(super) fn ended(&self) -> &Arc<Ended> {
        &self.ended
    }

    pub(super) fn keep(&self, name: inproc::Bound) {
        self.names().push(name);
    }

    /// Leaves the names as they are for ever: this process is a child by `fork`, where they belong to no thread.
    pub(super) fn forget(&self) {
        std::mem::forget(Arc::clone(&self.names));
    }

    fn names(&self) -> std::sync::MutexGuard<'_, Vec<inproc::Bound>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
