//! Slow handlers: the lane passes requests to a pool of threads.

use std::sync::{Arc, mpsc};

use tidewire::workers::{WhenPoolFull, WorkerPool};
use tidewire::{Context, Message, RequestError, Server};
use tidewire_proto::body::ErrorCode;
use tidewire_testkit::{DEADLINE, TestServer, assert_conserved};

use crate::{CODECS_WITH_NAMES, DeferredTask, ask, client_of, codec};

/// A server that passes every request to `pool`, and refuses those that the pool refuses.
fn serve(pool: &Arc<WorkerPool<DeferredTask>>, name: &str) -> TestServer {
    let pool = Arc::clone(pool);
    TestServer::over_tcp(Server::builder(), &codec(name), move |_| {
        let pool = Arc::clone(&pool);
        move |cx: &mut Context<'_>, message: Message<'_>| {
            let task = (cx.defer(), message.payload.to_vec());
            if let Err((deferred, _)) = pool.submit(task) {
                deferred.refuse(ErrorCode::LimitReached, "too busy");
            }
            Ok(())
        }
    })
}

fn code_of(result: Result<tidewire::Reply, RequestError>) -> ErrorCode {
    match result {
        Err(RequestError::Refused { code, .. }) => code,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_panic_in_a_worker_is_an_error_reply_and_nothing_else() {
    for name in CODECS_WITH_NAMES {
        let pool = WorkerPool::new(
            2,
            1024,
            WhenPoolFull::Refuse,
            |(deferred, payload): DeferredTask| {
                assert_ne!(payload, b"panic", "a task that panics on purpose");
                deferred.reply(&payload.to_ascii_uppercase()).unwrap();
            },
        );
        let pool = Arc::new(pool.unwrap());
        let server = serve(&pool, name);
        let client = client_of(&server, name);
        let requests: Vec<_> = (0..200)
            .map(|number| {
                let payload = if number % 50 == 7 {
                    "panic".to_owned()
                } else {
                    format!("task {number}")
                };
                (number, ask(&client, name, payload.as_bytes()))
            })
            .collect();
        for (number, request) in requests {
            if number % 50 == 7 {
                assert_eq!(code_of(request.wait()), ErrorCode::Internal, "{name}");
            } else {
                let reply = request.wait().unwrap();
                assert_eq!(reply.payload(), format!("TASK {number}").as_bytes());
            }
        }
        client.close().wait();
        let metrics = server.stop();
        assert_eq!(
            (metrics.deferred, metrics.deferred_answered),
            (200, 200),
            "{name}"
        );
        let workers = Arc::into_inner(pool).unwrap().shutdown();
        assert_eq!((workers.completed, workers.panicked), (196, 4), "{name}");
    }
}

/// A pool of one worker and one queued task. The worker waits for the test before it answers.
fn gated() -> (
    Arc<WorkerPool<DeferredTask>>,
    mpsc::Receiver<()>,
    mpsc::Sender<()>,
) {
    let (started, is_started) = mpsc::channel();
    let (open, gate) = mpsc::channel();
    let gate = std::sync::Mutex::new(gate);
    let pool = WorkerPool::new(
        1,
        1,
        WhenPoolFull::Refuse,
        move |(deferred, payload): DeferredTask| {
            started.send(()).unwrap();
            gate.lock().unwrap().recv().unwrap();
            deferred.reply(&payload).unwrap();
        },
    );
    (Arc::new(pool.unwrap()), is_started, open)
}

#[test]
fn a_full_pool_refuses_with_a_code_to_act_on() {
    let (pool, is_started, open) = gated();
    let server = serve(&pool, "tw1");
    let client = client_of(&server, "tw1");
    let first = client.request(b"runs").send();
    is_started.recv_timeout(DEADLINE).unwrap();
    let second = client.request(b"waits").send();
    let third = client.request(b"finds no place").send();
    assert_eq!(code_of(third.wait()), ErrorCode::LimitReached);
    open.send(()).unwrap();
    open.send(()).unwrap();
    assert_eq!(first.wait().unwrap().payload(), b"runs");
    assert_eq!(second.wait().unwrap().payload(), b"waits");
    client.close().wait();
    server.stop();
    assert_eq!(pool.metrics().refused, 1);
}

#[test]
fn requests_in_work_are_answered_before_a_shutdown_ends() {
    let (pool, is_started, open) = gated();
    let server = serve(&pool, "tw1");
    let mut peer = server.peer();
    peer.ask(b"slow");
    is_started.recv_timeout(DEADLINE).unwrap();
    let stopping = std::thread::spawn(move || server.stop_unchecked());
    // The go-away shows that the lane drains. Only then the task may continue.
    assert_eq!(peer.receive().unwrap().kind, tidewire::Kind::GoAway);
    open.send(()).unwrap();
    assert_eq!(peer.answer().payload, b"slow");
    drop(peer);
    let stopped = stopping.join().unwrap();
    assert_conserved(&stopped);
    assert_eq!(stopped.metrics.deferred_answered, 1);
    assert_eq!(Arc::into_inner(pool).unwrap().shutdown().completed, 1);
}
