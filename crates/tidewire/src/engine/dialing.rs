//! Takes the steps of a [`Dialer`] on a lane.

use tidewire_io::clock::now_ns;

use super::Core;
use crate::address::Endpoint;
use crate::dial::{DialStep, Dialer, Lookup, LookupResult};
use crate::session::{CloseReason, SessionId};
use crate::transport::ConnectError;

/// The side whose connections a [`Dialer`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Client { waits_for_server: bool },
    Upstream,
}

impl Core {
    /// Takes the steps that are due. Returns the failure of the attempt if it has failed. `look_up` starts a lookup, or
    /// returns its results.
    pub(crate) fn dial(
        &mut self,
        dialer: &mut Dialer,
        owner: Owner,
        look_up: impl Fn(&Self, Lookup) -> Option<LookupResult>,
    ) -> Option<ConnectError> {
        let mut failed = None;
        loop {
            match dialer.step(now_ns()) {
                DialStep::Wait => return failed,
                DialStep::LookUp(lookup) => {
                    if let Some(found) = look_up(self, lookup) {
                        dialer.handle_found(found, now_ns());
                    }
                }
                DialStep::Connect(endpoint) => {
                    let begun = self.begin_connection(dialer, owner, &endpoint);
                    dialer.note_begun(endpoint, begun);
                }
                DialStep::Close(id) => self.sessions.table.close_by_id(id, CloseReason::Service),
                DialStep::Failed(failure) => failed = Some(failure),
            }
        }
    }

    fn begin_connection(
        &mut self,
        dialer: &Dialer,
        owner: Owner,
        endpoint: &Endpoint,
    ) -> Result<SessionId, ConnectError> {
        let token = dialer.token();
        // A token must not travel where others could read it.
        token.map_or(Ok(()), |token| {
            self.shared.outgoing.check_credentials(endpoint, token)
        })?;
        let waits = matches!(owner, Owner::Client { waits_for_server } if waits_for_server);
        let id = self.connect(endpoint, waits, dialer.stack())?;
        let is_upstream = owner == Owner::Upstream;
        if (is_upstream || token.is_some())
            && let Some(session) = self.sessions.table.find_mut(id)
        {
            let attached = session.profile.attach();
            attached.set_dialed(is_upstream, token.cloned());
        }
        Ok(id)
    }
}
