//! Every call that takes time is a future and has a blocking twin. The tests also drop such futures early.

use tidewire::{Chat, Client, Event, Kind, PubSub, RequestError, Router, Server, TopicEvent};
use tidewire_testkit::fixtures::tw1;
use tidewire_testkit::{TestServer, wait_until};

use super::executor::run_one;

#[test]
fn every_call_is_a_future_and_blocks() {
    let chat = TestServer::over_tcp(Server::builder(), &tw1(), |_| Chat::new());
    let url = chat.url();
    let [ada, bob] = run_one(async {
        let ada = Client::connect(&url).await.unwrap();
        let bob = Client::connect(&url).await.unwrap();
        let room = ada.join("lobby").named("ada").await.unwrap().id();
        bob.join("lobby").named("bob").await.unwrap();
        ada.room(room).whisper("bob", b"psst").await.unwrap();
        assert_eq!(ada.room(room).members().await.unwrap().len(), 2);
        ada.room(room).leave().await.unwrap();
        let unknown = bob.request(b"?").method("unheard").await.unwrap_err();
        assert!(matches!(unknown, RequestError::Refused { .. }), "{unknown}");
        [ada, bob]
    });
    // The other direction.
    let room = ada.join("lobby").named("ada").wait().unwrap();
    room.whisper("bob", b"psst").wait().unwrap();
    assert_eq!(room.members().wait().unwrap().len(), 2);
    room.leave().wait().unwrap();
    run_one(async { ada.close().await });
    bob.close().wait();
    for client in [ada, bob] {
        assert_eq!(client.request(b"").wait(), Err(RequestError::Shutdown));
        assert!(client.send(b"").is_err());
        // Closing a client that has ended returns at once.
        client.close().wait();
    }
    chat.stop();
}

#[test]
fn a_call_takes_method_kind_and_channel() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| {
        Router::new().on("kind", |cx, message| {
            assert_eq!(message.kind, Kind::Request);
            cx.reply(message.payload)
        })
    });
    let client = Client::connect(&server.url()).wait().unwrap();
    let reply = client.request(b"x").method("kind").wait().unwrap();
    assert_eq!(reply.payload(), b"x");
    client.close().wait();
    server.stop();
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    let client = Client::connect(&server.url()).wait().unwrap();
    // The body of a subscription, in a frame that the application builds: no policy, then the pattern after its length.
    let body = tidewire_proto::body::SubscribeBody {
        policy: None,
        pattern: "a",
        group: None,
    };
    let mut payload = Vec::new();
    body.encode(&mut payload);
    let alias = client
        .request(&payload)
        .kind(Kind::Subscribe)
        .wait()
        .unwrap();
    let gone = client
        .request(b"")
        .kind(Kind::Unsubscribe)
        .channel(alias.channel());
    gone.wait().unwrap();
    client.close().wait();
    server.stop();
}

/// Regression: the server agreed after the drop and sent messages that the client could not unsubscribe from.
#[test]
fn a_subscription_given_up_while_it_is_made_is_unsubscribed_from() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    let client = Client::connect(&server.url()).wait().unwrap();
    for _ in 0..20 {
        drop(client.subscribe("a.b").send());
    }
    // The server refuses a second subscription to the same pattern.
    let again = wait_until("they are gone", || client.subscribe("a.b").wait().ok());
    client.publish("a.b", b"once").unwrap();
    client.publish("a.b", b"twice").unwrap();
    for expected in [&b"once"[..], b"twice"] {
        match again.next_event().wait() {
            TopicEvent::Message(message) => assert_eq!(message.payload, expected),
            other => panic!("{other:?}"),
        }
    }
    client.flush().wait().unwrap();
    let strays = std::iter::from_fn(|| client.next_event().wait_for(std::time::Duration::ZERO));
    let strays: Vec<Event> = strays
        .filter(|event| matches!(event, Event::Message(_)))
        .collect();
    assert!(strays.is_empty(), "{strays:?}");
    client.close().wait();
    server.stop();
}

#[test]
fn a_connection_given_up_while_it_is_made_ends() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    for _ in 0..10 {
        drop(Client::connect(&server.url()));
    }
    let client = Client::connect(&server.url()).wait().unwrap();
    wait_until("only this one is left", || {
        (server.server().sessions().list().len() == 1).then_some(())
    });
    client.close().wait();
    server.stop();
}
