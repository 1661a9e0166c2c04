//! Tests of requests as futures, and of the references that a thread keeps.

use std::task::Wake;
use std::thread;

use tidewire_proto::message::Message;

use super::*;
use crate::client::event_queue::EventBounds;
use crate::client::table::{Completions, RequestTable};
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
