//! iceoryx2: shared memory, here between two threads, which spin as in its own benchmarks.
//!
//! Messages are samples of a publisher, which is tried again while there is no room. A reply is a sample in the other
//! direction, which costs less than iceoryx2's requests and responses.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::update_connections::UpdateConnections;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use peer_common::inproc::{self, BATCH_MESSAGES, End, Item, Opening};
use peer_common::{
    Console, Description, Driver, Measured, Peer, Work, locked_version, not_offered, offer,
};

fn main() -> ExitCode {
    peer_common::run(&Iceoryx2)
}

/// The service within one process, whose ports take no lock and cannot move between threads.
type Plain = local::Service;

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

/// An end that is not open yet: its ports belong to the thread that creates them.
struct Side {
    sends_to: &'static str,
    receives_as: &'static str,
}

fn connect() -> Result<(Side, Side)> {
    let near = Side {
        sends_to: FAR,
        receives_as: NEAR,
    };
    let far = Side {
        sends_to: NEAR,
        receives_as: FAR,
    };
    Ok((near, far))
}

impl Opening for Side {
    type End = Both;

    fn open(self) -> Result<Both> {
        let node = NodeBuilder::new().create::<Plain>()?;
        let publisher = way(&node, self.sends_to)?
            .publisher_builder()
            .backpressure_strategy(BackpressureStrategy::DiscardData)
            .create()?;
        let subscriber = way(&node, self.receives_as)?
            .subscriber_builder()
            .buffer_size(CAPACITY)
            .create()?;
        // Otherwise the first look of the subscriber would connect it.
        subscriber.update_connections()?;
        // The services live as long as their ports, and the node as long as the program.
        std::mem::forget(node);
        Ok(Both {
            publisher,
            subscriber,
        })
    }
}

/// The service of one direction.
fn way(node: &Node<Plain>, to: &str) -> Result<PortFactory<Plain, Item, ()>> {
    let name = format!("tidewire/bench/{}/{to}", std::process::id());
    let name = name.as_str().try_into();
    let name: ServiceName = name.map_err(|error| anyhow!("{error:?}"))?;
    let service = node
        .service_builder(&name)
        .publish_subscribe::<Item>()
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size(CAPACITY)
        .subscriber_max_borrowed_samples(2)
        .history_size(0)
        .max_publishers(1)
        .max_subscribers(1)
        .open_or_create()?;
    Ok(service)
}

struct Both {
    publisher: Publisher<Plain, Item, ()>,
    subscriber: Subscriber<Plain, Item, ()>,
}

impl End for Both {
    fn send(&mut self, message: Item) -> Result<()> {
        let mut spins = 0;
        // The receiver takes nothing while the queue is full. iceoryx2 would sleep then, for longer than the queue
        // lasts.
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

/// Names of the two ends.
const NEAR: &str = "near";
const FAR: &str = "far";

/// Samples that a subscriber's queue holds.
const CAPACITY: usize = 1_024;
