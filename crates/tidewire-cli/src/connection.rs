//! The common part of all commands that connect: the address, the codec and the timeout.
//!
//! Whether a codec can do something is tested by letting it encode a frame, not by a list of names. A codec with a new
//! ability is then accepted here without a change.

use std::time::{Duration, Instant};

use clap::Args;
use tidewire::address::Address;
use tidewire::limits::ConnectionLimits;
use tidewire::{
    AnyCodec, Backoff, Client, ClientBuilder, CloseReason, ConnectError, GoAwayCode, Kind, Message,
};
use tidewire_io::poller::PollerChoice;
use tidewire_proto::codec::Codec;

use crate::failure::Failure;
use crate::offered::codecs;
use crate::security::SecurityArguments;
use crate::units::parse_seconds;

/// The flags of a connection.
#[derive(Debug, Args)]
pub(crate) struct ConnectionArguments {
    /// Address of the server, HOST:PORT, tcp://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT/PATH, wss://HOST:PORT/PATH,
    /// udp://HOST:PORT or ipc://PATH
    #[arg(value_name = "ADDR")]
    pub(crate) address: String,

    #[command(flatten)]
    pub(crate) codec: CodecArgument,

    #[command(flatten)]
    security: SecurityArguments,

    /// Send the token to another machine without tls://, where others may read it: for closed networks
    #[arg(long)]
    insecure: bool,

    /// How long the server may take to accept the connection, and then for each answer, in seconds or as 500ms
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = parse_seconds)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) timeout: Duration,
}

/// The flag of a codec.
#[derive(Debug, Args)]
pub(crate) struct CodecArgument {
    /// The codec that the server speaks, settings included, as in uvrpc or length-field:size=4
    #[arg(long, value_name = "CODEC", default_value = "tw1", value_parser = codecs(), hide_possible_values = true)]
    pub(crate) codec: AnyCodec,
}

/// The requirement of a command on its codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Requests for methods by name.
    Methods,
    /// Topics to publish and subscribe to.
    Topics,
    /// Rooms with members.
    Rooms,
}

impl ConnectionArguments {
    /// Returns a client builder with these settings.
    ///
    /// # Errors
    /// The environment names a poller that does not exist, or flags contradict each other.
    pub(crate) fn client(&self) -> anyhow::Result<ClientBuilder> {
        let mut limits = ConnectionLimits::default();
        limits.set_handshake_timeout(self.timeout);
        let builder = Client::builder()
            .codec(self.codec())
            .tls(self.security.tls(&self.address, None)?)
            .poller(PollerChoice::from_env()?.unwrap_or_default())
            .limits(limits)
            .request_timeout(self.timeout)
            // A client that reconnects goes where a draining server sends it.
            .follow_moves(true);
        let builder = match self.security.credentials(&self.codec())? {
            Some(credentials) => builder.credentials(credentials),
            None => builder,
        };
        Ok(match self.insecure {
            true => builder.allow_plaintext_credentials(),
            false => builder,
        })
    }

    /// Whether messages travel as datagrams.
    pub(crate) fn is_udp(&self) -> bool {
        is_udp(&self.address)
    }

    /// Returns the codec in the form for this address: that of `?codec=`, if the address sets one, and over UDP some
    /// can express more.
    pub(crate) fn codec(&self) -> AnyCodec {
        let address = self.address.parse::<Address>().ok();
        let codec = address.and_then(|it| it.codec());
        let codec = codec.unwrap_or_else(|| self.codec.codec.clone());
        match self.is_udp() {
            true => codec.for_datagrams(),
            false => codec,
        }
    }

    /// Connects, and tries again until the timeout while no server answers at the address. The client reconnects by
    /// itself later.
    ///
    /// # Errors
    /// The errors of the last attempt.
    pub(crate) fn connect_patiently(&self) -> anyhow::Result<Client> {
        let deadline = Instant::now() + self.timeout;
        let backoff = Backoff::default();
        for attempt in 0.. {
            let error = match self
                .client()?
                .reconnect(backoff)
                .connect(&self.address)
                .wait()
            {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            let pause = backoff.delay(attempt, fastrand::f64());
            // A server that goes away accepts no client, but the next one at its address may.
            let may_pass = match &error {
                ConnectError::Socket(_) | ConnectError::Closed(_) => true,
                // Credentials that are refused now will be in a second, too, and each attempt is a failure of this
                // address.
                ConnectError::Refused { reason, .. } => {
                    matches!(reason, CloseReason::GoAway(code) if !code.is_final() && *code != GoAwayCode::Unauthenticated)
                }
                _ => false,
            };
            if !may_pass || Instant::now() + pause >= deadline {
                return Err(error.into());
            }
            std::thread::sleep(pause);
        }
        unreachable!("attempts are not counted to an end")
    }
}

impl Need {
    /// Refuses a codec that does not meet the requirement.
    ///
    /// # Errors
    /// Names the codecs that do.
    pub(crate) fn check(self, codec: &AnyCodec, what: &str) -> Result<(), Failure> {
        if self.is_met(codec) {
            return Ok(());
        }
        let able: Vec<String> = AnyCodec::NAMES
            .into_iter()
            .filter_map(|name| match AnyCodec::by_name(name) {
                Ok(codec) if self.is_met(&codec) => Some(name.to_owned()),
                Ok(codec) if self.is_met(&codec.clone().for_datagrams()) => {
                    Some(format!("{name} over udp://"))
                }
                _ => None,
            })
            .collect();
        let lacks = match self {
            Self::Methods => "methods by name",
            Self::Topics => "topics",
            Self::Rooms => "rooms",
        };
        let name = codec.name();
        Err(Failure::configuration(
            format!("codec {name} has no {lacks}, so {what} cannot use it"),
            format!("use --codec {}", able.join(", or ")),
        ))
    }

    fn is_met(self, codec: &AnyCodec) -> bool {
        let mut probe = match self {
            Self::Methods => Message::with_id(Kind::Request, 0, 1, b""),
            Self::Topics => Message::with_id(Kind::Subscribe, 0, 1, ANY_TOPIC),
            Self::Rooms => Message::with_id(Kind::Join, 0, 1, NO_NAMES),
        };
        if self == Self::Methods {
            probe.name = "probe";
        }
        codec.encode(&probe, &mut Vec::new()).is_ok()
    }
}

/// A subscription to all topics.
const ANY_TOPIC: &[u8] = b"\0>";

/// A join with two empty names.
const NO_NAMES: &[u8] = &[0, 0];

pub(crate) fn is_udp(address: &str) -> bool {
    address.starts_with("udp://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codecs_are_asked_what_they_can_say() {
        let able = |need: Need| -> Vec<&str> {
            let meets = |name: &&str| need.is_met(&AnyCodec::by_name(name).unwrap());
            AnyCodec::NAMES.into_iter().filter(meets).collect()
        };
        assert_eq!(able(Need::Methods), ["tw1", "json", "srmp-rpc", "uvrpc"]);
        assert_eq!(able(Need::Topics), ["tw1", "json"]);
        assert_eq!(able(Need::Rooms), ["tw1", "json"]);
        let raw = AnyCodec::by_name("raw").unwrap();
        let error = Need::Methods.check(&raw, "a call").unwrap_err();
        assert_eq!(
            error.to_string(),
            "codec raw has no methods by name, so a call cannot use it"
        );
    }
}
