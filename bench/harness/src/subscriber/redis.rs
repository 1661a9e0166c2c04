//! RESP, the protocol of Redis, as far as publish and subscribe need it.
//!
//! A subscriber gets arrays of three: `subscribe`, the channel and a count; then `message`, the channel and the
//! payload. A publisher gets an integer for each publication: how many it reached.

use super::dialect::{
    Dialect, DialectError, Next, Publish, Role, TOPIC, line, refused, small_number, whole,
};

#[derive(Debug, Default)]
pub(super) struct Redis {
    is_ready: bool,
}

impl Dialect for Redis {
    const PUBLISH: Option<Publish> = Some(|payload, out| {
        command(&[b"PUBLISH", TOPIC.as_bytes(), payload], out);
    });

    fn greet(&mut self, role: Role, out: &mut Vec<u8>) {
        match role {
            Role::Subscriber => command(&[b"SUBSCRIBE", TOPIC.as_bytes()], out),
            Role::Publisher => command(&[b"PING"], out),
        }
    }

    #[inline]
    fn next<'a>(&mut self, bytes: &'a [u8], _: &mut Vec<u8>) -> Result<Next<'a>, DialectError> {
        let (head, head_bytes) = whole!(line(bytes)?);
        match head.split_first() {
            Some((b'*', b"3")) => {}
            Some((b'+', b"PONG")) => {
                self.is_ready = true;
                return Ok(Next::Other(head_bytes));
            }
            Some((b':', _)) => return Ok(Next::Other(head_bytes)),
            Some((b'-', text)) => return Err(refused(text)),
            _ => return Err(NO_ARRAY),
        }
        let (kind, after_kind) = whole!(text(bytes, head_bytes)?);
        let (_, after_channel) = whole!(text(bytes, after_kind)?);
        match kind {
            b"message" => {
                let (payload, consumed) = whole!(text(bytes, after_channel)?);
                Ok(Next::Message(payload, consumed))
            }
            b"subscribe" => {
                // How many channels it is subscribed to now.
                let (_, count_bytes) = whole!(line(&bytes[after_channel..])?);
                self.is_ready = true;
                Ok(Next::Other(after_channel + count_bytes))
            }
            _ => Err(NO_ARRAY),
        }
    }

    fn is_ready(&self) -> bool {
        self.is_ready
    }
}

/// The bulk string at `at`, and where it ends.
#[inline]
fn text(bytes: &[u8], at: usize) -> Result<Option<(&[u8], usize)>, DialectError> {
    let Some((head, head_bytes)) = line(&bytes[at..])? else {
        return Ok(None);
    };
    let Some(size) = head.strip_prefix(b"$") else {
        return Err(DialectError::Malformed("an element that is no string"));
    };
    let from = at + head_bytes;
    let until = from + small_number(size)? + END.len();
    match bytes.get(from..until) {
        None => Ok(None),
        Some(rest) => match rest.strip_suffix(END) {
            Some(text) => Ok(Some((text, until))),
            None => Err(DialectError::Malformed("a string without its end")),
        },
    }
}

/// Appends a command as an array of strings.
fn command(words: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(END);
    }
}

const END: &[u8] = b"\r\n";

const NO_ARRAY: DialectError =
    DialectError::Malformed("an answer that neither a subscriber nor a publisher gets");

#[cfg(test)]
mod tests {
    use super::super::dialect::tests::{error, hear, survives_anything};
    use super::*;

    const CONVERSATION: &[u8] = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nt\r\n:1\r\n\
        *3\r\n$7\r\nmessage\r\n$1\r\nt\r\n$4\r\nnews\r\n*3\r\n$7\r\nmessage\r\n$1\r\nt\r\n$2\r\n\r\n\r\n";

    #[test]
    fn messages_come_out() {
        let (heard, out, ready) = hear::<Redis>(CONVERSATION);
        assert_eq!(heard, [&b"news"[..], b"\r\n"]);
        assert_eq!(out, b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nt\r\n");
        assert!(ready);
    }

    #[test]
    fn a_publisher_is_answered_by_numbers() {
        let (heard, _, ready) = hear::<Redis>(b"+PONG\r\n:500\r\n:500\r\n");
        assert!(heard.is_empty() && ready);
        let mut out = Vec::new();
        Redis::PUBLISH.unwrap()(b"news", &mut out);
        assert_eq!(out, b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nt\r\n$4\r\nnews\r\n");
    }

    #[test]
    fn what_is_wrong_is_told_and_nothing_panics() {
        assert_eq!(
            error::<Redis>(b"-NOAUTH Authentication required.\r\n"),
            DialectError::Refused("NOAUTH Authentication required.".to_owned())
        );
        for bad in [
            &b"*2\r\n"[..],
            b"INFO\r\n",
            b"\r\n",
            b"*3\r\n$7\r\nmessage\r\n:1\r\n",
            b"*3\r\n$7\r\nmassage\r\n$1\r\nt\r\n",
            b"*3\r\n$7\r\nmessageXX",
        ] {
            assert!(matches!(error::<Redis>(bad), DialectError::Malformed(_)));
        }
        assert!(matches!(
            error::<Redis>(b"*3\r\n$99999999\r\n"),
            DialectError::TooLarge { .. }
        ));
        survives_anything::<Redis>(CONVERSATION);
    }
}
