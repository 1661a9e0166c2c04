//! Failures of TLS, with texts for a peer and an operator: what failed, and what to do.
//!
//! The layer itself is not in this crate. Its failures are, because a [close reason](crate::connection::CloseReason)
//! carries them.

use std::fmt;

use thiserror::Error;

/// TLS refused a connection, or the peer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TlsFault {
    /// The first bytes of the peer are no TLS record.
    #[error("the peer does not speak TLS here: use tls:// on both sides, or tcp:// on both")]
    PlainText,
    /// The first bytes of the peer are a TLS record, and this side speaks plain text.
    #[error(
        "the peer speaks TLS, and this side does not: use tls:// on both sides, or tcp:// on both"
    )]
    UnexpectedTls,
    /// The certificate has expired.
    #[error("the peer's certificate has expired: renew it, and check the clock of this machine")]
    Expired,
    /// The certificate is not valid yet.
    #[error("the peer's certificate is not valid yet: check the clocks of both machines")]
    NotYetValid,
    /// The certificate is for other hosts.
    #[error(
        "the server's certificate is not for this host: connect to a name that is in the certificate, or set the \
         server name"
    )]
    WrongHost,
    /// No trusted authority has signed the certificate. It may be signed by itself.
    #[error(
        "the peer's certificate is not signed by an authority that this side trusts: give the certificate of its \
         authority as CA file"
    )]
    UnknownIssuer,
    /// The certificate was revoked.
    #[error("the peer's certificate was revoked: give the peer a new one")]
    Revoked,
    /// The certificate has another purpose: for example, a client shows the certificate of a server.
    #[error(
        "the peer's certificate is for another purpose: its extended key usage must name its side of the connection"
    )]
    WrongPurpose,
    /// The certificate cannot be used for another reason.
    #[error("the peer's certificate is not acceptable: check it with `openssl x509 -text`")]
    BadCertificate,
    /// The certificates are longer than TLS libraries accept.
    #[error(
        "the peer's certificate chain is longer than 64 KiB: it must have only the certificates between the peer and \
         the root"
    )]
    ChainTooLong,
    /// The server requires a certificate, and the client has none.
    #[error(
        "the client has no certificate, and the server requires one: give it a certificate and its key"
    )]
    NoCertificate,
    /// The two sides have no version or cipher suite in common.
    #[error(
        "the two sides have no version of TLS in common: TLS 1.3 is needed, and 1.2 is an option of the server"
    )]
    Incompatible,
    /// The two sides speak different codecs, as their ALPN names say.
    #[error("the peer speaks another codec over TLS: use the same codec on both sides")]
    OtherCodec,
    /// The peer ended the connection with the fatal alert of this number, as in RFC 8446.
    #[error("{}", Alert(*.0))]
    Alert(u8),
    /// A record was forged, damaged, or came at a wrong time.
    #[error("the peer broke the rules of TLS, or its bytes were changed on their way")]
    Malformed,
    /// This side could not begin, for example because its settings could not be read again.
    #[error("this side cannot begin TLS: check its certificate and key")]
    NotReady,
}

/// An alert in an error text.
struct Alert(u8);

impl fmt::Display for Alert {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match self.0 {
            10 | 50 => "it did not understand this side: check that both speak TLS",
            40 | 70 | 71 => "the two sides have no version or cipher suite in common",
            42 | 43 | 46 => "it does not accept this side's certificate",
            44 => "this side's certificate was revoked: get a new one",
            45 => "this side's certificate has expired: renew it, and check the peer's clock",
            48 => {
                "it does not trust the authority of this side's certificate: give it the certificate of that authority \
                 as CA file"
            }
            49 => "access is denied",
            112 => "it does not know the server name: connect to a name of its certificate",
            116 => "it requires a client certificate: give this side a certificate and its key",
            120 => "it speaks another codec: use the same codec on both sides",
            _ => "the reason is in the peer's log",
        };
        write!(
            formatter,
            "the peer refused with TLS alert {}: {meaning}",
            self.0
        )
    }
}

/// Whether bytes begin like a record of TLS: its type, and the major version that all versions since SSL 3.0 share.
#[must_use]
pub fn is_tls_record(bytes: &[u8]) -> bool {
    matches!(bytes, [20..=23, 3, 0..=4, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_tls_are_told_from_other_first_bytes() {
        for bytes in [&b"\x16\x03\x01\x02\x00"[..], b"\x15\x03\x03"] {
            assert!(is_tls_record(bytes));
        }
        for bytes in [&b""[..], b"\x16\x03", b"GET / HTTP/1.1", b"\x16\x02\x01"] {
            assert!(!is_tls_record(bytes), "{bytes:?}");
        }
    }

    #[test]
    fn an_alert_says_what_to_do() {
        let text = TlsFault::Alert(48).to_string();
        assert!(
            text.contains("alert 48") && text.contains("CA file"),
            "{text}"
        );
        let unknown = TlsFault::Alert(255).to_string();
        assert!(
            unknown.contains("255") && unknown.contains("log"),
            "{unknown}"
        );
    }
}
