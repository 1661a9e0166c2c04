//! Memory of replies and of payloads being made, to be used again.
//!
//! It goes round: a thread fetches a short reply into it, the application drops the reply, and the next one that the same
//! thread fetches is in it again. In between it waits with the thread, because a lock for it alone would be a third of all that
//! a request costs the application. Memory is as good for one client as for another, so that it need not know whose it is.
//!
//! A reply that does not fit its slot is put into memory by the lane. Whoever fetches one has the lock, and leaves a piece for
//! it in exchange: all requests of a client share a [pile](Pile) of them. Rejected: a piece with each slot, of which there are
//! as many as requests were ever held at once, and which would keep as much memory for good.
//!
//! References to a client's link go round in the same way, between the requests that hold them: counting one more and one
//! less is two atomic operations, each of which costs as much as everything that is done for a request without them. A
//! client that is gone is not kept by them: the thread that drops it lets go of its own at once, and every other one when it
//! next finishes a request, whosever that is, or ends.

use std::cell::RefCell;
use std::sync::Arc;

use super::link::Link;
use super::slots::SHORT_BYTES_MAX;

/// Emptied memory: so many pieces at most, none of which is too small for a short reply, or large.
#[derive(Debug, Default)]
pub(super) struct Pile(Vec<Vec<u8>>);

impl Pile {
    /// One of the pieces, if there is any.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.0.pop()
    }

    /// Empties a piece and adds it, or returns it if it is not to be kept.
    #[inline(always)]
    pub(super) fn push(&mut self, mut memory: Vec<u8>) -> Option<Vec<u8>> {
        if self.0.len() >= PIECES_MAX
            || !(SHORT_BYTES_MAX..=PIECE_BYTES_MAX).contains(&memory.capacity())
        {
            return Some(memory);
        }
        memory.clear();
        self.0.push(memory);
        None
    }
}

/// Emptied memory, or none.
// Into its callers: returned by way of memory it would be read in larger pieces than it was just written in.
#[inline(always)]
pub(crate) fn take() -> Vec<u8> {
    let mut taken = Vec::new();
    // A thread that ends has nothing any more.
    let _ = RETURNED.try_with(|returned| {
        if let Some(memory) = returned.borrow_mut().pop() {
            taken = memory;
        }
    });
    taken
}

/// Emptied memory to write a payload into, with so much room that it is worth keeping.
#[cfg(feature = "typed")]
pub(crate) fn take_to_write() -> Vec<u8> {
    let mut memory = take();
    memory.reserve(SHORT_BYTES_MAX);
    memory
}

/// Takes memory back that is not needed any more.
pub(crate) fn give_back(memory: Vec<u8>) {
    let _ = RETURNED.try_with(|returned| returned.borrow_mut().push(memory));
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
        let has_ended = link.exchange().has_ended();
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

/// Lets go of this thread's spare references to a link.
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
    static RETURNED: RefCell<Pile> = const { RefCell::new(Pile(Vec::new())) };
}

/// Pieces of a pile: more than most windows of requests. A thread that only drops replies holds no more.
pub(super) const PIECES_MAX: usize = 256;

/// Largest piece that is kept, in bytes. So there is 1 MiB at most with each thread, and as much with each client.
const PIECE_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use tidewire_proto::message::Message;

    use super::*;
    use crate::client::exchange::Exchange;
    use crate::client::{Client, Event};
    use crate::context::Context;
    use crate::server::Server;

    #[test]
    fn references_go_round_and_only_those_to_the_last_link_are_kept() {
        let [first, second] = [(); 2].map(|()| {
            Arc::new(Link::new(
                Exchange::new(1_000, false),
                crate::client::EventBounds::default(),
            ))
        });
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
        let link = Arc::new(Link::new(
            Exchange::new(1_000, false),
            crate::client::EventBounds::default(),
        ));
        let [first, second, third] = [(); 3].map(|()| share(&link));
        give_back_share(first);
        assert_eq!(Arc::strong_count(&link), 4, "one is spare");
        assert_eq!(link.exchange().end(), 0);
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
        client.request_blocking(b"x").unwrap();
        drop(client);
        assert_eq!(link.strong_count(), 0);
    }

    #[test]
    fn a_client_that_is_dropped_leaves_no_events_behind() {
        let (client, _server) = client();
        // As other threads do.
        let held = Arc::clone(&client.inner.link);
        let request = client.request(b"x");
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
            |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload),
        )
        .unwrap();
        let client = Client::connect(&server.to_string()).unwrap();
        (client, server)
    }

    /// What waits with the last reference to a link may come back here when it falls.
    #[test]
    fn a_link_that_falls_may_give_back_another() {
        struct Task(std::sync::Mutex<Option<Arc<Link>>>);
        impl std::task::Wake for Task {
            fn wake(self: Arc<Self>) {}
        }
        impl Drop for Task {
            fn drop(&mut self) {
                give_back_share(self.0.lock().unwrap().take().unwrap());
            }
        }
        let [first, second, third] = [(); 3].map(|()| {
            Arc::new(Link::new(
                Exchange::new(1_000, false),
                crate::client::EventBounds::default(),
            ))
        });
        let ticket = crate::client::queue::Ticket::due_at(1);
        let slot = first.push_call(ticket, "", b"").unwrap();
        let task = Arc::new(Task(std::sync::Mutex::new(Some(Arc::clone(&third)))));
        let outcome = first.fetch_or_wait(slot, Some(&task.into()));
        assert!(outcome.is_none());
        let weak = Arc::downgrade(&first);
        give_back_share(first);
        give_back_share(second);
        assert!(weak.upgrade().is_none());
        assert_eq!(Arc::strong_count(&third), 1, "it fell, too");
    }

    #[test]
    fn memory_waits_with_its_thread_unless_it_is_large() {
        give_back(vec![1; SHORT_BYTES_MAX]);
        give_back(vec![0; PIECE_BYTES_MAX + 1]);
        give_back(Vec::new());
        std::thread::spawn(|| assert_eq!(take().capacity(), 0))
            .join()
            .unwrap();
        let memory = take();
        assert!(memory.is_empty() && memory.capacity() >= SHORT_BYTES_MAX);
        assert_eq!(take().capacity(), 0);
    }

    /// They took places of memory that is of use, and a short reply that got one of them allocated all the same.
    #[test]
    fn pieces_too_small_for_a_short_reply_are_not_kept() {
        give_back(Vec::with_capacity(SHORT_BYTES_MAX - 1));
        assert_eq!(take().capacity(), 0);
    }

    #[cfg(feature = "typed")]
    #[test]
    fn what_a_short_payload_was_written_into_is_kept() {
        let mut payload = take_to_write();
        payload.push(1);
        let place = payload.as_ptr();
        give_back(payload);
        let again = take_to_write();
        assert_eq!(again.as_ptr(), place);
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        for _ in 0..PIECES_MAX + 1 {
            give_back(vec![1; SHORT_BYTES_MAX]);
        }
        let kept = std::iter::repeat_with(take).take_while(|memory| memory.capacity() > 0);
        assert_eq!(kept.count(), PIECES_MAX);
    }
}
