//! The admin server from outside: over sockets, as browsers, scrapers and attackers use it.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod api;
mod attacks;
mod events;
mod health;
mod metrics;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use tidewire::backplane::NodeSettings;
use tidewire::{PubSub, Server, ServerBuilder};
use tidewire_admin::{Admin, Settings};
use tidewire_testkit::backplane::{Engine, InprocEngine};

/// An admin server beside a server of topics.
pub(crate) struct Site {
    pub(crate) admin: Admin,
    pub(crate) server: Server,
}

/// An answer, with its head as it was sent.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Site {
    pub(crate) fn start(settings: Settings) -> Self {
        let server = Server::builder()
            .listen("tcp://127.0.0.1:0")
            .unwrap()
            .lanes(2)
            .start(|_| PubSub::new())
            .unwrap();
        Self::beside(server, settings)
    }

    pub(crate) fn beside(server: Server, settings: Settings) -> Self {
        let admin = Admin::bind("127.0.0.1:0".parse().unwrap(), settings).unwrap();
        let admin = admin.serve(&server).unwrap();
        Self { admin, server }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.admin.address()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], "")
    }

    pub(crate) fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        serde_json::from_str(&answer.body).unwrap()
    }

    /// A POST as the dashboard sends it.
    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.request("POST", path, &["X-Tidewire-Admin: 1"], body)
    }

    pub(crate) fn request(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.address());
        for header in headers {
            text += header;
            text += "\r\n";
        }
        text += &format!(
            "Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.raw(text.as_bytes())
    }

    /// Sends bytes, and reads the answer up to the end of the connection.
    pub(crate) fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = self.connect();
        // The server may answer and close before it has read everything.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        Answer::parse(&String::from_utf8_lossy(&bytes))
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        // A test that hangs should fail with its own message.
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }
}

/// The builder of a node with this id, which tells the others often that it lives.
pub(crate) fn node(engine: &InprocEngine, id: &str) -> ServerBuilder {
    let mut settings = NodeSettings::new(id).unwrap();
    settings.heartbeat = Duration::from_millis(50);
    let builder = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    builder.backplane(engine.backplane(), settings)
}

impl Answer {
    /// An empty text is the answer of a server that only closed.
    pub(crate) fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
        Self {
            status: status.unwrap_or(0),
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }
}
