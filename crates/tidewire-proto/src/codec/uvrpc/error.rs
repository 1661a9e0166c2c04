//! The parameters of an error frame.

use crate::body::{ErrorBody, ErrorCode};
use crate::error::DecodeError;
use crate::message::Kind;

/// The reason of a refused call: the parameters of a frame of type error.
///
/// Layout: i32 big-endian code, text, NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorParams<'a> {
    /// One of the codes below, or another.
    pub code: i32,
    /// The reason, for people.
    pub text: &'a str,
}

impl<'a> ErrorParams<'a> {
    /// No error.
    pub const OK: i32 = 0;
    /// The frame is not a request.
    pub const INVALID_REQUEST: i32 = 1;
    /// The method does not exist.
    pub const METHOD_NOT_FOUND: i32 = 2;
    /// The method cannot read its parameters.
    pub const BAD_PARAMETERS: i32 = 3;
    /// The method failed.
    pub const INTERNAL: i32 = 4;
    /// The method took too long.
    pub const TIMEOUT: i32 = 5;
    /// The frame cannot be read.
    pub const PARSE: i32 = 6;
    /// The server cannot serve.
    pub const SERVER: i32 = 7;

    /// Reads the parameters. The text ends at its NUL, or at their end.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn decode(params: &'a [u8]) -> Result<Self, DecodeError> {
        let read = || {
            let (code, text) = params.split_first_chunk()?;
            let text = text.split(|byte| *byte == 0).next()?;
            Some(Self {
                code: i32::from_be_bytes(*code),
                text: str::from_utf8(text).ok()?,
            })
        };
        read().ok_or(DecodeError::MalformedPayload { kind: Kind::Error })
    }

    /// Appends the parameters to `out`. A NUL in the text ends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.code.to_be_bytes());
        let text = self.text.split('\0').next().unwrap_or_default();
        out.extend_from_slice(text.as_bytes());
        out.push(0);
    }

    /// Returns the nearest code of the original, which has none for names, rooms and limits.
    pub(super) const fn code_for(code: ErrorCode) -> i32 {
        match code {
            ErrorCode::Unsupported => Self::INVALID_REQUEST,
            ErrorCode::MethodNotFound | ErrorCode::NotFound => Self::METHOD_NOT_FOUND,
            ErrorCode::MalformedBody => Self::BAD_PARAMETERS,
            ErrorCode::Internal => Self::INTERNAL,
            ErrorCode::Other(number) => number as i32,
            _ => Self::SERVER,
        }
    }

    pub(super) const fn body(&self) -> ErrorBody<'a> {
        let code = match self.code {
            Self::INVALID_REQUEST => ErrorCode::Unsupported,
            Self::METHOD_NOT_FOUND => ErrorCode::MethodNotFound,
            Self::BAD_PARAMETERS | Self::PARSE => ErrorCode::MalformedBody,
            Self::INTERNAL | Self::TIMEOUT | Self::SERVER => ErrorCode::Internal,
            code if code > Self::SERVER && code <= u16::MAX as i32 => ErrorCode::Other(code as u16),
            _ => ErrorCode::UNKNOWN,
        };
        ErrorBody {
            code,
            text: self.text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_big_endian_and_the_text_ends_with_nul() {
        let params = ErrorParams {
            code: ErrorParams::METHOD_NOT_FOUND,
            text: "no",
        };
        let mut out = Vec::new();
        params.encode(&mut out);
        assert_eq!(out, b"\0\0\0\x02no\0");
        assert_eq!(ErrorParams::decode(&out), Ok(params));
        assert_eq!(ErrorParams::decode(b"\0\0\0\x02no"), Ok(params));
        assert_eq!(ErrorParams::decode(b"\0\0\0\x02no\0more"), Ok(params));
        let negative = ErrorParams::decode(b"\xFF\xFF\xFF\xFF").unwrap();
        assert_eq!((negative.code, negative.text), (-1, ""));
    }

    #[test]
    fn a_nul_ends_the_text_that_is_sent() {
        let mut out = Vec::new();
        ErrorParams {
            code: 4,
            text: "a\0b",
        }
        .encode(&mut out);
        assert_eq!(out, b"\0\0\0\x04a\0");
    }

    #[test]
    fn broken_parameters_are_malformed() {
        for params in [&b""[..], b"\0\0\0", b"\0\0\0\x01\xFF\0"] {
            assert_eq!(
                ErrorParams::decode(params),
                Err(DecodeError::MalformedPayload { kind: Kind::Error })
            );
        }
    }

    #[test]
    fn codes_have_their_nearest_words() {
        let ours = |code| ErrorParams { code, text: "" }.body().code;
        for code in [
            ErrorCode::MethodNotFound,
            ErrorCode::MalformedBody,
            ErrorCode::Internal,
            ErrorCode::Unsupported,
            ErrorCode::Other(1234),
        ] {
            assert_eq!(ours(ErrorParams::code_for(code)), code);
        }
        assert_eq!(ErrorParams::code_for(ErrorCode::Draining), 7);
        assert_eq!(ours(5), ErrorCode::Internal);
        assert_eq!(ours(0), ErrorCode::UNKNOWN);
        assert_eq!(ours(-7), ErrorCode::UNKNOWN);
    }
}
