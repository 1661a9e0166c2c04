//! A network that copies, reorders and replays datagrams: each request with an id is handled once, and no session ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidewire::{
    Chat, Client, Context, Deferred, Endpoint, HandlerResult, Message, PubSub, Request, Router,
};
use tidewire_proto::codec::{Codec, RequestIds};

use super::Setup;
use crate::harness::TestServer;
use crate::relay::{Disorder, UdpRelay};

/// Counts requests, and answers each with its payload: at once, or on command.
fn serve(setup: &Setup, handled: &Arc<AtomicU64>) -> TestServer {
    let (handled, method) = (Arc::clone(handled), setup.codec.method());
    setup.serve(move |_| {
        let handled = Arc::clone(&handled);
        let mut held: Vec<(Deferred, Vec<u8>)> = Vec::new();
        let answer = move |cx: &mut Context<'_>, message: Message<'_>| -> HandlerResult {
            handled.fetch_add(1, Ordering::SeqCst);
            match message.payload {
                b"release" => {
                    for (deferred, payload) in held.drain(..) {
                        deferred.reply(&payload)?;
                    }
                }
                b"hold" => {
                    held.push((cx.defer(), message.payload.to_vec()));
                    return Ok(());
                }
                _ => {}
            }
            cx.reply(message.payload)
        };
        let router = match method {
            "" => Router::new().otherwise(answer),
            name => Router::new().on(name, answer),
        };
        router.with(Chat::new()).with(PubSub::new())
    })
}

fn ask(setup: &Setup, client: &Client, payload: &[u8]) -> Request {
    client.request(payload).method(setup.codec.method()).send()
}

/// Regression: a copy of a request that was not answered yet ended the session, and a copy of a join was refused under
/// its id.
pub(super) fn copies_of_datagrams_change_nothing(setup: &Setup) {
    for disorder in Disorder::ALL {
        let handled = Arc::new(AtomicU64::new(0));
        let server = serve(setup, &handled);
        let Endpoint::Udp(address) = *server.address() else {
            panic!("this network is for datagrams");
        };
        let relay = UdpRelay::start(address, disorder);
        let client = setup
            .client()
            .connect(&format!("udp://{}", relay.address()));
        let client = client.wait().expect("the server welcomes it");
        let mut asked = 0;
        for number in 0..10_u32 {
            let texts: Vec<_> = (0..4).map(|it| format!("{number} {it}")).collect();
            let requests = texts
                .iter()
                .map(|text| ask(setup, &client, text.as_bytes()));
            for (text, request) in texts.iter().zip(requests.collect::<Vec<_>>()) {
                let reply = request.wait().expect("a reply");
                assert_eq!(reply.payload(), text.as_bytes(), "{disorder:?}");
            }
            asked += 4;
        }
        for _ in 0..5 {
            let held = ask(setup, &client, b"hold");
            // The server has it when a later request is answered, unless the two change places.
            ask(setup, &client, b"between").wait().expect("a reply");
            ask(setup, &client, b"release").wait().expect("a reply");
            ask(setup, &client, b"release").wait().expect("a reply");
            assert_eq!(held.wait().expect("a reply").payload(), b"hold");
            asked += 4;
        }
        if setup.lacks(super::Need::Leave).is_none() {
            for number in 0..4 {
                let name = format!("room-{number}");
                let joined = client
                    .join(&name)
                    .named("ann")
                    .wait()
                    .expect("a place in the room");
                client
                    .room(joined.id())
                    .leave()
                    .wait()
                    .expect("the way out");
                let topic = format!("topic-{number}");
                drop(client.subscribe(&topic).wait().expect("a subscription"));
            }
        }
        let counts = setup.codec().format().ids == RequestIds::Bits32;
        if counts {
            assert_eq!(handled.load(Ordering::SeqCst), asked, "{disorder:?}");
        }
        assert!(
            disorder == Disorder::Reorder || relay.extra() > 0,
            "{disorder:?}"
        );
        client.close().wait();
        drop((client, relay));
        let metrics = server.stop();
        assert_eq!(metrics.closed_by("request_id_reused"), 0);
        let has_copies = counts && disorder != Disorder::Reorder;
        assert!(!has_copies || metrics.requests_repeated > 0, "{disorder:?}");
    }
}
