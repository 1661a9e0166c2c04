//! Behaviours that share one server, so that a cell of the cube costs one server and not one for each behaviour.
//!
//! The first byte of a message selects the action of the server's service. Behaviours run one after the other, each on
//! a thread with its name, so that a failure shows the name.

use tidewire::{
    Client, ClientBuilder, Context, Deferred, HandlerError, HandlerResult, Kind, Limits, Message,
    PubSub, Request, RoomId, Service,
};
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;

use super::{BEHAVIOURS, Run, Setup};
use crate::harness::TestServer;
use crate::peer::Peer;
use crate::wait::DEADLINE;

pub(super) struct Cell<'a> {
    pub(super) setup: &'a Setup,
    pub(super) server: &'a TestServer,
}

impl Cell<'_> {
    pub(super) fn client(&self) -> Client {
        self.connect(self.setup.client())
    }

    pub(super) fn connect(&self, builder: ClientBuilder) -> Client {
        builder
            .request_timeout(DEADLINE)
            .connect(&self.server.url())
            .wait()
            .expect("the server welcomes the client")
    }

    pub(super) fn peer(&self) -> Peer {
        self.server.peer()
    }

    /// Sends a request, with a name if the codec requires one.
    pub(super) fn ask(&self, client: &Client, payload: &[u8]) -> Request {
        let method = self.setup.codec.method();
        client.request(payload).method(method).send()
    }

    /// Makes the server answer all held requests, and waits until it has.
    pub(super) fn release(&self, client: &Client) {
        let released = self.ask(client, b">").wait().expect("an answer");
        assert_eq!(released.payload(), b"released");
    }
}

/// Runs every shared behaviour of a cell that its codec supports.
pub fn run_shared(setup: &Setup) {
    if setup.unavailable().is_some() {
        return;
    }
    let mut limits = Limits::default();
    limits.connections.set_deferred_max(DEFERRED_MAX);
    let server = setup.serve_with(setup.builder().limits(limits), |_| Table::default());
    for behaviour in BEHAVIOURS {
        let Run::Shared(run) = behaviour.run else {
            continue;
        };
        if behaviour.skipped(setup).is_some() {
            continue;
        }
        let cell = Cell {
            setup,
            server: &server,
        };
        let result = std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name(behaviour.name.to_owned())
                .spawn_scoped(scope, || run(&cell))
                .expect("a thread")
                .join()
        });
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    }
    let metrics = server.stop();
    assert_eq!(
        metrics.deferred,
        metrics.deferred_answered + metrics.deferred_undelivered,
        "deferred, answered and not wanted: {metrics:#?}"
    );
}

/// The service of a shared server.
#[derive(Default)]
struct Table {
    held: Vec<(Deferred, Vec<u8>)>,
    counted: usize,
    topics: PubSub,
}

impl Service for Table {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if let Kind::Subscribe | Kind::Unsubscribe | Kind::Publish = message.kind {
            return self.topics.on_message(cx, message);
        }
        let (command, rest) = message.payload.split_first().unwrap_or((&b'=', &[]));
        match command {
            b'=' => cx.reply(rest),
            b'<' => {
                self.held.push((cx.defer(), rest.to_vec()));
                Ok(())
            }
            b'>' => {
                for (deferred, answer) in self.held.drain(..).rev() {
                    deferred.reply(&answer)?;
                }
                cx.reply(b"released")
            }
            b'~' => {
                drop(cx.defer());
                Ok(())
            }
            b'!' => Err(HandlerError::new(ErrorCode::NotFound, text(rest))),
            b'#' => {
                self.counted += 1;
                Ok(())
            }
            b'?' => cx.reply(self.counted.to_string().as_bytes()),
            b'x' if cx.codec().format().has_ids() => {
                Ok(cx.send(Message::with_id(Kind::Reply, 0, STRAY_ID, b"stray"))?)
            }
            b'x' => Ok(cx.send(Message::new(Kind::OneWay, 0, b"stray"))?),
            b's' => {
                cx.topics().subscribe(&text(rest))?;
                cx.reply(b"subscribed")
            }
            b'p' => {
                let (topic, payload) = words(rest);
                Ok(cx.topics().publish(&text(topic), payload)?)
            }
            b'j' => {
                let (room, name) = words(rest);
                let joined = cx.rooms().join(&text(room), &text(name))?;
                cx.set_state(joined.room);
                cx.reply(b"joined")
            }
            b'y' => {
                let room = cx.state().copied().unwrap_or(RoomId(0));
                Ok(cx.rooms().say(room, rest)?)
            }
            _ => Err(HandlerError::new(ErrorCode::Unsupported, "no such command")),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Splits the bytes at the first space.
fn words(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b' ');
    end.map_or((bytes, &[]), |end| (&bytes[..end], &bytes[end + 1..]))
}

/// The number of a session's requests that the shared server takes before it stops reading.
pub(super) const DEFERRED_MAX: usize = 50;

/// An id that no client has reached when the test uses it.
const STRAY_ID: u32 = 200;
