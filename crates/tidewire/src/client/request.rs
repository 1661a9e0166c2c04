//! A request that was sent: a future for any executor, with a blocking twin.
//!
//! The requests of a thread reuse references to their client's link. Cloning and dropping an `Arc` costs two atomic
//! operations, and each costs as much as the rest of a request on this side. The kept references do not keep a client alive
//! for long. The thread that drops a client drops its kept references at once. Any other thread does so when it next
//! finishes a request, or when it ends.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::blocking::block_on;
use super::error::RequestError;
use super::link::Link;
use super::reply::{PIECES_MAX, Reply};
use super::slots::SlotId;
use crate::mailbox::EnqueueError;

/// A request that was queued for the client's lane. Await it, or [`Request::wait`] for it.
/// [`Client::request`](crate::Client::request) has an example.
///
/// Dropping it before its reply abandons the request. The server gets a cancel if the codec can express one.
///
/// If many requests are pending, await the oldest first. Replies come in blocks, so most of the others are there by then and
/// cost no wait.
#[derive(Debug)]
#[must_use = "a request does nothing useful unless its reply is awaited"]
pub struct Request {
    state: State,
}

#[derive(Debug)]
enum State {
    /// The request was queued. Its answer may be in the slot already.
    Sent { link: Arc<Link>, slot: SlotId },
    /// The request was not queued.
    Failed(Box<RequestError>),
    /// The result was taken.
    Done,
}

impl Request {
    /// Creates a request from the slot of its answer, or from the error of queueing it.
    #[inline(always)]
    pub(crate) fn new(link: &Arc<Link>, sent: Result<SlotId, EnqueueError>) -> Self {
        match sent {
            Ok(slot) => Self {
                state: State::Sent {
                    link: share(link),
                    slot,
                },
            },
            Err(error) => Self::failed(error.into()),
        }
    }

    /// Creates a request that was not sent.
    pub(crate) fn failed(error: RequestError) -> Self {
        Self {
            state: State::Failed(Box::new(error)),
        }
    }

    /// Blocks this thread until the reply comes or the request fails. Never call it on a lane.
    ///
    /// # Errors
    /// See [`RequestError`].
    #[inline]
    pub fn wait(mut self) -> Result<Reply, RequestError> {
        match self.fetch_reply() {
            Some(reply) => Ok(reply),
            None => block_on(self),
        }
    }

    /// Returns the reply or the error, if it is there already. It never blocks and makes no system call. A task that waits
    /// for the reply keeps waiting. After a wait for one reply, call this for the next requests in the order they were sent,
    /// and wait again at the first `None`.
    ///
    /// # Panics
    /// When the result was taken before.
    #[inline]
    pub fn try_wait(&mut self) -> Option<Result<Reply, RequestError>> {
        match self.fetch_reply() {
            Some(reply) => Some(Ok(reply)),
            None => self.fetch_or_wait(None),
        }
    }

    /// Takes a reply that needs no lock. Inlined, so that the reply is built at its destination.
    #[inline(always)]
    fn fetch_reply(&mut self) -> Option<Reply> {
        let State::Sent { link, slot } = &self.state else {
            return None;
        };
        let reply = link.table.fetch(*slot)?;
        self.finish();
        Some(reply)
    }

    /// Takes the result. If there is none, stores `waker`, if given, to be woken when there is one.
    #[inline(never)]
    fn fetch_or_wait(&mut self, waker: Option<&Waker>) -> Option<Result<Reply, RequestError>> {
        let result = match &self.state {
            State::Sent { link, slot } => {
                let outcome = link.table.poll(*slot, waker)?;
                outcome.map_err(|error| *error)
            }
            State::Failed(error) => Err(RequestError::clone(error)),
            State::Done => panic!("`Request` was polled after it was ready"),
        };
        self.finish();
        Some(result)
    }

    /// Marks the result as taken, and keeps the reference for the next request.
    #[inline(always)]
    fn finish(&mut self) {
        if let State::Sent { link, .. } = std::mem::replace(&mut self.state, State::Done) {
            give_back_share(link);
        }
    }
}

impl Future for Request {
    type Output = Result<Reply, RequestError>;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(reply) = self.fetch_reply() {
            return Poll::Ready(Ok(reply));
        }
        match self.fetch_or_wait(Some(cx.waker())) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

impl Drop for Request {
    #[inline]
    fn drop(&mut self) {
        if let State::Sent { link, slot } = &self.state {
            link.table.abandon(*slot);
        }
    }
}

/// Returns a reference to this link: a kept one, or a new clone.
#[inline]
pub(super) fn share(link: &Arc<Link>) -> Arc<Link> {
    let shared = LINKS.try_with(|links| links.borrow_mut().pop());
    match shared.ok().flatten() {
        Some(shared) if Arc::ptr_eq(&shared, link) => shared,
        _ => Arc::clone(link),
    }
}

/// Keeps a reference for the next request, unless the link has ended. Only references to one link are kept, the last one
/// used.
#[inline]
pub(super) fn give_back_share(link: Arc<Link>) {
    let _ = LINKS.try_with(|links| {
        let has_ended = link.table.has_ended();
        drop_last_while(links, |last| has_ended || !Arc::ptr_eq(last, &link));
        if has_ended {
            return;
        }
        let mut links = links.borrow_mut();
        if links.len() < PIECES_MAX {
            links.push(link);
        }
    });
}

/// Drops this thread's kept references to a link.
pub(super) fn drop_shares(link: &Arc<Link>) {
    let _ = LINKS.try_with(|links| drop_last_while(links, |last| Arc::ptr_eq(last, link)));
}

/// Drops references one by one. Dropping the last reference to a link may run code of an executor, which may call this
/// function again.
#[inline(always)]
fn drop_last_while(links: &RefCell<Vec<Arc<Link>>>, is_unwanted: impl Fn(&Arc<Link>) -> bool) {
    let pop = || links.borrow_mut().pop_if(|last| is_unwanted(last));
    while let Some(link) = pop() {
        drop(link);
    }
}

thread_local! {
    static LINKS: RefCell<Vec<Arc<Link>>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use std::task::Wake;
    use std::thread;

    use tidewire_proto::message::Message;

    use super::super::completions::Completions;
    use super::super::submissions::RequestHead;
    use super::super::table::RequestTable;
    use super::*;
    use crate::client::event_queue::EventBounds;
    use crate::client::{Client, Event};
    use crate::server::Server;

    fn link() -> Arc<Link> {
        let table = RequestTable::new(1_000, false);
        Arc::new(Link::new(table, EventBounds::default()))
    }

    #[test]
    fn a_blocked_thread_is_woken() {
        let link = link();
        let submitted = link.table.submit(RequestHead::due_at(u64::MAX), "", &[]);
        let slot = submitted.unwrap();
        let request = Request::new(&link, Ok(slot));
        let thread = thread::spawn(move || request.wait());
        let mut completions = Completions::default();
        link.table.reply(&mut completions, Some(slot), 3, &[1]);
        link.table.complete(&mut completions);
        completions.wake();
        let reply = thread.join().unwrap().unwrap();
        assert_eq!((reply.channel(), reply.payload()), (3, &[1][..]));
    }

    #[test]
    fn references_go_round_and_only_those_to_the_last_link_are_kept() {
        let [first, second] = [(); 2].map(|()| link());
        let held = [(); 3].map(|()| share(&first));
        assert_eq!(Arc::strong_count(&first), 4);
        held.into_iter().for_each(give_back_share);
        let again = [(); 4].map(|()| share(&first));
        assert_eq!(Arc::strong_count(&first), 5, "three of them were spare");
        again.into_iter().for_each(give_back_share);
        let other = share(&second);
        assert_eq!(
            (Arc::strong_count(&first), Arc::strong_count(&second)),
            (4, 2),
            "one was not what was needed"
        );
        give_back_share(other);
        let counts = [&first, &second].map(Arc::strong_count);
        assert_eq!(counts, [1, 2]);
    }

    #[test]
    fn references_to_a_link_that_has_ended_are_not_kept() {
        let link = link();
        let [first, second, third] = [(); 3].map(|()| share(&link));
        give_back_share(first);
        assert_eq!(Arc::strong_count(&link), 4, "one is spare");
        assert_eq!(link.table.end(&RequestError::Shutdown), 0);
        give_back_share(second);
        assert_eq!(Arc::strong_count(&link), 2, "nor are those from before");
        give_back_share(third);
        assert_eq!(Arc::strong_count(&link), 1);
    }

    /// Regression: a dropped client stayed in memory, with its events and slots, until its threads ended.
    #[test]
    fn a_client_that_is_dropped_leaves_nothing_with_its_thread() {
        let (client, _server) = client();
        let link = Arc::downgrade(&client.inner.link);
        client.request(b"x").wait().unwrap();
        drop(client);
        assert_eq!(link.strong_count(), 0);
    }

    #[test]
    fn a_client_that_is_dropped_leaves_no_events_behind() {
        let (client, _server) = client();
        // Another thread may hold the link like this.
        let held = Arc::clone(&client.inner.link);
        let request = client.request(b"x").send();
        drop(client);
        assert_eq!(held.events.next(None), Some(Event::Ended));
        // The reply may have come before the drop.
        if let Ok(reply) = request.wait() {
            assert_eq!(reply.payload(), b"x");
        }
        assert_eq!(Arc::strong_count(&held), 1);
    }

    /// A client, and the echo server that it is connected to.
    fn client() -> (Client, Server) {
        let server = crate::serve(
            "tcp://127.0.0.1:0",
            |cx: &mut crate::service::Context<'_>, message: Message<'_>| cx.reply(message.payload),
        )
        .unwrap();
        let client = Client::connect(&server.to_string()).wait().unwrap();
        (client, server)
    }

    /// Dropping the last reference to a link may drop a waker that gives back another link.
    #[test]
    fn a_link_that_falls_may_give_back_another() {
        struct Task(std::sync::Mutex<Option<Arc<Link>>>);
        impl Wake for Task {
            fn wake(self: Arc<Self>) {}
        }
        impl Drop for Task {
            fn drop(&mut self) {
                give_back_share(self.0.lock().unwrap().take().unwrap());
            }
        }
        let [first, second, third] = [(); 3].map(|()| link());
        let submitted = first.table.submit(RequestHead::due_at(1), "", b"");
        let task = Arc::new(Task(std::sync::Mutex::new(Some(Arc::clone(&third)))));
        let outcome = first.table.poll(submitted.unwrap(), Some(&task.into()));
        assert!(outcome.is_none());
        let weak = Arc::downgrade(&first);
        give_back_share(first);
        give_back_share(second);
        assert!(weak.upgrade().is_none());
        assert_eq!(Arc::strong_count(&third), 1, "it fell, too");
    }
}
