//! Asks the admin server, with one connection for each question.
//!
//! One GET a second needs little of HTTP: a request of version 1.0, whose answer ends with the connection.

use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tidewire::auth::Token;
use tidewire::tls::ClientTls;
use tidewire_proto::layer::Stack;

use crate::failure::Failure;

/// An admin server.
#[derive(Debug)]
pub(super) struct AdminClient {
    /// `HOST:PORT`
    host: String,
    token: Option<Token>,
    /// The authorities to trust, if the address is encrypted.
    tls: Option<ClientTls>,
}

impl AdminClient {
    /// Checks the address. A token goes to another machine only if that is allowed.
    pub(super) fn new(
        address: &str,
        token: Option<Token>,
        ca: Option<&Path>,
        is_insecure: bool,
    ) -> Result<Self, Failure> {
        let secured = address.strip_prefix("https://");
        let host = secured
            .or(address.strip_prefix("http://"))
            .unwrap_or(address);
        let host = host.strip_suffix('/').unwrap_or(host);
        let is_plain = host.contains(':') && !host.contains(['/', '@', '?']);
        if !is_plain || host.bytes().any(|it| it.is_ascii_control() || it == b' ') {
            let what = format!("{address:?} is not the address of an admin server");
            return Err(Failure::configuration(
                what,
                "write HOST:PORT or https://HOST:PORT, as in 127.0.0.1:9090",
            ));
        }
        let trusted = ClientTls::new();
        let client = Self {
            host: host.to_owned(),
            token,
            tls: secured.map(|_| match ca {
                Some(ca) => trusted.ca(ca),
                None => trusted,
            }),
        };
        if client.tls.is_none() && client.token.is_some() && !is_insecure && !client.is_local()? {
            let what = format!("the token would go to {host} without encryption");
            let remedy = "use https:// with --admin-tls at the server, or ssh -L 9090:127.0.0.1:9090 HOST and 127.0.0.1:9090, or say --insecure in a closed \
                          network";
            return Err(Failure::configuration(what, remedy));
        }
        Ok(client)
    }

    pub(super) fn name(&self) -> &str {
        &self.host
    }

    fn is_local(&self) -> Result<bool, Failure> {
        let mut addresses = self
            .host
            .to_socket_addrs()
            .map_err(|error| self.gone(&error))?;
        Ok(addresses.all(|it| it.ip().to_canonical().is_loopback()))
    }

    /// Asks for the state of the server.
    pub(super) fn overview(&self) -> Result<Value, Failure> {
        let answer = self
            .get("/api/overview")
            .map_err(|error| self.gone(&error))?;
        let Some((status, body)) = split(&answer) else {
            return Err(self.not_admin());
        };
        let body: Option<Value> = serde_json::from_slice(body).ok();
        match (status, body) {
            (200, Some(overview)) => Ok(overview),
            (401 | 429, _) => {
                let what = format!("{} needs a token, or refuses this one", self.host);
                Err(Failure::refused(
                    what,
                    "give --token-file with the file of --admin-token-file",
                ))
            }
            (status, body) => {
                // Every refusal of an admin server is JSON with a reason. The page of a WebSocket is none.
                let reason = body.as_ref().and_then(|it| it["error"].as_str());
                let reason = reason.ok_or_else(|| self.not_admin())?;
                let what = format!("{} answered {status}: {reason}", self.host);
                Err(Failure::refused(what, "look into the log of the server"))
            }
        }
    }

    fn get(&self, path: &str) -> io::Result<Vec<u8>> {
        let mut failure = io::ErrorKind::NotFound.into();
        for address in self.host.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIME_MAX) {
                Ok(stream) => return self.ask(stream, path),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn ask(&self, mut stream: TcpStream, path: &str) -> io::Result<Vec<u8>> {
        stream.set_read_timeout(Some(TIME_MAX))?;
        stream.set_write_timeout(Some(TIME_MAX))?;
        let mut request = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n", self.host);
        if let Some(token) = &self.token {
            request += &format!("Authorization: Bearer {}\r\n", token.secret());
        }
        request += "\r\n";
        let mut answer = Vec::new();
        match &self.tls {
            Some(tls) => {
                let host = self
                    .host
                    .rsplit_once(':')
                    .map_or(&*self.host, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let layer = tls.layer(host, Some("http/1.1"));
                let stack = Stack::from(layer.map_err(io::Error::other)?);
                ask_secured(stack, &mut stream, request.as_bytes(), &mut answer)?;
            }
            None => {
                stream.write_all(request.as_bytes())?;
                stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
            }
        }
        Ok(answer)
    }

    fn not_admin(&self) -> Failure {
        let what = format!("the answer of {} is not that of an admin server", self.host);
        Failure::unreachable(what, "name the address of --admin, not that of --bind")
    }

    fn gone(&self, error: &io::Error) -> Failure {
        let what = format!("cannot ask the admin server at {}: {error}", self.host);
        Failure::unreachable(what, "start the server with --admin, or check the address")
    }
}

/// Sends a request under TLS, and reads the answer up to its end.
fn ask_secured(
    mut stack: Stack,
    stream: &mut TcpStream,
    request: &[u8],
    answer: &mut Vec<u8>,
) -> io::Result<()> {
    stack.start().map_err(io::Error::other)?;
    let (mut is_asked, mut buffer) = (false, [0; 16 << 10]);
    while answer.len() < ANSWER_BYTES_MAX as usize {
        if stack.is_ready() && !is_asked {
            is_asked = true;
            // A request is far smaller than what a stack takes at once.
            stack
                .write(&[IoSlice::new(request)])
                .map_err(io::Error::other)?;
        }
        let count = stack.unsent().len();
        stream.write_all(stack.unsent())?;
        stack.advance(count);
        if stack.has_ended() {
            break;
        }
        match stream.read(&mut buffer)? {
            0 => stack.handle_network_end().map_err(io::Error::other)?,
            count => stack.receive(&buffer[..count]).map_err(io::Error::other)?,
        }
        loop {
            match stack.read(&mut buffer).map_err(io::Error::other)? {
                0 => break,
                count => answer.extend_from_slice(&buffer[..count]),
            }
        }
    }
    Ok(())
}

/// The status and the body of an answer.
fn split(answer: &[u8]) -> Option<(u16, &[u8])> {
    let end = answer.windows(4).position(|it| it == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    Some((status.parse().ok()?, &answer[end + 4..]))
}

/// The longest time to wait for the server.
const TIME_MAX: Duration = Duration::from_secs(5);

/// The longest answer. An overview has some 10 KiB.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports() {
        let host = |address| AdminClient::new(address, None, None, false).map(|it| it.host);
        for good in [
            "127.0.0.1:9090",
            "http://127.0.0.1:9090/",
            "http://127.0.0.1:9090",
            "https://127.0.0.1:9090/",
        ] {
            assert_eq!(host(good).unwrap(), "127.0.0.1:9090");
        }
        for bad in [
            "",
            "127.0.0.1",
            "https://h:1/x",
            "h:1/path",
            "a@h:1",
            "h:1\r\nX: y",
            "tcp://h:1",
        ] {
            assert!(host(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_token_stays_on_this_machine() {
        let token = || Some(Token::new("secret").unwrap());
        assert!(AdminClient::new("127.0.0.1:1", token(), None, false).is_ok());
        assert!(AdminClient::new("192.0.2.1:1", token(), None, false).is_err());
        assert!(AdminClient::new("192.0.2.1:1", token(), None, true).is_ok());
        assert!(AdminClient::new("https://192.0.2.1:1", token(), None, false).is_ok());
        assert!(AdminClient::new("192.0.2.1:1", None, None, false).is_ok());
    }

    #[test]
    fn an_answer_has_a_status_and_a_body() {
        assert_eq!(
            split(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}"),
            Some((200, &b"{}"[..]))
        );
        for other in [
            &b"TW1\x01"[..],
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1\r\n\r\n",
            b"",
        ] {
            assert_eq!(split(other), None);
        }
    }
}
