//! A relay between clients and a server that discards a client's bytes, and cuts the connection.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// See the module. Its threads end with the connections, or with the test.
pub(crate) struct Relay {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    swallows: AtomicBool,
    swallowed: AtomicUsize,
    /// Both ends of each connection.
    open: Mutex<Vec<TcpStream>>,
}

impl Relay {
    /// Relays to a `tcp://` address.
    pub(crate) fn to(url: &str) -> Self {
        let server: SocketAddr = url.strip_prefix("tcp://").unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<State>::default();
        thread::spawn({
            let state = Arc::clone(&state);
            move || {
                for client in listener.incoming() {
                    relay(client.unwrap(), TcpStream::connect(server).unwrap(), &state);
                }
            }
        });
        Self { address, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// From now on nothing that clients send goes to the server.
    pub(crate) fn swallow(&self) {
        self.state.swallows.store(true, Ordering::SeqCst);
    }

    /// The bytes that were swallowed.
    pub(crate) fn swallowed(&self) -> usize {
        self.state.swallowed.load(Ordering::SeqCst)
    }

    /// Ends all connections. Later connections are relayed again.
    pub(crate) fn cut(&self) {
        self.state.swallows.store(false, Ordering::SeqCst);
        for end in self.state.open.lock().unwrap().drain(..) {
            // The connection may have ended.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn relay(client: TcpStream, server: TcpStream, state: &Arc<State>) {
    let mut ends = [&client, &server, &client, &server].map(|it| it.try_clone().unwrap());
    state.open.lock().unwrap().extend([client, server]);
    let [mut from_client, mut to_server, ..] = ends.each_mut().map(|it| it.try_clone().unwrap());
    let [_, _, mut to_client, mut from_server] = ends;
    let state = Arc::clone(state);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from_client.read(&mut buffer) {
            if state.swallows.load(Ordering::SeqCst) {
                state.swallowed.fetch_add(count, Ordering::SeqCst);
            } else if to_server.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
        let _ = to_server.shutdown(Shutdown::Write);
    });
    thread::spawn(move || {
        let _ = std::io::copy(&mut from_server, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Write);
    });
}
