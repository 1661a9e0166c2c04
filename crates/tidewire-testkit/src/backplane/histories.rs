//! The behaviours of backplanes that keep the histories of rooms and topics.

use tidewire::backplane::NodeSettings;
use tidewire::{
    AnyCodec, Chat, Client, Event, History, Kind, Position, PubSub, Room, Server, Subscription,
    TopicEvent,
};

use super::Engine;
use super::suite::settings;
use crate::harness::TestServer;
use crate::wait::DEADLINE;

/// Starts a chat server of two lanes as a node with histories of rooms.
pub fn chat_with_history<E: Engine>(engine: &E, id: &str, history: History) -> TestServer {
    let builder = Server::builder()
        .lanes(2)
        .backplane(engine.backplane(), kept_settings(id));
    let chat = Chat::new().history(history);
    TestServer::over_tcp(builder, &AnyCodec::default(), move |_| chat.clone())
}

/// Starts a publish/subscribe server of two lanes as a node with histories of the topics `lobby` and `state.>`.
pub fn topics_with_history<E: Engine>(engine: &E, id: &str, history: History) -> TestServer {
    let builder = Server::builder()
        .lanes(2)
        .backplane(engine.backplane(), kept_settings(id));
    let topics = PubSub::new()
        .history("lobby", history)
        .history("state.>", history);
    TestServer::over_tcp(builder, &AnyCodec::default(), move |_| topics.clone())
}

fn kept_settings(id: &str) -> NodeSettings {
    let mut settings = settings(id);
    settings.keeps_histories = true;
    settings
}

/// The kind of a history in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryKind {
    /// The room "lobby".
    Room,
    /// The topic "lobby".
    Topic,
}

impl HistoryKind {
    /// Starts a server as a node.
    pub fn serve<E: Engine>(self, engine: &E, id: &str, history: History) -> TestServer {
        match self {
            Self::Room => chat_with_history(engine, id, history),
            Self::Topic => topics_with_history(engine, id, history),
        }
    }

    /// Enters as a member that has the messages up to a position.
    #[must_use]
    pub fn reader(self, server: &TestServer, name: &str, since: Option<Position>) -> Reader {
        match self {
            Self::Room => Reader::join(server, name, since),
            Self::Topic => Reader::subscribe(server, "lobby", since),
        }
    }
}

/// A member of the room with a history, or a subscriber of a topic, and its received messages.
#[derive(Debug)]
pub struct Reader {
    client: Client,
    joined: Joined,
    /// The position of the last message.
    pub position: Option<Position>,
    /// The missing messages that the reply to the last join reported.
    pub recovered: Option<Option<u64>>,
    /// The missing messages that gaps have reported.
    pub lost: u64,
}

/// The room or topic of a reader.
#[derive(Debug)]
enum Joined {
    Room(Room),
    Topic(Subscription),
}

impl Reader {
    /// Joins the room as a member that has the messages up to a position.
    #[must_use]
    pub fn join(server: &TestServer, name: &str, since: Option<Position>) -> Self {
        let client = Client::connect(&server.url()).wait().expect("a connection");
        let joined = match since {
            Some(since) => client.join("lobby").named(name).since(since),
            None => client.join("lobby").named(name),
        };
        let room = joined.wait().expect("a free name");
        Self::new(client, Joined::Room(room), since)
    }

    /// Subscribes to a topic as a subscriber that has the messages up to a position.
    #[must_use]
    pub fn subscribe(server: &TestServer, pattern: &str, since: Option<Position>) -> Self {
        let client = Client::connect(&server.url()).wait().expect("a connection");
        let subscribed = match since {
            Some(since) => client.subscribe(pattern).since(since),
            None => client.subscribe(pattern),
        };
        let subscription = subscribed.wait().expect("a subscription");
        Self::new(client, Joined::Topic(subscription), since)
    }

    fn new(client: Client, joined: Joined, position: Option<Position>) -> Self {
        Self {
            client,
            joined,
            position,
            recovered: None,
            lost: 0,
        }
    }

    /// Says or publishes something.
    pub fn say(&self, text: &str) {
        match &self.joined {
            Joined::Room(room) => room.say(text.as_bytes()).expect("an open client"),
            Joined::Topic(_) => publish(&self.client, "lobby", text),
        }
    }

    /// Returns the next message that the history has. Others are skipped, and what is missing is noted.
    pub fn hear(&mut self) -> String {
        loop {
            let (position, payload) = match &self.joined {
                Joined::Room(_) => match self.next_in_room() {
                    Some(heard) => heard,
                    None => continue,
                },
                Joined::Topic(subscription) => {
                    let event = subscription.next_event().wait_for(DEADLINE);
                    match event.expect("an event in time") {
                        TopicEvent::Message(message) => (message.position, message.payload),
                        TopicEvent::Gap { lost } => {
                            self.lost += lost;
                            continue;
                        }
                        TopicEvent::Recovered { missing } => {
                            self.recovered = Some(missing);
                            continue;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            };
            if position.is_some() {
                self.position = position;
            }
            return String::from_utf8(payload).expect("text");
        }
    }

    fn next_in_room(&mut self) -> Option<(Option<Position>, Vec<u8>)> {
        let event = self.client.next_event().wait_for(DEADLINE);
        match event.expect("an event in time") {
            Event::Message(message) if message.kind == Kind::Deliver => {
                let position = message.position?;
                return Some((Some(position), message.payload));
            }
            Event::Gap { lost, .. } => self.lost += lost,
            Event::Recovered { missing, .. } => self.recovered = Some(missing),
            Event::Message(_) | Event::Presence { .. } | Event::Opened { .. } => {}
            other => panic!("{other:?}"),
        }
        None
    }

    /// Returns the next messages with their offsets.
    pub fn take(&mut self, count: usize) -> Vec<(u64, String)> {
        let take = |_| {
            let text = self.hear();
            (self.position.map_or(0, |it| it.offset), text)
        };
        (0..count).map(take).collect()
    }

    /// Ends the connection.
    pub fn leave(self) -> Position {
        self.client.close().wait();
        self.position.expect("a position")
    }
}

/// Publishes a message.
pub fn publish(client: &Client, topic: &str, text: &str) {
    let published = client.publish(topic, text.as_bytes());
    published.expect("an open client");
}

fn texts(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| format!("message {number}")).collect()
}

fn say_all(reader: &Reader, numbers: std::ops::Range<usize>) {
    for text in texts(numbers) {
        reader.say(&text);
    }
}

fn without_offsets(taken: Vec<(u64, String)>) -> Vec<String> {
    taken.into_iter().map(|(_, text)| text).collect()
}

/// Two authors on two nodes: readers on both nodes get all messages once, with the same offsets, and without holes.
pub fn all_nodes_have_one_order<E: Engine>(engine: &mut E, kind: HistoryKind) {
    const EACH: usize = 200;
    let servers = ["one", "two"].map(|id| kind.serve(engine, id, History::last(1_000)));
    let mut authors = [0, 1].map(|it| kind.reader(&servers[it], ["ann", "bob"][it], None));
    let mut readers = [0, 1].map(|it| kind.reader(&servers[it], ["eva", "gus"][it], None));
    for number in 0..EACH {
        for (index, author) in authors.iter().enumerate() {
            author.say(&format!("{index} {number}"));
        }
    }
    let [one, two] = readers.each_mut().map(|reader| reader.take(2 * EACH));
    assert_eq!(one, two);
    let offsets = one.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0);
    assert!(offsets, "holes in {one:?}");
    for index in 0..2 {
        let own = one
            .iter()
            .filter(|(_, text)| text.starts_with(&format!("{index} ")));
        let numbers: Vec<String> = own.map(|(_, text)| text[2..].to_owned()).collect();
        let expected: Vec<String> = (0..EACH).map(|number| number.to_string()).collect();
        assert_eq!(numbers, expected, "each author's order is kept");
    }
    // A publisher gets its own messages, too, if it subscribes.
    let members = authors.iter_mut().zip([1, 0]);
    for (author, other) in members.filter(|_| kind == HistoryKind::Room) {
        let heard = without_offsets(author.take(EACH));
        let is_of_other = |text: &String| text.starts_with(&format!("{other} "));
        assert!(heard.iter().all(is_of_other), "no author hears itself");
    }
    drop((authors, readers));
    for server in servers {
        let metrics = server.stop();
        assert_eq!(metrics.backplane_lost, 0);
        // A message of a topic goes to the stream, and to subscribers of wildcards on other nodes.
        let copies = if kind == HistoryKind::Topic { 2 } else { 1 };
        assert_eq!(metrics.backplane_sent, copies * EACH as u64);
    }
}

/// A member that moves from one node to the other receives the missed messages, once.
pub fn a_member_that_comes_back_to_another_node_gets_what_it_missed<E: Engine>(
    engine: &mut E,
    kind: HistoryKind,
) {
    let servers = ["one", "two"].map(|id| kind.serve(engine, id, History::last(100)));
    let ann = kind.reader(&servers[0], "ann", None);
    let mut bob = kind.reader(&servers[1], "bob", None);
    say_all(&ann, 0..10);
    assert_eq!(without_offsets(bob.take(10)), texts(0..10));
    let left_at = bob.leave();
    let mut carl = kind.reader(&servers[0], "carl", None);
    say_all(&ann, 10..30);
    assert_eq!(without_offsets(carl.take(30)), texts(0..30));
    // The second node has no member in the room during this time, and the third never had one.
    let third = kind.serve(engine, "three", History::last(100));
    for (server, name) in [(&servers[0], "eva"), (&servers[1], "finn"), (&third, "gus")] {
        let mut bob = kind.reader(server, name, Some(left_at));
        assert_eq!(without_offsets(bob.take(20)), texts(10..30), "{name}");
        assert_eq!((bob.recovered, bob.lost), (Some(Some(0)), 0), "{name}");
        assert_eq!(bob.position, carl.position, "{name}");
    }
    let mut dora = kind.reader(&third, "dora", carl.position);
    ann.say("live");
    assert_eq!((dora.hear(), carl.hear()), ("live".into(), "live".into()));
    drop((ann, carl));
    third.stop();
    for server in servers {
        server.stop();
    }
}

/// Every node reports the exact number of messages that the limit of the history has removed.
pub fn the_missing_number_is_exact_when_the_history_was_too_short<E: Engine>(
    engine: &mut E,
    kind: HistoryKind,
) {
    let servers = ["one", "two"].map(|id| kind.serve(engine, id, History::last(5)));
    let ann = kind.reader(&servers[0], "ann", None);
    let mut bob = kind.reader(&servers[1], "bob", None);
    say_all(&ann, 0..3);
    assert_eq!(without_offsets(bob.take(3)), texts(0..3));
    let left_at = bob.leave();
    let mut carl = kind.reader(&servers[0], "carl", None);
    say_all(&ann, 3..15);
    assert_eq!(without_offsets(carl.take(15)), texts(0..15));
    let third = kind.serve(engine, "three", History::last(5));
    for (server, name) in [(&servers[0], "eva"), (&servers[1], "finn"), (&third, "gus")] {
        let mut bob = kind.reader(server, name, Some(left_at));
        assert_eq!(without_offsets(bob.take(5)), texts(10..15), "{name}");
        assert_eq!(bob.recovered, Some(Some(7)), "{name}");
        assert_eq!(bob.position, carl.position, "{name}");
    }
    drop((ann, carl));
    third.stop();
    for server in servers {
        server.stop();
    }
}

/// Messages that are sent while the engine is unreachable wait in their node, and reach all members once when it is
/// back.
pub fn messages_wait_while_the_engine_is_gone<E: Engine>(engine: &mut E, kind: HistoryKind) {
    let servers = ["one", "two"].map(|id| kind.serve(engine, id, History::last(100)));
    let ann = kind.reader(&servers[0], "ann", None);
    let mut near = kind.reader(&servers[0], "near", None);
    let mut far = kind.reader(&servers[1], "far", None);
    say_all(&ann, 0..5);
    for reader in [&mut near, &mut far] {
        assert_eq!(without_offsets(reader.take(5)), texts(0..5));
    }
    for round in 1..4 {
        engine.cut();
        say_all(&ann, 5 * round..5 * round + 5);
        engine.mend();
        let [one, two] = [&mut near, &mut far].map(|reader| reader.take(5));
        assert_eq!(one, two);
        assert_eq!(without_offsets(one), texts(5 * round..5 * round + 5));
    }
    assert_eq!((near.lost, far.lost), (0, 0));
    drop((ann, near, far));
    for server in servers {
        assert_eq!(server.stop().backplane_lost, 0);
    }
}

/// A node that was stopped and started again has the messages from before and from the time between.
pub fn a_node_that_starts_again_has_the_history<E: Engine>(engine: &mut E, kind: HistoryKind) {
    let one = kind.serve(engine, "one", History::last(100));
    let two = kind.serve(engine, "two", History::last(100));
    let ann = kind.reader(&one, "ann", None);
    let mut bob = kind.reader(&two, "bob", None);
    say_all(&ann, 0..5);
    assert_eq!(without_offsets(bob.take(5)), texts(0..5));
    let left_at = bob.leave();
    two.stop();
    let mut near = kind.reader(&one, "near", Some(left_at));
    say_all(&ann, 5..8);
    assert_eq!(without_offsets(near.take(3)), texts(5..8));
    drop((ann, near));
    one.stop();
    // No node is left that knows the room.
    let two = kind.serve(engine, "two", History::last(100));
    let mut bob = kind.reader(&two, "bob", Some(left_at));
    assert_eq!(without_offsets(bob.take(3)), texts(5..8));
    assert_eq!(bob.recovered, Some(Some(0)));
    drop(bob);
    two.stop();
}

/// Members are told when the history of their room was lost, and the room continues.
pub fn a_history_that_is_lost_begins_again<E: Engine>(engine: &mut E, kind: HistoryKind) {
    let servers = ["one", "two"].map(|id| kind.serve(engine, id, History::last(100)));
    let ann = kind.reader(&servers[0], "ann", None);
    let mut bob = kind.reader(&servers[1], "bob", None);
    ann.say("before");
    assert_eq!(bob.hear(), "before");
    let before = bob.position.expect("a position");
    // Until its node knows that it is stored, the node would store it again in the new stream.
    ann.client.flush().wait().expect("it is stored");
    engine.lose_streams();
    ann.say("after");
    assert_eq!(bob.hear(), "after");
    let after = bob.position.expect("a position");
    assert_ne!(before.epoch, after.epoch);
    assert_eq!(bob.recovered, Some(None), "bob is told");
    let mut carl = kind.reader(&servers[0], "carl", Some(before));
    assert_eq!(carl.hear(), "after");
    assert_eq!(carl.recovered, Some(None));
    drop((ann, bob, carl));
    for server in servers {
        server.stop();
    }
}
