//! Requests answered by futures, on executors of the tests.

use std::future::pending;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Poll;
use std::thread;

use tidewire::{AsyncRequest, AsyncService, Client, HandlerError, RequestError, Server, Service};
use tidewire_proto::body::ErrorCode;
use tidewire_testkit::fixtures::{codec, tw1};
use tidewire_testkit::{DEADLINE, TestServer, block_on};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns a service whose tasks the test runs.
fn by_hand<H>(handler: H) -> (AsyncService<impl FnMut(Task) + Clone, H>, Receiver<Task>) {
    let (sender, tasks): (Sender<Task>, _) = channel();
    let spawn = move |task| sender.send(task).unwrap();
    (AsyncService::new(spawn, handler), tasks)
}

async fn shout(request: AsyncRequest) -> Result<Vec<u8>, HandlerError> {
    // A failure of the decoder becomes the handler's error.
    let text = String::from_utf8(request.payload)?;
    if text == "refuse" {
        let text = format!("not on session {}", request.session);
        return Err(HandlerError::new(ErrorCode::NotFound, text));
    }
    Ok(text.to_uppercase().into_bytes())
}

fn serve<S: Service + Clone>(name: &str, service: &S) -> TestServer {
    TestServer::over_tcp(Server::builder().lanes(2), &codec(name), |_| {
        service.clone()
    })
}

fn refused(result: Result<tidewire::Reply, RequestError>) -> (ErrorCode, String) {
    match result {
        Err(RequestError::Refused { code, text, .. }) => (code, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn futures_answer_in_any_order_and_refuse_with_their_text() {
    for name in ["tw1", "lines"] {
        let (service, tasks) = by_hand(shout);
        let server = serve(name, &service);
        let builder = Client::builder().codec(codec(name));
        let client = builder.connect(&server.url()).wait().unwrap();
        let requests: Vec<_> = ["one", "two", "three"]
            .map(|text| client.request(text.as_bytes()).send())
            .into();
        let mut taken: Vec<Task> = requests
            .iter()
            .map(|_| tasks.recv_timeout(DEADLINE).unwrap())
            .collect();
        assert_eq!(service.in_flight(), 3);
        while let Some(task) = taken.pop() {
            block_on(task);
        }
        for (request, text) in requests.into_iter().zip(["ONE", "TWO", "THREE"]) {
            assert_eq!(request.wait().unwrap().payload(), text.as_bytes());
        }
        assert_eq!(service.in_flight(), 0);
        client.close().wait();
        let metrics = server.stop();
        assert_eq!((metrics.deferred, metrics.deferred_answered), (3, 3));
    }
}

#[test]
fn errors_of_futures_are_refusals_and_details_stay_here() {
    let (service, tasks) = by_hand(shout);
    let server = serve("tw1", &service);
    let client = Client::connect(&server.url()).wait().unwrap();
    let runner = thread::spawn(move || tasks.iter().for_each(block_on));
    let (code, text) = refused(client.request(b"refuse").wait());
    assert_eq!(code, ErrorCode::NotFound);
    assert!(text.starts_with("not on session"), "{text}");
    assert_eq!(service.failures(), 0);
    let (code, text) = refused(client.request(b"\xff\xfe").wait());
    assert_eq!(code, ErrorCode::Internal);
    assert_eq!(text, "the service failed to handle this");
    assert_eq!(service.failures(), 1);
    client.close().wait();
    server.stop();
    drop(service);
    runner.join().unwrap();
}

#[test]
fn a_future_that_is_dropped_or_panics_answers_with_an_error() {
    let handler = |request: AsyncRequest| async move {
        assert_ne!(request.payload, b"panic", "as the test wants it");
        pending::<Result<Vec<u8>, HandlerError>>().await
    };
    let (service, tasks) = by_hand(handler);
    let server = serve("tw1", &service);
    let client = Client::connect(&server.url()).wait().unwrap();
    let dropped = client.request(b"drop").send();
    drop(tasks.recv_timeout(DEADLINE).unwrap());
    assert_eq!(refused(dropped.wait()).0, ErrorCode::Internal);
    let panicked = client.request(b"panic").send();
    let task = tasks.recv_timeout(DEADLINE).unwrap();
    let result = thread::spawn(|| block_on(task)).join();
    assert!(result.is_err());
    assert_eq!(refused(panicked.wait()).0, ErrorCode::Internal);
    assert_eq!(service.in_flight(), 0);
    client.close().wait();
    server.stop();
}

#[test]
fn requests_above_the_limit_are_refused_until_one_ends() {
    let (service, tasks) = by_hand(shout);
    let service = service.in_flight_max(2);
    let server = serve("tw1", &service);
    let client = Client::connect(&server.url()).wait().unwrap();
    let (one, two) = (client.request(b"one").send(), client.request(b"two").send());
    let taken: Vec<Task> = (0..2)
        .map(|_| tasks.recv_timeout(DEADLINE).unwrap())
        .collect();
    let (code, text) = refused(client.request(b"three").wait());
    assert_eq!(code, ErrorCode::LimitReached);
    assert!(text.contains("under way"), "{text}");
    taken.into_iter().for_each(block_on);
    assert_eq!(one.wait().unwrap().payload(), b"ONE");
    assert_eq!(two.wait().unwrap().payload(), b"TWO");
    let three = client.request(b"three").send();
    block_on(tasks.recv_timeout(DEADLINE).unwrap());
    assert_eq!(three.wait().unwrap().payload(), b"THREE");
    client.close().wait();
    assert_eq!(server.stop().refused, 1);
}

#[test]
fn a_cancelled_request_gives_its_future_up() {
    let (service, tasks) = by_hand(|_| pending::<Result<Vec<u8>, HandlerError>>());
    let server = serve("tw1", &service);
    let client = Client::connect(&server.url()).wait().unwrap();
    let request = client.request(b"forget me").send();
    let mut task = tasks.recv_timeout(DEADLINE).unwrap();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert_eq!(task.as_mut().poll(&mut cx), Poll::Pending);
    drop(request);
    server.wait_for("the cancel came", |metrics| metrics.requests_cancelled == 1);
    assert_eq!(task.as_mut().poll(&mut cx), Poll::Ready(()));
    assert_eq!(service.in_flight(), 0);
    client.close().wait();
    let metrics = server.stop();
    assert_eq!((metrics.deferred, metrics.deferred_undelivered), (1, 1));
}

#[test]
fn one_way_messages_are_refused_where_they_differ_from_requests() {
    let (service, _tasks) = by_hand(shout);
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| service.clone());
    let client = Client::connect(&server.url()).wait().unwrap();
    client.send(b"hello").unwrap();
    server.wait_for("it was refused", |metrics| metrics.refused == 1);
    client.close().wait();
    server.stop();
}
