//! The identity of the peer: the wait for the owner's answer, its refusal, and the end of the credentials.
//!
//! The owner checks credentials, because that may take files, clocks and other servers. The connection handles no frame
//! before the answer. The deadline of the handshake continues.
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

use super::CloseReason;
use crate::handshake::{Agreed, FEATURE_RENEWAL};

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

/// The state of authentication, on the side that authenticates and on the side that sent credentials.
#[derive(Debug, Default)]
pub(super) struct Authentication {
    agreed: Option<Agreed>,
    /// Whether the owner must still identify the peer.
    is_asked: bool,
    /// The refusal, and when it takes effect.
    refusal: Option<(u64, AuthFailure)>,
    expires_ns: Option<u64>,
}

impl Authentication {
    /// Asks the owner to identify the peer.
    pub(super) fn ask(&mut self, agreed: Option<Agreed>) {
        self.is_asked = true;
        self.agreed = agreed;
    }

    pub(super) const fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Whether the owner has not answered yet, or its refusal has not taken effect.
    pub(super) const fn is_undecided(&self) -> bool {
        self.is_asked || self.refusal.is_some()
    }

    pub(super) const fn expires_ns(&self) -> Option<u64> {
        self.expires_ns
    }

    pub(super) fn may_renew(&self) -> bool {
        self.agreed
            .is_some_and(|agreed| agreed.features & FEATURE_RENEWAL != 0)
    }

    /// Lets the peer in. Returns the values for the welcome, or `None` if the owner was not asked.
    pub(super) fn admit(&mut self, expires_ns: Option<u64>) -> Option<Option<Agreed>> {
        std::mem::take(&mut self.is_asked).then(|| {
            self.expires_ns = expires_ns;
            self.agreed
        })
    }

    /// Refuses the peer. Returns false if the owner was not asked.
    pub(super) fn refuse(&mut self, failure: AuthFailure, at_ns: u64) -> bool {
        let was_asked = std::mem::take(&mut self.is_asked);
        if was_asked {
            self.refusal = Some((at_ns, failure));
        }
        was_asked
    }

    /// Lets the credentials expire at another time. Returns the values for the welcome.
    pub(super) fn change_expiry(&mut self, expires_ns: Option<u64>) -> Option<Agreed> {
        self.expires_ns = expires_ns;
        self.agreed
    }

    /// Notes what a welcome says about the credentials of this side.
    pub(super) fn note_welcome(&mut self, agreed: Agreed, expires_ns: Option<u64>) {
        (self.agreed, self.expires_ns) = (Some(agreed), expires_ns);
    }

    /// The next time at which authentication ends the connection. A client lets its own credentials expire.
    pub(super) fn end_ns(&self, is_outgoing: bool) -> Option<u64> {
        let refused_ns = self.refusal.map(|(at_ns, _)| at_ns);
        let expires_ns = self.expires_ns.filter(|_| !is_outgoing);
        refused_ns.into_iter().chain(expires_ns).min()
    }

    /// Why authentication ends the connection now, if it does.
    pub(super) fn end(&self, is_outgoing: bool, now_ns: u64) -> Option<CloseReason> {
        match self.refusal {
            Some((at_ns, failure)) if at_ns <= now_ns => {
                Some(CloseReason::Unauthenticated(failure))
            }
            _ if self.end_ns(is_outgoing)? <= now_ns => Some(CloseReason::CredentialsExpired),
            _ => None,
        }
    }
}
