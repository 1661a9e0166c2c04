//! Lets a client's [`Dialer`] connect and reconnect: when a connection is wanted, and what the application is told.
//!
//! A client connects at once, or lazily at its first submission. After a failed attempt, and after the end of its
//! connection, it pauses and connects again if it may. Otherwise a lazy client waits for its next submission, and any
//! other client ends.

use std::sync::Arc;

use tidewire_io::clock::now_ns;

use super::events::Event;
use super::link::Link;
use super::moving::Mover;
use super::renewal::Renewal;
use super::service::ClientService;
use crate::dial::{Dialer, Lookup};
use crate::engine::Owner;
use crate::service::Context;
use crate::session::CloseReason;
use crate::transport::ConnectError;

#[derive(Debug)]
pub(super) struct Dialing {
    pub(super) dialer: Dialer,
    /// Present if the client follows moves.
    pub(super) mover: Option<Mover>,
    owner: Owner,
    /// Connects at the first submission instead of at once.
    is_lazy: bool,
    /// An attempt of a lazy client has failed. Submissions that waited for it must fail before the next one begins.
    has_failed: bool,
    pub(super) renewal: Renewal,
}

impl Dialing {
    pub(super) fn new(
        dialer: Dialer,
        mover: Option<Mover>,
        waits_for_server: bool,
        is_lazy: bool,
    ) -> Self {
        Self {
            dialer,
            mover,
            owner: Owner::Client { waits_for_server },
            is_lazy,
            has_failed: false,
            renewal: Renewal::default(),
        }
    }

    /// Whether submissions wait for the attempt that is under way.
    pub(super) fn holds_submissions(&self) -> bool {
        self.is_lazy && self.dialer.is_dialing()
    }

    /// Whether the next submission begins an attempt to connect.
    pub(super) fn is_lazily_idle(&self) -> bool {
        self.is_lazy && self.dialer.is_idle() && !self.has_failed
    }

    /// Whether an attempt or a renewal awaits a lookup.
    pub(super) fn awaits_lookup(&self) -> bool {
        self.dialer.is_looking_up() || self.renewal.is_asked()
    }

    /// Notes that the submissions that waited for a failed attempt have failed. The next submission begins another one.
    pub(super) fn note_told(&mut self) {
        self.has_failed = false;
    }
}

impl ClientService {
    /// Begins an attempt to connect if one is due, and goes on with an attempt that is under way.
    pub(super) fn dial_if_due(&mut self, cx: &mut Context<'_>, now_ns: u64) {
        let dialing = &mut self.dialing;
        if dialing.dialer.open_session().is_some() {
            return;
        }
        // A pause is always followed by an attempt.
        let is_lazy = dialing.is_lazy && dialing.dialer.is_idle();
        if !is_lazy || (dialing.is_lazily_idle() && self.link.table.wants_connection()) {
            dialing.dialer.begin(now_ns);
        }
        if dialing.dialer.is_looking_up()
            && let Some(found) = self.link.take_found()
        {
            dialing.dialer.handle_found(found, now_ns);
        }
        self.dial(cx);
    }

    /// Takes the steps that are due.
    pub(super) fn dial(&mut self, cx: &mut Context<'_>) {
        let Dialing { dialer, owner, .. } = &mut self.dialing;
        let failed = cx.core.dial(dialer, *owner, |_, lookup| {
            // An earlier lookup may have ended too late for its connection.
            drop(self.link.take_found());
            let error = look_up(lookup.clone(), &self.link).err()?;
            tracing::debug!(%error, "cannot start a thread for a lookup; the lane does it");
            Some(lookup.run())
        });
        match failed {
            Some(failure) if self.dialing.dialer.is_refused() => self.handle_refusal(cx, failure),
            Some(failure) => self.handle_unreachable(cx, failure),
            None => {}
        }
    }

    /// Makes the open session the client's session. Returns whether it is: the session of another address may have been
    /// open before.
    pub(super) fn take_open(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(endpoint) = self.dialing.dialer.note_open(cx.id(), now_ns()) else {
            cx.close();
            return false;
        };
        self.link.set_endpoint(endpoint);
        // The other addresses are closed.
        self.dial(cx);
        true
    }

    /// Handles a failed attempt: ends the client after the first attempt, else plans the next.
    fn handle_unreachable(&mut self, cx: &mut Context<'_>, error: ConnectError) {
        if !self.dialing.is_lazy && !self.ever_open {
            self.link.complete_first(Err(error));
            cx.stop_lane();
            return;
        }
        let cause = error.to_string();
        self.pending.unreachable = Some(cause.as_str().into());
        self.retry(cx, cause);
        self.dialing.has_failed = self.dialing.dialer.is_idle();
    }

    /// Handles a server that refused this client for good. Pending requests fail with that error when the lane ends.
    fn handle_refusal(&mut self, cx: &mut Context<'_>, failure: ConnectError) {
        self.pending.unreachable = Some(failure.to_string().into());
        let end = match &failure {
            ConnectError::Refused { reason, text } => Some((*reason, text.as_str().into())),
            ConnectError::Closed(reason) => Some((*reason, "".into())),
            _ => None,
        };
        if let Some((reason, text)) = end {
            self.stay_away_if_told(reason);
            self.link.events.push(Event::Closed { reason, text });
        }
        if !self.ever_open {
            self.link.complete_first(Err(failure));
        }
        cx.stop_lane();
    }

    /// Disables all further attempts, lazy ones included, if the close reason is final.
    pub(super) fn stay_away_if_told(&mut self, reason: CloseReason) {
        if reason.is_final() {
            self.dialing.is_lazy = false;
            self.pending.reconnects = false;
        }
    }

    /// Plans the next attempt, or ends the client if no attempt may follow.
    pub(super) fn retry(&mut self, cx: &mut Context<'_>, cause: String) {
        if self.pending.reconnects {
            let delay = self.dialing.dialer.pause(now_ns());
            self.link.events.push(Event::Reconnecting { delay, cause });
        } else if self.closing || !self.dialing.is_lazy {
            cx.stop_lane();
        }
    }
}

/// Looks up on a new thread, which stores the results in the link.
pub(super) fn look_up(lookup: Lookup, link: &Arc<Link>) -> std::io::Result<()> {
    let link = Arc::downgrade(link);
    lookup.start(move |found| {
        // The client may have been dropped.
        if let Some(link) = link.upgrade() {
            link.set_found(found);
        }
    })
}

#[cfg(test)]
mod tests;
