//! The lines that announce the addresses of a started server: `serve` writes them, and the program that started it
//! reads them.
//!
//! ```text
//! listening on tcp://127.0.0.1:41873
//! listening on ipc:///tmp/chat.sock
//! ready codec=tw1 lanes=1 poller=epoll
//! ```
//!
//! There is one `listening on` line for each address, with the chosen port in place of port 0, then exactly one `ready`
//! line: by then every address accepts connections. Both sides of the format are here so that they stay the same.
//! Rejected: a port in a file (it needs an agreed path and a clean-up), and a fixed port (another program takes it
//! sooner or later). Programs that prefer JSON get one object instead.

use std::fmt;
use std::io::{self, BufRead};
use std::mem::discriminant;

use serde::Serialize;
use serde_json::json;
use thiserror::Error;
use tidewire::Endpoint;
use tidewire::address::{Address, AddressError};

use crate::payload::json_text;

/// The announcement of a server that accepts connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Ready {
    pub(crate) addresses: Vec<String>,
    pub(crate) codec: String,
    pub(crate) lanes: usize,
    pub(crate) poller: String,
    /// The address of the dashboard, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin: Option<String>,
    /// The address of health alone, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) health: Option<String>,
}

/// The error of a server's output that is not these lines.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum ReadyError {
    #[error("the server ended before it was ready; its stderr has the reason")]
    Ended,
    #[error("the server printed {0:?}, which is neither an address nor the ready line")]
    Unexpected(String),
    #[error("cannot read the server's output")]
    Io(#[from] io::Error),
}

/// Returns the addresses for clients: `endpoints` of a server that listens at `binds`, with the parameters of those.
/// `localhost` has one endpoint for each loopback address.
pub(crate) fn to_connect_to(
    binds: &[String],
    endpoints: &[Endpoint],
) -> Result<Vec<String>, AddressError> {
    let mut addresses = Vec::new();
    let mut endpoints = endpoints.iter().peekable();
    for bind in binds {
        let bind: Address = bind.parse()?;
        let parameters = bind.parameters();
        let first = endpoints.next();
        addresses.extend(first.map(|it| format!("{it}{parameters}")));
        let is_localhost = bind
            .host()
            .is_some_and(|it| it.eq_ignore_ascii_case("localhost"));
        let is_second =
            |it: &&Endpoint| is_localhost && first.is_some_and(|first| is_twin(first, it));
        if let Some(second) = endpoints.next_if(is_second) {
            addresses.push(format!("{second}{parameters}"));
        }
    }
    Ok(addresses)
}

/// Whether two endpoints differ in the address alone: the same transport, and the same port.
fn is_twin(one: &Endpoint, two: &Endpoint) -> bool {
    let port = |it: &Endpoint| it.socket_address().map(|at| at.port());
    discriminant(one) == discriminant(two) && port(one) == port(two)
}

impl Ready {
    /// Returns all of it as one JSON object in a line.
    pub(crate) fn to_json(&self) -> String {
        let mut object = json!(self);
        object["event"] = "ready".into();
        json_text(&object) + "\n"
    }

    /// Reads the lines, and nothing after them.
    pub(crate) fn parse(input: &mut impl BufRead) -> Result<Self, ReadyError> {
        let mut addresses = Vec::new();
        let mut line = String::new();
        loop {
            line.clear();
            if input.read_line(&mut line)? == 0 {
                return Err(ReadyError::Ended);
            }
            let text = line.trim_end_matches(['\n', '\r']);
            if let Some(address) = text.strip_prefix(LISTENING) {
                addresses.push(address.to_owned());
            } else {
                return Self::parse_ready(text, addresses)
                    .ok_or_else(|| ReadyError::Unexpected(text.to_owned()));
            }
        }
    }

    fn parse_ready(text: &str, addresses: Vec<String>) -> Option<Self> {
        let words = text.strip_prefix(READY)?;
        let value = |key: &str| {
            let mut words = words.split(' ');
            words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        Some(Self {
            addresses,
            codec: value("codec")?.to_owned(),
            lanes: value("lanes")?.parse().ok()?,
            poller: value("poller")?.to_owned(),
            admin: value("admin").map(str::to_owned),
            health: value("health").map(str::to_owned),
        })
    }
}

impl fmt::Display for Ready {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for address in &self.addresses {
            writeln!(formatter, "{LISTENING}{address}")?;
        }
        let (codec, lanes, poller) = (&self.codec, self.lanes, &self.poller);
        write!(
            formatter,
            "{READY}codec={codec} lanes={lanes} poller={poller}"
        )?;
        for (name, address) in [("admin", &self.admin), ("health", &self.health)] {
            if let Some(address) = address {
                write!(formatter, " {name}={address}")?;
            }
        }
        writeln!(formatter)
    }
}

const LISTENING: &str = "listening on ";
const READY: &str = "ready ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_parsed_and_the_rest_is_left() {
        let ready = Ready {
            addresses: vec![
                "tcp://127.0.0.1:41873".to_owned(),
                "ipc:///tmp/a b.sock".to_owned(),
            ],
            codec: "tw1".to_owned(),
            lanes: 2,
            poller: "epoll".to_owned(),
            admin: Some("http://127.0.0.1:9090/".to_owned()),
            health: Some("http://0.0.0.0:9091/".to_owned()),
        };
        let text = ready.to_string();
        assert_eq!(
            text,
            "listening on tcp://127.0.0.1:41873\nlistening on ipc:///tmp/a b.sock\nready codec=tw1 lanes=2 poller=epoll \
             admin=http://127.0.0.1:9090/ health=http://0.0.0.0:9091/\n"
        );
        let text = text + "more";
        let mut input = text.as_bytes();
        assert_eq!(Ready::parse(&mut input).unwrap(), ready);
        assert_eq!(input, b"more");
    }

    #[test]
    fn localhost_is_announced_at_both_of_its_addresses() {
        let at = |text: &str| text.parse::<Address>().unwrap().resolve().unwrap();
        let binds = ["tcp://localhost:7000", "udp://127.0.0.1:7000"].map(str::to_owned);
        let [four, six, udp] = [
            "tcp://127.0.0.1:7000",
            "tcp://[::1]:7000",
            "udp://127.0.0.1:7000",
        ];
        let announced = |endpoints: &[&str]| {
            let endpoints: Vec<Endpoint> = endpoints.iter().map(|it| at(it)).collect();
            to_connect_to(&binds, &endpoints).unwrap()
        };
        assert_eq!(announced(&[four, six, udp]), [four, six, udp]);
        assert_eq!(announced(&[four, udp]), [four, udp], "without IPv6");
    }

    #[test]
    fn programs_get_an_object() {
        let ready = Ready {
            addresses: vec!["tcp://127.0.0.1:1".to_owned()],
            codec: "tw1".to_owned(),
            lanes: 1,
            poller: "poll".to_owned(),
            admin: None,
            health: None,
        };
        let object = r#"{"addresses":["tcp://127.0.0.1:1"],"codec":"tw1","event":"ready","lanes":1,"poller":"poll"}"#;
        assert_eq!(ready.to_json(), format!("{object}\n"));
    }

    #[test]
    fn an_end_before_readiness_and_other_output_are_told_apart() {
        let parse = |text: &str| Ready::parse(&mut text.as_bytes());
        assert!(matches!(parse(""), Err(ReadyError::Ended)));
        assert!(matches!(
            parse("listening on tcp://127.0.0.1:1\n"),
            Err(ReadyError::Ended)
        ));
        for text in [
            "hello\n",
            "ready\n",
            "ready codec=tw1 lanes=x poller=poll\n",
        ] {
            assert!(
                matches!(parse(text), Err(ReadyError::Unexpected(_))),
                "{text}"
            );
        }
    }
}
