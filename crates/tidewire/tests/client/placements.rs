//! Rooms and subscriptions that a handler of the server gives a client, and takes away: the client learns of them.

use tidewire::{
    Client, Context, Event, HandlerResult, Kind, Message, RoomId, Server, SubscriptionId,
};
use tidewire_testkit::TestServer;
use tidewire_testkit::fixtures::{codec, tw1};

/// Puts its clients where they ask to be put by requests.
fn place(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    match message.payload {
        b"in" => {
            let name = format!("member-{}", cx.id());
            let joined = cx.rooms().join("match.7", &name)?;
            let subscription = cx.topics().subscribe("score.*")?;
            cx.set_state((joined.room, subscription));
            cx.rooms().announce("match.7", b"go")?;
            cx.topics().publish("score.red", b"1")?;
        }
        b"out" => {
            let places: Option<(RoomId, SubscriptionId)> = cx.take_state();
            let (room, subscription) = places.expect("a client that was put in");
            cx.rooms().leave(room)?;
            cx.topics().unsubscribe(subscription)?;
        }
        _ => {}
    }
    cx.reply(b"done")
}

/// The next event that is no presence.
fn next(client: &Client) -> Event {
    loop {
        match client.next_event().wait() {
            Event::Presence { .. } => {}
            event => return event,
        }
    }
}

fn delivered(event: Event) -> (u16, String, Vec<u8>) {
    match event {
        Event::Message(message) if message.kind == Kind::Deliver => {
            (message.channel, message.name, message.payload)
        }
        other => panic!("not a delivery: {other:?}"),
    }
}

/// Regression: `cx.join` and `cx.subscribe` of a handler were invisible to clients, which got messages of unknown
/// channels.
#[test]
fn a_client_learns_of_the_rooms_and_subscriptions_that_a_handler_gives_it() {
    for name in ["tw1", "json"] {
        let codec = if name == "tw1" { tw1() } else { codec(name) };
        let server = TestServer::over_tcp(Server::builder(), &codec, |_| place);
        let client = Client::builder().codec(codec).connect(&server.url());
        let client = client.wait().unwrap();
        assert!(matches!(next(&client), Event::Opened { .. }));
        assert_eq!(client.request(b"in").wait().unwrap().payload(), b"done");
        let Event::Joined {
            room,
            room_name,
            name,
            members,
            ..
        } = next(&client)
        else {
            panic!("not joined");
        };
        assert_eq!((&*room_name, members), ("match.7", 1));
        assert!(name.starts_with("member-"));
        let Event::Subscribed {
            subscription,
            pattern,
        } = next(&client)
        else {
            panic!("not subscribed");
        };
        assert_eq!(pattern, "score.*");
        let mut both = [delivered(next(&client)), delivered(next(&client))];
        both.sort_by(|one, other| one.2.cmp(&other.2));
        let score = (subscription.0, "score.red".to_owned(), b"1".to_vec());
        assert_eq!(both[0], score);
        assert_eq!((both[1].0, &both[1].2[..]), (room.0, &b"go"[..]));

        client.request(b"out").wait().unwrap();
        assert_eq!(next(&client), Event::Removed { channel: room.0 });
        let channel = subscription.0;
        assert_eq!(next(&client), Event::Removed { channel });
        client.close().wait();
        drop(client);
        server.stop();
    }
}

/// A raw peer sends a hello without features, as an older client does.
#[test]
fn a_client_that_does_not_know_placements_gets_none() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| place);
    let mut peer = server.peer();
    peer.ask(b"in");
    let mut kinds = Vec::new();
    while kinds.last() != Some(&Kind::Reply) {
        kinds.push(peer.receive().expect("an answer, not the end").kind);
    }
    assert!(!kinds.contains(&Kind::Placement), "{kinds:?}");
    drop(peer);
    server.stop();
}
