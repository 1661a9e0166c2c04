//! Pipelined requests: every reply finds its request. All payloads differ.

use tidewire::{Context, Message, Server, WhenWindowFull};
use tidewire_testkit::TestServer;

use crate::{CODECS, CODECS_WITH_NAMES, ask, client_of, codec};

const REQUESTS: usize = 240;

fn question(number: usize) -> Vec<u8> {
    format!("question {number} {}", "x".repeat(number % 50)).into_bytes()
}

fn answer(question: &[u8]) -> Vec<u8> {
    [b"answer to ", question].concat()
}

fn check_pairs(server: &TestServer, name: &str) {
    let client = client_of(server, name);
    let requests: Vec<_> = (0..REQUESTS)
        .map(|number| ask(&client, name, &question(number)))
        .collect();
    for (number, request) in requests.into_iter().enumerate() {
        let reply = request.wait().unwrap();
        assert_eq!(reply.payload(), answer(&question(number)), "{name}");
    }
    assert_eq!(client.metrics().replies_unmatched, 0, "{name}");
    client.close().wait();
}

#[test]
fn replies_given_at_once_are_paired_in_every_codec() {
    for name in CODECS {
        let service =
            |cx: &mut Context<'_>, message: Message<'_>| cx.reply(&answer(message.payload));
        for over in [TestServer::over_tcp, TestServer::over_ipc] {
            let server = over(Server::builder(), &codec(name), |_| service);
            check_pairs(&server, name);
            server.stop();
        }
    }
}

/// Two of three requests are answered later, in batches of five in reverse order. The others are answered at once.
#[test]
fn replies_given_in_another_order_are_paired_in_every_codec() {
    for name in CODECS {
        let server = TestServer::over_tcp(Server::builder(), &codec(name), |_| {
            let (mut seen, mut later) = (0, Vec::new());
            move |cx: &mut Context<'_>, message: Message<'_>| {
                seen += 1;
                if seen % 3 == 0 {
                    return cx.reply(&answer(message.payload));
                }
                later.push((cx.defer(), answer(message.payload)));
                if later.len() == 5 {
                    for (deferred, answer) in later.drain(..).rev() {
                        deferred.reply(&answer)?;
                    }
                }
                Ok(())
            }
        });
        check_pairs(&server, name);
        let metrics = server.stop();
        let deferred = REQUESTS as u64 / 3 * 2;
        assert_eq!(metrics.deferred, deferred, "{name}");
        assert_eq!(metrics.deferred_answered, deferred, "{name}");
    }
}

/// Replies come from several threads in any order, to clients on both of two lanes.
#[test]
fn replies_from_other_threads_are_paired_in_every_codec() {
    for name in CODECS {
        let server = TestServer::over_tcp(Server::builder().lanes(2), &codec(name), |_| {
            let workers: Vec<_> = (0..3)
                .map(|_| {
                    let (sender, tasks) = std::sync::mpsc::channel::<crate::DeferredTask>();
                    std::thread::spawn(move || {
                        for (deferred, question) in tasks {
                            deferred.reply(&answer(&question)).unwrap();
                        }
                    });
                    sender
                })
                .collect();
            let mut turn = 0;
            move |cx: &mut Context<'_>, message: Message<'_>| {
                turn += 1;
                let task = (cx.defer(), message.payload.to_vec());
                workers[turn % workers.len()].send(task).unwrap();
                Ok(())
            }
        });
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| check_pairs(&server, name));
            }
        });
        let metrics = server.stop();
        assert_eq!(metrics.deferred_answered, 3 * REQUESTS as u64, "{name}");
    }
}

/// More requests than the format has ids: the others wait for their turn.
#[test]
fn more_requests_than_ids_wait_for_a_free_one() {
    for name in ["srmp", "srmp-rpc"] {
        let server = TestServer::over_tcp(Server::builder(), &codec(name), |_| crate::echo);
        let client = client_of(&server, name);
        let method = if CODECS_WITH_NAMES.contains(&name) {
            "ask"
        } else {
            ""
        };
        let requests: Vec<_> = (0..1000)
            .map(|number| {
                let payload = question(number);
                let call = client.request(&payload).method(method);
                call.when_window_full(WhenWindowFull::Wait).send()
            })
            .collect();
        for (number, request) in requests.into_iter().enumerate() {
            assert_eq!(request.wait().unwrap().payload(), question(number));
        }
        client.close().wait();
        server.stop();
    }
}
