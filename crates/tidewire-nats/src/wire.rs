//! From a node to NATS: a bounded queue in front of the client, which takes what it can at once.

use std::collections::{HashMap, VecDeque};

use async_nats::{Client, Message};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use tidewire::backplane::{Subject, Wire};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::subject::Prefix;

/// The way of a node to NATS. See the module.
pub(crate) struct NatsWire {
    client: Client,
    prefix: Prefix,
    waiting: VecDeque<Command>,
    waiting_bytes: usize,
    subscriptions: HashMap<String, AbortHandle>,
    packets: mpsc::Sender<Message>,
}

enum Command {
    Publish(String, Bytes),
    Subscribe(String),
    Unsubscribe(String),
}

impl NatsWire {
    pub(crate) fn new(client: Client, prefix: Prefix, packets: mpsc::Sender<Message>) -> Self {
        Self {
            client,
            prefix,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            subscriptions: HashMap::new(),
            packets,
        }
    }

    /// Gives the client what it takes at once. Returns whether something waits.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(command) = self.waiting.front() {
            let is_taken = match command {
                Command::Publish(subject, packet) => {
                    let publish = self.client.publish(subject.clone(), packet.clone());
                    match publish.now_or_never() {
                        None => false,
                        Some(Ok(())) => true,
                        Some(Err(error)) => {
                            tracing::warn!(%error, "NATS does not take a packet");
                            true
                        }
                    }
                }
                Command::Subscribe(subject) => {
                    match self.client.subscribe(subject.clone()).now_or_never() {
                        None => false,
                        Some(Ok(mut subscriber)) => {
                            let packets = self.packets.clone();
                            let task = tokio::spawn(async move {
                                while let Some(message) = subscriber.next().await {
                                    if packets.send(message).await.is_err() {
                                        return;
                                    }
                                }
                            });
                            self.subscriptions
                                .insert(subject.clone(), task.abort_handle());
                            true
                        }
                        Some(Err(error)) => {
                            tracing::error!(%error, "NATS does not take a subscription");
                            true
                        }
                    }
                }
                Command::Unsubscribe(subject) => {
                    // The subscriber unsubscribes when its task drops it.
                    if let Some(task) = self.subscriptions.remove(subject) {
                        task.abort();
                    }
                    true
                }
            };
            if !is_taken {
                return true;
            }
            if let Some(Command::Publish(_, packet)) = self.waiting.pop_front() {
                self.waiting_bytes -= packet.len();
            }
        }
        false
    }

    /// Sends what waits, and everything that the client has taken.
    pub(crate) async fn finish(mut self) {
        while self.flush() {
            tokio::task::yield_now().await;
        }
        if let Err(error) = self.client.flush().await {
            tracing::warn!(%error, "the last packets of the node may not have reached NATS");
        }
    }
}

impl Wire for NatsWire {
    fn publish(&mut self, to: Subject<'_>, packet: &[u8]) -> bool {
        if self.waiting_bytes + packet.len() > WAITING_BYTES_MAX {
            return false;
        }
        self.waiting_bytes += packet.len();
        let packet = Bytes::copy_from_slice(packet);
        self.waiting
            .push_back(Command::Publish(self.prefix.subject(to), packet));
        true
    }

    fn subscribe(&mut self, subject: Subject<'_>) {
        let subject = self.prefix.subject(subject);
        self.waiting.push_back(Command::Subscribe(subject));
    }

    fn unsubscribe(&mut self, subject: Subject<'_>) {
        let subject = self.prefix.subject(subject);
        self.waiting.push_back(Command::Unsubscribe(subject));
    }
}

/// Bytes that wait for the client of NATS. Beyond them packets are dropped, and counted by the node.
const WAITING_BYTES_MAX: usize = 8 << 20;
