//! The subscriber against servers of a few lines, which speak well and badly.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

use super::*;
use crate::publication::Publication;

fn work(connections: usize) -> Work {
    Work {
        subscribers: connections,
        message_bytes: 32,
        rate_per_sec: 10_000.0,
        measure_ms: 50,
        ..Work::default()
    }
}

/// Listens to a server that ends or says what it should not.
fn first_error<D: Dialect>(address: &SocketAddress) -> io::Error {
    let mut stage = Stage::new(io::empty(), io::sink());
    listen_in::<D>(std::slice::from_ref(address), &work(1), &mut stage).unwrap_err()
}

/// A server that takes so many connections and hands them to `serve`.
fn server(
    connections: usize,
    serve: impl FnOnce(Vec<TcpStream>) + Send + 'static,
) -> (SocketAddress, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let accept = |_| listener.accept().unwrap().0;
        serve((0..connections).map(accept).collect());
    });
    (SocketAddress::Tcp(address), thread)
}

fn frame(sequence: u64) -> Vec<u8> {
    frame_due(sequence, now_ns())
}

fn frame_due(sequence: u64, due_ns: u64) -> Vec<u8> {
    let mut frame = 32_u32.to_be_bytes().to_vec();
    Publication { sequence, due_ns }.append(32, &mut frame);
    frame
}

/// Publishes the numbers that `keep` lets through, the same to all, until a connection ends.
fn publish(mut streams: Vec<TcpStream>, keep: fn(usize, u64) -> bool) {
    for number in 0.. {
        let frame = frame(number);
        for (index, stream) in streams.iter_mut().enumerate() {
            if keep(index, number) && stream.write_all(&frame).is_err() {
                return;
            }
        }
    }
}

/// Listens to fresh servers in windows that grow until `least` messages were sent: how many a busy machine sends in a
/// time is not what is tested.
fn hear_enough(connections: usize, least: u64, serve: fn(Vec<TcpStream>)) -> ListenResult {
    let mut work = work(connections);
    loop {
        let (address, thread) = server(connections, serve);
        let (said, output) = io::pipe().unwrap();
        let mut stage = Stage::new(io::empty(), output);
        let heard =
            listen_in::<length::Length>(std::slice::from_ref(&address), &work, &mut stage).unwrap();
        drop(stage);
        thread.join().unwrap();
        let said = io::read_to_string(said).unwrap();
        assert_eq!(said, "{\"started\":true}\n{\"stopped\":true}\n");
        if heard.sent >= least {
            return heard;
        }
        work.measure_ms *= 2;
    }
}

#[test]
fn everything_that_is_sent_is_heard_in_order() {
    let heard = hear_enough(3, 10, |streams| publish(streams, |_, _| true));
    assert_eq!((heard.measured.lost, heard.closed), (0, 0));
    assert_eq!(
        heard.measured.latency.unwrap().samples,
        heard.measured.messages
    );
}

#[test]
fn what_one_of_three_does_not_get_is_lost() {
    let heard = hear_enough(3, 100, |streams| {
        publish(streams, |index, number| index != 1 || number % 10 != 9);
    });
    assert_eq!(heard.measured.lost, heard.sent / 10);
}

#[test]
fn a_connection_that_is_cut_off_has_lost_the_rest() {
    let heard = hear_enough(2, 10, |mut streams| {
        // The client sees an end of stream after a whole frame.
        streams[0].write_all(&frame(0)).unwrap();
        drop(streams.remove(0));
        publish(streams, |_, _| true);
    });
    assert_eq!((heard.closed, heard.measured.lost), (1, heard.sent - 1));
}

/// Publishes a message a millisecond where two are due.
fn publish_at_half_the_rate(mut streams: Vec<TcpStream>) {
    let since_ns = now_ns();
    for number in 0.. {
        while now_ns() < since_ns + number * TICK_NS {
            std::thread::yield_now();
        }
        let frame = frame_due(number, since_ns + number * TICK_NS / 2);
        if streams[0].write_all(&frame).is_err() {
            return;
        }
    }
}

#[test]
fn a_publisher_that_falls_behind_takes_longer_than_the_window_and_its_messages_wait() {
    let mut least = 10;
    // The machine may hold up the subscriber at its beginning, which then looks as late as the end.
    while least < 2_000 {
        let heard = hear_enough(1, least, publish_at_half_the_rate);
        assert_eq!((heard.measured.lost, heard.closed), (0, 0));
        assert_eq!(
            heard.measured.latency.unwrap().samples,
            heard.measured.messages
        );
        let late_us = heard.measured.latency.unwrap().max_us;
        if heard.measured.rate() < Some(1_500.0) && late_us > 10.0 * TICK_NS as f64 / 1e3 {
            return;
        }
        least *= 2;
    }
    panic!("it never falls behind");
}

/// Reads until `end` came.
fn expect(stream: &mut TcpStream, end: &[u8]) {
    let mut heard = Vec::new();
    while !heard.ends_with(end) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        heard.push(byte[0]);
    }
}

/// A broker of one subscriber: passes on what its publisher says, as messages of NATS.
fn broker(listener: &TcpListener) {
    let mut subscriber = listener.accept().unwrap().0;
    subscriber.write_all(b"INFO {}\r\n").unwrap();
    expect(&mut subscriber, b"SUB t 1\r\nPING\r\n");
    subscriber.write_all(b"PONG\r\n").unwrap();
    let mut publisher = listener.accept().unwrap().0;
    publisher.write_all(b"INFO {}\r\n").unwrap();
    expect(&mut publisher, b"PING\r\n");
    loop {
        let mut publication = [0; 10 + 32 + 2];
        if publisher.read_exact(&mut publication).is_err() {
            return;
        }
        assert!(publication.starts_with(b"PUB t 32\r\n"));
        let message = [&b"MSG t 1 32\r\n"[..], &publication[10..]].concat();
        if subscriber.write_all(&message).is_err() {
            return;
        }
    }
}

#[test]
fn a_broker_gets_what_it_passes_on_at_the_rate_that_is_asked_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = SocketAddress::Tcp(listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || broker(&listener));
    let mut stage = Stage::new(io::empty(), io::sink());
    let heard = listen_in::<nats::Nats>(&[address], &work(1), &mut stage).unwrap();
    thread.join().unwrap();
    assert_eq!((heard.measured.lost, heard.closed), (0, 0));
    assert!(heard.sent > 0);
}

#[test]
fn a_server_that_ends_or_talks_nonsense_is_an_error() {
    let (address, thread) = server(1, |mut streams| {
        expect(&mut streams[0], b"\r\n\r\n");
        streams[0]
            .write_all(b"HTTP/1.1 404 Not Found\r\n\r\n")
            .unwrap();
    });
    let error = first_error::<websocket::WebSocket>(&address);
    thread.join().unwrap();
    assert!(matches!(
        DialectError::of(&error),
        Some(DialectError::Refused(_))
    ));

    let (address, thread) = server(1, drop);
    let error = first_error::<redis::Redis>(&address);
    thread.join().unwrap();
    assert_eq!(
        error.to_string(),
        "only 0 of 1 subscriptions were taken within 20 s"
    );
}

#[test]
fn a_server_that_floods_with_pings_and_does_not_listen_is_an_error() {
    let (address, thread) = server(1, |mut streams| {
        streams[0].write_all(b"INFO {}\r\n").unwrap();
        let pings = b"PING\r\n".repeat(1_000);
        while streams[0].write_all(&pings).is_ok() {}
    });
    let error = first_error::<nats::Nats>(&address);
    thread.join().unwrap();
    assert_eq!(DialectError::of(&error), Some(&DialectError::Deaf));
}
