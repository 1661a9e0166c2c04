//! The identity of the peer: the wait for the owner's answer, its refusal, and the end of the credentials.
//!
//! The owner checks credentials, because that may take files, clocks and other servers. The connection handles no frame
//! until the answer has come. The deadline of the handshake goes on meanwhile.
//!
//! ```text
//!   AwaitHello ── hello ──▶ Authenticating ── admit ──▶ Open ── hello with new credentials, admit ──▶ Open
//!                                 │                       └──── expires_ns ──▶ Closed(CredentialsExpired)
//!                                 └── refuse, at its time ──▶ Closed(Unauthenticated)
//! ```
//!
//! A refusal may be delayed: an address that fails often gets its refusals late. Rejected: a thread or a timer of the
//! owner that waits, because the connection has a timer already.

use std::fmt;

use super::{CloseReason, Connection, Handled, PauseReason, Phase, Rules, Side};
use crate::handshake::{Agreed, FEATURE_RENEWAL};
use crate::message::Kind;

/// Why credentials were not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuthFailure {
    /// The peer sent no credentials, and it may not stay anonymous.
    Missing,
    /// The credentials are unknown, malformed or forged.
    Wrong,
    /// The credentials have expired.
    Expired,
    /// The credentials become valid at a later time.
    NotYetValid,
    /// The credentials were valid, and were revoked since.
    Revoked,
    /// The identity has as many sessions as it may have.
    TooManySessions,
    /// Too many attempts of this address failed.
    TooManyFailures,
    /// The credentials could not be checked.
    Unavailable,
}

impl fmt::Display for AuthFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Missing => "the server needs credentials",
            Self::Wrong => "the credentials are wrong",
            Self::Expired => "the credentials have expired",
            Self::NotYetValid => "the credentials are not valid yet",
            Self::Revoked => "the credentials or permissions were withdrawn",
            Self::TooManySessions => "this identity has as many sessions as it may have",
            Self::TooManyFailures => {
                "too many attempts of this address failed; try again in a minute"
            }
            Self::Unavailable => "the credentials cannot be checked now; try again later",
        })
    }
}

/// The state of a connection whose peer is or was authenticated, and of one that sent credentials.
#[derive(Debug, Default)]
pub(super) struct Authentication {
    /// The values for the welcome.
    agreed: Option<Agreed>,
    /// Whether the owner must still say who the peer is.
    is_asked: bool,
    /// The refusal, and when it takes effect.
    refusal: Option<(u64, AuthFailure)>,
    /// When the credentials expire.
    expires_ns: Option<u64>,
}

impl Connection {
    /// Opens a connection whose client sent another frame instead of a hello, if its codec allows that. Returns `None` if a
    /// hello must come first. Otherwise the frame was not handled: handle it again when the connection is open.
    pub fn handle_missing_hello(&mut self, rules: &Rules, kind: Kind) -> Option<Handled> {
        let is_missing = self.phase == Phase::AwaitHello
            && !matches!(kind, Kind::Hello | Kind::GoAway)
            && rules.format.hello_is_optional();
        is_missing.then(|| {
            if rules.authenticates {
                self.ask_owner(None);
                Handled::Authenticate
            } else {
                self.phase = Phase::Open;
                Handled::Opened
            }
        })
    }

    /// Lets the peer in, or confirms its newer credentials. They expire at `expires_ns`. Returns false if the owner was not
    /// asked, or the connection has closed meanwhile. Then call [`Self::poll_transmit`] and [`Self::poll_timeout`].
    pub fn admit(&mut self, expires_ns: Option<u64>) -> bool {
        let is_closed = self.is_closed();
        let Some(state) = self.authentication.as_deref_mut() else {
            return false;
        };
        if is_closed || !std::mem::take(&mut state.is_asked) {
            return false;
        }
        state.expires_ns = expires_ns;
        let agreed = state.agreed;
        self.pending.welcome = agreed;
        self.phase = Phase::Open;
        true
    }

    /// Refuses the peer at this time, or now if that is past. Call [`Self::poll_timeout`] again. Returns false if the owner
    /// was not asked, or the connection has closed meanwhile.
    pub fn refuse(&mut self, failure: AuthFailure, at_ns: u64) -> bool {
        let is_closed = self.is_closed();
        let Some(state) = self.authentication.as_deref_mut() else {
            return false;
        };
        if is_closed || !std::mem::take(&mut state.is_asked) {
            return false;
        }
        state.refusal = Some((at_ns, failure));
        true
    }

    /// Whether the owner was asked and has not answered yet.
    #[must_use]
    pub fn awaits_owner(&self) -> bool {
        let state = self.authentication.as_ref();
        state.is_some_and(|state| state.is_asked) && !self.is_closed()
    }

    /// Lets the credentials of an open connection expire at another time. The peer gets another welcome, if it knows
    /// renewal. Call [`Self::poll_transmit`] and [`Self::poll_timeout`] then.
    pub fn change_expiry(&mut self, expires_ns: Option<u64>) {
        let is_told = self.is_open() && self.may_renew();
        if let Some(state) = self.authentication.as_deref_mut() {
            state.expires_ns = expires_ns;
            self.pending.welcome = self.pending.welcome.or(state.agreed.filter(|_| is_told));
        }
    }

    /// Sends a hello with newer credentials, if the server allows that on this connection. Call [`Self::poll_transmit`]
    /// then.
    pub fn renew(&mut self) -> bool {
        let may_renew = self.side == Side::Connecting && self.may_send() && self.may_renew();
        self.pending.hello |= may_renew;
        may_renew
    }

    /// When the credentials of this connection expire, on either side.
    #[must_use]
    pub fn credentials_expire_ns(&self) -> Option<u64> {
        self.authentication.as_ref()?.expires_ns
    }

    /// The milliseconds until the credentials expire, for the welcome; 0 for never.
    pub(super) fn credentials_expire_in_ms(&self, now_ns: u64) -> u64 {
        self.credentials_expire_ns().map_or(0, |expires_ns| {
            (expires_ns.saturating_sub(now_ns) / MILLISECOND_NS).max(1)
        })
    }

    /// Asks the owner who the peer is. Further frames wait.
    pub(super) fn ask_owner(&mut self, agreed: Option<Agreed>) {
        let state = self.authentication.get_or_insert_default();
        state.is_asked = true;
        state.agreed = agreed;
        if !self.is_open() {
            self.phase = Phase::Authenticating;
            self.pause(PauseReason::Authentication);
        }
    }

    /// Whether the owner has not answered yet.
    pub(super) fn is_owner_asked(&self) -> bool {
        let state = self.authentication.as_ref();
        state.is_some_and(|state| state.is_asked || state.refusal.is_some())
    }

    /// Whether both sides know that a hello may come again: the server finds out who its clients are.
    #[must_use]
    pub fn may_renew(&self) -> bool {
        let agreed = self.authentication.as_ref().and_then(|it| it.agreed);
        agreed.is_some_and(|agreed| agreed.features & FEATURE_RENEWAL != 0)
    }

    /// Notes what a welcome says about the credentials of this side.
    pub(super) fn note_welcome(&mut self, agreed: Agreed, expires_ns: Option<u64>) {
        if agreed.features & FEATURE_RENEWAL != 0 {
            let state = self.authentication.get_or_insert_default();
            (state.agreed, state.expires_ns) = (Some(agreed), expires_ns);
        }
    }

    /// The next time at which authentication ends the connection.
    pub(super) fn authentication_end_ns(&self) -> Option<u64> {
        let state = self.authentication.as_ref()?;
        let refused_ns = state.refusal.map(|(at_ns, _)| at_ns);
        let expires_ns = state.expires_ns.filter(|_| self.side == Side::Accepting);
        refused_ns.into_iter().chain(expires_ns).min()
    }

    /// Why authentication ends the connection now, if it does.
    pub(super) fn authentication_end(&self, now_ns: u64) -> Option<CloseReason> {
        let state = self.authentication.as_ref()?;
        match state.refusal {
            Some((at_ns, failure)) if at_ns <= now_ns => {
                Some(CloseReason::Unauthenticated(failure))
            }
            _ if self.authentication_end_ns()? <= now_ns => Some(CloseReason::CredentialsExpired),
            _ => None,
        }
    }
}

const MILLISECOND_NS: u64 = 1_000_000;
