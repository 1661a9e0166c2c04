//! A relay of datagrams between one peer and a server, for a network that copies, reorders and replays.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The changes that the relay makes to the datagrams of both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disorder {
    /// Sends each datagram twice.
    Double,
    /// Sends a datagram after the next, if the next has arrived.
    Reorder,
    /// Sends each datagram again, three datagrams later.
    Replay,
}

/// A relay on a thread for each direction. Dropping it ends them.
#[derive(Debug)]
pub struct UdpRelay {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// The sockets towards the peer and towards the server.
    near: UdpSocket,
    far: UdpSocket,
    ends: AtomicBool,
    extra: AtomicU64,
}

impl Disorder {
    /// Every one of them.
    pub const ALL: [Self; 3] = [Self::Double, Self::Reorder, Self::Replay];
}

impl UdpRelay {
    /// Starts a relay to this server, for the first peer that sends to it.
    #[must_use]
    pub fn start(server: SocketAddr, disorder: Disorder) -> Self {
        let socket = || {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
            let timeout = socket.set_read_timeout(Some(LOOK_INTERVAL));
            timeout.expect("a time that is not zero");
            socket
        };
        let (near, far) = (socket(), socket());
        far.connect(server).expect("a server at this address");
        let address = near.local_addr().expect("a bound socket");
        let shared = Arc::new(Shared {
            near,
            far,
            ends: AtomicBool::new(false),
            extra: AtomicU64::new(0),
        });
        let there = Arc::clone(&shared);
        let first = thread::spawn(move || {
            // Only one peer is relayed: from now on the socket takes datagrams of no other.
            let mut bytes = vec![0; DATAGRAM_BYTES_MAX];
            let (count, peer) = loop {
                match there.near.recv_from(&mut bytes) {
                    Ok(first) => break first,
                    Err(_) if there.ends.load(Ordering::SeqCst) => return,
                    Err(_) => {}
                }
            };
            there.near.connect(peer).expect("the address of a peer");
            let back = Arc::clone(&there);
            let answers = thread::spawn(move || back.relay(&back.far, &back.near, disorder, None));
            let begun = bytes[..count].to_vec();
            there.relay(&there.near, &there.far, disorder, Some(begun));
            answers.join().expect("the relay of answers ends");
        });
        Self {
            address,
            shared,
            threads: vec![first],
        }
    }

    /// The address at which a peer finds the server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of datagrams that the relay added.
    #[must_use]
    pub fn extra(&self) -> u64 {
        self.shared.extra.load(Ordering::SeqCst)
    }
}

impl Drop for UdpRelay {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            // A panic of it fails the test that waits for the datagrams.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Passes datagrams on until the relay ends.
    fn relay(&self, from: &UdpSocket, to: &UdpSocket, disorder: Disorder, begun: Option<Vec<u8>>) {
        let mut past: Vec<Vec<u8>> = Vec::new();
        let mut next = begun;
        let mut bytes = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            let datagram = match next.take() {
                Some(datagram) => datagram,
                None => match from.recv(&mut bytes) {
                    Ok(count) => bytes[..count].to_vec(),
                    Err(_) if self.ends.load(Ordering::SeqCst) => return,
                    // Nothing has come, or the other side has closed its socket.
                    Err(_) => continue,
                },
            };
            match disorder {
                Disorder::Double => {
                    self.send(to, &datagram, false);
                    self.send(to, &datagram, true);
                }
                Disorder::Reorder => {
                    if let Some(later) = try_receive(from, &mut bytes) {
                        self.send(to, &later, false);
                    }
                    self.send(to, &datagram, false);
                }
                Disorder::Replay => {
                    self.send(to, &datagram, false);
                    past.push(datagram);
                    if past.len() > REPLAY_AFTER {
                        let old = past.remove(0);
                        self.send(to, &old, true);
                    }
                }
            }
        }
    }

    fn send(&self, to: &UdpSocket, datagram: &[u8], is_extra: bool) {
        // A side that has closed its socket takes nothing any more.
        let sent = to.send(datagram);
        if is_extra && sent.is_ok() {
            self.extra.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Returns the next datagram if it has arrived.
fn try_receive(from: &UdpSocket, bytes: &mut [u8]) -> Option<Vec<u8>> {
    from.set_nonblocking(true).expect("an open socket");
    let received = from.recv(bytes);
    from.set_nonblocking(false).expect("an open socket");
    let count = received.ok()?;
    Some(bytes[..count].to_vec())
}

const DATAGRAM_BYTES_MAX: usize = 65_536;

/// The interval at which a relay checks whether to end.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Datagrams between a datagram and its replay.
const REPLAY_AFTER: usize = 3;
