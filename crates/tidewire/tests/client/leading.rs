//! Threads that wait for a client run its lane themselves. What goes wrong meanwhile reaches all who wait.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tidewire::{
    Backoff, Client, Context, Deferred, Event, Message, PubSub, Reply, RequestError, Server,
    ServerBuilder, TopicEvent,
};
use tidewire_testkit::fixtures::{echo, tw1};
use tidewire_testkit::{DEADLINE, TestServer, XorLayer, block_on, layers_of, wait_until};

/// A server that answers requests for an echo, and hands out all others.
fn keeper() -> (TestServer, mpsc::Receiver<Deferred>) {
    keeper_of(Server::builder())
}

fn keeper_of(builder: ServerBuilder) -> (TestServer, mpsc::Receiver<Deferred>) {
    let (sender, kept) = mpsc::channel();
    let server = TestServer::over_tcp(builder, &tw1(), move |_| {
        let sender = sender.clone();
        move |cx: &mut Context<'_>, message: Message<'_>| {
            if message.payload.starts_with(b"keep") {
                sender.send(cx.defer()).unwrap();
                return Ok(());
            }
            cx.reply(message.payload)
        }
    });
    (server, kept)
}

/// Threads that wait while the connection ends.
const THREADS: usize = 3;

fn repeated(client: &Client) -> Result<Reply, RequestError> {
    client.request(b"keep").idempotent().wait()
}

/// Takes the requests of all these threads, and ends their connection before it answers.
fn lose(server: &TestServer, kept: &mpsc::Receiver<Deferred>) -> [Deferred; THREADS] {
    let lost = [(); THREADS].map(|()| kept.recv().unwrap());
    server.server().sessions().list()[0].close().unwrap();
    lost
}

fn pauses() -> Backoff {
    Backoff {
        first: Duration::from_millis(1),
        max: Duration::from_millis(1),
    }
}

#[test]
fn threads_of_one_client_get_their_own_replies() {
    const THREADS: usize = 16;
    const REQUESTS: usize = 500;
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let client = Client::connect(&server.url()).wait().unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let client = &client;
            scope.spawn(move || {
                for number in 0..REQUESTS {
                    let asked = format!("{thread} {number}");
                    let reply = client.request(asked.as_bytes()).wait().unwrap();
                    assert_eq!(reply.payload(), asked.as_bytes());
                }
            });
        }
    });
    client.close().wait();
    let metrics = server.stop();
    assert_eq!(metrics.replies_unmatched, 0);
    assert_eq!(metrics.sessions_opened, 1);
}

/// A task cannot run the lane. The threads that ran it before have ended their waits when the answer comes.
#[test]
fn a_task_is_woken_while_threads_come_and_go() {
    let (server, kept) = keeper();
    let client = Client::connect(&server.url()).wait().unwrap();
    let task = thread::spawn({
        let client = client.clone();
        move || block_on(client.request(b"keep")).unwrap().into_payload()
    });
    let deferred = kept.recv_timeout(DEADLINE).unwrap();
    for _ in 0..200 {
        client.request(b"between").wait().unwrap();
    }
    // The answer comes while no thread waits for the client.
    deferred.reply(b"for the task").unwrap();
    assert_eq!(task.join().unwrap(), b"for the task");
    server.stop();
}

/// A message without a reply leaves although nobody waits for the client afterwards.
#[test]
fn a_message_after_a_wait_leaves_by_itself() {
    let (sender, received) = mpsc::channel();
    let server = TestServer::over_tcp(Server::builder(), &tw1(), move |_| {
        let sender = sender.clone();
        move |cx: &mut Context<'_>, message: Message<'_>| {
            sender.send(message.payload.to_vec()).unwrap();
            cx.reply(message.payload)
        }
    });
    let client = Client::connect(&server.url()).wait().unwrap();
    for _ in 0..100 {
        client.request(b"asked").wait().unwrap();
        client.send(b"told").unwrap();
        for expected in [&b"asked"[..], b"told"] {
            assert_eq!(received.recv_timeout(DEADLINE).unwrap(), expected);
        }
        // Nor does a request need a thread that waits for it.
        let pending = client.request(b"later").send();
        assert_eq!(received.recv_timeout(DEADLINE).unwrap(), b"later");
        pending.wait().unwrap();
    }
    server.stop();
}

#[test]
fn threads_that_give_up_leave_the_others_their_replies() {
    const THREADS: usize = 100;
    let (server, kept) = keeper();
    let client = Client::connect(&server.url()).wait().unwrap();
    let begin = Barrier::new(THREADS);
    let timed_out = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, begin, timed_out) = (&client, &begin, &timed_out);
            scope.spawn(move || {
                begin.wait();
                let call = client.request(if thread == 0 { b"keep 0" } else { b"keep x" });
                if thread == 0 {
                    assert_eq!(call.wait().unwrap().payload(), b"at last");
                    return;
                }
                let outcome = call.timeout(Duration::from_millis(20)).wait();
                assert_eq!(outcome.unwrap_err(), RequestError::TimedOut);
                timed_out.fetch_add(1, Ordering::SeqCst);
            });
        }
        let held: Vec<Deferred> = (0..THREADS).map(|_| kept.recv().unwrap()).collect();
        wait_until("99 threads have given up", || {
            (timed_out.load(Ordering::SeqCst) == THREADS - 1).then_some(())
        });
        for deferred in held {
            // The sessions of those that gave up have cancelled their requests.
            let _ = deferred.reply(b"at last");
        }
    });
    assert_eq!(
        client.request(b"goes on").wait().unwrap().payload(),
        b"goes on"
    );
    server.stop();
}

#[test]
fn a_deadline_of_zero_ends_at_once() {
    let (server, kept) = keeper();
    let client = Client::connect(&server.url()).wait().unwrap();
    for _ in 0..20 {
        let outcome = client.request(b"keep").timeout(Duration::ZERO).wait();
        assert_eq!(outcome.unwrap_err(), RequestError::TimedOut);
    }
    while client.next_event().wait_for(Duration::ZERO).is_some() {}
    assert_eq!(client.next_event().wait_for(Duration::from_millis(1)), None);
    assert_eq!(client.request(b"after").wait().unwrap().payload(), b"after");
    // A request that was kept would hold the server's end.
    drop(kept);
    server.stop();
}

#[test]
fn a_server_that_hangs_after_its_first_answer_costs_the_timeout() {
    let (server, kept) = keeper();
    let client = Client::connect(&server.url()).wait().unwrap();
    assert_eq!(client.request(b"first").wait().unwrap().payload(), b"first");
    let second = client.request(b"keep").timeout(Duration::from_millis(30));
    assert_eq!(second.wait().unwrap_err(), RequestError::TimedOut);
    drop(kept.recv().unwrap());
    server.stop();
}

#[test]
fn a_reconnect_while_three_threads_wait_brings_all_replies() {
    let (server, kept) = keeper();
    let client = Client::builder().reconnect(pauses());
    let client = client.connect(&server.url()).wait().unwrap();
    thread::scope(|scope| {
        let waiting = [(); THREADS].map(|()| scope.spawn(|| repeated(&client)));
        let lost = lose(&server, &kept);
        for _ in 0..THREADS {
            kept.recv().unwrap().reply(b"again").unwrap();
        }
        for thread in waiting {
            assert_eq!(thread.join().unwrap().unwrap().payload(), b"again");
        }
        assert!(lost.iter().all(Deferred::is_cancelled));
    });
    client.close().wait();
    assert_eq!(server.stop().sessions_opened, 2);
}

#[test]
fn a_client_dropped_or_closed_during_waits_ends_them() {
    for is_closed in [false, true] {
        let (server, kept) = keeper();
        let client = Client::connect(&server.url()).wait().unwrap();
        let requests = [(); 4].map(|()| client.request(b"keep").send());
        let waiting = requests.map(|request| thread::spawn(move || request.wait()));
        let held = [(); 4].map(|()| kept.recv().unwrap());
        if is_closed {
            client.close().wait();
        }
        drop(client);
        for thread in waiting {
            let error = thread.join().unwrap().unwrap_err();
            assert!(
                matches!(error, RequestError::Shutdown | RequestError::Closed(_)),
                "{error:?}"
            );
        }
        drop(held);
        server.stop();
    }
}

/// The thread that waits runs the callback that panics. It gets an error, as all others do, and goes on.
#[test]
fn a_panic_in_a_callback_ends_the_client_and_not_the_thread_that_waits() {
    let (server, kept) = keeper_of(Server::builder().layers(|_| layers_of(1, XorLayer::accepting)));
    let has_connected = Arc::new(AtomicBool::new(false));
    let client = Client::builder().reconnect(pauses()).layers({
        let has_connected = Arc::clone(&has_connected);
        move |_| {
            assert!(
                !has_connected.load(Ordering::SeqCst),
                "a test's callback panics"
            );
            layers_of(1, XorLayer::connecting)
        }
    });
    let client = client.connect(&server.url()).wait().unwrap();
    has_connected.store(true, Ordering::SeqCst);
    thread::scope(|scope| {
        let waiting = [(); THREADS].map(|()| scope.spawn(|| repeated(&client)));
        let _lost = lose(&server, &kept);
        for thread in waiting {
            let outcome = thread.join().expect("the thread did not panic");
            assert_eq!(outcome.unwrap_err(), RequestError::Shutdown);
        }
    });
    wait_until("the client has ended", || {
        (client.next_event().wait() == Event::Ended).then_some(())
    });
    assert_eq!(
        client.request(b"late").wait().unwrap_err(),
        RequestError::Shutdown
    );
    // The second connection was accepted, and had no session.
    server.stop();
}

/// A callback of the client's lane waits for that client, on the thread that runs the lane.
#[test]
fn a_wait_in_a_callback_of_the_same_client_is_refused() {
    let (server, kept) = keeper_of(Server::builder().layers(|_| layers_of(1, XorLayer::accepting)));
    let own: Arc<OnceLock<Client>> = Arc::default();
    let (sender, outcomes) = mpsc::channel();
    let client = Client::builder().reconnect(pauses()).layers({
        let own = Arc::clone(&own);
        move |_| {
            if let Some(client) = own.get() {
                sender.send(client.request(b"inside").wait()).unwrap();
            }
            layers_of(1, XorLayer::connecting)
        }
    });
    let client = client.connect(&server.url()).wait().unwrap();
    own.set(client.clone()).unwrap();
    let waiting = thread::spawn(move || client.request(b"keep").idempotent().wait());
    let lost = kept.recv().unwrap();
    server.server().sessions().list()[0].close().unwrap();
    let inside = outcomes.recv_timeout(DEADLINE).unwrap();
    assert_eq!(inside.unwrap_err(), RequestError::OnLane);
    kept.recv().unwrap().reply(b"outside").unwrap();
    assert_eq!(waiting.join().unwrap().unwrap().payload(), b"outside");
    drop(lost);
    // The callback owns a client, so the client is closed by hand.
    own.get().unwrap().close().wait();
    server.stop();
}

/// Waits of each kind share one lane: for replies, for the client's events, and for messages of topics.
#[test]
fn waits_of_every_kind_share_the_lane() {
    const MESSAGES: u32 = 200;
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    let client = Client::connect(&server.url()).wait().unwrap();
    let topics = ["a", "b"].map(|topic| client.subscribe(topic).wait().unwrap());
    thread::scope(|scope| {
        for topic in &topics {
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    let message = topic.next_event().wait();
                    let TopicEvent::Message(message) = message else {
                        panic!("{message:?}");
                    };
                    assert_eq!(message.payload, number.to_le_bytes());
                }
            });
        }
        scope.spawn(|| assert!(matches!(client.next_event().wait(), Event::Opened { .. })));
        for number in 0..MESSAGES {
            for topic in ["a", "b"] {
                client.publish(topic, &number.to_le_bytes()).unwrap();
            }
            if number % 16 == 0 {
                client.flush().wait().unwrap();
            }
        }
    });
    drop(topics);
    client.close().wait();
    let metrics = server.stop();
    assert_eq!(metrics.published, 2 * u64::from(MESSAGES));
    assert_eq!(metrics.room_delivered, metrics.room_offered);
}

/// Regression: each short wait ran a turn and did not look at the sockets, and the lane's own thread did not either
/// while such waits went on. So a client whose requests failed one after another never came back.
#[test]
fn a_loop_of_short_waits_does_not_keep_a_client_from_its_server() {
    let (sender, received) = mpsc::channel();
    let server = TestServer::over_tcp(Server::builder(), &tw1(), move |_| {
        let sender = sender.clone();
        move |cx: &mut Context<'_>, message: Message<'_>| {
            sender.send(cx.id()).unwrap();
            cx.reply(message.payload)
        }
    });
    let client = Client::builder().reconnect(pauses());
    let client = client.connect(&server.url()).wait().unwrap();
    client.request(b"here").wait().unwrap();
    let first = received.recv().unwrap();
    server.server().sessions().list()[0].close().unwrap();
    let began = Instant::now();
    // No pause: each request fails at once while there is no connection.
    while client.request(b"back").wait().is_err() || received.recv().unwrap() == first {
        assert!(began.elapsed() < DEADLINE, "the client never came back");
    }
    while client.next_event().wait_for(Duration::ZERO).is_some() {}
    server.server().sessions().list()[0].close().unwrap();
    let is_closed = |event: Option<Event>| matches!(event, Some(Event::Closed { .. }));
    while !is_closed(client.next_event().wait_for(Duration::from_nanos(1))) {
        assert!(
            began.elapsed() < 2 * DEADLINE,
            "the client never saw its end"
        );
    }
    client.close().wait();
    server.stop();
}
