//! Options of a client's calls: deadlines, repetition, waiting for a full window.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tidewire::{Backoff, Client, Context, Event, Message, RequestError, Server, WhenWindowFull};
use tidewire_testkit::{DEADLINE, TestServer, wait_until};

use crate::{CODECS, CODECS_WITH_NAMES, Desk, ask, client_of, codec, connect, echo};

const SOON: Duration = Duration::from_millis(10);

fn patient() -> Backoff {
    Backoff {
        first: Duration::from_millis(1),
        max: Duration::from_millis(20),
    }
}

/// A late reply matches neither the request that was given up nor the next request.
#[test]
fn a_late_reply_is_counted_and_matches_nothing() {
    for name in CODECS {
        let desk = Desk::open(name);
        let client = client_of(&desk.server, name);
        let method = if CODECS_WITH_NAMES.contains(&name) {
            "ask"
        } else {
            ""
        };
        let has_cancel = ["tw1", "json"].contains(&name);
        let first = client.request(b"first").method(method).timeout(SOON);
        assert_eq!(first.wait(), Err(RequestError::TimedOut), "{name}");
        let second = ask(&client, name, b"second");
        let (late, timely) = (desk.take(), desk.take());
        if has_cancel {
            desk.server
                .wait_for("the cancel", |metrics| metrics.requests_cancelled == 1);
        }
        late.0.reply(b"late").unwrap();
        timely.0.reply(b"timely").unwrap();
        assert_eq!(second.wait().unwrap().payload(), b"timely", "{name}");
        if has_cancel {
            // The server knew that the answer was not wanted.
            assert_eq!(desk.server.metrics().deferred_undelivered, 1);
        } else {
            wait_until("the late reply is counted", || {
                (client.metrics().replies_unmatched == 1).then_some(())
            });
        }
        client.close().wait();
        desk.server.stop();
    }
}

/// The same over the native protocol when the reply and the cancel cross.
#[test]
fn a_reply_that_crosses_with_its_cancel_is_counted() {
    let (started, is_started) = mpsc::channel();
    let (open, gate) = mpsc::channel();
    let mut service = Some(move |cx: &mut Context<'_>, message: Message<'_>| {
        started.send(()).unwrap();
        let () = gate.recv().unwrap();
        cx.reply(message.payload)
    });
    let server = TestServer::over_tcp(Server::builder(), &codec("tw1"), |_| {
        service.take().unwrap()
    });
    let client = client_of(&server, "tw1");
    let given_up = client.request(b"given up").send();
    is_started.recv_timeout(DEADLINE).unwrap();
    let before = client.metrics().bytes_out;
    drop(given_up);
    wait_until("the cancel is under way", || {
        (client.metrics().bytes_out > before).then_some(())
    });
    // The lane answers before it reads the cancel.
    open.send(()).unwrap();
    open.send(()).unwrap();
    let next = client.request(b"next").send();
    assert_eq!(next.wait().unwrap().payload(), b"next");
    assert_eq!(client.metrics().replies_unmatched, 1);
    client.close().wait();
    assert_eq!(server.stop().requests_cancelled, 1);
}

#[test]
fn all_pending_requests_fail_when_the_connection_dies() {
    for name in CODECS {
        let desk = Desk::open(name);
        let client = client_of(&desk.server, name);
        let requests: Vec<_> = (0..50).map(|_| ask(&client, name, b"hello")).collect();
        let held: Vec<_> = (0..50).map(|_| desk.take()).collect();
        let Desk { server, taken } = desk;
        // Without a drain: the lane closes its sessions at once.
        drop((server, taken));
        for request in requests {
            let result = request.wait();
            assert!(
                matches!(result, Err(RequestError::Closed(_))),
                "{name}: {result:?}"
            );
        }
        assert!(held.iter().all(|(deferred, _)| deferred.is_cancelled()));
    }
}

#[test]
fn a_full_window_refuses_or_lets_wait_as_chosen() {
    for name in CODECS {
        let desk = Desk::open(name);
        let client = connect(Client::builder().pending_max(1), &desk.server, name);
        let method = if CODECS_WITH_NAMES.contains(&name) {
            "ask"
        } else {
            ""
        };
        let prepare = |payload| client.request(payload).method(method);
        let first = prepare(b"1").send();
        let (held, _) = desk.take();
        let refused = prepare(b"2").wait();
        assert_eq!(refused, Err(RequestError::WindowFull), "{name}");
        let waiting: Vec<_> = [&b"3"[..], b"4"]
            .into_iter()
            .map(|payload| {
                prepare(payload)
                    .when_window_full(WhenWindowFull::Wait)
                    .send()
            })
            .collect();
        let impatient = prepare(b"5")
            .when_window_full(WhenWindowFull::Wait)
            .timeout(SOON);
        assert_eq!(impatient.wait(), Err(RequestError::TimedOut), "{name}");
        assert!(desk.taken.try_recv().is_err(), "{name}: one at a time");
        held.reply(b"1").unwrap();
        for expected in [b"3", b"4"] {
            let (deferred, payload) = desk.take();
            assert_eq!(payload, expected, "{name}");
            deferred.reply(&payload).unwrap();
        }
        assert_eq!(first.wait().unwrap().payload(), b"1");
        for (request, expected) in waiting.into_iter().zip([b"3", b"4"]) {
            assert_eq!(request.wait().unwrap().payload(), expected);
        }
        client.close().wait();
        desk.server.stop();
    }
}

#[test]
fn a_client_can_let_all_its_requests_wait() {
    let server = TestServer::over_tcp(Server::builder(), &codec("tw1"), |_| echo);
    let builder = Client::builder()
        .pending_max(2)
        .when_window_full(WhenWindowFull::Wait);
    let client = connect(builder, &server, "tw1");
    let requests: Vec<_> = (0..1000_u32)
        .map(|number| client.request(&number.to_le_bytes()).send())
        .collect();
    for (number, request) in (0..1000_u32).zip(requests) {
        assert_eq!(request.wait().unwrap().payload(), number.to_le_bytes());
    }
    client.close().wait();
    server.stop();
}

/// Closes the connection on every request except each third.
fn flaky(
    seen: Arc<AtomicUsize>,
) -> impl Fn(&mut Context<'_>, Message<'_>) -> tidewire::HandlerResult {
    move |cx, message| {
        if seen.fetch_add(1, Ordering::SeqCst) % 3 == 2 {
            return cx.reply(message.payload);
        }
        cx.close();
        Ok(())
    }
}

#[test]
fn idempotent_requests_are_sent_again_after_a_reconnect() {
    for name in CODECS {
        let seen = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&seen);
        let server = TestServer::over_tcp(Server::builder(), &codec(name), move |_| {
            flaky(Arc::clone(&counter))
        });
        let client = connect(Client::builder().reconnect(patient()), &server, name);
        let method = if CODECS_WITH_NAMES.contains(&name) {
            "ask"
        } else {
            ""
        };
        let again = client.request(b"again").method(method).idempotent();
        assert_eq!(again.wait().unwrap().payload(), b"again", "{name}");
        assert_eq!(seen.load(Ordering::SeqCst), 3, "{name}");
        let once = ask(&client, name, b"once").wait();
        assert!(
            matches!(once, Err(RequestError::Closed(_))),
            "{name}: {once:?}"
        );
        assert_eq!(seen.load(Ordering::SeqCst), 4, "{name}: sent once only");
        client.close().wait();
        server.stop();
    }
}

#[test]
fn without_a_connection_only_the_idempotent_wait_and_not_for_ever() {
    let server = TestServer::over_tcp(Server::builder(), &codec("tw1"), |_| echo);
    let client = connect(Client::builder().reconnect(patient()), &server, "tw1");
    drop(server);
    while !matches!(client.next_event().wait(), Event::Reconnecting { .. }) {}
    let now = client.request(b"now").wait();
    // The second one from the first attempt to reconnect on.
    assert!(
        matches!(
            now,
            Err(RequestError::NotConnected | RequestError::CannotConnect { .. })
        ),
        "{now:?}"
    );
    let waiting = client.request(b"soon").idempotent().timeout(SOON);
    assert_eq!(waiting.wait(), Err(RequestError::TimedOut));
    let left = client.request(b"left").idempotent().send();
    client.close().wait();
    assert_eq!(left.wait(), Err(RequestError::Shutdown));
}

/// A client that does not reconnect has no connection to wait for.
#[test]
fn an_idempotent_request_fails_with_the_only_connection() {
    let desk = Desk::open("tw1");
    let client = client_of(&desk.server, "tw1");
    let request = client.request(b"hello").idempotent().send();
    let _held = desk.take();
    drop(desk.server);
    assert!(matches!(request.wait(), Err(RequestError::Closed(_))));
}

/// In the line codec, the farewell of a lane is an ordinary line, so the client must not send one.
#[test]
fn a_client_of_lines_that_ends_says_nothing_more() {
    let (sender, heard) = mpsc::channel();
    let server = TestServer::over_tcp(Server::builder(), &codec("lines"), move |_| {
        let sender = sender.clone();
        move |cx: &mut Context<'_>, message: Message<'_>| {
            sender.send(message.payload.to_vec()).unwrap();
            cx.reply(message.payload)
        }
    });
    let client = client_of(&server, "lines");
    client.request(b"hello").wait().unwrap();
    drop(client);
    server.wait_for("the end", |metrics| metrics.sessions_closed() == 1);
    server.stop();
    assert_eq!(heard.into_iter().collect::<Vec<_>>(), [b"hello"]);
}
