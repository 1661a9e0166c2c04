//! Publishes to a channel and receives from it. Redis answers a publication with the number of its receivers. The
//! publisher reads these answers after each write, so that they do not accumulate.

use std::io;

use anyhow::{Context, Result, bail};
use peer_common::pipe::Pipe;
use peer_common::stream::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{END, INPUT_BYTES};

/// A connection that publishes, or one that subscribes.
pub(crate) struct Connection {
    stream: Stream,
    /// The bytes before every payload, in a publication and in a message.
    publication_head: Vec<u8>,
    message_head: Vec<u8>,
    payload_bytes: usize,
    output: Vec<u8>,
    /// Publications that are not yet answered.
    unanswered: usize,
    input: Vec<u8>,
    filled: usize,
}

impl Connection {
    /// Connects a publisher.
    pub(crate) async fn publisher(address: &str, payload_bytes: usize) -> Result<Self> {
        let size = payload_bytes;
        let connection = Self {
            stream: Stream::connect(address).await?,
            publication_head: format!("*3\r\n$7\r\nPUBLISH\r\n$1\r\nt\r\n${size}\r\n").into_bytes(),
            message_head: format!("*3\r\n$7\r\nmessage\r\n$1\r\nt\r\n${size}\r\n").into_bytes(),
            payload_bytes,
            output: Vec::new(),
            unanswered: 0,
            input: vec![0; INPUT_BYTES.max(2 * (payload_bytes + HEADS_BYTES))],
            filled: 0,
        };
        Ok(connection)
    }

    /// Connects, subscribes, and waits until the server has confirmed that.
    pub(crate) async fn subscriber(address: &str, payload_bytes: usize) -> Result<Self> {
        let mut connection = Self::publisher(address, payload_bytes).await?;
        let subscription = b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nt\r\n";
        let written = connection.stream.write_all(subscription).await;
        written.context("subscribing")?;
        while connection.filled < SUBSCRIBED.len() {
            connection.read().await?;
        }
        let said = &connection.input[..connection.filled];
        if said != SUBSCRIBED {
            bail!(
                "redis-server does not subscribe: {}",
                String::from_utf8_lossy(said)
            );
        }
        connection.filled = 0;
        Ok(connection)
    }

    async fn read(&mut self) -> Result<()> {
        match self.stream.read(&mut self.input[self.filled..]).await? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)).context("redis-server"),
            count => {
                self.filled += count;
                Ok(())
            }
        }
    }
}

impl Pipe for Connection {
    async fn send(&mut self, request: &[u8]) -> Result<()> {
        self.output.extend_from_slice(&self.publication_head);
        self.output.extend_from_slice(request);
        self.output.extend_from_slice(END);
        self.unanswered += 1;
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        let written = self.stream.write_all(&self.output).await;
        written.context("publishing")?;
        self.output.clear();
        while self.unanswered > 0 {
            self.filled = 0;
            self.read().await?;
            let answers = &self.input[..self.filled];
            if let Some(error) = answers.iter().position(|&byte| byte == b'-') {
                bail!(
                    "redis-server says: {}",
                    String::from_utf8_lossy(&answers[error..])
                );
            }
            let lines = answers.iter().filter(|&&byte| byte == b'\n').count();
            self.unanswered = self.unanswered.saturating_sub(lines);
        }
        Ok(())
    }

    async fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let message_bytes = self.message_head.len() + self.payload_bytes + END.len();
        while self.filled < message_bytes {
            self.read().await?;
        }
        let messages = self.input[..self.filled].chunks_exact(message_bytes);
        let rest = messages.remainder().len();
        for message in messages {
            let payload = message
                .strip_prefix(self.message_head.as_slice())
                .and_then(|message| message.strip_suffix(END));
            let Some(payload) = payload else {
                bail!(
                    "a message that is none: {}",
                    String::from_utf8_lossy(message)
                );
            };
            take(payload);
        }
        self.input.copy_within(self.filled - rest..self.filled, 0);
        self.filled = rest;
        Ok(())
    }
}

/// The answer to a subscription.
const SUBSCRIBED: &[u8] = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nt\r\n:1\r\n";

/// More than the bytes around any payload.
const HEADS_BYTES: usize = 128;
