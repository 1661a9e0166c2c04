//! Answers of a server, now or later: the method's own errors, refusals, workers, values that cannot be encoded.

use std::error::Error;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use tidewire::typed::{CallError, DeferredReply};
use tidewire::workers::{WhenPoolFull, WorkerPool};
use tidewire::{AnyCodec, Kind, Limits, Message, RequestError, Router, Server};
use tidewire_proto::body::ErrorCode;
use tidewire_testkit::{DEADLINE, TestServer, wait_until};

use crate::{CODECS, CalculatorClient, CalculatorError, Running, connect, everywhere};

#[test]
fn the_methods_own_error_travels_typed_everywhere() {
    everywhere(|place, running| {
        let client = running.client();
        let calculator = CalculatorClient::new(client.clone());
        let error = calculator.divide(1, 0).wait().unwrap_err();
        assert_eq!(error.to_string(), "the method failed");
        assert_eq!(error.source().unwrap().to_string(), "division by zero");
        assert_eq!(
            error.into_failure(),
            Some(CalculatorError::DivisionByZero),
            "{place}"
        );

        let later = calculator.factors(1 << 40).send();
        let (number, reply) = running.held.recv_timeout(DEADLINE).unwrap();
        let limit = 1 << 32;
        let too_large = CalculatorError::OutOfRange { number, limit };
        reply.reply(Err(too_large.clone())).unwrap();
        assert_eq!(later.wait().unwrap_err().into_failure(), Some(too_large));
        // An error of the method is an answer, not a refusal.
        assert_eq!(running.finish(&client).refused, 0, "{place}");
    });
}

fn refused_with(error: &CallError<CalculatorError>) -> ErrorCode {
    match error {
        CallError::Request(RequestError::Refused { code, .. }) => *code,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_token_that_is_dropped_or_refuses_is_no_failure_of_the_method() {
    everywhere(|place, running| {
        let client = running.client();
        let calculator = CalculatorClient::new(client.clone());
        let later = calculator.factors(1).send();
        drop(running.held.recv_timeout(DEADLINE).unwrap());
        let error = later.wait().unwrap_err();
        assert_eq!(
            refused_with(&error),
            ErrorCode::Internal,
            "{place}: {error:?}"
        );

        let later = calculator.factors(1).send();
        let (_, reply) = running.held.recv_timeout(DEADLINE).unwrap();
        reply.refuse(ErrorCode::Other(4321), "not today");
        let error = later.wait().unwrap_err();
        assert_eq!(
            refused_with(&error),
            ErrorCode::Other(4321),
            "{place}: {error:?}"
        );
        assert!(error.to_string().contains("not today"));
        assert!(error.into_failure().is_none());
        assert_eq!(running.finish(&client).deferred_answered, 2);
    });
}

/// A token may outlive the session of its caller. Its answer is then counted.
#[test]
fn an_answer_to_a_caller_that_left_is_counted() {
    let running = Running::start("tcp", "tw1");
    let mut peer = running.server.peer();
    let factors = CalculatorClient::METHODS[5];
    peer.send(&Message::with_id(Kind::Request, 0, 1, b"\x0C").with_name(factors));
    let (number, reply) = running.held.recv_timeout(DEADLINE).unwrap();
    assert_eq!(number, 12);
    peer.into_wire().vanish().unwrap();
    wait_until("the end", || reply.is_cancelled().then_some(()));
    reply.reply(Ok(vec![])).unwrap();
    let metrics = running.server.stop();
    assert_eq!((metrics.deferred, metrics.deferred_undelivered), (1, 1));
}

#[tidewire::service]
trait Slow {
    fn shout(&self, text: String, reply: DeferredReply<String>);
}

type Task = (String, DeferredReply<String>);

struct Shouter(Arc<WorkerPool<Task>>);

impl Slow for Shouter {
    fn shout(&self, text: String, reply: DeferredReply<String>) {
        if let Err((_, reply)) = self.0.submit((text, reply)) {
            reply.refuse(ErrorCode::LimitReached, "all workers are busy");
        }
    }
}

#[test]
fn workers_answer_and_their_panics_are_contained() {
    for name in CODECS {
        let pool = WorkerPool::new(2, 1024, WhenPoolFull::Refuse, |(text, reply): Task| {
            assert_ne!(text, "panic", "a task that panics on purpose");
            reply.reply(text.to_uppercase()).unwrap();
        });
        let pool = Arc::new(pool.unwrap());
        let codec = AnyCodec::by_name(name).unwrap();
        let server = TestServer::over_tcp(Server::builder(), &codec, |_| {
            Router::new().mount(SlowServer::new(Shouter(Arc::clone(&pool))))
        });
        let client = connect(&server, &codec);
        let slow = SlowClient::new(client.clone());
        let requests: Vec<_> = (0..100)
            .map(|number| match number % 25 {
                7 => (None, slow.shout("panic".into()).send()),
                _ => {
                    let text = format!("task {number}");
                    (Some(text.to_uppercase()), slow.shout(text).send())
                }
            })
            .collect();
        for (expected, request) in requests {
            let result = request.wait();
            match expected {
                Some(expected) => assert_eq!(result.unwrap(), expected, "{name}"),
                None => assert!(
                    matches!(
                        result,
                        Err(CallError::Request(RequestError::Refused {
                            code: ErrorCode::Internal,
                            ..
                        }))
                    ),
                    "{name}: {result:?}"
                ),
            }
        }
        client.close().wait();
        let metrics = server.stop();
        assert_eq!((metrics.deferred, metrics.deferred_answered), (100, 100));
        let pool = Arc::into_inner(pool)
            .expect("the server has let go of it")
            .shutdown();
        assert_eq!((pool.accepted, pool.completed, pool.panicked), (100, 96, 4));
    }
}

/// A value that serde cannot encode, or a frame cannot hold.
#[derive(Debug, PartialEq, Deserialize)]
struct Odd(u32);

impl Serialize for Odd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            0 => Err(serde::ser::Error::custom("nought has no spelling")),
            number => serializer.serialize_newtype_struct("Odd", &number),
        }
    }
}

#[tidewire::service]
trait Oddities {
    fn take(&self, odd: Odd);
    fn make(&self, number: u32) -> Odd;
    fn make_later(&self, number: u32, reply: DeferredReply<Odd>);
    fn zeros(&self, count: u32) -> Vec<u8>;
    fn zeros_later(&self, count: u32, reply: DeferredReply<Vec<u8>>);
    #[method(one_way)]
    fn drop_off(&self, odd: Odd);
    /// Deprecated to check that the generated server does not trigger the lint.
    #[deprecated = "nobody asks for it"]
    fn r#type(&self, r#in: u8) -> u8;
}

struct Curious;

impl Oddities for Curious {
    fn take(&self, _: Odd) {}

    fn make(&self, number: u32) -> Odd {
        Odd(number)
    }

    fn make_later(&self, number: u32, reply: DeferredReply<Odd>) {
        let sent = reply.reply(Odd(number));
        match number {
            0 => assert!(matches!(sent, Err(CallError::Answer(_))), "{sent:?}"),
            _ => sent.unwrap(),
        }
    }

    fn zeros(&self, count: u32) -> Vec<u8> {
        vec![0; count as usize]
    }

    fn zeros_later(&self, count: u32, reply: DeferredReply<Vec<u8>>) {
        let sent = reply.reply(vec![0; count as usize]);
        match count {
            0..3000 => sent.unwrap(),
            _ => assert!(
                matches!(sent, Err(CallError::Request(RequestError::Encode(_)))),
                "{sent:?}"
            ),
        }
    }

    fn drop_off(&self, _: Odd) {}

    fn r#type(&self, r#in: u8) -> u8 {
        r#in
    }
}

fn is_internal<T>(result: &Result<T, CallError>) -> bool {
    matches!(
        result,
        Err(CallError::Request(RequestError::Refused {
            code: ErrorCode::Internal,
            ..
        }))
    )
}

#[test]
fn messages_without_a_spelling_or_room_are_errors() {
    for name in CODECS {
        let codec = AnyCodec::by_name(name).unwrap();
        let mut limits = Limits::default();
        limits.connections.set_frame_bytes_max(4096);
        let server = TestServer::over_tcp(Server::builder().limits(limits), &codec, |_| {
            Router::new().mount(OdditiesServer::new(Curious))
        });
        let client = connect(&server, &codec);
        let odd = OdditiesClient::new(client.clone());

        let unsent = odd.take(Odd(0)).wait();
        assert!(matches!(unsent, Err(CallError::Arguments(_))), "{unsent:?}");
        let unsent = odd.drop_off(Odd(0));
        assert!(matches!(unsent, Err(CallError::Arguments(_))), "{unsent:?}");
        odd.take(Odd(1)).wait().unwrap();
        odd.drop_off(Odd(1)).unwrap();

        assert!(is_internal(&odd.make(0).wait()), "{name}");
        assert!(is_internal(&odd.make_later(0).wait()), "{name}");
        assert_eq!(odd.make(5).wait().unwrap(), Odd(5), "{name}");
        assert_eq!(odd.make_later(6).wait().unwrap(), Odd(6), "{name}");

        assert!(is_internal(&odd.zeros(5000).wait()), "{name}");
        assert!(is_internal(&odd.zeros_later(5000).wait()), "{name}");
        assert_eq!(odd.zeros(2000).wait().unwrap().len(), 2000, "{name}");
        assert_eq!(odd.zeros_later(2000).wait().unwrap().len(), 2000, "{name}");

        #[expect(
            deprecated,
            reason = "the client's method has the attribute of the trait's"
        )]
        let typed = odd.r#type(7).wait();
        assert_eq!(typed.unwrap(), 7, "{name}");

        client.close().wait();
        let metrics = server.stop();
        // The token answers a deferred call, so only the immediate answers count as refused.
        assert_eq!(
            (metrics.refused, metrics.deferred_answered),
            (2, 4),
            "{name}"
        );
    }
}
