//! Listeners of one server with different codecs.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};

use tidewire::address::{Address, AddressError};
use tidewire::auth::{Identity, Permissions};
use tidewire::codec::Codec;
use tidewire::upstream::Upstream;
use tidewire::{
    AnyCodec, Chat, Client, Context, Deferred, ErrorCode, Event, HandlerError, HandlerResult,
    History, Kind, Limits, Message, Moment, Position, PubSub, RequestError, Room, RoomId,
    ServeError, Server, Service, SessionId, Subscription, TopicEvent,
};
use tidewire_testkit::backplane::suite::settings;
use tidewire_testkit::backplane::{Engine, InprocEngine};
use tidewire_testkit::fixtures::{codec, echo};
use tidewire_testkit::identities::{TokenFolder, tell_name, users};
use tidewire_testkit::{DEADLINE, assert_conserved};

/// The codecs of the listeners. The first is the server's main codec.
const CODECS: [&str; 5] = ["tw1", "json", "srmp", "length-field:size=4", "uvrpc"];

/// Listens with each codec at an address of its own.
fn listen(lanes: usize) -> tidewire::ServerBuilder {
    CODECS
        .iter()
        .fold(Server::builder().lanes(lanes), |builder, codec| {
            builder
                .listen(&format!("tcp://127.0.0.1:0?codec={codec}"))
                .unwrap()
        })
}

/// The address of the listener with each codec.
fn addresses(server: &Server) -> Vec<String> {
    let with_codec = |(endpoint, codec)| format!("{endpoint}?codec={codec}");
    let endpoints = server.addresses().iter().zip(CODECS);
    endpoints.map(with_codec).collect()
}

fn clients(server: &Server) -> Vec<Client> {
    let addresses = addresses(server);
    let connect = |address: &String| Client::connect(address).wait().unwrap();
    addresses.iter().map(connect).collect()
}

/// Waits for the next message that answers no request.
fn message_of(client: &Client) -> Vec<u8> {
    loop {
        match client.next_event().wait_for(DEADLINE) {
            Some(Event::Message(message)) => return message.payload,
            Some(Event::Opened { .. }) => {}
            other => panic!("{other:?} in place of a message"),
        }
    }
}

#[test]
fn clients_of_five_codecs_ask_one_service() {
    const ROUNDS: usize = 200;
    for lanes in [1, 3] {
        let server = listen(lanes).start(|_| echo).unwrap();
        let clients = clients(&server);
        for round in 0..ROUNDS {
            // Equal lengths in a row let the lane keep templates of frames, which must not cross to another codec.
            let text = format!("{:040}", round / 4);
            let ask = |client: &Client| client.request(text.as_bytes()).send();
            let requests: Vec<_> = clients.iter().flat_map(|it| [ask(it), ask(it)]).collect();
            for request in requests {
                assert_eq!(request.wait().unwrap().payload(), text.as_bytes());
            }
        }
        drop(clients);
        let metrics = server.shutdown(DEADLINE).metrics;
        assert_eq!(metrics.sessions_opened, CODECS.len() as u64);
        assert_eq!(metrics.refused, 0);
    }
}

/// A method's answer names its codec, and its refusal is one of the codec's own.
#[test]
fn handlers_see_the_codec_of_the_session() {
    let service = |cx: &mut Context<'_>, message: Message<'_>| -> HandlerResult {
        let name = cx.codec().name();
        assert_eq!(cx.sessions().find(cx.id()).unwrap().codec().name(), name);
        match message.payload {
            b"refuse" => Err(HandlerError::new(ErrorCode::Forbidden, "not today")),
            _ => cx.reply(name.as_bytes()),
        }
    };
    let server = listen(1).start(move |_| service).unwrap();
    for (client, codec) in clients(&server).iter().zip(CODECS) {
        let name = codec.split(':').next().unwrap();
        let reply = client.request(b"which").wait().unwrap();
        assert_eq!(reply.payload(), name.as_bytes());
        let refused = client.request(b"refuse").wait();
        match AnyCodec::by_name(codec).unwrap().format().has_ids() {
            true => assert!(
                matches!(refused, Err(RequestError::Refused { .. })),
                "{codec}"
            ),
            // Without ids a refusal cannot be told apart from an answer, so the session ends.
            false => assert!(matches!(refused, Err(RequestError::Closed(_))), "{codec}"),
        }
    }
}

/// Answers from other threads, and messages to sessions of other lanes, are framed with the codec of their session.
#[test]
fn answers_of_other_threads_and_lanes_have_the_codec_of_their_session() {
    const LANES: usize = 3;
    let (to_thread, deferred) = channel::<(Deferred, Vec<u8>)>();
    let (to_test, opened) = channel();
    let answering = std::thread::spawn(move || {
        for (answer, payload) in deferred {
            answer.reply(&payload).unwrap();
        }
    });
    let server = listen(LANES)
        .start(|_| {
            let (to_thread, to_test) = (to_thread.clone(), to_test.clone());
            move |cx: &mut Context<'_>, message: Message<'_>| -> HandlerResult {
                if let Some(number) = message.payload.strip_prefix(b"tell ") {
                    let number = str::from_utf8(number).unwrap().parse().unwrap();
                    let news = Message::new(Kind::OneWay, 0, b"news of a session");
                    cx.send_to(SessionId::from_number(number), &news).unwrap();
                    return cx.reply(b"told");
                }
                to_test.send(cx.id()).unwrap();
                to_thread
                    .send((cx.defer(), message.payload.to_vec()))
                    .unwrap();
                Ok(())
            }
        })
        .unwrap();
    drop((to_thread, to_test));
    let clients = clients(&server);
    let mut sessions = Vec::new();
    for client in &clients {
        for _ in 0..3 {
            let reply = client.request(b"a deferred answer").wait().unwrap();
            assert_eq!(reply.payload(), b"a deferred answer");
            sessions.push(opened.recv().unwrap());
        }
    }
    sessions.dedup();
    assert_eq!(sessions.len(), CODECS.len());
    // Codecs without ids match every message with a request, so their clients are told nothing else.
    let told = [0, 1, 4];
    for asker in &told {
        for target in &told {
            let question = format!("tell {}", sessions[*target].number());
            let reply = clients[*asker].request(question.as_bytes()).wait().unwrap();
            assert_eq!(reply.payload(), b"told");
            assert_eq!(message_of(&clients[*target]), b"news of a session");
        }
    }
    drop(clients);
    drop(server.shutdown(DEADLINE));
    answering.join().unwrap();
}

/// One message, framed once for each codec, reaches sessions of all of them.
#[test]
fn a_broadcast_is_framed_for_each_codec() {
    let server = listen(2).start(|_| echo).unwrap();
    let clients = clients(&server);
    for client in &clients {
        assert_eq!(client.request(b"open").wait().unwrap().payload(), b"open");
    }
    let news = Message::new(Kind::OneWay, 0, b"for all");
    let broadcast = server.sessions().broadcast_where(|_| true, news);
    let report = broadcast.unwrap().wait();
    assert_eq!((report.matched, report.queued), (5, 5));
    for client in &clients {
        assert_eq!(message_of(client), b"for all");
    }
    // Only two of the codecs have gap notices.
    let gap = Message::new(Kind::Gap, 1, &[0; 8]);
    let broadcast = server.sessions().broadcast_where(|_| true, gap);
    let report = broadcast.unwrap().wait();
    assert_eq!(report.queued + report.inexpressible, report.matched);
    assert!(report.queued > 0 && report.inexpressible > 0, "{report:?}");
    let metrics = server.metrics();
    assert_eq!(metrics.broadcast_inexpressible, report.inexpressible);
    // In JSON it is longer than a frame may be.
    let long = vec![0xFF; Limits::default().connections.frame_bytes_max() - 100];
    let long = Message::new(Kind::OneWay, 0, &long);
    let broadcast = server.sessions().broadcast_where(|_| true, long);
    let report = broadcast.unwrap().wait();
    assert_eq!((report.too_large, report.inexpressible), (1, 0));
}

/// Over UDP a codec may frame in another way, and each port has its own.
#[test]
fn udp_and_unix_sockets_have_codecs_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("uvrpc.sock");
    let path = format!("ipc://{}?codec=uvrpc&framing=none", path.display());
    let binds = [
        "tcp://127.0.0.1:0",
        "udp://127.0.0.1:0?codec=uvrpc",
        "udp://127.0.0.1:0?codec=json",
        &path,
    ];
    let builder = binds
        .iter()
        .fold(Server::builder().lanes(2), |builder, bind| {
            builder.listen(bind).unwrap()
        });
    let server = builder.start(|_| echo).unwrap();
    for (endpoint, bind) in server.addresses().iter().zip(binds) {
        let bind: Address = bind.parse().unwrap();
        let address = format!("{endpoint}{}", bind.parameters());
        let client = Client::connect(&address).wait().unwrap();
        for text in [&b"one"[..], b"two", b"six"] {
            let reply = client.request(text).wait().unwrap();
            assert_eq!(reply.payload(), text, "{address}");
        }
    }
}

/// If every address sets a codec, the server has no other. Its main codec is that of the first, also for rooms.
#[test]
fn a_server_whose_addresses_all_set_one_codec_is_one_of_that_codec() {
    let builder = Server::builder().listen("tcp://127.0.0.1:0?codec=json");
    let server = builder.unwrap().start_one(Chat::new()).unwrap();
    let client = Client::connect(&format!("{server}?codec=json"));
    let client = client.wait().unwrap();
    let room = client.join("lobby").named("ada").wait().unwrap();
    room.say(b"hello").unwrap();
    drop(client);
    let builder = Server::builder().codec(codec("lines"));
    let builder = builder.listen("tcp://127.0.0.1:0?codec=raw").unwrap();
    let server = builder.start_one(echo).unwrap();
    let client = Client::connect(&format!("{server}?codec=raw")).wait();
    assert_eq!(
        client.unwrap().request(b"raw").wait().unwrap().payload(),
        b"raw"
    );
}

#[test]
fn mistakes_in_codecs_of_addresses_are_errors_that_name_them() {
    let parse = |text: &str| text.parse::<Address>().unwrap_err();
    let error = parse("tcp://h:1?codec=xml");
    assert!(matches!(error, AddressError::Codec { .. }), "{error}");
    assert!(error.to_string().contains("xml"), "{error}");
    let error = parse("tcp://h:1?codec=length-field:size=3");
    assert!(error.to_string().contains("size"), "{error}");
    let error = parse("inproc://a?codec=json");
    assert!(matches!(error, AddressError::InprocCodec { .. }), "{error}");
    let error = parse("tcp://h:1?codec=json&colour=red");
    assert!(error.to_string().contains("colour=red"), "{error}");
    let error = parse("tcp://h:1?codec=json&codec=tw1");
    assert!(error.to_string().contains("codec=tw1"), "{error}");
    let error = parse("ws://h:1/?codec=tw1&codec=json&codec=tw1");
    assert!(error.to_string().contains("\"codec=tw1\""), "{error}");
    let error = parse("ws://h:1/?codec=json&framing=none");
    assert!(matches!(error, AddressError::NoStream { .. }), "{error}");
    for text in [
        "tcp://h:1?codec=uvrpc&framing=none",
        "ws://h:1/path?codec=json",
        "wss://h:1/path?codec=json&codec=tw1",
        "udp://h:1?codec=length-field:size=-4,header=00000001",
    ] {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
    }
    // An upstream ignored it, and asked with another codec.
    let error = Upstream::new("tcp://h:1?codec=json").unwrap_err();
    assert!(
        matches!(error, AddressError::UpstreamCodec { .. }),
        "{error}"
    );
    // A framing that a codec does not have is an error at the start.
    let builder = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    let builder = builder.listen("tcp://127.0.0.1:0?codec=json&framing=none");
    let error = builder.unwrap().start_one(echo).unwrap_err();
    assert!(
        matches!(error, ServeError::Framing { codec: "json" }),
        "{error}"
    );
    let many = (0..40).fold(Server::builder(), |builder, header| {
        let address = format!("tcp://127.0.0.1:0?codec=length-field:header={header:02x}");
        builder.listen(&address).unwrap()
    });
    let error = many.start_one(echo).unwrap_err();
    assert!(matches!(error, ServeError::TooManyCodecs(40)), "{error}");
}

/// Lets every codec into a room by a request, and passes on what its members say.
fn chat(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    match message.payload.strip_prefix(b"join ") {
        Some(name) => {
            let name = str::from_utf8(name).unwrap();
            let joined = cx.rooms().join("room", name)?;
            cx.set_state(joined.room);
            cx.reply(b"joined")
        }
        None => {
            let room = *cx.state::<RoomId>().unwrap();
            cx.rooms().say(room, message.payload)?;
            Ok(())
        }
    }
}

/// Waits until so many messages of a room have come, and returns their texts.
fn hear(client: &Client, messages: usize) -> Vec<String> {
    let mut heard = Vec::new();
    while heard.len() < messages {
        match client.next_event().wait_for(DEADLINE) {
            Some(Event::Message(message)) => {
                let text = String::from_utf8(message.payload).unwrap();
                // People get the name of the author in front, and are told who comes.
                let text = text.rsplit_once("]: ").map_or(&*text, |(_, text)| text);
                if text.starts_with("says ") {
                    heard.push(text.to_owned());
                }
            }
            Some(_) => {}
            None => panic!("{} of {messages} messages came", heard.len()),
        }
    }
    heard
}

#[test]
fn members_of_five_codecs_hear_each_other_in_one_room() {
    const ROUNDS: usize = 100;
    const BURST: usize = 10;
    let binds = [
        "tcp://127.0.0.1:0",
        "ws://127.0.0.1:0/?codec=json",
        "tcp://127.0.0.1:0?codec=lines",
        "tcp://127.0.0.1:0?codec=srmp",
        "udp://127.0.0.1:0?codec=uvrpc",
    ];
    for lanes in [1, 4] {
        let builder = Server::builder().lanes(lanes).trust_datagram_peers(true);
        let builder = binds
            .iter()
            .fold(builder, |builder, bind| builder.listen(bind).unwrap());
        let server = builder.start(|_| chat).unwrap();
        let connect = |(endpoint, bind): (&tidewire::Endpoint, &str)| {
            let bind: Address = bind.parse().unwrap();
            let address = format!("{endpoint}{}", bind.parameters());
            Client::connect(&address).wait().unwrap()
        };
        let clients: Vec<Client> = server.addresses().iter().zip(binds).map(connect).collect();
        for (number, client) in clients.iter().enumerate() {
            let joining = format!("join member{number}");
            let joined = client.request(joining.as_bytes()).wait().unwrap();
            assert_eq!(joined.payload(), b"joined", "{}", binds[number]);
        }
        let round = Barrier::new(clients.len());
        std::thread::scope(|scope| {
            for (number, client) in clients.iter().enumerate() {
                let round = &round;
                scope.spawn(move || {
                    let mut last = [None; 5];
                    for first in (0..ROUNDS).map(|round| round * BURST) {
                        for message in first..first + BURST {
                            let text = format!("says {number} {message:04}");
                            client.send(text.as_bytes()).unwrap();
                        }
                        for text in hear(client, 4 * BURST) {
                            let mut words = text.split(' ').skip(1);
                            let author: usize = words.next().unwrap().parse().unwrap();
                            let message: usize = words.next().unwrap().parse().unwrap();
                            assert_ne!(author, number, "nobody hears itself");
                            let expected = last[author].map_or(0, |last: usize| last + 1);
                            assert_eq!(message, expected, "{author} to {number}");
                            last[author] = Some(message);
                        }
                        round.wait();
                    }
                });
            }
        });
        drop(clients);
        let stopped = server.shutdown(DEADLINE);
        assert_conserved(&stopped);
        let (metrics, said) = (&stopped.metrics, (ROUNDS * BURST * 5) as u64);
        assert_eq!(metrics.chat_messages, said);
        assert!(metrics.room_delivered >= 4 * said, "{metrics:?}");
    }
}

/// A session has the codec that its client names as the subprotocol, from the first frame on.
#[test]
fn websocket_clients_choose_among_the_codecs_of_their_address() {
    const MESSAGES: usize = 50;
    for (lanes, codecs) in [(1, ["json", "tw1", "lines"]), (3, ["tw1", "lines", "json"])] {
        let bind = format!("ws://127.0.0.1:0/?codec={}", codecs.join("&codec="));
        let builder = Server::builder().lanes(lanes).listen(&bind).unwrap();
        let server = builder.start(|_| chat).unwrap();
        let connect = |codec: &str| {
            let address = format!("{}?codec={codec}", server.addresses()[0]);
            Client::connect(&address).wait()
        };
        let clients = codecs.map(|codec| connect(codec).unwrap());
        for (number, client) in clients.iter().enumerate() {
            let joining = format!("join member{number}");
            let joined = client.request(joining.as_bytes()).wait().unwrap();
            assert_eq!(joined.payload(), b"joined", "{}", codecs[number]);
        }
        for (number, client) in clients.iter().enumerate() {
            for message in 0..MESSAGES {
                let text = format!("says {number} {message:02}");
                client.send(text.as_bytes()).unwrap();
            }
        }
        for (number, client) in clients.iter().enumerate() {
            let mut heard = hear(client, 2 * MESSAGES);
            // The messages of an author come in order.
            heard.sort_by_key(|text| text.split(' ').nth(1).map(str::to_owned));
            let others = (0..codecs.len()).filter(|author| *author != number);
            let said = |author| (0..MESSAGES).map(move |it| format!("says {author} {it:02}"));
            let expected: Vec<String> = others.flat_map(said).collect();
            assert_eq!(heard, expected, "{}", codecs[number]);
        }
        let refused = connect("srmp").unwrap_err();
        assert!(refused.to_string().contains("codec"), "{refused}");
        drop(clients);
        let stopped = server.shutdown(DEADLINE);
        assert_conserved(&stopped);
        let said = (codecs.len() * MESSAGES) as u64;
        assert_eq!(stopped.metrics.chat_messages, said);
        assert!(stopped.metrics.room_delivered >= 2 * said);
    }
}

/// Peers of `tw1` show who they are in their hello. Peers of `raw` have no hello, and are asked at once.
#[test]
fn the_chosen_codec_decides_how_a_peer_is_authenticated() {
    let tokens = TokenFolder::new();
    let token = tokens.add("ada");
    let names = ["ada", Identity::ANONYMOUS];
    let users = Arc::new(users(&names.map(|name| (name, Permissions::everything()))));
    for list in ["raw&codec=tw1", "tw1&codec=raw"] {
        let builder = Server::builder().authenticate(tokens.chain(Arc::clone(&users)));
        let builder = builder.listen(&format!("ws://127.0.0.1:0/?codec={list}"));
        let server = builder.unwrap().start_one(tell_name).unwrap();
        let at = |codec: &str| format!("{}?codec={codec}", server.addresses()[0]);
        let ada = Client::builder().credentials(token.clone());
        let ada = ada.connect(&at("tw1")).wait().unwrap();
        assert_eq!(ada.request(b"who").wait().unwrap().payload(), b"ada");
        let anonymous = Client::connect(&at("raw")).wait().unwrap();
        let name = anonymous.request(b"who").wait().unwrap();
        assert_eq!(name.payload(), Identity::ANONYMOUS.as_bytes());
        drop((ada, anonymous));
        let metrics = server.shutdown(DEADLINE).metrics;
        assert_eq!((metrics.authenticated, metrics.auth_refused), (2, 0));
    }
}

/// Subscribers of two codecs with exact patterns and wildcards get what publishers of three codecs publish.
#[test]
fn subscribers_of_two_codecs_get_messages_of_all_publishers() {
    const MESSAGES: usize = 300;
    for (lanes, main) in [(1, "tw1"), (3, "tw1"), (3, "srmp")] {
        // With the main codec `srmp`, no subscriber has the main codec.
        let builder = Server::builder().lanes(lanes).codec(codec(main));
        let builder = builder.listen("tcp://127.0.0.1:0").unwrap();
        let builder = builder.listen("tcp://127.0.0.1:0?codec=tw1").unwrap();
        let builder = builder.listen("ws://127.0.0.1:0/?codec=json").unwrap();
        let server = builder.start(|_| PubSub::new()).unwrap();
        let connect = |index: usize, codec: &str| {
            let address = format!("{}?codec={codec}", server.addresses()[index]);
            Client::connect(&address).wait().unwrap()
        };
        let clients = [connect(1, "tw1"), connect(2, "json"), connect(1, "tw1")];
        let [tw1, json, _] = &clients;
        let subscriptions: Vec<Subscription> =
            [(tw1, "a.b"), (json, "a.b"), (tw1, "a.*"), (json, "a.>")]
                .map(|(client, pattern)| client.subscribe(pattern).wait().unwrap())
                .into();
        for number in 0..MESSAGES {
            let publisher = &clients[number % 3];
            publisher
                .publish("a.b", number.to_string().as_bytes())
                .unwrap();
        }
        for subscription in &subscriptions {
            // Each publisher's messages come in order.
            let mut next = [0, 1, 2];
            for _ in 0..MESSAGES {
                let event = subscription.next_event().wait_for(DEADLINE);
                let Some(TopicEvent::Message(message)) = event else {
                    panic!("{event:?} in place of a message");
                };
                assert_eq!(&*message.topic, "a.b");
                let number: usize = str::from_utf8(&message.payload).unwrap().parse().unwrap();
                assert_eq!(number, next[number % 3]);
                next[number % 3] += 3;
            }
        }
        drop((subscriptions, clients));
        let stopped = server.shutdown(DEADLINE);
        assert_conserved(&stopped);
        assert_eq!(stopped.metrics.published, MESSAGES as u64);
        let delivered = stopped.metrics.room_delivered;
        assert_eq!(delivered, 4 * MESSAGES as u64);
    }
}

/// Subscribers that come and go in the middle of a burst get everything from their first message to their last one.
#[test]
fn the_log_of_a_codec_comes_with_its_first_subscriber_and_goes_with_its_last() {
    const VISITS: usize = 40;
    for lanes in [1, 3] {
        let builder = Server::builder().lanes(lanes);
        let builder = builder.listen("tcp://127.0.0.1:0").unwrap();
        let builder = builder.listen("tcp://127.0.0.1:0?codec=json").unwrap();
        let server = builder.start(|_| PubSub::new()).unwrap();
        let json = format!("{}?codec=json", server.addresses()[1]);
        let tw1 = server.addresses()[0].to_string();
        let (publisher, all) = (
            Client::connect(&tw1).wait().unwrap(),
            Client::connect(&tw1).wait().unwrap(),
        );
        let all = all.subscribe("burst").wait().unwrap();
        let is_over = AtomicBool::new(false);
        let published = std::thread::scope(|scope| {
            let publishing = scope.spawn(|| {
                let mut number = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    publisher
                        .publish("burst", number.to_string().as_bytes())
                        .unwrap();
                    number += 1;
                    if number.is_multiple_of(16) {
                        publisher.flush().wait().unwrap();
                    }
                }
                publisher.flush().wait().unwrap();
                number
            });
            for _ in 0..VISITS {
                let visitor = Client::connect(&json).wait().unwrap();
                let visit = visitor.subscribe("burst").wait().unwrap();
                let mut numbers = (0..20).map(|_| number_of(&visit));
                let first = numbers.next().unwrap();
                assert!(numbers.eq(first + 1..first + 20), "no hole from {first} on");
                drop(visit);
                visitor.close().wait();
            }
            is_over.store(true, Ordering::Relaxed);
            publishing.join().unwrap()
        });
        for number in 0..published {
            assert_eq!(number_of(&all), number);
        }
        drop((all, publisher));
        assert_conserved(&server.shutdown(DEADLINE));
    }
}

/// The number in the next message of a subscription, and its position in a history.
fn numbered(subscription: &Subscription) -> (u64, Option<Position>) {
    loop {
        match subscription.next_event().wait_for(DEADLINE) {
            Some(TopicEvent::Message(message)) => {
                let number = str::from_utf8(&message.payload).unwrap().parse().unwrap();
                return (number, message.position);
            }
            Some(TopicEvent::Recovered { missing: Some(0) }) => {}
            other => panic!("{other:?} in place of a number"),
        }
    }
}

/// The number in the next message of a subscription.
fn number_of(subscription: &Subscription) -> u64 {
    numbered(subscription).0
}

/// A history has no codec. Clients of both codecs get what is in it and then what comes, without a hole. Positions are
/// for codecs that have them.
#[test]
fn a_history_is_framed_for_each_codec() {
    const ROUNDS: usize = 20;
    for lanes in [1, 3] {
        let builder = Server::builder().lanes(lanes);
        let builder = builder.listen("tcp://127.0.0.1:0").unwrap();
        let builder = builder.listen("tcp://127.0.0.1:0?codec=json").unwrap();
        let topics = PubSub::new().history("kept", History::last(1_000));
        let server = builder.start(|_| topics.clone()).unwrap();
        let connect = |index: usize, codec: &str| {
            let address = format!("{}?codec={codec}", server.addresses()[index]);
            Client::connect(&address).wait().unwrap()
        };
        let publishers = [connect(0, "tw1"), connect(1, "json")];
        let always = [connect(0, "tw1"), connect(1, "json")];
        let live: Vec<Subscription> = always
            .iter()
            .map(|it| it.subscribe("kept").wait().unwrap())
            .collect();
        let (mut last, mut published) = (None, 0);
        for _ in 0..ROUNDS {
            for _ in 0..7 {
                let publisher = &publishers[published % 2];
                let text = published.to_string();
                publisher.publish("kept", text.as_bytes()).unwrap();
                publisher.flush().wait().unwrap();
                published += 1;
            }
            let visitor = connect(0, "tw1");
            let visit = visitor.subscribe("kept");
            let (first, visit) = match last {
                None => (0, visit.last(1_000)),
                Some((number, position)) => (number + 1, visit.since(position)),
            };
            let visit = visit.wait().unwrap();
            for number in first..published as u64 {
                let (seen, position) = numbered(&visit);
                assert_eq!(seen, number);
                last = Some((number, position.unwrap()));
            }
        }
        for subscription in &live {
            for number in 0..published as u64 {
                assert_eq!(number_of(subscription), number);
            }
        }
        drop((live, always, publishers));
        assert_conserved(&server.shutdown(DEADLINE));
    }
}

/// Two nodes, each with both codecs, and each with another main one.
#[test]
fn members_of_two_codecs_on_two_nodes_hear_each_other() {
    const MESSAGES: usize = 500;
    let engine = InprocEngine::default();
    let node = |id: &str, codecs: [&str; 2]| {
        let builder = Server::builder().lanes(2).codec(codec(codecs[0]));
        let builder = builder.backplane(engine.backplane(), settings(id));
        let builder = builder.listen("tcp://127.0.0.1:0").unwrap();
        let other = format!("tcp://127.0.0.1:0?codec={}", codecs[1]);
        let builder = builder.listen(&other).unwrap();
        let server = builder.start(|_| Chat::new()).unwrap();
        let with_codec = |(endpoint, codec)| format!("{endpoint}?codec={codec}");
        let addresses = server.addresses().iter().zip(codecs).map(with_codec);
        let addresses: Vec<String> = addresses.collect();
        (server, addresses)
    };
    let (one, at_one) = node("one", ["tw1", "json"]);
    let (two, at_two) = node("two", ["json", "tw1"]);
    let members: Vec<(Client, Room)> = at_one
        .iter()
        .chain(&at_two)
        .enumerate()
        .map(|(number, address)| {
            let client = Client::connect(address).wait().unwrap();
            let name = format!("member{number}");
            let room = client.join("lobby").named(&name).wait().unwrap();
            (client, room)
        })
        .collect();
    std::thread::scope(|scope| {
        for (number, (client, room)) in members.iter().enumerate() {
            scope.spawn(move || {
                let mut last = [None; 4];
                for first in (0..MESSAGES).step_by(10) {
                    for message in first..first + 10 {
                        let text = format!("says {number} {message}");
                        room.say(text.as_bytes()).unwrap();
                    }
                    for text in hear(client, 30) {
                        let mut words = text.split(' ').skip(1);
                        let author: usize = words.next().unwrap().parse().unwrap();
                        let message: usize = words.next().unwrap().parse().unwrap();
                        let expected = last[author].map_or(0, |last: usize| last + 1);
                        assert_eq!(message, expected, "{author} to {number}");
                        last[author] = Some(message);
                    }
                }
            });
        }
    });
    // A message for one member has the codec of that member, on its node.
    for from in 0..4 {
        let name = format!("member{}", 3 - from);
        let told = members[from].1.whisper(&name, b"says psst").wait();
        told.unwrap();
        assert_eq!(hear(&members[3 - from].0, 1), ["says psst"]);
    }
    drop(members);
    let stopped = [one, two].map(|server| server.shutdown(DEADLINE));
    stopped.iter().for_each(assert_conserved);
    let lost: u64 = stopped.iter().map(|it| it.metrics.backplane_lost).sum();
    assert_eq!(lost, 0);
}

/// Lets sessions of every codec subscribe by a request, before a topic has a history, and is a [`PubSub`] to others.
struct Mixed(PubSub);

impl Service for Mixed {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        self.0.on_turn(cx)
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match message.payload.strip_prefix(b"subscribe ") {
            Some(topic) => {
                cx.topics().subscribe(str::from_utf8(topic).unwrap())?;
                cx.reply(b"subscribed")
            }
            None => self.0.on_message(cx, message),
        }
    }
}

/// A server with this main codec and `tw1`, whose topic `kept` has a history, and an address for each codec.
fn mixed(main: &str, lanes: usize) -> (Server, [String; 2]) {
    let builder = Server::builder().lanes(lanes).codec(codec(main));
    let builder = builder.listen("tcp://127.0.0.1:0").unwrap();
    let builder = builder.listen("tcp://127.0.0.1:0?codec=tw1").unwrap();
    let topics = PubSub::new().history("kept", History::last(100));
    let server = builder.start(|_| Mixed(topics.clone())).unwrap();
    let addresses = [(0, main), (1, "tw1")];
    let addresses =
        addresses.map(|(index, codec)| format!("{}?codec={codec}", server.addresses()[index]));
    (server, addresses)
}

/// Connects a client whose session subscribes by a request.
fn subscriber(address: &str, topic: &str) -> Client {
    let client = Client::connect(address).wait().unwrap();
    let request = format!("subscribe {topic}");
    let reply = client.request(request.as_bytes()).wait().unwrap();
    assert_eq!(reply.payload(), b"subscribed");
    client
}

/// Regression: a message that the main codec cannot express was refused if a subscriber with that codec was on the
/// lane of the publisher, so that subscribers with other codecs lost it. From a history, another lane did not count it.
#[test]
fn a_message_that_the_main_codec_cannot_express_reaches_the_others_and_is_counted() {
    for (lanes, topic) in [(1, "plain"), (2, "plain"), (1, "kept"), (2, "kept")] {
        let (server, [lines, tw1]) = mixed("lines", lanes);
        // One on each lane.
        let people = [(); 2].map(|()| subscriber(&lines, topic));
        let programs = [(); 2].map(|()| Client::connect(&tw1).wait().unwrap());
        let subscriptions = [0, 1].map(|index| programs[index].subscribe(topic).wait().unwrap());
        for text in [&b"one line"[..], b"two\nlines", b"another line"] {
            programs[0].publish(topic, text).unwrap();
            programs[0].flush().wait().unwrap();
        }
        for subscription in &subscriptions {
            for text in [&b"one line"[..], b"two\nlines", b"another line"] {
                let event = subscription.next_event().wait_for(DEADLINE);
                let Some(TopicEvent::Message(message)) = event else {
                    panic!("{event:?} in place of a message");
                };
                assert_eq!(message.payload, text);
            }
        }
        for person in &people {
            assert_eq!(message_of(person), b"one line");
            assert_eq!(message_of(person), b"another line");
        }
        drop((subscriptions, programs, people));
        let stopped = server.shutdown(DEADLINE);
        assert_conserved(&stopped);
        let lost = stopped.metrics.room_dropped_by("inexpressible");
        assert_eq!(lost, 2, "{topic} on {lanes} lanes");
        assert_eq!(stopped.metrics.room_offered, 12, "{topic} on {lanes} lanes");
    }
}

/// Regression: a lane whose subscribers came before the history of their topic lost the first message, if subscribers
/// had several codecs.
#[test]
fn subscribers_that_came_before_the_history_get_its_first_message() {
    let (server, [lines, tw1]) = mixed("lines", 2);
    let early = [(); 2].map(|()| subscriber(&lines, "kept"));
    let program = Client::connect(&tw1).wait().unwrap();
    let subscription = program.subscribe("kept").wait().unwrap();
    for text in ["0", "1", "2"] {
        program.publish("kept", text.as_bytes()).unwrap();
        program.flush().wait().unwrap();
    }
    for number in 0..3 {
        assert_eq!(number_of(&subscription), number);
        for client in &early {
            assert_eq!(message_of(client), number.to_string().as_bytes());
        }
    }
    drop((subscription, program, early));
    assert_conserved(&server.shutdown(DEADLINE));
}

/// Regression: the author of a message that its codec cannot express was counted among those who lost the message.
#[test]
fn an_author_does_not_lose_its_own_message() {
    let service = |cx: &mut Context<'_>, message: Message<'_>| match message.payload {
        b"says much" => {
            let room = *cx.state::<RoomId>().unwrap();
            // Longer than a line may be.
            cx.rooms().say(room, &[b'x'; 100_000])?;
            Ok(())
        }
        _ => chat(cx, message),
    };
    let builder = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    let builder = builder.listen("tcp://127.0.0.1:0?codec=lines").unwrap();
    let server = builder.start(move |_| service).unwrap();
    let join = |index: usize, codec: &str, name: &str| {
        let address = format!("{}?codec={codec}", server.addresses()[index]);
        let client = Client::connect(&address).wait().unwrap();
        let request = format!("join {name}");
        let joined = client.request(request.as_bytes()).wait().unwrap();
        assert_eq!(joined.payload(), b"joined");
        client
    };
    let program = join(0, "tw1", "program");
    let people = ["ada", "bob"].map(|name| join(1, "lines", name));
    people[0].send(b"says much").unwrap();
    loop {
        match program.next_event().wait_for(DEADLINE) {
            Some(Event::Message(message)) if message.payload.len() == 100_000 => break,
            Some(_) => {}
            None => panic!("the message did not come"),
        }
    }
    drop((program, people));
    let stopped = server.shutdown(DEADLINE);
    assert_conserved(&stopped);
    assert_eq!(stopped.metrics.room_dropped_by("inexpressible"), 1);
}
