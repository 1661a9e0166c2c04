//! A server as a node of a cluster: connecting its backplane, and the node's thread.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crossbeam_utils::CachePadded;
use tidewire_proto::backplane::{NodeLife, PACKET_OVERHEAD_BYTES_MAX, validate_node};

use super::ServerBuilder;
use crate::backplane::{
    Backplane, BackplaneChoice, BackplaneError, Carrier, Node, NodeFigures, NodeParts,
    NodeSettings, PACKET_BYTES_MIN,
};
use crate::broker::BackplaneLink;
use crate::engine::ServerShared;
use crate::observe::LaneCounters;

/// A connected backplane, before the server has lanes.
pub(crate) struct Joining {
    carrier: Box<dyn Carrier>,
    settings: NodeSettings,
    pub(super) link: Arc<BackplaneLink>,
}

impl Joining {
    pub(super) fn connect(choice: BackplaneChoice) -> Result<Self, BackplaneError> {
        let BackplaneChoice {
            backplane,
            settings,
        } = choice;
        validate_node(&settings.id).map_err(|error| BackplaneError::Engine(error.into()))?;
        let (heartbeat, silence_max) = (settings.heartbeat, settings.silence_max);
        if heartbeat.is_zero() || heartbeat > silence_max / 2 {
            return Err(BackplaneError::Heartbeat {
                heartbeat,
                silence_max,
            });
        }
        let mut carrier = backplane.connect()?;
        if settings.keeps_histories {
            carrier.open_histories()?;
        }
        let bytes = carrier.packet_bytes_max();
        if bytes < PACKET_BYTES_MIN {
            return Err(BackplaneError::PacketLimit { bytes });
        }
        let payload_bytes_max = bytes - PACKET_OVERHEAD_BYTES_MAX;
        let (epoch, keeps_histories) = (fastrand::u64(1..), settings.keeps_histories);
        let link = BackplaneLink::new(
            NodeLife::new(&*settings.id, epoch),
            payload_bytes_max,
            keeps_histories,
        );
        Ok(Self {
            carrier,
            settings,
            link: Arc::new(link),
        })
    }

    /// The longest message that fits a packet, in bytes.
    pub(super) fn payload_bytes_max(&self) -> usize {
        self.link.payload_bytes_max()
    }

    /// Starts the thread of the node, and waits until the node is a member of its cluster.
    pub(super) fn start(
        self,
        shared: &ServerShared,
        counters: &Arc<CachePadded<LaneCounters>>,
    ) -> Result<NodeThread, BackplaneError> {
        let bytes = shared.config.shared_frame_bytes.load(Ordering::Relaxed);
        if bytes < shared.config.limits.connections.frame_bytes_max() / 2 {
            tracing::warn!(
                bytes,
                "the backplane carries short packets, so longer messages of rooms and topics are refused"
            );
        }
        let figures = Arc::new(Mutex::new(NodeFigures {
            id: self.settings.id.clone(),
            ..NodeFigures::default()
        }));
        let (started, outcome) = mpsc::channel();
        let carrier = self.carrier;
        let node = Node::new(NodeParts {
            settings: self.settings,
            link: Arc::clone(&self.link),
            directory: Arc::clone(&shared.directory),
            config: Arc::clone(&shared.config),
            sessions: Arc::clone(&shared.sessions),
            counters: Arc::clone(counters),
            lanes: Arc::clone(&shared.lanes),
            figures: Arc::clone(&figures),
            packet_bytes_max: carrier.packet_bytes_max(),
            started,
        });
        let thread = thread::Builder::new()
            .name("tidewire-node".to_owned())
            .spawn(move || carrier.run(node))
            .map_err(|error| BackplaneError::Engine(error.into()))?;
        let node = NodeThread {
            link: self.link,
            figures,
            thread,
        };
        match outcome.recv() {
            Ok(Ok(())) => Ok(node),
            Ok(Err(error)) => {
                node.stop();
                Err(error)
            }
            Err(_) => Err(BackplaneError::Thread),
        }
    }
}

impl fmt::Debug for Joining {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(formatter)
    }
}

/// The node of a running server.
#[derive(Debug)]
pub(super) struct NodeThread {
    link: Arc<BackplaneLink>,
    figures: Arc<Mutex<NodeFigures>>,
    thread: JoinHandle<()>,
}

impl NodeThread {
    pub(super) fn figures(&self) -> &Arc<Mutex<NodeFigures>> {
        &self.figures
    }

    /// Lets the node tell the others that it ends, and waits for its thread.
    pub(super) fn stop(self) {
        self.link.stop();
        if self.thread.join().is_err() {
            tracing::error!("the thread of the node panicked");
        }
    }
}

impl ServerBuilder {
    /// Makes the server a node of a cluster: rooms and topics span all servers with the same backplane. See
    /// [`backplane`](crate::backplane).
    ///
    /// Messages of rooms and topics may not be longer than the backplane's packets; longer ones are refused to their
    /// publishers.
    #[must_use]
    pub fn backplane(
        mut self,
        backplane: impl Backplane + 'static,
        settings: NodeSettings,
    ) -> Self {
        self.backplane = Some(BackplaneChoice {
            backplane: Arc::new(backplane),
            settings,
        });
        self
    }
}
