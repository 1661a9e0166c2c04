//! Counts the sessions, registrations and handshakes of the whole server against its limits, and the share of each
//! address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidewire_io::descriptors::descriptor_limit;

use super::address_shares::{Shares, TableFull};
use crate::address::Endpoint;
use crate::limits::{Bucket, Limits, Rate, RateLimit, WhenExceeded};
use crate::transport::Arrival;

/// The number of sessions, in all and for each IP address. It is checked once per connection.
#[derive(Debug)]
pub(crate) struct SessionLimiter {
    state: Mutex<State>,
}

/// The limits in force, which may change while the server runs.
#[derive(Debug)]
struct InForce {
    sessions_max: usize,
    /// Sessions that have a descriptor of their own.
    descriptors_max: usize,
    per_address_max: usize,
    registrations_max: usize,
    registrations_per_address_max: usize,
    /// The rate of handshakes of one address. `None` for no limit.
    handshake_rate: Option<Rate>,
    handshake_bytes_max: usize,
}

#[derive(Debug)]
struct State {
    limits: InForce,
    sessions: usize,
    descriptors: usize,
    /// Connections of proxies whose clients are not known yet. They are no sessions.
    unnamed: usize,
    session_shares: Shares,
    registrations: usize,
    registration_shares: Shares,
    /// The used part of each address's rate of handshakes.
    handshakes: HashMap<IpAddr, Bucket>,
    /// When addresses may be forgotten again.
    forget_ns: u64,
    /// The memory of each address's unfinished handshakes.
    handshake_bytes: HashMap<IpAddr, usize>,
}

impl State {
    fn enter(&mut self, peer: Option<&Endpoint>) {
        self.sessions += 1;
        self.descriptors += descriptors(peer);
        self.session_shares.add(peer.and_then(counted_address));
    }

    /// Forgets addresses whose rate of handshakes is unused, if very many are remembered. Returns how many are left. It
    /// searches at most once in a while, because an attack from many addresses would make it search in vain.
    fn forget_handshakes(&mut self, now_ns: u64) -> usize {
        if self.handshakes.len() >= ADDRESSES_MAX && self.forget_ns <= now_ns {
            self.forget_ns = now_ns.saturating_add(FORGET_NS);
            self.handshakes.retain(|_, bucket| !bucket.is_full(now_ns));
        }
        self.handshakes.len()
    }
}

impl InForce {
    fn of(limits: &Limits) -> Self {
        Self {
            sessions_max: limits.sessions.max(),
            descriptors_max: usize::try_from(descriptor_limit().soft)
                .unwrap_or(usize::MAX)
                .saturating_sub(DESCRIPTORS_SPARE),
            per_address_max: limits.sessions.per_address_max(),
            registrations_max: limits.udp.registrations_max(),
            registrations_per_address_max: limits.udp.registrations_per_address_max(),
            handshake_rate: handshake_rate(limits),
            handshake_bytes_max: limits
                .handshakes
                .bytes_per_address_max()
                .min(limits.memory.bytes_max() / 4),
        }
    }
}

impl SessionLimiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            state: Mutex::new(State {
                limits: InForce::of(limits),
                sessions: 0,
                descriptors: 0,
                unnamed: 0,
                session_shares: Shares::default(),
                registrations: 0,
                registration_shares: Shares::default(),
                handshakes: HashMap::new(),
                forget_ns: 0,
                handshake_bytes: HashMap::new(),
            }),
        }
    }

    /// Puts other limits into force. Sessions and registrations beyond them stay, and no further ones are let in.
    pub(crate) fn change(&self, limits: &Limits) {
        self.lock().limits = InForce::of(limits);
    }

    /// Counts a new session, unless a limit is reached.
    pub(crate) fn enter(&self, peer: Option<&Endpoint>) -> bool {
        let mut state = self.lock();
        let limits = &state.limits;
        let is_free = state.session_shares.of(peer.and_then(counted_address))
            < limits.per_address_max
            && state.sessions < limits.sessions_max
            && state.descriptors + descriptors(peer) <= limits.descriptors_max;
        if is_free {
            state.enter(peer);
        }
        is_free
    }

    /// Counts a new session although there is no place for it, if another address has at least twice as many as its
    /// own. Returns that address. Close a session of it.
    pub(crate) fn displace(&self, peer: Option<&Endpoint>) -> Option<IpAddr> {
        let mut state = self.lock();
        let own = state.session_shares.of(peer.and_then(counted_address));
        let (most, address) = state.session_shares.most()?;
        if own >= state.limits.per_address_max || most < 2 * (own + 1) {
            return None;
        }
        state.enter(peer);
        Some(address)
    }

    /// Counts a connection of a proxy whose client is not known yet, unless there are too many. It takes no place of a
    /// session, because nobody knows whose share it would use up.
    pub(crate) fn enter_unnamed(&self) -> bool {
        let mut state = self.lock();
        let is_free =
            state.unnamed < UNNAMED_MAX && state.descriptors < state.limits.descriptors_max;
        if is_free {
            state.unnamed += 1;
            state.descriptors += 1;
        }
        is_free
    }

    /// Removes such a connection from the count: it ends, or counts as a session of its client now.
    pub(crate) fn leave_unnamed(&self) {
        let mut state = self.lock();
        state.unnamed -= 1;
        state.descriptors -= 1;
    }

    /// Removes a connection that no lane takes up from the count.
    pub(crate) fn release_arrival(&self, arrival: &Arrival) {
        self.release(arrival.peer.as_ref(), arrival.forwarder.is_some());
    }

    /// Removes a connection that ends from the count: a session, or one whose client is not known yet.
    pub(crate) fn release(&self, peer: Option<&Endpoint>, is_unnamed: bool) {
        match is_unnamed {
            true => self.leave_unnamed(),
            false => self.leave(peer),
        }
    }

    /// Removes a session from the count.
    pub(crate) fn leave(&self, peer: Option<&Endpoint>) {
        let mut state = self.lock();
        state.sessions -= 1;
        state.descriptors -= descriptors(peer);
        state.session_shares.remove(peer.and_then(counted_address));
    }

    /// Counts a handshake that an address begins, unless it has begun too many.
    pub(crate) fn begin_handshake(&self, peer: Option<&Endpoint>, now_ns: u64) -> bool {
        let mut state = self.lock();
        let owner = peer.and_then(counted_address);
        let (Some(owner), Some(rate)) = (owner, state.limits.handshake_rate) else {
            return true;
        };
        let is_known = state.handshakes.contains_key(&owner);
        if !is_known && state.forget_handshakes(now_ns) >= ADDRESSES_MAX {
            // The limits on sessions and memory hold against so many addresses.
            return true;
        }
        let bucket = state.handshakes.entry(owner).or_default();
        let may_begin = rate.free_ns(*bucket) <= now_ns;
        if may_begin {
            rate.take(bucket, 0, now_ns);
        }
        may_begin
    }

    /// Changes the memory of an unfinished handshake from `before` to `after` bytes, unless its address would hold too
    /// much.
    pub(crate) fn hold_handshake(&self, owner: IpAddr, before: usize, after: usize) -> bool {
        let mut state = self.lock();
        let bytes_max = state.limits.handshake_bytes_max;
        let held = state.handshake_bytes.get(&owner).copied().unwrap_or(0);
        let others = held - before;
        if after > before && others + after > bytes_max {
            return false;
        }
        match others + after {
            0 => state.handshake_bytes.remove(&owner),
            held => state.handshake_bytes.insert(owner, held),
        };
        true
    }

    /// Counts a subscriber's registration, unless a limit is reached.
    pub(crate) fn register(&self, owner: Option<IpAddr>) -> Result<(), TableFull> {
        let mut state = self.lock();
        let (shares, count) = (&state.registration_shares, state.registrations);
        let limits = &state.limits;
        let share_max = limits.registrations_per_address_max;
        let count_max = limits.registrations_max;
        shares.check(owner, share_max, count, count_max)?;
        state.registrations += 1;
        state.registration_shares.add(owner);
        Ok(())
    }

    /// Removes a registration from the count.
    pub(crate) fn unregister(&self, owner: Option<IpAddr>) {
        let mut state = self.lock();
        state.registrations -= 1;
        state.registration_shares.remove(owner);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is complete before anything can panic, so the counts stay usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The descriptors of a session with this peer. All peers over UDP share a socket.
fn descriptors(peer: Option<&Endpoint>) -> usize {
    usize::from(!matches!(peer, Some(Endpoint::Udp(_))))
}

/// The rate of handshakes of one address. After a silence all its sessions may come at once.
fn handshake_rate(limits: &Limits) -> Option<Rate> {
    let per_second = limits.handshakes.per_address_per_second_max();
    let at_once = limits.sessions.per_address_max().max(per_second);
    // Without a limit of sessions the burst would be longer than a duration can be.
    let burst_secs = at_once as f64 / per_second.max(1) as f64;
    let burst = Duration::from_secs_f64(burst_secs.min(BURST_SECS_MAX));
    let limit = RateLimit::new(WhenExceeded::Refuse)
        .messages_per_second(per_second as u64)
        .burst(burst);
    // A rate of 0 is no limit.
    limit.rate().ok()
}

/// The address that a peer counts for: its IPv4 address, also if mapped to IPv6, or the first 64 bits of its IPv6
/// address. One IPv6 host can use all addresses that share these bits.
pub(crate) fn counted_address(peer: &Endpoint) -> Option<IpAddr> {
    let address = peer.socket_address()?;
    Some(match address.ip().to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & NETWORK_BITS).into(),
        ip => ip,
    })
}

/// The longest burst of handshakes: a year is as good as no limit.
const BURST_SECS_MAX: f64 = 365.0 * 86_400.0;

/// Descriptors that sessions leave to listeners, lanes, files and connections that are refused.
const DESCRIPTORS_SPARE: usize = 32;

/// Connections of proxies whose clients are not known yet. A proxy names its client at once, so more of them are stuck.
const UNNAMED_MAX: usize = 4_096;

/// Addresses whose rate of handshakes is remembered: about 1 MB.
const ADDRESSES_MAX: usize = 16_384;

/// The shortest time between two searches for addresses to forget.
const FORGET_NS: u64 = 100_000_000;

/// The network part of an IPv6 address.
const NETWORK_BITS: u128 = !(u64::MAX as u128);

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn limited(change: impl FnOnce(&mut Limits)) -> SessionLimiter {
        let mut limits = Limits::default();
        change(&mut limits);
        SessionLimiter::new(&limits)
    }

    fn peer(text: &str) -> Option<Endpoint> {
        Some(Endpoint::Tcp(text.parse().unwrap()))
    }

    #[test]
    fn both_limits_hold_and_places_come_back() {
        let limiter = limited(|limits| {
            limits.sessions.set_max(3);
            limits.sessions.set_per_address_max(2);
        });
        assert!(limiter.enter(peer("10.0.0.1:1").as_ref()));
        assert!(limiter.enter(peer("10.0.0.1:2").as_ref()));
        assert!(
            !limiter.enter(peer("10.0.0.1:3").as_ref()),
            "two from one address"
        );
        let datagrams = Endpoint::Udp("[::ffff:10.0.0.1]:9".parse().unwrap());
        assert!(!limiter.enter(Some(&datagrams)), "the same address");
        assert!(limiter.enter(peer("10.0.0.2:1").as_ref()));
        assert!(!limiter.enter(None), "three in all");
        limiter.leave(peer("10.0.0.1:1").as_ref());
        assert!(limiter.enter(peer("10.0.0.1:4").as_ref()));
    }

    #[test]
    fn the_address_with_the_most_sessions_makes_room_for_a_newcomer_and_not_for_its_equals() {
        let limiter = limited(|limits| {
            limits.sessions.set_max(100);
        });
        let enter = |number: usize| {
            let peer = peer(&format!("10.0.0.{number}:1"));
            match limiter.enter(peer.as_ref()) {
                true => Ok(()),
                false => Err(limiter.displace(peer.as_ref())),
            }
        };
        for _ in 0..100 {
            assert_eq!(enter(1), Ok(()));
        }
        assert_eq!(enter(1), Err(None), "it has all of them itself");
        let large = IpAddr::from([10, 0, 0, 1]);
        for number in 100..150 {
            assert_eq!(enter(number), Err(Some(large)), "a session of it is closed");
            limiter.leave(peer("10.0.0.1:1").as_ref());
        }
        assert_eq!(enter(2), Err(Some(large)));
        limiter.leave(peer("10.0.0.1:1").as_ref());
        while enter(3) == Err(Some(large)) {
            limiter.leave(peer("10.0.0.1:1").as_ref());
        }
        let shares = |number| {
            limiter
                .lock()
                .session_shares
                .of(Some([10, 0, 0, number].into()))
        };
        assert!(
            2 * (shares(3) + 1) > shares(1),
            "{} {}",
            shares(3),
            shares(1)
        );
        assert_eq!(limiter.lock().sessions, 100);
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let address = |text| counted_address(&peer(text).unwrap());
        assert_eq!(
            address("[2001:db8:1:2::3]:1"),
            address("[2001:db8:1:2:f::]:1")
        );
        assert_ne!(
            address("[2001:db8:1:2::3]:1"),
            address("[2001:db8:1:3::3]:1")
        );
        assert_eq!(
            address("[::ffff:10.0.0.1]:1"),
            Some("10.0.0.1".parse().unwrap())
        );
    }

    #[test]
    fn one_address_takes_no_more_than_its_share_of_the_registrations() {
        let limiter = limited(|limits| {
            limits.udp.set_registrations_max(3);
            limits.udp.set_registrations_per_address_max(2);
        });
        let [one, two] = ["10.0.0.1:1", "10.0.0.2:1"].map(|text| counted_address(&peer(text)?));
        assert_eq!(limiter.register(one), Ok(()));
        assert_eq!(limiter.register(one), Ok(()));
        assert_eq!(limiter.register(one), Err(TableFull::Address));
        assert_eq!(limiter.register(two), Ok(()));
        assert_eq!(limiter.register(two), Err(TableFull::Server));
        limiter.unregister(one);
        assert_eq!(limiter.register(two), Ok(()));
    }

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn an_address_may_begin_all_its_handshakes_at_once_and_then_so_many_a_second() {
        let limiter = limited(|limits| {
            limits.sessions.set_per_address_max(50);
            limits.handshakes.set_per_address_per_second_max(10);
        });
        let [one, two] = ["10.0.0.1:1", "10.0.0.2:1"].map(peer);
        let begun = |peer: &Option<Endpoint>, now_ns| {
            let may_begin = |_: &u32| limiter.begin_handshake(peer.as_ref(), now_ns);
            (0..100).filter(may_begin).count()
        };
        assert_eq!(begun(&one, SECOND_NS), 50);
        assert_eq!(begun(&two, SECOND_NS), 50, "another address");
        assert_eq!(begun(&None, SECOND_NS), 100, "a Unix socket has no address");
        assert_eq!(begun(&one, 2 * SECOND_NS), 10);
        let unlimited = limited(|limits| {
            limits.handshakes.set_per_address_per_second_max(0);
        });
        let all = (0..100_000).filter(|_| unlimited.begin_handshake(one.as_ref(), 0));
        assert_eq!(all.count(), 100_000);
    }

    #[test]
    fn many_addresses_that_begin_handshakes_do_not_fill_the_memory() {
        let limiter = SessionLimiter::new(&Limits::default());
        let begin = |number: u32, now_ns| {
            let address = std::net::Ipv4Addr::from_bits(number);
            let peer = Endpoint::Tls((address, 1).into());
            assert!(limiter.begin_handshake(Some(&peer), now_ns));
        };
        for number in 0..2 * ADDRESSES_MAX as u32 {
            begin(number, 0);
        }
        assert_eq!(limiter.lock().handshakes.len(), ADDRESSES_MAX);
        begin(u32::MAX, SECOND_NS);
        assert_eq!(limiter.lock().handshakes.len(), 1, "all others are past");
    }

    /// Regression: a server without a limit of sessions for an address panicked at its start.
    #[test]
    fn a_server_without_a_limit_of_sessions_has_a_rate_of_handshakes() {
        for per_second in [0, 1, usize::MAX] {
            let limiter = limited(|limits| {
                limits.sessions.set_per_address_max(usize::MAX);
                limits.handshakes.set_per_address_per_second_max(per_second);
            });
            let peer = Endpoint::Tls(([10, 0, 0, 1], 1).into());
            assert!(limiter.begin_handshake(Some(&peer), 0));
        }
    }

    #[test]
    fn a_connection_without_a_known_client_takes_no_place_of_a_session() {
        let limiter = limited(|limits| {
            limits.sessions.set_max(1);
        });
        let ann = Endpoint::from(SocketAddr::from(([10, 0, 0, 2], 1)));
        for _ in 0..UNNAMED_MAX {
            assert!(limiter.enter_unnamed());
        }
        assert!(!limiter.enter_unnamed());
        assert!(limiter.enter(Some(&ann)));
        limiter.leave_unnamed();
        assert!(limiter.enter_unnamed());
        let state = limiter.lock();
        assert_eq!((state.sessions, state.descriptors), (1, UNNAMED_MAX + 1));
    }

    #[test]
    fn the_unfinished_handshakes_of_an_address_hold_a_bounded_memory() {
        let limiter = limited(|limits| {
            limits.memory.set_bytes_max(1_000_000);
            limits.handshakes.set_bytes_per_address_max(usize::MAX);
        });
        let [one, two, three] = [1, 2, 3].map(|number| IpAddr::from([10, 0, 0, number]));
        assert!(limiter.hold_handshake(one, 0, 200_000));
        assert!(!limiter.hold_handshake(one, 0, 60_000), "above a quarter");
        assert!(!limiter.hold_handshake(three, 0, 300_000), "above it alone");
        assert!(!limiter.hold_handshake(one, 200_000, 260_000));
        assert!(limiter.hold_handshake(two, 0, 250_000));
        assert!(limiter.hold_handshake(one, 200_000, 0));
        assert!(limiter.hold_handshake(two, 250_000, 0));
        assert!(limiter.lock().handshake_bytes.is_empty());
    }
}
