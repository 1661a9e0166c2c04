//! The body of a subscription.

use super::{Reader, malformed};
use crate::error::DecodeError;
use crate::message::Kind;
use crate::room::Policy;

/// Body of a `Subscribe`: the topics, and the policy if their messages come too fast.
///
/// Layout: u8 policy, then the pattern to the end of the payload. The policies are 0 for the server's choice, 1
/// `disconnect`, 2 `drop_oldest`, 3 `drop_newest`, 4 `conflate`, 5 `block`, 6 `conflate_by_topic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscribeBody<'a> {
    /// The policy for a subscriber that does not keep up; `None` leaves it to the server.
    pub policy: Option<Policy>,
    /// The pattern, see [`crate::topic`].
    pub pattern: &'a str,
}

impl<'a> SubscribeBody<'a> {
    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.policy.map_or(SERVERS_CHOICE, Policy::to_wire));
        out.extend_from_slice(self.pattern.as_bytes());
    }

    /// Reads the payload of a `Subscribe`. It does not check the pattern: call
    /// [`Pattern::parse`](crate::topic::Pattern::parse), to refuse a bad pattern with the reason.
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
            (Some(policy), Ok(pattern)) => Ok(Self { policy, pattern }),
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
            let body = SubscribeBody {
                policy,
                pattern: "sensor.>",
            };
            let mut out = Vec::new();
            body.encode(&mut out);
            assert_eq!(SubscribeBody::decode(&out), Ok(body));
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
