//! Fixed bugs of histories across nodes, on an engine with a clock that the test moves.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use tidewire::backplane::{
    Backplane, BackplaneError, Carrier, HistoryState, Node, NodeSettings, RoomOrTopic, Subject,
    Wire,
};
use tidewire::{Chat, Client, History, Position, Server};

/// An engine without other nodes. A stream takes longer to read than the time from one heartbeat to the next.
#[derive(Debug)]
struct SlowStreams;

/// The streams that are to be read.
#[derive(Debug, Default)]
struct Follows(Vec<RoomOrTopic>);

impl Wire for Follows {
    fn publish(&mut self, _to: Subject<'_>, _packet: &[u8]) -> bool {
        true
    }

    fn ask(&mut self, _service: &str, _request: u64, _packet: &[u8]) -> bool {
        true
    }

    fn subscribe(&mut self, _subject: Subject<'_>) {}

    fn unsubscribe(&mut self, _subject: Subject<'_>) {}

    fn append(&mut self, _name: &RoomOrTopic, _id: &str, _packet: &[u8]) -> bool {
        true
    }

    fn follow(&mut self, name: &RoomOrTopic, _limits: &History, _from: u64) {
        self.0.push(name.clone());
    }

    fn replace(&mut self, _name: &RoomOrTopic, _limits: &History, _lost: Position) {}

    fn unfollow(&mut self, _name: &RoomOrTopic) {}
}

impl Backplane for SlowStreams {
    fn connect(&self) -> Result<Box<dyn Carrier>, BackplaneError> {
        Ok(Box::new(Self))
    }
}

impl Carrier for SlowStreams {
    fn packet_bytes_max(&self) -> usize {
        1 << 16
    }

    fn open_histories(&mut self) -> Result<(), BackplaneError> {
        Ok(())
    }

    fn run(self: Box<Self>, mut node: Node) {
        let (wake, woken) = mpsc::channel();
        // The thread may have ended.
        node.set_waker(move || {
            let _ = wake.send(());
        });
        let (mut wire, mut now, mut reads) = (Follows::default(), Instant::now(), 0);
        // The node has its id after a time without objections.
        node.turn(now, &mut wire);
        now += NodeSettings::new("one").unwrap().claim;
        while node.turn(now, &mut wire).is_some() {
            if let Some(name) = wire.0.pop() {
                reads += 1;
                let state = HistoryState {
                    epoch: 7,
                    from: 0,
                    last: 0,
                };
                match reads {
                    1 => node.handle_history(&name, state, &[], now),
                    _ => node.handle_history_failure(&name, "it is read again"),
                }
                now += Duration::from_secs(2);
            } else {
                // All that can wake it is gone when the server is.
                let _ = woken.recv();
            }
        }
    }
}

/// Regression: a heartbeat that was due after the reading of a stream closed the history before the lanes knew that it
/// was open. The lanes requested it again, so no client could join a room with a long history.
#[test]
fn a_history_that_took_long_to_read_stays_until_the_lanes_had_time_to_use_it() {
    let mut settings = NodeSettings::new("one").unwrap();
    settings.keeps_histories = true;
    let server = Server::builder()
        .backplane(SlowStreams, settings)
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .start(|_| Chat::new().history(History::last(10)))
        .unwrap();
    let address = server.addresses()[0].to_string();
    let client = Client::connect(&address).wait().unwrap();
    client.join("room").named("ann").wait().unwrap();
    client.close().wait();
}
