//! iceoryx2: shared memory, here between two threads, which spin as its own benchmarks do.
//!
//! Messages go as samples of a publisher, which is tried again while there is no room; a reply is a sample the other way,
//! which costs less than iceoryx2's requests and responses do.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::update_connections::UpdateConnections;
use iceoryx2::prelude::*;
use peer_common::inproc::{self, BATCH_MESSAGES, End, Item};
use peer_common::{
    Console, Description, Driver, Measured, Peer, Work, locked_version, not_offered, offer,
};

fn main() -> ExitCode {
    peer_common::run(&Iceoryx2)
}

type Shared = ipc_threadsafe::Service;

struct Iceoryx2;

impl Peer for Iceoryx2 {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            name: "iceoryx2".to_owned(),
            version: locked_version("iceoryx2")?,
            offers: vec![
                offer("echo", &["inproc"], "", Driver::Own),
                offer("ingest", &["inproc"], "", Driver::Own),
            ],
        })
    }

    fn serve(&self, work: &Work, _console: &Console) -> Result<()> {
        Err(not_offered(work))
    }

    fn drive(&self, _address: &str, work: &Work) -> Result<Measured> {
        set_log_level(LogLevel::Fatal);
        inproc::drive(work, connect)
    }
}

/// Two ends, connected by a service for each direction.
fn connect() -> Result<(Both, Both)> {
    let node = NodeBuilder::new().create::<Shared>()?;
    let (to_far, from_near) = way(&node, "far")?;
    let (to_near, from_far) = way(&node, "near")?;
    let near = Both {
        publisher: to_far,
        subscriber: from_far,
    };
    let far = Both {
        publisher: to_near,
        subscriber: from_near,
    };
    // The services live as long as their ports, and the node as long as the program.
    std::mem::forget(node);
    Ok((near, far))
}

fn way(node: &Node<Shared>, to: &str) -> Result<(Sending, Receiving)> {
    let name = format!("tidewire/bench/{}/{to}", std::process::id());
    let service = node
        .service_builder(
            &name
                .as_str()
                .try_into()
                .map_err(|error| anyhow!("{error:?}"))?,
        )
        .publish_subscribe::<Item>()
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size(CAPACITY)
        .subscriber_max_borrowed_samples(2)
        .history_size(0)
        .max_publishers(1)
        .max_subscribers(1)
        .create()?;
    let subscriber = service
        .subscriber_builder()
        .buffer_size(CAPACITY)
        .create()?;
    let publisher = service
        .publisher_builder()
        .backpressure_strategy(BackpressureStrategy::DiscardData)
        .create()?;
    // Otherwise the subscriber is connected with its first look only.
    subscriber.update_connections()?;
    Ok((publisher, subscriber))
}

type Sending = Publisher<Shared, Item, ()>;
type Receiving = Subscriber<Shared, Item, ()>;

struct Both {
    publisher: Sending,
    subscriber: Receiving,
}

impl End for Both {
    fn send(&mut self, message: Item) -> Result<()> {
        let mut spins = 0;
        // Nobody takes it while the queue is full. iceoryx2 would sleep then, for longer than the queue lasts.
        while self.publisher.send_copy(message)? == 0 {
            inproc::pause(&mut spins);
        }
        Ok(())
    }

    fn receive(&mut self, messages: &mut Vec<Item>) -> Result<()> {
        let mut spins = 0;
        loop {
            while let Some(sample) = self.subscriber.receive()? {
                messages.push(*sample.payload());
                if messages.len() >= BATCH_MESSAGES {
                    return Ok(());
                }
            }
            if !messages.is_empty() {
                return Ok(());
            }
            inproc::pause(&mut spins);
        }
    }
}

/// Samples that a subscriber's queue holds.
const CAPACITY: usize = 1_024;
