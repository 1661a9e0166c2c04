//! A page that a server gives to requests that do not ask for WebSocket.
//!
//! Problem: a page that opens a WebSocket needs a server, and a second server for one file must be installed, secured
//! and found. Approach: one page for each path, whole in memory. It goes out through the layer like a handshake, within
//! the time, the memory and the number that a server allows for handshakes.
//!
//! Rejected: several files, because names of files would have to be resolved; and longer pages, because an address may
//! hold only so much of unfinished handshakes. An HTTP server does these better.

use std::sync::Arc;

use crate::setting::SettingError;

/// A page of HTML in one file, with its policy. See [`ServerTerms::page`](super::ServerTerms::page).
///
/// ```
/// use tidewire_proto::websocket::WebPage;
///
/// let page = WebPage::html(&b"<!doctype html><title>hello</title>"[..], "default-src 'none'")?;
/// # Ok::<(), tidewire_proto::setting::SettingError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebPage {
    head: Arc<str>,
    body: Arc<[u8]>,
}

impl WebPage {
    /// A page in UTF-8, of at most [`PAGE_BYTES_MAX`] bytes. The Content-Security-Policy says what it may load and run;
    /// a page in one file allows its own scripts and styles by their hashes.
    ///
    /// # Errors
    /// The page is too long, or the policy is no value of a header.
    pub fn html(body: impl Into<Arc<[u8]>>, policy: &str) -> Result<Self, SettingError> {
        let body = body.into();
        let bytes = body.len();
        if bytes > PAGE_BYTES_MAX {
            let text = format!(
                "a page of {bytes} bytes is longer than {PAGE_BYTES_MAX}: serve it by an HTTP server"
            );
            return Err(SettingError::new("page", bytes.to_string(), text));
        }
        if !policy.bytes().all(|byte| matches!(byte, b' '..=b'~'))
            || policy.len() > POLICY_BYTES_MAX
        {
            let text = "the content security policy must be one line of ASCII";
            return Err(SettingError::new("content security policy", policy, text));
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/html; charset=utf-8\r\n\
             Content-Length: {bytes}\r\n\
             Content-Security-Policy: {policy}\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             X-Frame-Options: DENY\r\nCross-Origin-Opener-Policy: same-origin\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n\
             Cache-Control: no-cache\r\n\r\n"
        );
        let head = head.into();
        Ok(Self { head, body })
    }

    /// The answer to a request. An answer to `HEAD` has no body.
    pub(super) fn answer(&self, has_body: bool) -> Vec<u8> {
        let body = if has_body { &self.body[..] } else { &[] };
        [self.head.as_bytes(), body].concat()
    }
}

/// The longest page, in bytes. With its headers and the records of TLS it fits the [output of a stack of
/// layers](crate::layer::OUTPUT_BYTES_MAX).
pub const PAGE_BYTES_MAX: usize = 56 << 10;

/// Longest policy in bytes. It leaves room for a dozen hashes.
const POLICY_BYTES_MAX: usize = 2 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_length_and_its_policy() {
        let page = WebPage::html(&b"<p>hello"[..], "default-src 'none'").unwrap();
        let answer = String::from_utf8(page.answer(true)).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        for header in [
            "Content-Length: 8",
            "Content-Security-Policy: default-src 'none'",
            "X-Content-Type-Options: nosniff",
            "Referrer-Policy: no-referrer",
        ] {
            assert!(head.lines().any(|line| line == header), "{head}");
        }
        assert_eq!(body, "<p>hello");
        let without = String::from_utf8(page.answer(false)).unwrap();
        assert_eq!(without, format!("{head}\r\n\r\n"));
    }

    #[test]
    fn a_long_page_and_a_policy_of_two_lines_are_refused() {
        let bytes = PAGE_BYTES_MAX + 1;
        let long = WebPage::html(vec![b'a'; bytes], "");
        assert_eq!(long.unwrap_err().value(), bytes.to_string());
        for policy in ["a\r\nSet-Cookie: x", "a\nb", "\u{e4}", &"a".repeat(3_000)] {
            let page = WebPage::html(&b""[..], policy);
            assert_eq!(page.unwrap_err().value(), policy);
        }
    }
}
