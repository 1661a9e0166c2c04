//! Starts a server from its settings: checks them, binds the addresses, and makes the lanes.

use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use tidewire_io::poller::{self, PollerChoice, PollerKind};
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::connection::Rules;

use super::backplane::Joining;
use super::bind::{Bound, limit_frames};
use super::codecs::AddressCodecs;
use super::operation::Readiness;
use super::{ServeError, Server, ServerBuilder, Stopper};
use crate::address::Address;
use crate::auth::Guard;
use crate::config::{Config, Policies};
use crate::engine::{Core, Outgoing, ServerShared};
use crate::lane::{Lane, LaneThread, Spin};
use crate::limits::RateLimit;
use crate::mailbox::LANES_MAX;
use crate::mailbox::Mailbox;
use crate::observe::{LaneCounters, MetricsReader};
use crate::room::RoomError;
use crate::service::{BoxedService, Service};
use crate::tls::TlsAcceptor;

impl ServerBuilder {
    pub(super) fn start_with<S: Service>(
        self,
        mut make: impl FnMut(usize) -> Result<S, ServeError>,
    ) -> Result<Server, ServeError> {
        let spin = Spin::chosen(self.spin_us);
        let tasks = self.tasks.clone();
        let (mut server, cores) = self.prepare()?;
        for (index, core) in cores.into_iter().enumerate() {
            let lane = Lane::new(core, make(index)?, spin, tasks.clone())?;
            server.threads.push(
                LaneThread::start(index, lane, server.stopper.ended()).map_err(ServeError::Lane)?,
            );
        }
        Ok(server)
    }

    /// Binds the addresses and makes all of a server but its threads, with a core for each lane. It is not generic, so
    /// that programs compile it once and not for each service.
    fn prepare(mut self) -> Result<(Server, Vec<Core>), ServeError> {
        if self.lanes == 0 || self.lanes > LANES_MAX {
            return Err(ServeError::LaneCount(self.lanes));
        }
        self.limits.check()?;
        self.rate_limit.as_ref().map(RateLimit::rate).transpose()?;
        let is_udp: Vec<bool> = self.addresses.iter().map(Address::is_udp).collect();
        limit_frames(&is_udp, &mut self.limits.connections);
        let codecs = AddressCodecs::choose(&self.addresses, &self.codec)?;
        self.codec = codecs.main().clone();
        let mut all = codecs.all().iter();
        all.try_for_each(|codec| self.check_policy(codec))?;
        self.accept_websockets(&codecs);
        let acceptor = self.secure(&codecs)?;
        let outgoing = self.outgoing()?;
        let joining = self.backplane.take().map(Joining::connect).transpose()?;
        let bound = Bound::bind(
            &self.addresses,
            &codecs,
            self.lanes,
            &self.sockets,
            &self.datagrams,
            self.layers.as_ref(),
            self.intake(),
        )?;
        // The first lane chooses the poller and logs it; the others use the same.
        let first = poller::open(self.poller)?;
        let kind = first.kind();
        let mut pollers = vec![first];
        while pollers.len() < self.lanes {
            let next = poller::open(PollerChoice::Only(kind))?;
            pollers.push(next);
        }
        let shared = Arc::new(self.share(kind, outgoing, joining.as_ref(), &codecs));
        let counters: Vec<Arc<CachePadded<LaneCounters>>> =
            (0..self.lanes).map(|_| Arc::default()).collect();
        let mut mailboxes = Vec::new();
        for counters in &counters {
            mailboxes.push(Mailbox::new(Arc::clone(counters)).map_err(ServeError::Lane)?);
        }
        shared.lanes.set(mailboxes.clone());
        let node = joining.map(|joining| joining.start(&shared, &counters[0]));
        let readiness = Readiness::new(mailboxes.clone());
        let server = Server {
            node: node.transpose()?,
            shared: Arc::clone(&shared),
            lanes: mailboxes.clone(),
            threads: Vec::new(),
            addresses: bound.addresses,
            metrics: MetricsReader::new(counters.clone(), Arc::clone(&shared.memory)),
            poller: kind,
            stopper: Stopper::new(readiness.clone()),
            readiness,
            tls: acceptor.map(|acceptor| TlsAcceptor::new(acceptor, Arc::clone(&counters[0]))),
        };
        server.take_names()?;
        let mut listeners = bound.listeners;
        let mut cores = Vec::with_capacity(self.lanes);
        for (index, (((poller, ports), mailbox), counters)) in pollers
            .into_iter()
            .zip(bound.ports)
            .zip(mailboxes)
            .zip(counters)
            .enumerate()
        {
            let mut core = Core::new(index, Arc::clone(&shared), mailbox, poller, counters);
            core.watch(listeners.drain(..), ports)?;
            cores.push(core);
        }
        Ok((server, cores))
    }

    /// The only function that names the lane of boxed services. It is not generic, so that this crate has the one copy.
    pub(super) fn start_boxed_with(
        self,
        make: &mut dyn FnMut(usize) -> Box<dyn Service>,
    ) -> Result<Server, ServeError> {
        self.start_with(|lane| Ok(BoxedService(make(lane))))
    }

    /// Checks that the codec supports the policy for slow subscribers, and warns if it cannot announce losses.
    fn check_policy(&self, codec: &AnyCodec) -> Result<(), ServeError> {
        let (policies, policy) = (Policies::of(codec), self.rooms.policy);
        let checked = policies.check_default(policy).map_err(RoomError::from);
        checked.map_err(ServeError::Policy)?;
        if policies.is_silent(policy) {
            tracing::warn!(
                codec = codec.name(),
                %policy,
                "the codec cannot announce losses to slow subscribers; dropped messages are only counted"
            );
        }
        Ok(())
    }

    /// The shared state of the lanes of a server without addresses.
    #[cfg(test)]
    pub(crate) fn share_alone(&self, kind: PollerKind) -> ServerShared {
        let codecs = AddressCodecs::choose(&[], &self.codec);
        self.share(kind, Outgoing::default(), None, &codecs.unwrap())
    }

    fn share(
        &self,
        kind: PollerKind,
        outgoing: Outgoing,
        joining: Option<&Joining>,
        codecs: &AddressCodecs,
    ) -> ServerShared {
        let agent = self.agent.clone().unwrap_or_else(|| {
            format!(
                "tidewire/{} lanes={} poller={kind}",
                env!("CARGO_PKG_VERSION"),
                self.lanes
            )
        });
        tracing::debug!(codec = self.codec.name(), agent, "starting lanes");
        let frame_bytes_max = self.limits.connections.frame_bytes_max();
        // A message of a room must fit a frame of each codec.
        let shared_frame_bytes = codecs.all().iter().map(|codec| {
            let format = codec.format();
            frame_bytes_max
                .saturating_sub(format.delivery_header_bytes_max)
                .div_euclid(format.payload_growth_max)
        });
        let shared_frame_bytes = shared_frame_bytes
            .min()
            .unwrap_or(frame_bytes_max)
            .min(joining.map_or(usize::MAX, Joining::payload_bytes_max));
        let config = Config {
            shared_frame_bytes: shared_frame_bytes.into(),
            codecs: codecs.with_rules(|codec| Rules {
                authenticates: self.authenticator.is_some(),
                ..self.limits.rules(codec)
            }),
            limits: self.limits,
            shared_frame_bytes_max: shared_frame_bytes.into(),
            rate: self.rate_limit.and_then(|limit| limit.rate().ok()),
            room_defaults: self.rooms,
            agent,
            trusts_datagram_peers: self.trusts_datagram_peers,
            age: self.age,
            follows_moves: self.follows_moves,
            successor: OnceLock::new(),
            socket_options: self.sockets.clone(),
            datagram_options: self.datagrams.clone(),
        };
        let guard = self
            .authenticator
            .clone()
            .map(|it| Arc::new(Guard::new(it)));
        let link = joining.map(|joining| Arc::clone(&joining.link));
        ServerShared::new(config, outgoing, guard, self.lanes, link)
    }
}
