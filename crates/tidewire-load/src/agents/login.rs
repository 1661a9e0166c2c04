//! Connecting and logging in: what an agent asks of a server before it may send.

use std::sync::atomic::Ordering;

use tidewire::{ConnectError, Context, Kind, Message, Moment};
use tidewire_proto::body::{ErrorBody, ErrorCode, JoinBody, Since, SubscribeBody};
use tidewire_proto::message::FLAG_POSITION;

use super::{AgentSlot, Agents, JOIN_ID};
use crate::credentials::TokenTask;
use crate::format::describe;
use crate::ledger::Ledger;
use crate::scenario::Pattern;

impl Agents {
    pub(super) fn connect_some(&mut self, cx: &mut Context<'_>) {
        while self.connecting < CONNECTING_MAX
            && self.next_to_connect < self.agents.len()
            && !self.link.is_login_closed()
        {
            let slot = self.next_to_connect;
            self.next_to_connect += 1;
            self.connecting += 1;
            if let Err(failure) = self.connect(cx, slot) {
                self.fail_login(slot, &explain(&failure));
            }
        }
    }

    /// Begins a connection of an agent.
    pub(super) fn connect(
        &mut self,
        cx: &mut Context<'_>,
        slot: usize,
    ) -> Result<(), ConnectError> {
        let agent = &mut self.agents[slot];
        let session = cx.connections().connect(&self.plan.targets[agent.node])?;
        cx.connections().set_state(session, AgentSlot(slot));
        agent.session = session;
        if let Some(token) = self.tokens.token(agent.index) {
            cx.connections().set_credentials(session, token.clone())?;
        }
        Ok(())
    }

    /// Sends newer credentials on all connections, or says when those of the connections expire.
    pub(super) fn renew_credentials(&mut self, cx: &mut Context<'_>) {
        while let Some(task) = self.tokens.take_task(&self.link.tokens) {
            for agent in self.agents.iter().filter(|agent| agent.alive) {
                match (task, self.tokens.token(agent.index)) {
                    (TokenTask::Send, Some(token)) => {
                        // The address was checked when the connection was made.
                        let _ = cx
                            .connections()
                            .set_credentials(agent.session, token.clone());
                    }
                    _ => {
                        let expire = cx.connections().credentials_expire(agent.session);
                        let expires_ns = expire.map_or(u64::MAX, Moment::as_ns);
                        self.link.tokens.note_expiry(expires_ns);
                    }
                }
            }
        }
    }

    /// An agent fails once, though the connection of a refused one may die later.
    pub(super) fn fail_login(&mut self, slot: usize, cause: &str) {
        if self.is_returning(slot) {
            return self.try_again(slot);
        }
        if std::mem::replace(&mut self.agents[slot].login_failed, true)
            || self.link.is_login_closed()
        {
            return;
        }
        self.connecting -= 1;
        self.link.login_failures.add(1);
        self.note_failure(|| cause.to_owned());
    }

    /// Enters the room or subscribes to the topic. Where there is neither, being connected is being logged in.
    pub(super) fn log_in(&mut self, cx: &mut Context<'_>, slot: usize) {
        let mut body = Vec::new();
        let request = match self.pattern() {
            Pattern::Ingest | Pattern::Echo | Pattern::Request => {
                return self.complete_login(slot, 0);
            }
            Pattern::PubSub => {
                let pattern = &self.plan.room;
                SubscribeBody {
                    policy: None,
                    pattern,
                    group: None,
                }
                .encode(&mut body);
                Ok(Message::with_id(Kind::Subscribe, 0, JOIN_ID, &body))
            }
            Pattern::Chat => {
                let (run, number) = (self.plan.run, self.plan.number);
                // Whoever is known by a token has the name that belongs to it.
                let id = cx.id();
                let is_known = self.tokens.count() > 0 && cx.connections().takes_credentials(id);
                let name = match is_known {
                    true => String::new(),
                    false => format!("load-{run:04x}-{number}-{}", self.agents[slot].index),
                };
                let (room, mut flags) = (&self.plan.room, 0);
                if let Some(position) = self.agents[slot].position {
                    Since::Position(position).encode(&mut body);
                    flags = FLAG_POSITION;
                }
                let join = JoinBody { room, name: &name }.encode(&mut body);
                join.map(|()| Message {
                    flags,
                    ..Message::with_id(Kind::Join, 0, JOIN_ID, &body)
                })
            }
        };
        let sent = request
            .map_err(|error| error.to_string())
            .and_then(|request| cx.send(request).map_err(|error| error.to_string()));
        if let Err(error) = sent {
            self.fail_login(slot, &error);
        }
    }

    pub(super) fn handle_login(&mut self, slot: usize, message: &Message<'_>) {
        if message.kind == Kind::Error && !self.agents[slot].logged_in {
            let body = ErrorBody::decode(message.payload);
            let mut cause = "refused".to_owned();
            if let Ok(body) = &body {
                cause = format!("refused: {}", body.text);
                if body.code == ErrorCode::NameTaken && self.tokens.count() > 0 {
                    cause += "; a name belongs to one token, so give a token for each agent";
                }
            }
            return self.fail_login(slot, &cause);
        }
        self.handle_recovery(slot, message);
        self.complete_login(slot, message.channel);
    }

    fn complete_login(&mut self, slot: usize, room: u16) {
        if self.is_returning(slot) {
            return self.come_back(slot, room);
        }
        // Whoever had no answer by then has been counted as failed.
        let too_late = self.link.is_login_closed();
        let agent = &mut self.agents[slot];
        if agent.logged_in || too_late {
            return;
        }
        agent.logged_in = true;
        agent.room = room;
        let late_ms = self.plan.late_ms;
        agent.ledger = match self.plan.step.pattern {
            Pattern::Chat | Pattern::PubSub => {
                let members = self.plan.step.concurrency as usize;
                Some(Ledger::for_member(agent.index as usize, members, late_ms))
            }
            // Its own messages come back to it and nobody else's.
            Pattern::Echo | Pattern::Request => Some(Ledger::for_member(0, 1, late_ms)),
            Pattern::Ingest => None,
        };
        self.connecting -= 1;
        if !self.is_slow {
            self.link.connected[agent.node].fetch_add(1, Ordering::Relaxed);
        }
        self.link.slow_logins.add(u64::from(self.is_slow));
        self.link.logins.add(1);
    }
}

/// A failed connection with all its causes, as `tidewire call` has them.
pub(super) fn explain(failure: &ConnectError) -> String {
    describe(failure)
}

/// Connections being made at the same time, per lane.
const CONNECTING_MAX: usize = 64;
