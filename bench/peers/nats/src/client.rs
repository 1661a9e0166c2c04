//! A minimal client of NATS: lines and payloads.

use std::io::{self, Write};

use anyhow::{Context, Result, bail, ensure};
use peer_common::stream::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A connection with at most one subscription.
pub(crate) struct Client {
    stream: Stream,
    output: Vec<u8>,
    input: Vec<u8>,
    filled: usize,
}

impl Client {
    /// Connects, subscribes and waits until the server has confirmed that.
    pub(crate) async fn connect(address: &str, subject: Option<&str>) -> Result<Self> {
        let mut client = Self {
            stream: Stream::connect(address).await?,
            output: b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\n".to_vec(),
            input: vec![0; INPUT_BYTES],
            filled: 0,
        };
        if let Some(subject) = subject {
            write!(client.output, "SUB {subject} 1\r\n")?;
        }
        client.output.extend_from_slice(b"PING\r\n");
        client.flush().await?;
        while !client.input[..client.filled].ends_with(b"PONG\r\n") {
            client.read().await?;
        }
        client.filled = 0;
        Ok(client)
    }

    /// Appends a publication, which the next [`Client::flush`] sends.
    pub(crate) fn publish(&mut self, subject: &[u8], reply_to: &[u8], payload: &[u8]) {
        append_publication(&mut self.output, subject, reply_to, payload);
    }

    pub(crate) async fn flush(&mut self) -> Result<()> {
        self.stream
            .write_all(&self.output)
            .await
            .context("writing")?;
        self.output.clear();
        self.stream.flush().await.context("writing")
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).await.context("writing")?;
        self.stream.flush().await.context("writing")
    }

    /// Waits for a message and passes on all that are available: the reply subject, which may be empty, and the
    /// payload.
    pub(crate) async fn receive(&mut self, mut take: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut count = 0;
        while count == 0 {
            self.read().await?;
            let mut rest = &self.input[..self.filled];
            let mut is_asked = false;
            while let Some(next) = next(rest)? {
                match next.event {
                    Event::Message { reply_to, payload } => {
                        take(reply_to, payload);
                        count += 1;
                    }
                    Event::Ping => is_asked = true,
                    Event::Other => {}
                }
                rest = &rest[next.bytes..];
            }
            let left = rest.len();
            self.input.copy_within(self.filled - left..self.filled, 0);
            self.filled = left;
            if is_asked {
                self.write(b"PONG\r\n").await?;
            }
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<()> {
        ensure!(self.filled < self.input.len(), "a message without an end");
        match self.stream.read(&mut self.input[self.filled..]).await? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)).context("nats-server"),
            count => {
                self.filled += count;
                Ok(())
            }
        }
    }
}

/// Appends a publication to `subject`, with a reply subject unless that is empty.
pub(crate) fn append_publication(
    out: &mut Vec<u8>,
    subject: &[u8],
    reply_to: &[u8],
    payload: &[u8],
) {
    out.extend_from_slice(b"PUB ");
    out.extend_from_slice(subject);
    if !reply_to.is_empty() {
        out.push(b' ');
        out.extend_from_slice(reply_to);
    }
    out.push(b' ');
    // Writing into memory cannot fail.
    let _ = write!(out, "{}", payload.len());
    out.extend_from_slice(END);
    out.extend_from_slice(payload);
    out.extend_from_slice(END);
}

/// An operation of the server.
struct Next<'a> {
    event: Event<'a>,
    bytes: usize,
}

enum Event<'a> {
    Message {
        reply_to: &'a [u8],
        payload: &'a [u8],
    },
    Ping,
    Other,
}

/// Parses the next operation of the server. `None` if it is incomplete.
fn next(input: &[u8]) -> Result<Option<Next<'_>>> {
    let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
        return Ok(None);
    };
    let (line, after) = (input[..end].trim_ascii_end(), end + 1);
    let other = |event| {
        Ok(Some(Next {
            event,
            bytes: after,
        }))
    };
    let Some(head) = line.strip_prefix(b"MSG ") else {
        return match line {
            b"PING" => other(Event::Ping),
            b"PONG" | b"+OK" => other(Event::Other),
            _ if line.starts_with(b"INFO") => other(Event::Other),
            _ => bail!("nats-server says: {}", String::from_utf8_lossy(line)),
        };
    };
    // Subject, number of the subscription, an optional reply subject, and the size.
    let mut words = head.split(|&byte| byte == b' ').skip(2);
    let (first, second) = (words.next(), words.next());
    let (reply_to, size) = match (first, second) {
        (Some(reply_to), Some(size)) => (reply_to, size),
        (Some(size), None) => (&b""[..], size),
        (None, _) => bail!("a message without a size"),
    };
    let size: usize = std::str::from_utf8(size)?
        .parse()
        .context("a message's size")?;
    let bytes = after + size + END.len();
    Ok(input.get(after..bytes).map(|rest| Next {
        event: Event::Message {
            reply_to,
            payload: &rest[..size],
        },
        bytes,
    }))
}

/// The end of a line or a payload.
const END: &[u8] = b"\r\n";

/// Size of a read: many messages at once.
const INPUT_BYTES: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_whole_or_not_at_all() {
        let said = b"MSG q 1 r0 4\r\nnews\r\nPING\r\nMSG r0 1 2\r\n\r\n\r\n";
        let mut rest = &said[..];
        let mut heard = Vec::new();
        while let Some(next) = next(rest).unwrap() {
            if let Event::Message { reply_to, payload } = next.event {
                heard.push((reply_to.to_vec(), payload.to_vec()));
            }
            rest = &rest[next.bytes..];
        }
        assert!(rest.is_empty());
        assert_eq!(
            heard,
            [
                (b"r0".to_vec(), b"news".to_vec()),
                (vec![], b"\r\n".to_vec())
            ]
        );
        for cut in 1..20 {
            assert!(next(&said[..cut]).unwrap().is_none(), "{cut}");
        }
        assert!(next(b"-ERR 'Slow Consumer'\r\n").is_err());
    }

    #[test]
    fn publications_say_their_size() {
        let mut out = Vec::new();
        append_publication(&mut out, b"q", b"r0", b"news");
        append_publication(&mut out, b"i", b"", b"");
        assert_eq!(out, b"PUB q r0 4\r\nnews\r\nPUB i 0\r\n\r\n");
    }
}
