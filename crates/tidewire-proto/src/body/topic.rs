//! The body of a subscription.

use super::{Reader, malformed};
use crate::error::DecodeError;
use crate::message::Kind;
use crate::room::Policy;

/// Body of a `Subscribe`: the topics, the policy if their messages come too fast, and the group.
///
/// Layout: u8 policy, then the pattern to the end of the payload. A space, which no pattern has, and the name of a
/// group may follow the pattern. So a server that knows no groups refuses the pattern. The policies are 0 for the
/// server's choice, 1 `disconnect`, 2 `drop_oldest`, 3 `drop_newest`, 4 `conflate`, 5 `block`, 6 `conflate_by_topic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscribeBody<'a> {
    /// The policy for a subscriber that does not keep up; `None` leaves it to the server.
    pub policy: Option<Policy>,
    /// The pattern, see [`crate::topic`].
    pub pattern: &'a str,
    /// The queue group: of the subscriptions with the same pattern and group, one gets each message.
    pub group: Option<&'a str>,
}

impl<'a> SubscribeBody<'a> {
    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.policy.map_or(SERVERS_CHOICE, Policy::to_wire));
        out.extend_from_slice(self.pattern.as_bytes());
        if let Some(group) = self.group {
            out.push(b' ');
            out.extend_from_slice(group.as_bytes());
        }
    }

    /// Reads the payload of a `Subscribe`. It checks neither the pattern nor the group: call
    /// [`Pattern::parse`](crate::topic::Pattern::parse) and [`validate_name`](super::validate_name), to refuse bad ones
    /// with the reason.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`], also for a policy this version does not have.
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let policy = match reader.u8() {
            Some(SERVERS_CHOICE) => Some(None),
            Some(number) => Policy::from_wire(number).map(Some),
            None => None,
        };
        match (policy, str::from_utf8(reader.rest())) {
            (Some(policy), Ok(text)) => {
                let (pattern, group) = match text.split_once(' ') {
                    Some((pattern, group)) => (pattern, Some(group)),
                    None => (text, None),
                };
                Ok(Self {
                    policy,
                    pattern,
                    group,
                })
            }
            _ => Err(malformed(Kind::Subscribe)),
        }
    }
}

const SERVERS_CHOICE: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_survive_the_wire() {
        let policies = Policy::ALL.into_iter().map(Some).chain([None]);
        for policy in policies {
            for group in [None, Some("workers"), Some("")] {
                let body = SubscribeBody {
                    policy,
                    pattern: "sensor.>",
                    group,
                };
                let mut out = Vec::new();
                body.encode(&mut out);
                assert_eq!(SubscribeBody::decode(&out), Ok(body));
            }
        }
    }

    #[test]
    fn broken_subscriptions_are_malformed() {
        for payload in [&b""[..], b"\x07a", b"\xFFa", b"\0\xFF"] {
            assert_eq!(
                SubscribeBody::decode(payload),
                Err(malformed(Kind::Subscribe)),
                "{payload:?}"
            );
        }
    }
}
