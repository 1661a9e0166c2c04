//! A thread that calls a sleeping lane of its process runs the lane's turn itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tidewire::{
    Client, Context, Deferred, Endpoint, HandlerResult, Kind, Message, Moment, RequestError,
    Server, Service,
};

use tidewire::address::InprocName;
use tidewire_io::ring::RingStream;
use tidewire_testkit::fixtures::{codec, echo};
use tidewire_testkit::{TestServer, wait_until};

use crate::{endpoint, stop};

/// Many replies of this size fill the ring, and then the output.
const LARGE_BYTES: usize = 60_000;

/// A service that notes the thread of its last message.
struct Host {
    ran_on: Arc<Mutex<Option<ThreadId>>>,
    kept: Sender<Deferred>,
    later: Option<(Moment, Deferred)>,
}

impl Service for Host {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        *self.ran_on.lock().unwrap() = Some(thread::current().id());
        match message.payload {
            b"panic" => panic!("a handler panics"),
            b"keep" => self.kept.send(cx.defer()).unwrap(),
            b"large" => return cx.reply(&[7; LARGE_BYTES]),
            b"later" => self.later = Some((cx.now() + Duration::from_millis(5), cx.defer())),
            _ => return cx.reply(message.payload),
        }
        Ok(())
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        let (at, answer) = self.later.take()?;
        if cx.now() >= at {
            answer.reply(b"late").unwrap();
            return None;
        }
        self.later = Some((at, answer));
        Some(at)
    }
}

struct Rig {
    server: Server,
    client: Client,
    ran_on: Arc<Mutex<Option<ThreadId>>>,
    kept: Mutex<Receiver<Deferred>>,
}

impl Rig {
    fn start(name: &str) -> Self {
        let (sender, kept) = channel();
        let ran_on = Arc::default();
        let host = Host {
            ran_on: Arc::clone(&ran_on),
            kept: sender,
            later: None,
        };
        let builder = Server::builder().listen(&format!("inproc://{name}"));
        let server = builder.unwrap().start_one(host).unwrap();
        let client = Client::connect(&server.to_string()).wait().unwrap();
        Self {
            server,
            client,
            ran_on,
            kept: Mutex::new(kept),
        }
    }

    fn call(&self, payload: &[u8]) -> Vec<u8> {
        let reply = self.client.request(payload).wait().unwrap();
        reply.payload().to_vec()
    }

    /// Whether the last call ran on this thread.
    fn ran_here(&self) -> bool {
        *self.ran_on.lock().unwrap() == Some(thread::current().id())
    }

    /// Calls until a call has run on this thread.
    fn visit(&self) {
        for _ in 0..100_000 {
            assert_eq!(self.call(b"call"), b"call");
            if self.ran_here() {
                return;
            }
        }
        panic!("no call runs on the thread of the caller");
    }

    fn end(self) {
        self.client.close().wait();
        let metrics = stop(self.server);
        assert_eq!(metrics.replies_unmatched, 0);
    }
}

#[test]
fn a_call_of_a_sleeping_lane_runs_on_the_thread_of_the_caller() {
    let rig = Rig::start("visited");
    rig.visit();
    // Another thread has its turn, too.
    thread::scope(|scope| {
        scope.spawn(|| rig.visit());
    });
    rig.visit();
    rig.end();
}

#[test]
fn a_handler_that_panics_on_the_thread_of_a_caller_ends_the_session_only() {
    let rig = Rig::start("visited-panic");
    let mut is_visit = false;
    while !is_visit {
        rig.visit();
        let failing = Client::connect(&rig.server.to_string()).wait().unwrap();
        let failed = failing.request(b"panic").wait();
        assert!(matches!(failed, Err(RequestError::Closed(_))), "{failed:?}");
        is_visit = rig.ran_here();
        failing.close().wait();
    }
    assert_eq!(rig.call(b"call"), b"call");
    rig.end();
}

/// The lane's own thread slept for as long as was right before the visit.
#[test]
fn a_timer_that_a_visit_has_set_needs_no_further_call() {
    let rig = Rig::start("visited-timer");
    for _ in 0..20 {
        // The call that sets the timer is a visit, too. A heartbeat comes later than the timeout of the request.
        let mut is_visit = false;
        while !is_visit {
            rig.visit();
            assert_eq!(rig.call(b"later"), b"late");
            is_visit = rig.ran_here();
        }
    }
    rig.end();
}

#[test]
fn an_answer_of_another_thread_reaches_a_lane_that_was_visited() {
    let rig = Rig::start("visited-answer");
    for _ in 0..100 {
        rig.visit();
        let kept = rig.client.request(b"keep").send();
        let answered = thread::scope(|scope| {
            scope.spawn(|| {
                let kept = rig.kept.lock().unwrap().recv().unwrap();
                kept.reply(b"kept").unwrap();
            });
            kept.wait()
        });
        assert_eq!(answered.unwrap().payload(), b"kept");
    }
    rig.end();
}

#[test]
fn threads_that_call_one_lane_at_once_get_their_own_replies() {
    const CALLS: u64 = 2_000;
    let rig = Rig::start("visited-by-many");
    thread::scope(|scope| {
        for caller in 0..4_u64 {
            let url = rig.server.to_string();
            scope.spawn(move || {
                let client = Client::connect(&url).wait().unwrap();
                for call in 0..CALLS {
                    let sent = [caller.to_le_bytes(), call.to_le_bytes()].concat();
                    assert_eq!(client.request(&sent).wait().unwrap().payload(), sent);
                }
                client.close().wait();
            });
        }
    });
    rig.end();
}

/// A lane that sends a message to a server, and each message that it gets back again.
struct Endless {
    target: Endpoint,
    has_begun: bool,
    rounds: Arc<AtomicU64>,
    goes_on: Arc<AtomicBool>,
}

impl Service for Endless {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if !std::mem::replace(&mut self.has_begun, true) {
            cx.connections().connect(&self.target).unwrap();
        }
        None
    }

    fn on_open(&mut self, cx: &mut Context<'_>) {
        send(cx);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        assert_eq!(message.kind, Kind::Reply);
        self.rounds.fetch_add(1, Ordering::Relaxed);
        if self.goes_on.load(Ordering::Relaxed) {
            send(cx);
        }
        Ok(())
    }
}

fn send(cx: &mut Context<'_>) {
    let message = Message::with_id(Kind::Request, 0, 1, b"round");
    cx.send(message).unwrap();
}

#[test]
fn lanes_that_call_each_other_without_end_do_not_keep_the_thread_of_a_caller() {
    let rig = Rig::start("visited-endlessly");
    let (rounds, goes_on) = (Arc::default(), Arc::new(AtomicBool::new(true)));
    let endless = Endless {
        target: endpoint("inproc://visited-endlessly"),
        has_begun: false,
        rounds: Arc::clone(&rounds),
        goes_on: Arc::clone(&goes_on),
    };
    let caller = Server::builder().start_one(endless).unwrap();
    let mut before = 0;
    for _ in 0..50 {
        assert_eq!(rig.call(b"call"), b"call");
        // The two lanes go on without this thread.
        while rounds.load(Ordering::Relaxed) < before + 100 {
            thread::yield_now();
        }
        before = rounds.load(Ordering::Relaxed);
    }
    goes_on.store(false, Ordering::Relaxed);
    stop(caller);
    rig.end();
}

/// Regression: the signal of a reader that made room was taken back, and the output stayed where it was.
#[test]
fn replies_that_fill_the_ring_of_a_visited_lane_arrive() {
    const CALLS: usize = 64;
    let rig = Rig::start("visited-large");
    for _ in 0..10 {
        rig.visit();
        let calls: Vec<_> = (0..CALLS)
            .map(|_| rig.client.request(b"large").send())
            .collect();
        for call in calls {
            assert_eq!(call.wait().unwrap().payload(), [7; LARGE_BYTES]);
        }
    }
    rig.end();
}

/// A service that connects at the first message, and lets go at the second.
#[derive(Default)]
struct Holder(Option<RingStream>);

impl Service for Holder {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let name = InprocName::new("visited-by-a-handler").unwrap();
        self.0 = match message.payload {
            b"hold" => Some(name.connect().unwrap()),
            _ => None,
        };
        cx.reply(b"done")
    }
}

/// Regression: a lane without sessions within the process kept the signal until its end.
#[test]
fn a_ring_of_a_handler_is_closed_when_the_handler_drops_it() {
    let visited = Server::builder().listen("inproc://visited-by-a-handler");
    let visited = visited.unwrap().start_one(echo).unwrap();
    let holder = TestServer::over_tcp(Server::builder(), &codec("tw1"), |_| Holder::default());
    let client = Client::connect(&holder.url()).wait().unwrap();
    client.request(b"hold").wait().unwrap();
    wait_until("the ring has its session", || {
        (visited.metrics().sessions_opened == 1).then_some(())
    });
    client.request(b"drop").wait().unwrap();
    wait_until("the session has ended", || {
        (visited.metrics().closed_by("peer_closed") == 1).then_some(())
    });
    client.close().wait();
    holder.stop();
    stop(visited);
}

/// A lane that connects, and sends one request.
struct Asker {
    target: Endpoint,
    has_begun: bool,
}

impl Service for Asker {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if !std::mem::replace(&mut self.has_begun, true) {
            cx.connections().connect(&self.target).unwrap();
        }
        None
    }

    fn on_open(&mut self, cx: &mut Context<'_>) {
        send(cx);
    }
}

/// Regression: the thread waited for its own end.
#[test]
fn a_visited_handler_may_drop_the_server_of_the_lane_that_visits() {
    const ROUNDS: usize = 50;
    let (asking, dropped) = (Arc::new(Mutex::new(None)), Arc::new(AtomicU64::new(0)));
    let (slot, count) = (Arc::clone(&asking), Arc::clone(&dropped));
    let visited = Server::builder().listen("inproc://visited-by-a-dropped-server");
    let handler = tidewire::handler(move |_, _| {
        let server: Server = loop {
            if let Some(server) = slot.lock().unwrap().take() {
                break server;
            }
            thread::yield_now();
        };
        drop(server);
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let visited = visited.unwrap().start_one(handler).unwrap();
    for round in 1..=ROUNDS as u64 {
        let asker = Asker {
            target: endpoint("inproc://visited-by-a-dropped-server"),
            has_begun: false,
        };
        let server = Server::builder().start_one(asker).unwrap();
        *asking.lock().unwrap() = Some(server);
        wait_until("the server was dropped", || {
            (dropped.load(Ordering::Relaxed) == round).then_some(())
        });
    }
    let stopped = stop(visited);
    assert_eq!(stopped.handler_panics, 0);
}
