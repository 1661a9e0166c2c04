//! Calls that are answered: every form of method, awaited and waited for, with the options of a call.

use std::time::Duration;

use tidewire::typed::CallError;
use tidewire::{AnyCodec, Backoff, Client, RequestError, Router, Server, WhenWindowFull};
use tidewire_testkit::{DEADLINE, TestServer, block_on, wait_until};

use crate::{CalculatorClient, CalculatorError, Point, Running, everywhere};

fn assert_sendable<T: Send + 'static>(_: &T) {}

fn point(x: f64, y: f64, label: Option<&str>) -> Point {
    Point {
        x,
        y,
        label: label.map(str::to_owned),
    }
}

#[test]
fn every_shape_of_method_answers_everywhere() {
    everywhere(|place, running| {
        let client = running.client();
        let calculator = CalculatorClient::new(client.clone());
        assert_eq!(calculator.divide(42, 6).wait().unwrap(), 7, "{place}");
        assert_eq!(calculator.greet("Ada".into()).wait().unwrap(), "hello Ada");
        let points = vec![point(0.0, 2.0, None), point(4.0, 4.0, Some("end"))];
        let middle = calculator.middle(points).wait().unwrap();
        assert_eq!(middle, point(2.0, 3.0, Some("end")), "{place}");
        calculator.ping().wait().unwrap();
        assert_eq!(calculator.lanes(1, 20, 255).wait().unwrap(), (0, 276));
        let later = calculator.factors(12).send();
        // An executor may move it between threads.
        assert_sendable(&later);
        let (number, reply) = running.held.recv_timeout(DEADLINE).unwrap();
        assert_eq!(number, 12);
        assert_ne!(reply.session(), tidewire::SessionId::NONE);
        reply.reply(Ok(vec![1, 2, 3, 4, 6, 12])).unwrap();
        assert_eq!(later.wait().unwrap(), [1, 2, 3, 4, 6, 12], "{place}");
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(calculator.repeat(bytes.clone()).wait().unwrap(), bytes);
        let metrics = running.finish(&client);
        assert_eq!((metrics.refused, metrics.deferred), (0, 1), "{place}");
    });
}

#[test]
fn calls_can_be_awaited_everywhere() {
    everywhere(|place, running| {
        let client = running.client();
        let calculator = CalculatorClient::new(client.clone());
        let sums = block_on(async {
            let first = calculator.divide(10, 5).await?;
            let second = calculator.divide(first, 2).await?;
            assert_eq!(calculator.greet("task".into()).await.unwrap(), "hello task");
            let both = (
                calculator.divide(9, 3).send(),
                calculator.divide(8, 2).send(),
            );
            Ok::<_, CallError<CalculatorError>>((second, both.1.await?, both.0.await?))
        });
        assert_eq!(sums.unwrap(), (1, 4, 3), "{place}");
        let failed = block_on(calculator.divide(1, 0));
        assert!(
            matches!(
                failed,
                Err(CallError::Failed(CalculatorError::DivisionByZero))
            ),
            "{place}: {failed:?}"
        );
        assert_eq!(running.finish(&client).refused, 0);
    });
}

#[test]
fn many_callers_get_each_their_own_answer() {
    for codec in crate::CODECS {
        let running = Running::start("tcp", codec);
        let client = running.client();
        let threads: Vec<_> = (0..4_i64)
            .map(|thread| {
                let calculator = CalculatorClient::new(client.clone());
                std::thread::spawn(move || {
                    for round in 0..20_i64 {
                        let requests: Vec<_> = (0..10)
                            .map(|step| {
                                let number = thread * 1000 + round * 10 + step;
                                let call = calculator.divide(number * 7, 7);
                                (number, call.when_window_full(WhenWindowFull::Wait).send())
                            })
                            .collect();
                        for (number, request) in requests {
                            assert_eq!(request.wait().unwrap(), number);
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        // Each request and each reply is one frame. The other frames belong to opening and closing.
        let metrics = running.finish(&client);
        assert!(metrics.frames_in >= 800, "{codec}: {}", metrics.frames_in);
        assert_eq!(metrics.refused, 0);
    }
}

#[test]
fn a_deadline_of_its_own_reaches_the_call() {
    let running = Running::start("tcp", "tw1");
    let client = running.client();
    let calculator = CalculatorClient::new(client.clone());
    let late = calculator
        .factors(1)
        .timeout(Duration::from_millis(30))
        .send();
    let (_, reply) = running.held.recv_timeout(DEADLINE).unwrap();
    let result = late.wait();
    assert!(
        matches!(result, Err(CallError::Request(RequestError::TimedOut))),
        "{result:?}"
    );
    // The server gets the cancel, so a worker can stop.
    wait_until("the cancel", || reply.is_cancelled().then_some(()));
    drop(reply);
    assert_eq!(running.finish(&client).deferred_undelivered, 1);
}

#[test]
fn a_call_that_is_dropped_is_cancelled() {
    let running = Running::start("tcp", "tw1");
    let client = running.client();
    let calculator = CalculatorClient::new(client.clone());
    let given_up = calculator.factors(1).send();
    let (_, reply) = running.held.recv_timeout(DEADLINE).unwrap();
    drop(given_up);
    wait_until("the cancel", || reply.is_cancelled().then_some(()));
    reply.reply(Ok(vec![1])).unwrap();
    assert_eq!(running.finish(&client).deferred_undelivered, 1);
}

#[test]
fn an_idempotent_call_is_made_again_after_a_reconnect() {
    let running = Running::start("tcp", "tw1");
    let client = Client::builder()
        .reconnect(Backoff {
            first: Duration::from_millis(5),
            max: Duration::from_millis(50),
        })
        .request_timeout(DEADLINE)
        .connect(&running.server.url())
        .wait()
        .unwrap();
    let calculator = CalculatorClient::new(client.clone());
    assert_eq!(calculator.flaky(7).idempotent().wait().unwrap(), 7);
    let once = calculator.flaky(7).wait();
    assert!(
        matches!(once, Err(CallError::Request(RequestError::Closed(_)))),
        "{once:?}"
    );
    assert_eq!(calculator.flaky(8).idempotent().wait().unwrap(), 8);
    // Three attempts, one, and two.
    let metrics = running.finish(&client);
    assert_eq!((metrics.deferred, metrics.deferred_answered), (6, 2));
}

#[test]
fn a_full_window_refuses_or_is_waited_for() {
    let codec = AnyCodec::by_name("tw1").unwrap();
    let running = Running::start("tcp", "tw1");
    let client = Client::builder()
        .codec(codec)
        .pending_max(1)
        .connect(&running.server.url())
        .wait()
        .unwrap();
    let calculator = CalculatorClient::new(client.clone());
    let first = calculator.factors(2).send();
    let (_, reply) = running.held.recv_timeout(DEADLINE).unwrap();
    let refused = calculator.divide(4, 2).wait();
    assert!(
        matches!(refused, Err(CallError::Request(RequestError::WindowFull))),
        "{refused:?}"
    );
    let waiting = calculator
        .divide(4, 2)
        .when_window_full(WhenWindowFull::Wait)
        .send();
    reply.reply(Ok(vec![1, 2])).unwrap();
    assert_eq!(first.wait().unwrap(), [1, 2]);
    assert_eq!(waiting.wait().unwrap(), 2);
    running.finish(&client);
}

#[test]
fn the_client_below_stays_within_reach() {
    let running = Running::start("inproc", "tw1");
    let calculator = running.calculator();
    let client: &Client = calculator.as_ref();
    let reply = client.request(b"\x02hi").method("Repeat").wait().unwrap();
    assert_eq!(reply.payload(), b"\x02hi");
    let client = client.clone();
    running.finish(&client);
}

/// A codec without names would call another method.
#[test]
fn a_codec_without_names_refuses() {
    let codec = AnyCodec::by_name("length-field").unwrap();
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| Router::new());
    let client = crate::connect(&server, &codec);
    let calculator = CalculatorClient::new(client.clone());
    let refused = calculator.ping().wait();
    assert!(
        matches!(refused, Err(CallError::Request(RequestError::Encode(_)))),
        "{refused:?}"
    );
    let refused = calculator.note("unsaid".into());
    assert!(
        matches!(refused, Err(CallError::Request(RequestError::Encode(_)))),
        "{refused:?}"
    );
    client.close().wait();
    assert_eq!(server.stop().frames_in, 0);
}
