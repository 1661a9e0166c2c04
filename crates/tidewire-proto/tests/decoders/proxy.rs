//! The header of the PROXY protocol.

use tidewire_proto::proxy::{PROXY_HEADER_BYTES_MAX, ProxyHeader, decode};

/// A header that may be cut: each part asks for more bytes than it has and never for bytes after the header, and only
/// the whole decides otherwise than its parts.
pub fn proxy(bytes: &[u8]) {
    let whole = decode(bytes);
    for cut in 0..bytes.len().min(PROXY_HEADER_BYTES_MAX) {
        match decode(&bytes[..cut]) {
            Ok(ProxyHeader::Partial { bytes: needed }) => {
                assert!(needed > cut && needed <= PROXY_HEADER_BYTES_MAX);
                if let Ok(ProxyHeader::Whole { bytes: length, .. }) = whole {
                    assert!(cut < length && needed <= length, "it would read too far");
                }
            }
            Ok(found @ ProxyHeader::Whole { bytes: length, .. }) => {
                assert!(length <= cut);
                assert_eq!(Ok(found), whole);
            }
            Err(error) => assert_eq!(Err(error), whole),
        }
    }
}
