//! Timeouts: pings for a silent peer, and the end of a connection that stays silent.
//!
//! A connection has one deadline, and its owner one timer for it. Input does not move the timer: when it fires, the
//! connection computes how long it has been silent, and the owner sleeps again for the rest. Timeouts therefore cost
//! one store for each read.
//!
//! A frame has a time limit for the whole of it, which grows with the bytes that have come. Rejected: a limit on the
//! silence within a frame, because one byte every few seconds then keeps a session for days. Rejected: a limit that
//! does not grow, because a long frame then cannot come over a slow network.
//!
//! Silence proves nothing while this side does not read. Two rules follow. A check that comes late may find the answer
//! unread in the transport, so it closes nothing: the owner gets [`GRACE_NS`] to read, once. A peer that answers pings
//! is closed only after it was sent a ping and had time to answer: [`Rules::ping_timeout_ns`], or as long as from a ping to the
//! idle timeout if that is shorter.
//!
//! A codec without pings may stand over a layer that has some, such as WebSocket. The owner says so, and asks that layer.
//!
//! Over a lossy transport a ping is asked more often, because routers on the way soon forget who answers whom. Its answer may be
//! lost, so only the idle timeout ends such a connection.

use super::{CloseReason, Connection, Delivery, Inbound, Outbound, PauseReason, Phase, Rules};

/// The outcome of a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Overdue {
    /// Nothing is overdue, or no decision is possible yet.
    Nothing,
    /// There is a ping to transmit.
    Ping,
    /// The owner must let the layers beneath the codec ping.
    LayerPing,
    /// There is a hello to transmit, again.
    Hello,
    /// The connection has closed.
    Closed(CloseReason),
}

/// The times of events, in nanoseconds on the owner's clock.
#[derive(Debug)]
pub(super) struct Timing {
    /// The time when the handshake began. Once the connection is open, the time when the peer last took output, which
    /// is a sign of life like input.
    began_or_taken_ns: u64,
    last_input_ns: u64,
    /// The time of the first ping since the last sign of life. If it is before that sign, no ping was sent since.
    asked_ns: u64,
    /// The time of the last check that came too late to decide. If it is before the last sign of life, there was no
    /// such check since.
    excused_ns: u64,
    /// The time at which the owner should call.
    due_ns: u64,
    /// The time when the connection closes unless the service has finished its login.
    login_deadline_ns: Option<u64>,
    /// The pause before the next hello, over a lossy transport.
    hello_pause_ns: u32,
    /// When within their period pings are due, in 2³² steps. 0 means after the whole time of silence.
    ping_part: u32,
}

impl Timing {
    pub(super) const fn new(now_ns: u64) -> Self {
        Self {
            began_or_taken_ns: now_ns,
            last_input_ns: now_ns,
            asked_ns: 0,
            excused_ns: 0,
            due_ns: u64::MAX,
            login_deadline_ns: None,
            hello_pause_ns: HELLO_PAUSE_FIRST_NS,
            ping_part: 0,
        }
    }

    /// Notes that the peer of an open connection took output.
    #[inline]
    pub(super) fn note_taken(&mut self, now_ns: u64) {
        self.began_or_taken_ns = self.began_or_taken_ns.max(now_ns);
    }

    /// The time of the last sign of life of the peer.
    fn last_sign_ns(&self) -> u64 {
        self.last_input_ns.max(self.began_or_taken_ns)
    }

    pub(super) const fn begin_handshake(&mut self, now_ns: u64) {
        self.began_or_taken_ns = now_ns;
    }
}

impl Connection {
    /// Notes that input came. It also restarts the time of silence without input, for example when a pause ends.
    #[inline]
    pub fn note_input(&mut self, now_ns: u64) {
        self.timing.last_input_ns = now_ns;
    }

    /// Sets when pings are due within their period, in 2³² steps. Connections that open at once, or hear the same message at once,
    /// would otherwise be pinged at once for ever.
    pub fn spread_pings(&mut self, part: u32) {
        self.timing.ping_part = part;
    }

    /// The latest time for the next call of [`Self::handle_timeout`]. Call it again after each `handle_timeout`, and
    /// when the phase has changed.
    ///
    /// `is_unvalidated` means that the peer's address is not validated yet, and that no reply is pending for it.
    #[must_use]
    pub fn poll_timeout(
        &mut self,
        rules: &Rules,
        now_ns: u64,
        is_unvalidated: bool,
    ) -> Option<u64> {
        let deadline_ns = match self.phase {
            Phase::Closed(_) => return None,
            Phase::AwaitWelcome if self.delivery == Delivery::Lossy => {
                let again_ns = now_ns.saturating_add(self.timing.hello_pause_ns.into());
                again_ns.min(self.handshake_end_ns(rules))
            }
            Phase::Connecting
            | Phase::Securing
            | Phase::AwaitHello
            | Phase::AwaitWelcome
            | Phase::Authenticating => self.handshake_end_ns(rules),
            Phase::Open => self.silence_end_ns(rules, now_ns, is_unvalidated),
        };
        let ends_ns = self.authentication_end_ns().unwrap_or(u64::MAX);
        let deadline_ns = deadline_ns.min(ends_ns);
        let grace_end_ns = self.timing.excused_ns.saturating_add(GRACE_NS);
        self.timing.due_ns = if self.is_excused() && grace_end_ns > now_ns {
            grace_end_ns
        } else {
            deadline_ns.max(now_ns)
        };
        Some(self.timing.due_ns)
    }

    /// Handles the time of [`Self::poll_timeout`], or a call at any other time. Transmit the pending frames then.
    pub fn handle_timeout(&mut self, rules: &Rules, now_ns: u64, is_unvalidated: bool) -> Overdue {
        match self.phase {
            Phase::Closed(_) => return Overdue::Nothing,
            Phase::AwaitWelcome
                if self.delivery == Delivery::Lossy && now_ns < self.handshake_end_ns(rules) =>
            {
                let longer_ns = self.timing.hello_pause_ns.saturating_mul(2);
                self.timing.hello_pause_ns = longer_ns.min(HELLO_PAUSE_MAX_NS);
                self.pending.hello = true;
                return Overdue::Hello;
            }
            _ => {}
        }
        if let Some(reason) = self.overdue_reason(rules, now_ns, is_unvalidated) {
            if self.is_late(now_ns) && !self.is_excused() {
                self.timing.excused_ns = now_ns;
            } else if reason == CloseReason::IdleTimeout
                && !self.is_unheard_too_long(rules, now_ns)
                && self.is_to_be_asked(rules, now_ns)
            {
                return self.ask(rules, now_ns);
            } else {
                self.close(reason);
                return Overdue::Closed(self.close_reason().unwrap_or(reason));
            }
        } else if self.answers_pings(rules) && now_ns >= self.ping_due_ns(rules) {
            return self.ask(rules, now_ns);
        }
        Overdue::Nothing
    }

    /// Sends a ping now, to find out whether a peer is still there. Do what it returns, and look with [`Self::is_unheard_for`]
    /// later. [`Overdue::Nothing`] says that the peer would not answer a ping.
    pub fn ask_now(&mut self, rules: &Rules) -> Overdue {
        if !self.may_send() {
            return Overdue::Nothing;
        }
        self.pending.ping |= rules.format.has_pings;
        match (rules.format.has_pings, self.has_layer_pings) {
            (true, _) => Overdue::Ping,
            (false, true) => Overdue::LayerPing,
            (false, false) => Overdue::Nothing,
        }
    }

    /// Whether nothing came from the peer for this long, although this side reads. A peer whose output waits cannot have got a
    /// ping, so taking some of it is an answer, too.
    #[must_use]
    pub fn is_unheard_for(&self, now_ns: u64, for_ns: u64) -> bool {
        let since_ns = match self.outbound.is_blocked() {
            true => self.silence_ns(now_ns),
            false => self.unheard_ns(now_ns),
        };
        self.is_open() && self.may_read() && since_ns >= for_ns
    }

    /// Sets the deadline of the service's login, or, with `None`, ends the login. Call [`Self::poll_timeout`] again.
    /// Returns whether that changed anything.
    pub fn await_login(&mut self, deadline_ns: Option<u64>) -> bool {
        let former = self.timing.login_deadline_ns;
        let is_change = former.is_some() != deadline_ns.is_some();
        if is_change {
            self.timing.login_deadline_ns = deadline_ns;
        }
        is_change
    }

    /// Sends a ping.
    fn ask(&mut self, rules: &Rules, now_ns: u64) -> Overdue {
        if !self.was_asked() {
            self.timing.asked_ns = now_ns;
        }
        if !rules.format.has_pings {
            return Overdue::LayerPing;
        }
        self.pending.ping = true;
        Overdue::Ping
    }

    /// Notes that the layers beneath the codec have pings that the peer answers.
    pub fn note_layer_pings(&mut self) {
        self.has_layer_pings = true;
    }

    /// The silence after which a ping is sent; 0 for never.
    pub(super) fn heartbeat_ns(&self, rules: &Rules) -> u64 {
        match self.delivery {
            Delivery::Reliable => rules.heartbeat_ns,
            Delivery::Lossy => rules.heartbeat_ns.min(LOSSY_HEARTBEAT_NS_MAX),
        }
    }

    /// The silence that ends the open connection.
    fn idle_timeout_ns(&self, rules: &Rules) -> u64 {
        match rules.format.has_pings || self.has_layer_pings {
            true => rules.idle_timeout_ns,
            false => rules.idle_timeout_without_pings_ns,
        }
    }

    /// Returns the limit that is exceeded, if there is one.
    fn overdue_reason(
        &self,
        rules: &Rules,
        now_ns: u64,
        is_unvalidated: bool,
    ) -> Option<CloseReason> {
        if let Some(reason) = self.authentication_end(now_ns) {
            return Some(reason);
        }
        if !self.is_open() {
            let is_over = now_ns >= self.handshake_end_ns(rules);
            return is_over.then_some(CloseReason::HandshakeTimeout);
        }
        let silent_ns = self.silence_ns(now_ns);
        if self.awaits_lossy_end() && silent_ns >= rules.handshake_timeout_ns {
            return Some(self.end_reason());
        }
        if silent_ns >= self.idle_timeout_ns(rules) && !self.is_held() {
            return Some(CloseReason::IdleTimeout);
        }
        if self.was_asked() && now_ns >= self.answer_due_ns(rules) && !self.is_held() {
            return Some(CloseReason::IdleTimeout);
        }
        if self.is_unheard_too_long(rules, now_ns) {
            return Some(CloseReason::IdleTimeout);
        }
        if is_unvalidated && silent_ns >= rules.unvalidated_timeout_ns && !self.is_held() {
            return Some(CloseReason::Unvalidated);
        }
        if self.frame_end_ns(rules).is_some_and(|at| now_ns >= at) {
            return Some(CloseReason::FrameTimeout);
        }
        if self.timing.login_deadline_ns.is_some_and(|at| now_ns >= at) {
            return Some(CloseReason::HandshakeTimeout);
        }
        None
    }

    /// The time of the next check of an open connection.
    fn silence_end_ns(&self, rules: &Rules, now_ns: u64, is_unvalidated: bool) -> u64 {
        let since_ns = self.timing.last_sign_ns();
        if self.awaits_lossy_end() {
            return since_ns.saturating_add(rules.handshake_timeout_ns);
        }
        // If the time has passed already, the next check is a whole interval from now.
        let next_after_ns = |since_ns: u64, after_ns: u64| match since_ns.saturating_add(after_ns) {
            at_ns if at_ns > now_ns => at_ns,
            _ => now_ns.saturating_add(after_ns),
        };
        let next_ns = |after_ns| next_after_ns(since_ns, after_ns);
        let unheard_ns = self.timing.last_input_ns;
        let mut end_ns = next_ns(self.idle_timeout_ns(rules));
        if rules.receive_timeout_ns > 0 {
            end_ns = end_ns.min(next_after_ns(unheard_ns, rules.receive_timeout_ns));
        }
        if self.was_asked() {
            end_ns = end_ns.min(self.answer_due_ns(rules).max(now_ns));
        }
        if self.answers_pings(rules) {
            end_ns = end_ns.min(match self.ping_due_ns(rules) {
                at_ns if at_ns > now_ns => at_ns,
                _ => now_ns.saturating_add(self.heartbeat_ns(rules)),
            });
        }
        // A frame that begins later must be checked in time, although the timer does not move for it.
        let frame_end_ns = self.frame_end_ns(rules);
        let frame_end_ns =
            frame_end_ns.unwrap_or_else(|| now_ns.saturating_add(rules.frame_timeout_ns));
        if is_unvalidated {
            end_ns = end_ns.min(next_ns(rules.unvalidated_timeout_ns));
        }
        let login_end_ns = self.timing.login_deadline_ns.unwrap_or(u64::MAX);
        end_ns.min(frame_end_ns).min(login_end_ns)
    }

    fn handshake_end_ns(&self, rules: &Rules) -> u64 {
        let timeout_ns = match self.phase {
            Phase::AwaitHello | Phase::Authenticating => rules.first_frame_timeout_ns,
            _ => rules.handshake_timeout_ns,
        };
        self.timing.began_or_taken_ns.saturating_add(timeout_ns)
    }

    /// The time since the peer's last sign of life.
    fn silence_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.timing.last_sign_ns())
    }

    /// The time since the peer's last input, whatever output it took.
    fn unheard_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.timing.last_input_ns)
    }

    /// Whether the peer sent nothing for its receive timeout, although this side read.
    fn is_unheard_too_long(&self, rules: &Rules, now_ns: u64) -> bool {
        rules.receive_timeout_ns > 0
            && self.unheard_ns(now_ns) >= rules.receive_timeout_ns
            && !self.is_held()
    }

    /// Whether pings may be sent and would be answered.
    fn answers_pings(&self, rules: &Rules) -> bool {
        let may_write = matches!(
            self.outbound,
            Outbound::Writing {
                is_blocked: false,
                ..
            }
        );
        (rules.format.has_pings || self.has_layer_pings)
            && rules.heartbeat_ns > 0
            && may_write
            && self.is_open()
    }

    /// The time of the next ping to a peer that stays silent: the connection's own moment of each period, if the peer has been silent
    /// for a moment by then. The silence before a ping is never longer than the heartbeat interval.
    fn ping_due_ns(&self, rules: &Rules) -> u64 {
        let unheard_ns = self.timing.last_input_ns;
        let heartbeat_ns = self.heartbeat_ns(rules);
        let least_ns = heartbeat_ns / PING_SILENCE_SHARE;
        let period_ns = heartbeat_ns - least_ns;
        if self.timing.ping_part == 0 || period_ns == 0 {
            return unheard_ns.saturating_add(heartbeat_ns);
        }
        let moment_ns = (u128::from(period_ns) * u128::from(self.timing.ping_part)) >> 32;
        let earliest_ns = unheard_ns.saturating_add(least_ns);
        // A part of the period is shorter than the period, so the number fits.
        let ahead_ns = moment_ns as u64 + period_ns - earliest_ns % period_ns;
        earliest_ns.saturating_add(ahead_ns % period_ns)
    }

    /// Whether a ping was sent since the last sign of life.
    fn was_asked(&self) -> bool {
        self.timing.asked_ns > self.timing.last_sign_ns()
    }

    /// The deadline of the answer to a ping.
    fn answer_due_ns(&self, rules: &Rules) -> u64 {
        let idle_ns = self.idle_timeout_ns(rules);
        let answer_ns = idle_ns.saturating_sub(self.heartbeat_ns(rules));
        let asked_ns = self.timing.asked_ns;
        match self.delivery {
            Delivery::Reliable => asked_ns.saturating_add(answer_ns.min(rules.ping_timeout_ns)),
            Delivery::Lossy => {
                let idle_end_ns = self.timing.last_sign_ns().saturating_add(idle_ns);
                asked_ns.saturating_add(answer_ns).max(idle_end_ns)
            }
        }
    }

    /// Whether a silent peer may still answer a ping: none was sent yet, or the time for its answer has not passed.
    fn is_to_be_asked(&self, rules: &Rules, now_ns: u64) -> bool {
        self.answers_pings(rules) && (!self.was_asked() || now_ns < self.answer_due_ns(rules))
    }

    /// Whether the owner called so late that input may wait in the transport.
    const fn is_late(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.timing.due_ns) >= LATE_NS
    }

    /// Whether a late check was excused since the last sign of life.
    fn is_excused(&self) -> bool {
        self.timing.excused_ns > self.timing.last_sign_ns()
    }

    /// Whether reading pauses for a reason that is not the peer's doing.
    const fn is_held(&self) -> bool {
        match self.inbound {
            Inbound::Paused(reasons) => {
                reasons.contains(PauseReason::Room)
                    || reasons.contains(PauseReason::Answers)
                    || reasons.contains(PauseReason::Service)
                    || reasons.contains(PauseReason::Memory)
                    || reasons.contains(PauseReason::Rate)
                    || reasons.contains(PauseReason::Authentication)
            }
            _ => false,
        }
    }

    /// The deadline of a partial frame. `None` while there is none, or while it is not read.
    fn frame_end_ns(&self, rules: &Rules) -> Option<u64> {
        let began_ns = self.partial.frame_began_ns().filter(|_| self.may_read())?;
        let rate = rules.frame_bytes_per_second_min.max(1) as u64;
        let more_ns = (self.partial.bytes().len() as u64).saturating_mul(SECOND_NS) / rate;
        let time_ns = rules.frame_timeout_ns.saturating_add(more_ns);
        Some(began_ns.saturating_add(time_ns))
    }

    /// Whether only the peer's end is missing, which may have been lost.
    fn awaits_lossy_end(&self) -> bool {
        self.delivery == Delivery::Lossy && matches!(self.outbound, Outbound::HalfClosed)
    }
}

const SECOND_NS: u64 = 1_000_000_000;

/// The part of the heartbeat interval for which a peer must be silent before a ping. The rest is the period of its pings. A longer
/// silence would leave gaps in the period without pings, and a shorter one would ping peers that send all the time.
const PING_SILENCE_SHARE: u64 = 8;

/// The delay from which on a check counts as late.
const LATE_NS: u64 = 1_000_000_000;

/// The longest heartbeat over a lossy transport. Many routers that translate addresses forget a silent peer after 30 s, some
/// earlier, and one ping may be lost.
const LOSSY_HEARTBEAT_NS_MAX: u64 = 10_000_000_000;

/// The owner's time to read the input after a late check.
const GRACE_NS: u64 = 1_000_000_000;

/// The wait of the first hello over a lossy transport for its answer: several times the longest round trip of a nearby
/// network.
const HELLO_PAUSE_FIRST_NS: u32 = 100_000_000;

/// The maximum wait of a hello before it is repeated.
const HELLO_PAUSE_MAX_NS: u32 = 1_000_000_000;
