//! Reading that must resume, or must not.

use std::sync::mpsc;
use std::thread;

use tidewire::{Context, Deferred, Message};
use tidewire_testkit::TestServer;
use tidewire_testkit::fixtures::{limited, tw1};

/// Regression: the output was written before reading was paused for it, and no later event resumed reading.
#[test]
fn a_handler_that_writes_its_full_output_itself_is_read_on() {
    const REQUESTS: usize = 20;
    let builder = limited(|limits| {
        limits.connections.set_queue_bytes_max(1_000);
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| {
        |cx: &mut Context<'_>, message: Message<'_>| {
            cx.reply(message.payload)?;
            cx.flush(cx.id());
            Ok(())
        }
    });
    let mut peer = server.peer();
    let frames: Vec<u8> = (0..REQUESTS)
        .flat_map(|number| peer.request_frame(&[number as u8; 2_000]))
        .collect();
    peer.write(&frames);
    for number in 0..REQUESTS {
        assert_eq!(peer.answer().payload, [number as u8; 2_000]);
    }
    drop(peer);
    assert!(server.stop().reads_paused > 0);
}

/// Regression: a peer that did not take immediate replies was not read any more, but deferred replies filled the
/// memory.
#[test]
fn a_peer_that_does_not_take_deferred_answers_is_not_read() {
    const REQUESTS: u32 = 400;
    const ANSWER_BYTES: usize = 64 << 10;
    let (requests, deferred) = mpsc::channel::<Deferred>();
    let worker = thread::spawn(move || {
        let mut answered = 0;
        for each in deferred {
            each.reply(&[7; ANSWER_BYTES]).unwrap();
            answered += 1;
        }
        answered
    });
    let builder = limited(|limits| {
        limits.connections.set_queue_bytes_max(1 << 20);
        limits.connections.set_deferred_max(8);
    });
    let server = TestServer::over_tcp(builder, &tw1(), move |_| {
        let requests = requests.clone();
        move |cx: &mut Context<'_>, _: Message<'_>| {
            requests.send(cx.defer()).unwrap();
            Ok(())
        }
    });
    let mut peer = server.peer();
    for _ in 0..REQUESTS {
        let frame = peer.request_frame(b"?");
        peer.write(&frame);
    }
    tidewire_testkit::wait_until("reading pauses", || {
        (server.metrics().reads_paused > 0).then_some(())
    });
    for _ in 0..REQUESTS {
        assert_eq!(peer.answer().payload.len(), ANSWER_BYTES);
    }
    drop(peer);
    server.stop();
    assert_eq!(worker.join().unwrap(), REQUESTS);
}
