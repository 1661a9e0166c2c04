//! Queue groups: one member of each group gets a message.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidewire::metrics::Metrics;
use tidewire::{
    Client, ErrorCode, Kind, Limits, NameError, Policy, PubSub, RequestError, Server, Subscription,
    TopicEvent,
};
use tidewire_proto::body::SubscribeBody;
use tidewire_testkit::{DEADLINE, Peer, TestServer, wait_until};

use crate::{ask, heard, serve, tw1};

const GROUP: &str = "workers";

fn join(client: &Client, pattern: &str) -> Subscription {
    client.subscribe(pattern).group(GROUP).wait().unwrap()
}

fn join_as_peer(peer: &mut Peer, pattern: &str, policy: Option<Policy>) -> Result<u16, ErrorCode> {
    let mut body = Vec::new();
    let group = Some(GROUP);
    SubscribeBody {
        policy,
        pattern,
        group,
    }
    .encode(&mut body);
    ask(peer, Kind::Subscribe, 0, &body).map(|reply| reply.channel)
}

/// Publishes numbered jobs, and waits now and then until the server has them.
fn publish_jobs(client: &Client, jobs: usize, bytes: usize) {
    for number in 0..jobs {
        let mut payload = format!("{number}:").into_bytes();
        payload.resize(payload.len().max(bytes), b'.');
        client
            .publish(&format!("job.{}", number % 7), &payload)
            .unwrap();
        if number % 50 == 49 {
            client.flush().wait().unwrap();
        }
    }
    client.flush().wait().unwrap();
}

/// Takes what members have until it is this many messages in all. Returns the numbers of each.
fn take_all(members: &[Subscription], count: usize) -> Vec<Vec<usize>> {
    let mut shares = vec![Vec::new(); members.len()];
    while shares.iter().map(Vec::len).sum::<usize>() < count {
        for (share, member) in shares.iter_mut().zip(members) {
            while let Some(event) = member.next_event().wait_for(Duration::from_millis(1)) {
                let TopicEvent::Message(message) = event else {
                    panic!("{event:?}");
                };
                let text = String::from_utf8(message.payload).unwrap();
                share.push(text.split_once(':').unwrap().0.parse().unwrap());
            }
        }
    }
    shares
}

/// Each job was delivered to one member, and what is counted twice was given to another one.
fn check_conservation(metrics: &Metrics, jobs: u64, torn: u64) {
    let reassigned = metrics.room_dropped_by("reassigned");
    let dropped: u64 = metrics.room_dropped.iter().sum();
    assert_eq!(metrics.published, jobs);
    assert_eq!(dropped, reassigned + torn, "{:?}", metrics.room_dropped);
    assert_eq!(metrics.room_offered, jobs + reassigned);
    assert_eq!(metrics.room_delivered + torn, jobs);
}

#[test]
fn one_member_of_each_group_gets_a_message_and_all_members_get_their_share() {
    const JOBS: usize = 2_000;
    for lanes in [1, 4] {
        let server = serve(lanes);
        let clients: Vec<_> = (0..8)
            .map(|_| Client::connect(&server.url()).wait().unwrap())
            .collect();
        let members: Vec<_> = clients.iter().map(|it| join(it, "job.*")).collect();
        let other = clients[0].subscribe("job.>").group(GROUP).wait().unwrap();
        let logger = clients[1]
            .subscribe("job.*")
            .group("loggers")
            .wait()
            .unwrap();
        let all = clients[2].subscribe("job.*").wait().unwrap();
        let publisher = Client::connect(&server.url()).wait().unwrap();
        publish_jobs(&publisher, JOBS, 0);
        for alone in [&other, &logger, &all] {
            for number in 0..JOBS {
                let topic = format!("job.{}", number % 7);
                assert_eq!(heard(alone), (topic, format!("{number}:")));
            }
        }
        let shares = take_all(&members, JOBS);
        for share in &shares {
            assert!(share.is_sorted(), "in order");
            assert!(
                share.len() >= JOBS / 8 / 2,
                "{} lanes: {:?}",
                lanes,
                share.len()
            );
        }
        let jobs: BTreeSet<usize> = shares.iter().flatten().copied().collect();
        let count: usize = shares.iter().map(Vec::len).sum();
        assert_eq!((jobs.len(), count), (JOBS, JOBS));
        drop((members, other, logger, all));
        for client in clients.into_iter().chain([publisher]) {
            client.close().wait();
        }
        let metrics = server.stop();
        let total = 4 * JOBS as u64;
        assert_eq!(
            (metrics.room_offered, metrics.room_delivered),
            (total, total)
        );
    }
}

/// A member that reads nothing gets few messages, and what waits for it goes to the other one when it leaves.
#[test]
fn the_unsent_messages_of_a_member_that_leaves_go_to_another() {
    const JOBS: usize = 4_000;
    const JOB_BYTES: usize = 400;
    for (lanes, policy) in [(1, None), (2, None), (1, Some(Policy::Disconnect))] {
        let mut limits = Limits::default();
        if policy.is_some() {
            // The policy ends the member.
            limits.rooms.set_lag_messages_max(50);
        }
        let builder = Server::builder().lanes(lanes).limits(limits);
        let server = TestServer::over_ipc(builder, &tw1(), |_| PubSub::new());
        let mut stalled = server.peer();
        join_as_peer(&mut stalled, "job.*", policy).unwrap();
        let publisher = Client::connect(&server.url()).wait().unwrap();
        // Without another member the stalled one gets everything.
        publish_jobs(
            &publisher,
            if policy.is_some() { 0 } else { 1_500 },
            JOB_BYTES,
        );
        let client = Client::connect(&server.url()).wait().unwrap();
        let member = join(&client, "job.*");
        publish_jobs(&publisher, JOBS, JOB_BYTES);
        drop(stalled);
        let jobs = match policy {
            Some(_) => JOBS,
            None => JOBS + 1_500,
        };
        // A message of which the stalled member got a part is lost with its connection.
        let torn = wait_until("all jobs are delivered", || {
            let metrics = server.server().inspector().metrics();
            let torn = metrics.room_dropped_by("closed");
            (metrics.room_delivered + torn == jobs as u64).then_some(torn)
        });
        assert!(torn <= 1, "{torn}");
        // Most jobs came to the member that reads.
        take_all(&[member], JOBS * 3 / 4);
        client.close().wait();
        publisher.close().wait();
        check_conservation(&server.stop(), jobs as u64, torn);
    }
}

/// Members leave while messages are on their way to them from another lane.
#[test]
fn members_that_come_and_go_lose_no_message() {
    const JOBS: usize = 3_000;
    let server = serve(4);
    let permanent = Client::connect(&server.url()).wait().unwrap();
    let member = join(&permanent, "job.*");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let is_over = &is_over;
        scope.spawn(|| {
            let client = Client::connect(&server.url()).wait().unwrap();
            publish_jobs(&client, JOBS, 0);
            is_over.store(true, Ordering::Relaxed);
            client.close().wait();
        });
        for _ in 0..3 {
            let server = &server;
            scope.spawn(move || {
                let client = Client::connect(&server.url()).wait().unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    drop(join(&client, "job.*"));
                    client.flush().wait().unwrap();
                }
                client.close().wait();
            });
        }
    });
    wait_until("all jobs are delivered", || {
        let metrics = server.server().inspector().metrics();
        (metrics.room_delivered == JOBS as u64).then_some(())
    });
    drop(member);
    permanent.close().wait();
    check_conservation(&server.stop(), JOBS as u64, 0);
}

/// A group whose only member stalls keeps its messages within the policy, and drops are announced.
#[test]
fn a_group_whose_only_member_stalls_drops_by_policy_and_says_how_many() {
    const JOBS: usize = 3_000;
    let mut limits = Limits::default();
    limits.rooms.set_lag_messages_max(100);
    let builder = Server::builder().limits(limits);
    let server = TestServer::over_ipc(builder, &tw1(), |_| PubSub::new());
    let mut stalled = server.peer();
    join_as_peer(&mut stalled, "job.*", Some(Policy::DropOldest)).unwrap();
    let publisher = Client::connect(&server.url()).wait().unwrap();
    publish_jobs(&publisher, JOBS, 400);
    let (mut got, mut lost) = (0, 0);
    while got + lost < JOBS as u64 {
        let message = stalled.receive().expect("an open connection");
        match message.kind {
            Kind::Deliver => got += 1,
            Kind::Gap => lost += u64::from_le_bytes(message.payload[..8].try_into().unwrap()),
            other => panic!("{other:?}"),
        }
    }
    assert!(lost > 0, "the socket took everything");
    drop(stalled);
    publisher.close().wait();
    let metrics = server.stop();
    assert_eq!(metrics.room_dropped_by("policy"), lost);
    assert_eq!(metrics.room_offered, JOBS as u64);
    assert_eq!(metrics.room_delivered, got);
}

#[test]
fn a_group_is_joined_once_by_a_session_and_needs_a_name() {
    let server = serve(1);
    let client = Client::connect(&server.url()).wait().unwrap();
    let first = join(&client, "job.*");
    let again = client.subscribe("job.*").group(GROUP).wait().unwrap_err();
    assert!(
        matches!(
            again,
            RequestError::Refused {
                code: ErrorCode::AlreadyJoined,
                ..
            }
        ),
        "{again:?}"
    );
    let _plain = client.subscribe("job.*").wait().unwrap();
    for (name, error) in [
        ("", NameError::Empty),
        ("a b", NameError::Character { character: ' ' }),
    ] {
        let refused = client.subscribe("job.*").group(name).wait().unwrap_err();
        assert_eq!(refused, RequestError::Pattern(error));
    }
    let mut peer = server.peer();
    for text in ["job.* ", "job.* a b", "job.* \u{1b}[2J"] {
        let code = crate::subscribe(&mut peer, text, None);
        assert!(
            matches!(code, Err(ErrorCode::NameEmpty | ErrorCode::NameInvalid)),
            "{text:?}: {code:?}"
        );
    }
    drop(first);
    client.flush().wait().unwrap();
    let _again = join(&client, "job.*");
    drop(peer);
    client.close().wait();
    server.stop();
}

/// A group has no history, and its members get what is published to a topic that keeps one.
#[test]
fn the_members_of_a_group_share_the_live_messages_of_a_topic_with_a_history() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| {
        PubSub::new().history("job.>", tidewire::History::last(10))
    });
    let client = Client::connect(&server.url()).wait().unwrap();
    client.publish("job.1", b"before").unwrap();
    client.flush().wait().unwrap();
    let member = client
        .subscribe("job.1")
        .group(GROUP)
        .last(5)
        .wait()
        .unwrap();
    let all = client.subscribe("job.1").wait().unwrap();
    client.publish("job.1", b"live").unwrap();
    let message = member.next_event().wait_for(DEADLINE);
    assert!(
        matches!(&message, Some(TopicEvent::Message(it)) if it.payload == b"live" && it.position.is_none()),
        "{message:?}"
    );
    for text in ["before", "live"] {
        assert_eq!(heard(&all).1, text);
    }
    drop((member, all));
    client.close().wait();
    server.stop();
}
