//! Timeouts: pings for a silent peer, and the end of a connection that stays silent.
//!
//! A connection has one deadline, and its owner one timer for it. Input does not move the timer. When the timer fires,
//! the connection computes its silence, and the owner sleeps for the rest. Timeouts therefore cost one store for each
//! read.
//!
//! A frame has a time limit for the whole of it, which grows with the bytes that have come. Rejected: a limit on the
//! silence within a frame, because one byte every few seconds then keeps a session for days. Rejected: a limit that
//! does not grow, because a long frame then cannot come over a slow network.
//!
//! Silence proves nothing while this side does not read. Two rules follow. At a late check, the answer may be unread in
//! the transport, so the check closes nothing: the owner gets [`GRACE_NS`] to read, once. A peer that answers pings is
//! closed only after a ping and time for its answer: [`Rules::ping_timeout_ns`], or the time from a ping to the idle
//! timeout if that is shorter.
//!
//! A codec without pings may use a layer with pings, such as WebSocket. The owner then sends pings of the layer.
//!
//! Over a lossy transport pings are more frequent, because routers on the way soon forget a silent connection. Answers
//! may be lost, so only the idle timeout ends such a connection.

use super::{CloseReason, Delivery, Handshake, InputSide, Outbound, OutputSide, Phase, Rules};

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

/// The facts of a connection on which its deadlines depend, beside the times that [`Timing`] has.
pub(super) struct Facts<'a> {
    rules: &'a Rules,
    now_ns: u64,
    phase: Phase,
    delivery: Delivery,
    outbound: Outbound,
    /// Whether the peer's address is not validated yet, and no reply is pending for it.
    is_unvalidated: bool,
    /// Whether reading pauses for a reason that is not the peer's doing.
    is_held: bool,
    /// The beginning of a partial frame that is read, and its bytes.
    frame: Option<(u64, usize)>,
    /// The next time at which authentication ends the connection.
    authentication_end_ns: Option<u64>,
    /// Why authentication ends the connection now.
    authentication_end: Option<CloseReason>,
    /// The reason of the close if the peer's end was lost.
    end_reason: CloseReason,
}

impl<'a> Facts<'a> {
    /// The facts of a connection with these parts. `is_unvalidated` means that the peer's address is not validated yet,
    /// and that no reply is pending for it.
    pub(super) fn new(
        rules: &'a Rules,
        now_ns: u64,
        is_unvalidated: bool,
        (handshake, input, output): (&Handshake, &InputSide, &OutputSide),
    ) -> Self {
        let authentication = handshake.authentication();
        let is_outgoing = handshake.is_outgoing();
        let frame_began_ns = input.frame_began_ns().filter(|_| input.is_reading());
        Self {
            rules,
            now_ns,
            phase: handshake.phase(),
            delivery: handshake.delivery(),
            outbound: output.state(),
            is_unvalidated,
            is_held: input.is_held(),
            frame: frame_began_ns.map(|began_ns| (began_ns, input.bytes().len())),
            authentication_end_ns: authentication.and_then(|it| it.end_ns(is_outgoing)),
            authentication_end: authentication.and_then(|it| it.end(is_outgoing, now_ns)),
            end_reason: output.peer_end_reason(),
        }
    }

    fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether a hello that was lost is sent again.
    fn repeats_hello(&self) -> bool {
        self.phase == Phase::AwaitWelcome && self.delivery == Delivery::Lossy
    }

    /// Whether only the peer's end is missing, which may have been lost.
    fn awaits_lossy_end(&self) -> bool {
        self.delivery == Delivery::Lossy && matches!(self.outbound, Outbound::HalfClosed)
    }

    /// The deadline of a partial frame. `None` while there is none, or while it is not read.
    fn frame_end_ns(&self) -> Option<u64> {
        let (began_ns, bytes) = self.frame?;
        let rate = self.rules.frame_bytes_per_second_min.max(1) as u64;
        let more_ns = (bytes as u64).saturating_mul(SECOND_NS) / rate;
        let time_ns = self.rules.frame_timeout_ns.saturating_add(more_ns);
        Some(began_ns.saturating_add(time_ns))
    }
}

/// The times of events, in nanoseconds on the owner's clock.
#[derive(Debug)]
pub struct Timing {
    /// The time when the handshake began. Once the connection is open, the time when the peer last took output, which
    /// is a sign of life like input.
    began_or_taken_ns: u64,
    last_input_ns: u64,
    /// The time of the first ping since the last sign of life. If it is before that sign, no ping was sent since.
    asked_ns: u64,
    /// The time of the last check that came too late to decide. A time before the last sign of life means none.
    excused_ns: u64,
    /// The time at which the owner should call.
    due_ns: u64,
    /// The time when the connection closes unless the service has finished its login.
    login_deadline_ns: Option<u64>,
    /// The pause before the next hello, over a lossy transport.
    hello_pause_ns: u32,
    /// When within their period pings are due, in 2³² steps. 0 means after the whole time of silence.
    ping_part: u32,
    /// Whether the layers beneath the codec have pings that the peer answers.
    has_layer_pings: bool,
    sends_ping: bool,
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
            has_layer_pings: false,
            sends_ping: false,
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

    /// Notes that input came. It also restarts the time of silence without input, for example when a pause ends.
    #[inline]
    pub fn note_input(&mut self, now_ns: u64) {
        self.last_input_ns = now_ns;
    }

    /// Sets when pings are due within their period, in 2³² steps. Connections that open at once, or receive the same
    /// message at once, would otherwise be pinged at once for ever.
    pub fn spread_pings(&mut self, part: u32) {
        self.ping_part = part;
    }

    /// Sets the deadline of the service's login, or, with `None`, ends the login. Call
    /// [`poll_timeout`](super::Connection::poll_timeout) again. Returns whether that changed anything.
    pub fn await_login(&mut self, deadline_ns: Option<u64>) -> bool {
        let is_change = self.login_deadline_ns.is_some() != deadline_ns.is_some();
        if is_change {
            self.login_deadline_ns = deadline_ns;
        }
        is_change
    }

    /// Notes that the layers beneath the codec have pings that the peer answers.
    pub fn note_layer_pings(&mut self) {
        self.has_layer_pings = true;
    }

    pub(super) const fn has_layer_pings(&self) -> bool {
        self.has_layer_pings
    }

    pub(super) fn next_check_ns(&mut self, facts: &Facts<'_>) -> u64 {
        let now_ns = facts.now_ns;
        let deadline_ns = match facts.phase {
            Phase::Open => self.silence_end_ns(facts),
            _ if facts.repeats_hello() => {
                let again_ns = now_ns.saturating_add(self.hello_pause_ns.into());
                again_ns.min(self.handshake_end_ns(facts))
            }
            _ => self.handshake_end_ns(facts),
        };
        let ends_ns = facts.authentication_end_ns.unwrap_or(u64::MAX);
        let deadline_ns = deadline_ns.min(ends_ns);
        let grace_end_ns = self.excused_ns.saturating_add(GRACE_NS);
        self.due_ns = if self.is_excused() && grace_end_ns > now_ns {
            grace_end_ns
        } else {
            deadline_ns.max(now_ns)
        };
        self.due_ns
    }

    /// Decides what is due now. [`Overdue::Closed`] means that the connection must close.
    pub(super) fn check(&mut self, facts: &Facts<'_>) -> Overdue {
        if facts.repeats_hello() && facts.now_ns < self.handshake_end_ns(facts) {
            let longer_ns = self.hello_pause_ns.saturating_mul(2);
            self.hello_pause_ns = longer_ns.min(HELLO_PAUSE_MAX_NS);
            return Overdue::Hello;
        }
        let Some(reason) = self.overdue_reason(facts) else {
            return match self.answers_pings(facts) && facts.now_ns >= self.ping_due_ns(facts) {
                true => self.ask(facts),
                false => Overdue::Nothing,
            };
        };
        if self.is_late(facts.now_ns) && !self.is_excused() {
            self.excused_ns = facts.now_ns;
            Overdue::Nothing
        } else if reason == CloseReason::IdleTimeout
            && !self.is_unheard_too_long(facts)
            && self.is_to_be_asked(facts)
        {
            self.ask(facts)
        } else {
            Overdue::Closed(reason)
        }
    }

    /// Sends a ping, and expects an answer.
    fn ask(&mut self, facts: &Facts<'_>) -> Overdue {
        if !self.was_asked() {
            self.asked_ns = facts.now_ns;
        }
        self.ask_now(facts.rules)
    }

    /// Sends a ping. A codec without pings leaves that to its layers.
    pub(super) fn ask_now(&mut self, rules: &Rules) -> Overdue {
        self.sends_ping |= rules.format.has_pings;
        match rules.format.has_pings {
            true => Overdue::Ping,
            false => Overdue::LayerPing,
        }
    }

    pub(super) const fn has_transmit(&self) -> bool {
        self.sends_ping
    }

    /// Returns whether there is a ping to send, once.
    pub(super) fn take_ping(&mut self) -> bool {
        std::mem::take(&mut self.sends_ping)
    }

    /// The silence that ends the open connection.
    fn idle_timeout_ns(&self, rules: &Rules) -> u64 {
        match rules.format.has_pings || self.has_layer_pings {
            true => rules.idle_timeout_ns,
            false => rules.idle_timeout_without_pings_ns,
        }
    }

    /// Returns the limit that is exceeded, if any.
    fn overdue_reason(&self, facts: &Facts<'_>) -> Option<CloseReason> {
        let Facts { rules, now_ns, .. } = *facts;
        if facts.authentication_end.is_some() {
            return facts.authentication_end;
        }
        if !facts.is_open() {
            let is_over = now_ns >= self.handshake_end_ns(facts);
            return is_over.then_some(CloseReason::HandshakeTimeout);
        }
        let silent_ns = self.silence_ns(now_ns);
        if facts.awaits_lossy_end() && silent_ns >= rules.handshake_timeout_ns {
            return Some(facts.end_reason);
        }
        let is_idle = silent_ns >= self.idle_timeout_ns(rules)
            || (self.was_asked() && now_ns >= self.answer_due_ns(facts));
        if (is_idle && !facts.is_held) || self.is_unheard_too_long(facts) {
            return Some(CloseReason::IdleTimeout);
        }
        if facts.is_unvalidated && silent_ns >= rules.unvalidated_timeout_ns && !facts.is_held {
            return Some(CloseReason::Unvalidated);
        }
        if facts.frame_end_ns().is_some_and(|at| now_ns >= at) {
            return Some(CloseReason::FrameTimeout);
        }
        let is_login_over = self.login_deadline_ns.is_some_and(|at| now_ns >= at);
        is_login_over.then_some(CloseReason::HandshakeTimeout)
    }

    /// The time of the next check of an open connection.
    fn silence_end_ns(&self, facts: &Facts<'_>) -> u64 {
        let Facts { rules, now_ns, .. } = *facts;
        let since_ns = self.last_sign_ns();
        if facts.awaits_lossy_end() {
            return since_ns.saturating_add(rules.handshake_timeout_ns);
        }
        // If the time has passed already, the next check is a whole interval from now.
        let next_after_ns = |since_ns: u64, after_ns: u64| match since_ns.saturating_add(after_ns) {
            at_ns if at_ns > now_ns => at_ns,
            _ => now_ns.saturating_add(after_ns),
        };
        let mut end_ns = next_after_ns(since_ns, self.idle_timeout_ns(rules));
        if rules.receive_timeout_ns > 0 {
            end_ns = end_ns.min(next_after_ns(self.last_input_ns, rules.receive_timeout_ns));
        }
        if self.was_asked() {
            end_ns = end_ns.min(self.answer_due_ns(facts).max(now_ns));
        }
        if self.answers_pings(facts) {
            end_ns = end_ns.min(match self.ping_due_ns(facts) {
                at_ns if at_ns > now_ns => at_ns,
                _ => now_ns.saturating_add(rules.ping_after_ns(facts.delivery)),
            });
        }
        if facts.is_unvalidated {
            end_ns = end_ns.min(next_after_ns(since_ns, rules.unvalidated_timeout_ns));
        }
        // A frame that begins later must be checked in time, although the timer does not move for it.
        let frame_end_ns = facts.frame_end_ns();
        let frame_end_ns =
            frame_end_ns.unwrap_or_else(|| now_ns.saturating_add(rules.frame_timeout_ns));
        let login_end_ns = self.login_deadline_ns.unwrap_or(u64::MAX);
        end_ns.min(frame_end_ns).min(login_end_ns)
    }

    fn handshake_end_ns(&self, facts: &Facts<'_>) -> u64 {
        let timeout_ns = match facts.phase {
            Phase::AwaitHello | Phase::Authenticating => facts.rules.first_frame_timeout_ns,
            _ => facts.rules.handshake_timeout_ns,
        };
        self.began_or_taken_ns.saturating_add(timeout_ns)
    }

    /// The time since the peer's last sign of life.
    pub(super) fn silence_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.last_sign_ns())
    }

    /// The time since the peer's last input.
    pub(super) fn unheard_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.last_input_ns)
    }

    /// Whether the peer sent nothing for its receive timeout, although this side read.
    fn is_unheard_too_long(&self, facts: &Facts<'_>) -> bool {
        let timeout_ns = facts.rules.receive_timeout_ns;
        timeout_ns > 0 && self.unheard_ns(facts.now_ns) >= timeout_ns && !facts.is_held
    }

    /// Whether pings may be sent and would be answered.
    fn answers_pings(&self, facts: &Facts<'_>) -> bool {
        (facts.rules.format.has_pings || self.has_layer_pings)
            && facts.rules.heartbeat_ns > 0
            && facts.outbound.may_write()
            && facts.is_open()
    }

    /// The time of the next ping to a peer that stays silent: the connection's own moment of each period, if the peer
    /// has then been silent for long enough. The silence before a ping is never longer than the heartbeat interval.
    fn ping_due_ns(&self, facts: &Facts<'_>) -> u64 {
        let unheard_ns = self.last_input_ns;
        let heartbeat_ns = facts.rules.ping_after_ns(facts.delivery);
        let least_ns = heartbeat_ns / PING_SILENCE_SHARE;
        let period_ns = heartbeat_ns - least_ns;
        if self.ping_part == 0 || period_ns == 0 {
            return unheard_ns.saturating_add(heartbeat_ns);
        }
        let moment_ns = (u128::from(period_ns) * u128::from(self.ping_part)) >> 32;
        let earliest_ns = unheard_ns.saturating_add(least_ns);
        // A part of the period is shorter than the period, so the number fits.
        let ahead_ns = moment_ns as u64 + period_ns - earliest_ns % period_ns;
        earliest_ns.saturating_add(ahead_ns % period_ns)
    }

    /// Whether a ping was sent since the last sign of life.
    fn was_asked(&self) -> bool {
        self.asked_ns > self.last_sign_ns()
    }

    /// The deadline of the answer to a ping.
    fn answer_due_ns(&self, facts: &Facts<'_>) -> u64 {
        let Facts {
            rules, delivery, ..
        } = *facts;
        let idle_ns = self.idle_timeout_ns(rules);
        let answer_ns = idle_ns.saturating_sub(rules.ping_after_ns(delivery));
        match delivery {
            Delivery::Reliable => self
                .asked_ns
                .saturating_add(answer_ns.min(rules.ping_timeout_ns)),
            Delivery::Lossy => {
                let idle_end_ns = self.last_sign_ns().saturating_add(idle_ns);
                self.asked_ns.saturating_add(answer_ns).max(idle_end_ns)
            }
        }
    }

    /// Whether a silent peer may still answer a ping: none was sent yet, or the time for its answer has not passed.
    fn is_to_be_asked(&self, facts: &Facts<'_>) -> bool {
        let is_in_time = !self.was_asked() || facts.now_ns < self.answer_due_ns(facts);
        self.answers_pings(facts) && is_in_time
    }

    /// Whether the owner called so late that input may wait in the transport.
    const fn is_late(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.due_ns) >= LATE_NS
    }

    /// Whether a late check was excused since the last sign of life.
    fn is_excused(&self) -> bool {
        self.excused_ns > self.last_sign_ns()
    }
}

impl Rules {
    /// The silence after which a ping is sent; 0 for never.
    pub(super) fn ping_after_ns(&self, delivery: Delivery) -> u64 {
        match delivery {
            Delivery::Reliable => self.heartbeat_ns,
            Delivery::Lossy => self.heartbeat_ns.min(LOSSY_HEARTBEAT_NS_MAX),
        }
    }
}

const SECOND_NS: u64 = 1_000_000_000;

/// The part of the heartbeat interval for which a peer must be silent before a ping. The rest is the period of its
/// pings. A longer silence would leave gaps in the period without pings. A shorter silence would ping peers that send
/// all the time.
const PING_SILENCE_SHARE: u64 = 8;

/// The delay from which on a check counts as late.
const LATE_NS: u64 = 1_000_000_000;

/// The longest heartbeat over a lossy transport. Many routers that translate addresses forget a silent peer after 30 s,
/// some earlier, and one ping may be lost.
const LOSSY_HEARTBEAT_NS_MAX: u64 = 10_000_000_000;

/// The owner's time to read the input after a late check.
const GRACE_NS: u64 = 1_000_000_000;

/// The wait of the first hello over a lossy transport for its answer: several times the longest round trip of a nearby
/// network.
const HELLO_PAUSE_FIRST_NS: u32 = 100_000_000;

/// The maximum wait of a hello before it is repeated.
const HELLO_PAUSE_MAX_NS: u32 = 1_000_000_000;
