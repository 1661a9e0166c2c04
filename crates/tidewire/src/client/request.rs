//! A request on its way: a future for any executor, with a blocking twin.
//!
//! References to a client's link go round between the requests of a thread that hold them: counting one more and one less is
//! two atomic operations, each of which costs as much as everything that is done for a request without them. A client that
//! is gone is not kept by them: the thread that drops it lets go of its own at once, and every other one when it next
//! finishes a request, whosever that is, or ends.

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

/// A request that was enqueued for the client's lane. Await it, or [`Request::wait`] for it. [`Client::request`](crate::Client::request)
/// has an example.
///
/// Dropped before its reply it is given up, and the server is told where the codec can say it.
///
/// Of many requests under way, await the oldest first: replies come in blocks, so when it is there most of the others are,
/// too, and cost no wait.
#[derive(Debug)]
#[must_use = "a request does nothing useful unless its reply is awaited"]
pub struct Request {
    state: State,
}

#[derive(Debug)]
enum State {
    /// The lane has it, or its answer is in the slot.
    Sent { link: Arc<Link>, slot: SlotId },
    /// It did not get as far.
    Failed(Box<RequestError>),
    /// Its result was taken.
    Done,
}

impl Request {
    /// A request whose answer will be in the link's slot, or that could not be enqueued.
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

    /// A request that was not sent.
    pub(crate) fn failed(error: RequestError) -> Self {
        Self {
            state: State::Failed(Box::new(error)),
        }
    }

    /// Blocks this thread until the reply came or the request failed. Never call it on a lane.
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

    /// The reply or the failure, if it is there already; who waits for it otherwise goes on waiting. Never blocks, and costs no
    /// system call: after one that was waited for, ask the next ones in the order they were sent, and wait again where there
    /// is none.
    ///
    /// # Panics
    /// When it has given its result already.
    #[inline]
    pub fn try_wait(&mut self) -> Option<Result<Reply, RequestError>> {
        match self.fetch_reply() {
            Some(reply) => Some(Ok(reply)),
            None => self.fetch_or_wait(None),
        }
    }

    /// Takes a reply that can be had without a lock. Compiled into its callers, so that the reply is put together where it goes.
    #[inline(always)]
    fn fetch_reply(&mut self) -> Option<Reply> {
        let State::Sent { link, slot } = &self.state else {
            return None;
        };
        let reply = link.table.poll_reply(*slot)?;
        self.finish();
        Some(reply)
    }

    /// Takes the result, or has `waker` woken when there is one, if it is given.
    #[inline(never)]
    fn fetch_or_wait(&mut self, waker: Option<&Waker>) -> Option<Result<Reply, RequestError>> {
        let result = match &self.state {
            State::Sent { link, slot } => {
                let outcome = link.table.poll(*slot, waker)?;
                outcome.map_err(|error| *error)
            }
            State::Failed(error) => Err(RequestError::clone(error)),
            State::Done => panic!("a request is not asked again after it was ready"),
        };
        self.finish();
        Some(result)
    }

    /// Its result was taken.
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

/// A reference to this link: one that was given back, or one more.
#[inline]
pub(super) fn share(link: &Arc<Link>) -> Arc<Link> {
    let shared = LINKS.try_with(|links| links.borrow_mut().pop());
    match shared.ok().flatten() {
        Some(shared) if Arc::ptr_eq(&shared, link) => shared,
        _ => Arc::clone(link),
    }
}

/// Takes a reference back that is not needed any more. Only those to one link are kept, the last one, unless it has ended.
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

/// Drops this thread's spare references to a link.
pub(super) fn drop_shares(link: &Arc<Link>) {
    let _ = LINKS.try_with(|links| drop_last_while(links, |last| Arc::ptr_eq(last, link)));
}

/// Drops references one by one: what falls with the last one to a link may run code of an executor, and come here again.
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

    /// A client that was gone stayed in memory with its events and slots until its threads ended.
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
        // As other threads do.
        let held = Arc::clone(&client.inner.link);
        let request = client.request(b"x").send();
        drop(client);
        assert_eq!(held.events.next(None), Some(Event::Ended));
        // Its answer may have come before.
        if let Ok(reply) = request.wait() {
            assert_eq!(reply.payload(), b"x");
        }
        assert_eq!(Arc::strong_count(&held), 1);
    }

    /// A client and the server that it is connected to, which echoes.
    fn client() -> (Client, Server) {
        let server = crate::serve(
            "tcp://127.0.0.1:0",
            |cx: &mut crate::service::Context<'_>, message: Message<'_>| cx.reply(message.payload),
        )
        .unwrap();
        let client = Client::connect(&server.to_string()).wait().unwrap();
        (client, server)
    }

    /// What waits with the last reference to a link may come back here when it falls.
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
