//! Why a setting of WebSocket is refused.

use thiserror::Error;

use super::PAGE_BYTES_MAX;

/// A server cannot have this page, or these origins of pages. Nothing was set.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WebSettingError {
    /// The page is too long.
    #[error("a page of {bytes} bytes is longer than {PAGE_BYTES_MAX}: serve it by an HTTP server")]
    PageTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The policy is no value of a header.
    #[error("the content security policy must be one line of ASCII")]
    BadPolicy,
    /// A text is no origin that a browser sends, so it would never allow a page.
    #[error("{origin:?} is the origin of no page: {why}")]
    BadOrigin {
        /// The text.
        origin: String,
        /// The mistake, and the text to write instead.
        why: String,
    },
}
