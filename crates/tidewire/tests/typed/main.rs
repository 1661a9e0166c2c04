//! Typed services: over every transport and every codec with names of methods, and all faults between two sides that
//! disagree.

#![cfg(feature = "typed")]
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod answers;
mod calls;
mod disagreement;
mod formats;
mod one_way;

use std::sync::mpsc;

use serde::{Deserialize, Serialize};
use tidewire::metrics::Metrics;
use tidewire::typed::DeferredReply;
use tidewire::{AnyCodec, Client, Context, Router, Server, ServerBuilder};
use tidewire_testkit::TestServer;

/// All codecs that transmit names of methods.
const CODECS: [&str; 3] = ["tw1", "srmp-rpc", "uvrpc"];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Point {
    x: f64,
    y: f64,
    label: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
enum CalculatorError {
    #[error("division by zero")]
    DivisionByZero,
    #[error("{number} is not in the range up to {limit}")]
    OutOfRange { number: u64, limit: u64 },
}

/// The service under test. Some arguments have the names of variables in generated code.
#[tidewire::service(version = 1)]
trait Calculator {
    fn divide(&mut self, a: i64, b: i64) -> Result<i64, CalculatorError>;
    fn greet(&self, name: String) -> String;
    fn middle(&self, points: Vec<Point>) -> Point;
    fn ping(&self);
    fn lanes(&mut self, cx: &mut Context<'_>, message: u8, number: u8, outcome: u8)
    -> (usize, u16);
    fn factors(&mut self, number: u64, reply: DeferredReply<Result<Vec<u64>, CalculatorError>>);
    #[method(one_way)]
    fn note(&mut self, line: String);
    fn notes(&self) -> Vec<String>;
    #[method(name = "Repeat")]
    fn repeat(&self, payload: Vec<u8>) -> Vec<u8>;
    /// Ends the session instead of answering, except for every third time.
    fn flaky(&mut self, cx: &mut Context<'_>, payload: u8, reply: DeferredReply<u8>);
}

/// A call that waits for its answer, with its argument.
type HeldReply = (u64, DeferredReply<Result<Vec<u64>, CalculatorError>>);

/// Answers at once where it can, and leaves the other calls to the test.
struct Abacus {
    held: mpsc::Sender<HeldReply>,
    notes: Vec<String>,
    calls_of_flaky: usize,
    /// The token of the last unanswered call.
    unanswered: Option<DeferredReply<u8>>,
}

impl Abacus {
    fn new(held: mpsc::Sender<HeldReply>) -> Self {
        Self {
            held,
            notes: Vec::new(),
            calls_of_flaky: 0,
            unanswered: None,
        }
    }
}

impl Calculator for Abacus {
    fn divide(&mut self, a: i64, b: i64) -> Result<i64, CalculatorError> {
        a.checked_div(b).ok_or(CalculatorError::DivisionByZero)
    }

    fn greet(&self, name: String) -> String {
        format!("hello {name}")
    }

    fn middle(&self, points: Vec<Point>) -> Point {
        let count = points.len() as f64;
        Point {
            x: points.iter().map(|point| point.x).sum::<f64>() / count,
            y: points.iter().map(|point| point.y).sum::<f64>() / count,
            label: points.into_iter().find_map(|point| point.label),
        }
    }

    fn ping(&self) {}

    fn lanes(
        &mut self,
        cx: &mut Context<'_>,
        message: u8,
        number: u8,
        outcome: u8,
    ) -> (usize, u16) {
        let sum = u16::from(message) + u16::from(number) + u16::from(outcome);
        (cx.lane(), sum)
    }

    fn factors(&mut self, number: u64, reply: DeferredReply<Result<Vec<u64>, CalculatorError>>) {
        self.held.send((number, reply)).unwrap();
    }

    fn note(&mut self, line: String) {
        self.notes.push(line);
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn repeat(&self, payload: Vec<u8>) -> Vec<u8> {
        payload
    }

    fn flaky(&mut self, cx: &mut Context<'_>, payload: u8, reply: DeferredReply<u8>) {
        self.calls_of_flaky += 1;
        if self.calls_of_flaky.is_multiple_of(3) {
            self.unanswered = None;
            reply.reply(payload).unwrap();
        } else {
            cx.close();
            self.unanswered = Some(reply);
        }
    }
}

/// A running calculator, and the calls that wait for their answers.
struct Running {
    server: TestServer,
    codec: AnyCodec,
    held: mpsc::Receiver<HeldReply>,
}

impl Running {
    /// Starts over a transport and a codec.
    fn start(transport: &str, codec: &str) -> Self {
        Self::with(Server::builder(), transport, codec)
    }

    fn with(builder: ServerBuilder, transport: &str, codec: &str) -> Self {
        let (sender, held) = mpsc::channel();
        let make = move |_| {
            let abacus = Abacus::new(sender.clone());
            Router::new().mount(CalculatorServer::new(abacus))
        };
        let codec = AnyCodec::by_name(codec).unwrap();
        let server = match transport {
            "tcp" => TestServer::over_tcp(builder, &codec, make),
            "ipc" => TestServer::over_ipc(builder, &codec, make),
            "inproc" => TestServer::over_inproc(builder, &codec, make),
            other => panic!("there is no transport {other}"),
        };
        Self {
            server,
            codec,
            held,
        }
    }

    fn client(&self) -> Client {
        connect(&self.server, &self.codec)
    }

    fn calculator(&self) -> CalculatorClient {
        CalculatorClient::new(self.client())
    }

    /// Ends the client, then the server, and checks that every message is accounted for: no request was lost, every
    /// reply had a request, and the client received only replies. Returns the server's counters.
    fn finish(self, client: &Client) -> Metrics {
        client.close().wait();
        assert_eq!(client.metrics().replies_unmatched, 0);
        let metrics = self.server.stop();
        assert_eq!(
            metrics.deferred,
            metrics.deferred_answered + metrics.deferred_undelivered
        );
        metrics
    }
}

fn connect(server: &TestServer, codec: &AnyCodec) -> Client {
    Client::builder()
        .codec(codec.clone())
        .connect(&server.url())
        .wait()
        .unwrap()
}

/// Runs `check` over every transport and every codec with names.
fn everywhere(check: impl Fn(&str, Running)) {
    for transport in ["tcp", "ipc", "inproc"] {
        for codec in CODECS {
            let place = format!("{codec} over {transport}");
            check(&place, Running::start(transport, codec));
        }
    }
}
