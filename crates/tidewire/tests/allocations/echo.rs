//! Allocations of echoes over every transport, answered at once and later.

use std::io::{Read, Write};

use tidewire::{Context, HandlerResult, Message, Server, Service};
use tidewire_io::allocation::marked_allocations;
use tidewire_testkit::{TestServer, Wire};

use crate::{Counted, alone, echo, tw1, while_held, without_pings};

fn deferred_echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    Ok(cx.defer().reply(message.payload)?)
}

fn wasteful_echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    let copy = message.payload.to_vec();
    cx.reply(&copy)
}

/// Echoes rounds of `batch` requests on each of several connections. Returns the number of messages and of allocations
/// after the warm-up.
fn echo_rounds<S: Service + Clone>(service: &S, batch: usize, rounds: usize) -> (usize, u64) {
    let server = TestServer::over_tcp(Server::builder().limits(without_pings()), &tw1(), |_| {
        Counted(service.clone())
    });
    echo_rounds_on(server, batch, rounds)
}

fn echo_rounds_on(server: TestServer, batch: usize, rounds: usize) -> (usize, u64) {
    const SESSIONS: usize = 8;
    let mut wires: Vec<(Wire, Vec<u8>)> = (0..SESSIONS)
        .map(|_| {
            let mut peer = server.peer();
            let frames = (0..batch)
                .flat_map(|number| peer.request_frame(&[number as u8; 32]))
                .collect();
            (peer.into_wire(), frames)
        })
        .collect();
    // Most buffers are in use when all sessions are ready in the same turn. Left to chance, that might happen only
    // after the warm-up.
    let mut holder = server.peer();
    for _ in 0..3 {
        while_held(&mut holder, || write_all(&mut wires));
        read_all(&mut wires);
    }
    let before = marked_allocations();
    for _ in 0..rounds {
        write_all(&mut wires);
        read_all(&mut wires);
    }
    let allocations = marked_allocations() - before;
    drop(holder);
    drop(wires);
    server.stop();
    (SESSIONS * batch * rounds, allocations)
}

fn write_all(wires: &mut [(Wire, Vec<u8>)]) {
    for (wire, frames) in wires {
        wire.write_all(frames).unwrap();
    }
}

fn read_all(wires: &mut [(Wire, Vec<u8>)]) {
    let mut replies = Vec::new();
    for (wire, frames) in wires {
        // A reply is as long as its request and ends with the same payload.
        replies.resize(frames.len(), 0);
        wire.read_exact(&mut replies).unwrap();
        assert!(replies.ends_with(&frames[frames.len() - 32..]));
    }
}

#[test]
fn echo_allocates_nothing_per_message() {
    let _alone = alone();
    let (messages, allocations) = echo_rounds(&echo, 50, 250);
    assert_eq!((messages, allocations), (100_000, 0));
}

#[test]
fn echo_allocates_nothing_with_one_message_at_a_time() {
    let _alone = alone();
    let (messages, allocations) = echo_rounds(&echo, 1, 1000);
    assert_eq!((messages, allocations), (8_000, 0));
}

#[test]
fn echo_within_the_process_allocates_nothing() {
    let _alone = alone();
    for (batch, rounds) in [(50, 100), (1, 1000)] {
        let builder = Server::builder().limits(without_pings());
        let server = TestServer::over_inproc(builder, &tw1(), |_| Counted(echo));
        let (messages, allocations) = echo_rounds_on(server, batch, rounds);
        assert_eq!((messages, allocations), (8 * batch * rounds, 0));
    }
}

#[test]
fn echo_over_udp_allocates_nothing() {
    let _alone = alone();
    for (batch, rounds) in [(50, 100), (1, 1000)] {
        let builder = Server::builder().limits(without_pings());
        let server = TestServer::over_udp(builder, &tw1(), |_| Counted(echo));
        let (messages, allocations) = echo_rounds_on(server, batch, rounds);
        assert_eq!((messages, allocations), (8 * batch * rounds, 0));
    }
}

/// Regression: the queue of answers allocated a block for 31 of them. Tokens, frames and the lists of the mailbox are
/// reused. A list still grows in a turn that is longer than all before.
#[test]
fn deferred_answers_allocate_nothing_per_message() {
    let _alone = alone();
    let (messages, allocations) = echo_rounds(&deferred_echo, 50, 100);
    assert_eq!(messages, 40_000);
    assert!(allocations <= 8, "{allocations}");
}

/// Negative control: the counter sees a service that allocates once per message.
#[test]
fn the_counter_sees_an_allocating_service() {
    let _alone = alone();
    let (messages, allocations) = echo_rounds(&wasteful_echo, 50, 20);
    assert_eq!(allocations, messages as u64);
}
