//! The text protocol of NATS: a line per operation, and a payload behind the lines that announce one.
//!
//! ```text
//! server: INFO {…}           client: CONNECT {…}, SUB t 1, PING          server: PONG: the subscription holds
//! server: MSG t 1 32 + payload      PING, answered by PONG               -ERR '…': refused
//! ```

use super::dialect::{
    Dialect, DialectError, Next, Publish, Role, TOPIC, line, refused, small_number, whole,
};

#[derive(Debug, Default)]
pub(super) struct Nats {
    is_ready: bool,
}

impl Dialect for Nats {
    const PUBLISH: Option<Publish> = Some(|payload, out| {
        out.extend_from_slice(format!("PUB {TOPIC} {}\r\n", payload.len()).as_bytes());
        out.extend_from_slice(payload);
        out.extend_from_slice(b"\r\n");
    });

    fn greet(&mut self, role: Role, out: &mut Vec<u8>) {
        out.extend_from_slice(
            b"CONNECT {\"verbose\":false,\"pedantic\":false,\"name\":\"bench\"}\r\n",
        );
        if role == Role::Subscriber {
            out.extend_from_slice(format!("SUB {TOPIC} 1\r\n").as_bytes());
        }
        // Operations are answered in order, so the answer to this one says that the others were taken.
        out.extend_from_slice(b"PING\r\n");
    }

    #[inline]
    fn next<'a>(&mut self, bytes: &'a [u8], out: &mut Vec<u8>) -> Result<Next<'a>, DialectError> {
        let (line, line_bytes) = whole!(line(bytes)?);
        let Some(head) = line.strip_prefix(b"MSG ") else {
            self.handle_control(line, out)?;
            return Ok(Next::Other(line_bytes));
        };
        // Subject, number of the subscription, perhaps a subject for replies, and the size.
        let size = head.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
        let payload_bytes = small_number(size)?;
        let consumed = line_bytes + payload_bytes + END.len();
        match whole!(bytes.get(line_bytes..consumed)).strip_suffix(END) {
            Some(payload) => Ok(Next::Message(payload, consumed)),
            None => Err(DialectError::Malformed("a payload without its end")),
        }
    }

    fn is_ready(&self) -> bool {
        self.is_ready
    }
}

impl Nats {
    #[cold]
    fn handle_control(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<(), DialectError> {
        if line == b"PONG" {
            self.is_ready = true;
        } else if line == b"PING" {
            out.extend_from_slice(b"PONG\r\n");
        } else if let Some(text) = line.strip_prefix(b"-ERR") {
            return Err(refused(text.trim_ascii()));
        } else if !line.starts_with(b"INFO ") && line != b"+OK" {
            return Err(DialectError::Malformed("a line that is not of NATS"));
        }
        Ok(())
    }
}

const END: &[u8] = b"\r\n";

#[cfg(test)]
mod tests {
    use super::super::dialect::tests::{error, hear, survives_anything};
    use super::*;

    const CONVERSATION: &[u8] =
        b"INFO {\"server_id\":\"x\"}\r\nPONG\r\nMSG t 1 4\r\nnews\r\nPING\r\nMSG t 1 reply 2\r\n\r\n\r\n";

    #[test]
    fn messages_come_out_and_pings_are_answered() {
        let (heard, out, ready) = hear::<Nats>(CONVERSATION);
        assert_eq!(heard, [&b"news"[..], b"\r\n"]);
        let out = String::from_utf8(out).unwrap();
        assert!(out.starts_with("CONNECT {") && out.ends_with("\r\nSUB t 1\r\nPING\r\nPONG\r\n"));
        assert!(ready);
        assert!(!hear::<Nats>(b"INFO {}\r\n").2);
    }

    #[test]
    fn a_publication_is_announced_with_its_size() {
        let mut out = Vec::new();
        Nats::PUBLISH.unwrap()(b"news", &mut out);
        assert_eq!(out, b"PUB t 4\r\nnews\r\n");
    }

    #[test]
    fn what_is_wrong_is_told_and_nothing_panics() {
        assert_eq!(
            error::<Nats>(b"-ERR 'slow consumer'\r\n"),
            DialectError::Refused("'slow consumer'".to_owned())
        );
        for bad in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"MSG t 1 x\r\n",
            b"MSG \r\n",
            b"MSG t 1 2\r\nhi!!",
        ] {
            assert!(matches!(error::<Nats>(bad), DialectError::Malformed(_)));
        }
        assert!(matches!(
            error::<Nats>(b"MSG t 1 99999999\r\n"),
            DialectError::TooLarge { .. }
        ));
        survives_anything::<Nats>(CONVERSATION);
    }
}
