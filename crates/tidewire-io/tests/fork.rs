//! Clients and servers in a child by `fork`, which has the memory of its parent and none of its threads. The test is in
//! this crate because forking is unsafe.
#![expect(unsafe_code, reason = "forks")]
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidewire::{Client, Event, Message, RequestError, RoomError, SendError, Server, TopicEvent};
use tidewire_io::process::Process;

/// Runs `work` in a child, and fails if it panics or never ends.
fn in_child(what: &str, work: impl FnOnce()) {
    // SAFETY: the child touches only memory that it has a copy of, runs `work` alone, and leaves by `_exit`, so that
    // nothing of the parent is dropped or run twice. The C library lets the child of a program with threads allocate.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        // SAFETY: both functions only make a system call. The alarm ends a child that waits for ever.
        unsafe { libc::alarm(30) };
        let worked = catch_unwind(AssertUnwindSafe(work)).is_ok();
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!worked)) };
    }
    let mut status = 0;
    // SAFETY: `child` is a child of this process that no other code waits for, and `status` is written once.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "{what}: status {status:#x}");
}

fn echo() -> Server {
    tidewire::serve("tcp://127.0.0.1:0", |cx, message| match message.payload {
        b"wait" => {
            // The request has no answer as long as the session lasts.
            std::mem::forget(cx.defer());
            Ok(())
        }
        payload => cx.reply(payload),
    })
    .unwrap()
}

#[test]
fn a_child_knows_that_it_is_another_process() {
    let process = Process::this();
    in_child("the first child", || {
        assert!(!process.is_this());
        let own = Process::this();
        assert!(own.is_this() && own != process);
        in_child("its child", || {
            assert!(!process.is_this() && !own.is_this());
        });
        assert!(own.is_this());
    });
    assert!(process.is_this());
}

/// Regression: a request in the child waited for ever, and so did a close. A drop panicked.
#[test]
fn in_a_child_the_calls_of_a_client_fail_at_once_and_a_drop_forgets() {
    let server = echo();
    let client = Client::connect(&server.to_string()).wait().unwrap();
    let pending = client.request(b"wait").send();
    in_child("calls", || {
        let failed = client.request(b"from the child").wait();
        assert_eq!(failed, Err(RequestError::OtherProcess));
        assert_eq!(pending.wait(), Err(RequestError::OtherProcess));
        assert_eq!(client.flush().wait(), Err(RequestError::OtherProcess));
        let subscribed = client.subscribe("a").wait();
        assert!(matches!(subscribed, Err(RequestError::OtherProcess)));
        let joined = client.join("lobby").wait();
        assert!(matches!(joined, Err(RequestError::OtherProcess)));
        assert_eq!(client.send(b"x"), Err(SendError::OtherProcess));
        let published = client.publish("a", b"x");
        assert!(matches!(published, Err(RoomError::Send(_))));
        assert_eq!(client.next_event().wait(), Event::Ended);
        client.close().wait();
        drop(client);
    });
    in_child("a client of its own", || {
        let own = Client::connect(&server.to_string()).wait().unwrap();
        assert_eq!(own.request(b"hello").wait().unwrap().payload(), b"hello");
    });
    let _ = server.shutdown(Duration::ZERO);
}

#[test]
fn in_a_child_a_server_has_ended_and_the_parent_goes_on() {
    let server = Server::builder()
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .listen("inproc://forked")
        .unwrap()
        .start(|_| tidewire::PubSub::new())
        .unwrap();
    let client = Client::connect("inproc://forked").wait().unwrap();
    let subscription = client.subscribe("a").wait().unwrap();
    let sessions = server.sessions();
    let session = sessions.list().pop().unwrap();
    let (mut server, mut subscription) = (Some(server), Some(subscription));
    in_child("handles", || {
        let (server, subscription) = (server.take().unwrap(), subscription.take().unwrap());
        assert!(!server.is_running());
        assert!(sessions.list().is_empty() && sessions.find(session.id()).is_none());
        assert!(
            session
                .send(Message::new(tidewire::Kind::OneWay, 0, b"x"))
                .is_err()
        );
        assert!(server.inspector().rooms(Duration::from_secs(20)).is_err());
        assert_eq!(subscription.next_event().wait(), TopicEvent::Ended);
        drop(subscription);
        assert_eq!(server.shutdown(Duration::from_secs(20)).failures.len(), 1);
    });
    let (server, subscription) = (server.unwrap(), subscription.unwrap());
    client.publish("a", b"still here").unwrap();
    match subscription.next_event().wait() {
        TopicEvent::Message(message) => assert_eq!(message.payload, b"still here"),
        other => panic!("{other:?}"),
    }
    assert!(server.is_running());
}

/// Another thread may hold any lock at the moment of a fork.
#[test]
fn a_child_waits_for_no_lock_that_another_thread_held() {
    let server = echo();
    let client = Client::connect(&server.to_string()).wait().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                client.request(b"busy").wait().unwrap();
            }
        });
        for _ in 0..50 {
            in_child("calls beside a busy thread", || {
                let failed = client.request(b"x").wait();
                assert_eq!(failed, Err(RequestError::OtherProcess));
                assert!(server.sessions().list().is_empty());
                drop(server.sessions());
            });
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
