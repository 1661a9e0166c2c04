//! Request and reply: pairing, deferred answers, workers, methods by name, options of calls.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod backed_up;
mod calls;
mod deferred;
mod methods;
mod names;
mod pairing;
mod workers;

use std::sync::mpsc;

use tidewire::{Client, ClientBuilder, Context, Deferred, Message, Request, Server, ServerBuilder};
use tidewire_testkit::fixtures::{codec, echo, limited};
use tidewire_testkit::{DEADLINE, TestServer};

/// All codecs that have requests and replies.
const CODECS: [&str; 8] = [
    "tw1",
    "json",
    "srmp",
    "srmp-rpc",
    "length-field",
    "delimited",
    "lines",
    "uvrpc",
];

/// The codecs that transmit names of methods.
const CODECS_WITH_NAMES: [&str; 4] = ["tw1", "json", "srmp-rpc", "uvrpc"];

fn client_of(server: &TestServer, name: &str) -> Client {
    connect(Client::builder(), server, name)
}

fn connect(builder: ClientBuilder, server: &TestServer, name: &str) -> Client {
    builder
        .codec(codec(name))
        .connect(&server.url())
        .wait()
        .unwrap()
}

/// Sends a request, with a name if the codec requires one.
fn ask(client: &Client, name: &str, payload: &[u8]) -> Request {
    if CODECS_WITH_NAMES.contains(&name) {
        client.request(payload).method("ask").send()
    } else {
        client.request(payload).send()
    }
}

/// A request that the test answers instead of the service.
type DeferredTask = (Deferred, Vec<u8>);

/// A server that passes all its requests to the test, which must answer them.
struct Desk {
    server: TestServer,
    taken: mpsc::Receiver<DeferredTask>,
}

impl Desk {
    fn open(name: &str) -> Self {
        Self::with(Server::builder(), name)
    }

    fn with(builder: ServerBuilder, name: &str) -> Self {
        let (sender, taken) = mpsc::channel();
        let server = TestServer::over_tcp(builder, &codec(name), move |_| {
            let sender = sender.clone();
            move |cx: &mut Context<'_>, message: Message<'_>| {
                sender.send((cx.defer(), message.payload.to_vec())).unwrap();
                Ok(())
            }
        });
        Self { server, taken }
    }

    fn take(&self) -> DeferredTask {
        self.taken.recv_timeout(DEADLINE).unwrap()
    }
}
