//! The state of a session in a handler, and its bounds: state, timers, pauses and the rate.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use tidewire::limits::{RateLimit, WhenExceeded};
use tidewire::{
    CloseReason, Context, HandlerResult, Message, RequestError, Service, SessionHandle, SessionId,
};
use tidewire_proto::message::Kind;

use super::Setup;
use super::sessions::hear;
use crate::fixtures::echo;
use crate::wait::DEADLINE;

/// Messages of a session.
struct Count(u64);

/// Counts the messages of each session and sends the count by a timer.
struct Counting {
    closed: Sender<u64>,
}

impl Service for Counting {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        cx.set_state(Count(0));
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let count = cx.state_mut::<Count>().expect("the state of on_open");
        count.0 += 1;
        let count = count.0;
        let unwanted = cx.timers().set(Duration::ZERO, 0)?;
        cx.timers().set(Duration::ZERO, count)?;
        assert!(cx.timers().cancel(unwanted));
        // The timer ends with the session.
        cx.timers().set(DEADLINE, 0)?;
        cx.reply(message.payload)
    }

    fn on_timer(&mut self, cx: &mut Context<'_>, token: u64) {
        let count = cx.state::<Count>().expect("a session").0;
        assert!(0 < token && token <= count);
        let text = format!("timer {token}");
        let message = Message::new(Kind::OneWay, 0, text.as_bytes());
        cx.send(message).expect("room in the output");
    }

    fn on_close(&mut self, cx: &mut Context<'_>, _: CloseReason) {
        let Count(count) = cx.take_state().expect("the state of on_open");
        self.closed.send(count).expect("the test listens");
    }
}

pub(super) fn state_and_timers_belong_to_a_session(setup: &Setup) {
    let (sender, closed) = channel();
    let server = setup.serve_with(setup.builder(), |_| Counting {
        closed: sender.clone(),
    });
    let mut peers: Vec<_> = (0..3).map(|_| server.peer()).collect();
    for number in 1..=2 {
        for peer in &mut peers {
            peer.ask(b"hello");
            assert_eq!(peer.answer().payload, b"hello");
            hear(peer, &format!("timer {number}"));
        }
    }
    drop(peers);
    server.stop();
    let counts: Vec<u64> = closed.try_iter().collect();
    assert_eq!(counts, [2, 2, 2]);
}

/// Reports each session that sends a message to the test.
struct Telling(Sender<SessionId>);

impl Service for Telling {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if message.payload == b"pause" {
            cx.pause_reading();
            self.0.send(cx.id()).expect("the test listens");
        }
        cx.reply(message.payload)
    }
}

pub(super) fn a_paused_session_goes_on_where_it_stopped(setup: &Setup) {
    let (sender, paused) = channel();
    let server = setup.serve_with(setup.builder(), |_| Telling(sender.clone()));
    let mut peer = server.peer();
    let mut frames = Vec::new();
    for payload in ["pause", "one", "two"] {
        frames.extend(peer.request_frame(payload.as_bytes()));
    }
    peer.write(&frames);
    assert_eq!(peer.answer().payload, b"pause");
    peer.ask(b"three");
    let id = paused.recv().expect("a session that spoke");
    let session: SessionHandle = server.server().sessions().find(id).expect("it is open");
    session.resume_reading().expect("it is open");
    for payload in ["one", "two", "three"] {
        assert_eq!(peer.answer().payload, payload.as_bytes());
    }
    drop(peer);
    server.stop();
}

/// All messages arrive, later.
pub(super) fn a_session_above_its_rate_waits(setup: &Setup) {
    const REQUESTS: usize = 12;
    let limit = RateLimit::new(WhenExceeded::Pause)
        .messages_per_second(200)
        .burst(Duration::from_millis(20));
    let server = setup.serve_with(setup.builder().rate_limit(limit), |_| echo);
    let mut peer = server.peer();
    let payloads: Vec<String> = (0..REQUESTS).map(|number| number.to_string()).collect();
    let mut frames = Vec::new();
    for payload in &payloads {
        frames.extend(peer.request_frame(payload.as_bytes()));
    }
    peer.write(&frames);
    for payload in &payloads {
        assert_eq!(peer.answer().payload, payload.as_bytes());
    }
    drop(peer);
    let metrics = server.stop();
    assert_eq!((metrics.refused, metrics.rate_refused), (0, 0));
}

/// Every request is answered, with a reply or a refusal.
pub(super) fn messages_above_the_rate_are_refused(setup: &Setup) {
    const REQUESTS: u64 = 30;
    const BURST: u64 = 10;
    let limit = RateLimit::new(WhenExceeded::Refuse)
        .messages_per_second(1)
        .burst(Duration::from_secs(BURST));
    let server = setup.serve_with(setup.builder().rate_limit(limit), |_| echo);
    let client = setup
        .client()
        .connect(&server.url())
        .wait()
        .expect("a welcome");
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..REQUESTS {
        let method = setup.codec.method();
        match client.request(b"hello").method(method).wait() {
            Ok(reply) => {
                assert_eq!(reply.payload(), b"hello");
                answered += 1;
            }
            Err(RequestError::Refused { text, .. }) => {
                assert!(text.contains("more than it may"), "{text}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    client.close().wait();
    let metrics = server.stop();
    assert_eq!(answered + refused, REQUESTS);
    assert_eq!((metrics.refused, metrics.rate_refused), (refused, refused));
    assert!(answered >= BURST, "{answered} answered");
}
