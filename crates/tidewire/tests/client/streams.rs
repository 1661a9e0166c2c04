//! Events and subscriptions as streams, and many clients on one thread.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use futures_core::{FusedStream, Stream};
use tidewire::{Client, Event, PubSub, Server, TopicEvent};
use tidewire_testkit::TestServer;
use tidewire_testkit::fixtures::tw1;

use super::executor::{run, run_one};

const CLIENTS: usize = 50;
const MESSAGES: u8 = 100;

fn server() -> TestServer {
    TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new())
}

/// Returns the next item of a stream, as `StreamExt::next` of the usual crates does.
async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await
}

/// Regression: each client needed a thread of its own for its events.
#[test]
fn one_thread_serves_many_clients() {
    let server = server();
    let url = server.url();
    let serve = |number: usize| {
        let url = &url;
        async move {
            let client = Client::connect(url).await.unwrap();
            let topic = format!("client.{number}");
            let mut heard = client.subscribe(&topic).await.unwrap();
            let mut events = client.events();
            assert!(matches!(
                next(&mut events).await,
                Some(Event::Opened { .. })
            ));
            for payload in 0..MESSAGES {
                client.publish(&topic, &[payload]).unwrap();
            }
            for payload in 0..MESSAGES {
                let Some(TopicEvent::Message(message)) = next(&mut heard).await else {
                    panic!("no message");
                };
                assert_eq!(
                    (&*message.topic, &*message.payload),
                    (&*topic, &[payload][..])
                );
            }
            client.flush().await.unwrap();
            drop(heard);
            client.close().await;
            assert!(matches!(
                next(&mut events).await,
                Some(Event::Closed { .. })
            ));
            assert_eq!(next(&mut events).await, None);
        }
    };
    let tasks =
        (0..CLIENTS).map(|number| Box::pin(serve(number)) as Pin<Box<dyn Future<Output = ()>>>);
    run(tasks);
    let stopped = server.stop();
    assert_eq!(stopped.sessions_opened, CLIENTS as u64);
}

#[test]
fn a_stream_polled_after_its_end_has_ended() {
    let server = server();
    let client = Client::connect(&server.url()).wait().unwrap();
    let mut events = client.events();
    let mut heard = client.subscribe("a").wait().unwrap();
    client.publish("a", b"the last one").unwrap();
    client.flush().wait().unwrap();
    client.close().wait();
    run_one(async {
        assert!(matches!(
            next(&mut heard).await,
            Some(TopicEvent::Message(_))
        ));
        while next(&mut events).await.is_some() {}
        for _ in 0..3 {
            assert_eq!(next(&mut heard).await, None);
            assert_eq!(next(&mut events).await, None);
        }
        assert!(heard.is_terminated() && events.is_terminated());
    });
    // The other ways of taking events report the end, too, and do not block.
    assert_eq!(heard.next_event().wait(), TopicEvent::Ended);
    assert_eq!(client.next_event().wait(), Event::Ended);
    assert_eq!(run_one(heard.next_event()), TopicEvent::Ended);
    server.stop();
}

#[test]
fn a_future_of_an_event_that_is_dropped_loses_none() {
    let server = server();
    let client = Client::connect(&server.url()).wait().unwrap();
    let mut heard = client.subscribe("a").wait().unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    for round in 0..MESSAGES {
        // Both ways poll without success and are dropped while the message is on its way.
        client.publish("a", &[round]).unwrap();
        let mut event = match pin!(heard.next_event()).poll(&mut cx) {
            Poll::Ready(event) => Some(event),
            Poll::Pending => None,
        };
        if event.is_none()
            && let Poll::Ready(next) = Pin::new(&mut heard).poll_next(&mut cx)
        {
            event = next;
        }
        let message = event.unwrap_or_else(|| heard.next_event().wait());
        let TopicEvent::Message(message) = message else {
            panic!("{message:?}");
        };
        assert_eq!(message.payload, [round]);
    }
    client.close().wait();
    server.stop();
}
