//! Encoding of values as payloads: the trait, and its default.

use std::cell::Cell;
use std::error::Error;

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The reason why a format cannot encode or decode.
pub(super) type Cause = Box<dyn Error + Send + Sync>;

/// The encoding of arguments and results of a typed service. The service's trait chooses it, because both sides must
/// agree: `#[tidewire::service(format = Json)]`.
///
/// Arguments are encoded as a tuple, by position; `()` if there are none. A result is encoded as the method's return
/// value, including a [`Result`].
///
/// JSON, for peers without Rust types, takes these lines:
///
/// ```
/// use std::error::Error;
/// use serde::{Serialize, de::DeserializeOwned};
/// use tidewire::typed::Format;
///
/// #[derive(Debug)]
/// pub struct Json;
///
/// impl Format for Json {
///     fn encode<T: Serialize + ?Sized>(
///         value: &T,
///         out: &mut Vec<u8>,
///     ) -> Result<(), Box<dyn Error + Send + Sync>> {
///         Ok(serde_json::to_writer(out, value)?)
///     }
///
///     fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Box<dyn Error + Send + Sync>> {
///         Ok(serde_json::from_slice(payload)?)
///     }
/// }
///
/// let mut payload = Vec::new();
/// Json::encode(&(1, "two"), &mut payload)?;
/// assert_eq!(payload, br#"[1,"two"]"#);
/// # Ok::<(), Box<dyn Error + Send + Sync>>(())
/// ```
pub trait Format: 'static {
    /// Appends a value to `out`. After an error the content of `out` is ignored.
    ///
    /// # Errors
    /// The format cannot express the value.
    fn encode<T: Serialize + ?Sized>(
        value: &T,
        out: &mut Vec<u8>,
    ) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Decodes a value that fills the whole payload. It must return an error if bytes are left over, because then the
    /// two sides use different types.
    ///
    /// # Errors
    /// The payload is not such a value. Payloads come from untrusted peers, so this must never panic.
    fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Box<dyn Error + Send + Sync>>;
}

/// The default [`Format`]: [Postcard](https://docs.rs/postcard). It is compact and fast, but does not describe itself.
/// So change the version of a service when you change the fields of a type that it uses.
///
/// Untrusted peers choose what is decoded. A type that contains itself, such as a tree, can be nested as deeply as a
/// frame allows. A list of values without bytes can have any length. So bound the frames, or keep such types out of
/// services.
#[derive(Clone, Copy, Debug, Default)]
pub struct Postcard;

impl Format for Postcard {
    fn encode<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), Cause> {
        Ok(postcard::serialize_with_flavor(value, Append(out))?)
    }

    fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Cause> {
        let (value, rest) = postcard::take_from_bytes(payload)?;
        match rest.len() {
            0 => Ok(value),
            bytes => Err(format!("{bytes} bytes are left over after the value").into()),
        }
    }
}

/// Appends to a borrowed buffer. Postcard's own flavours take the buffer by value, or work byte by byte.
struct Append<'a>(&'a mut Vec<u8>);

impl Flavor for Append<'_> {
    type Output = ();

    #[inline]
    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(data);
        Ok(())
    }

    #[inline]
    fn try_push(&mut self, data: u8) -> postcard::Result<()> {
        self.0.push(data);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Encodes a value into a buffer that the thread keeps, and passes it to `take`. So answering allocates nothing.
pub(super) fn with_encoded<F: Format, T: Serialize + ?Sized, R>(
    value: &T,
    take: impl FnOnce(&[u8]) -> R,
) -> Result<R, Cause> {
    // Taken out instead of borrowed, because encoding runs user code, which may call this again. A thread that is
    // ending has no buffer.
    let mut buffer = SCRATCH.try_with(Cell::take).unwrap_or_default();
    let result = F::encode(value, &mut buffer).map(|()| take(&buffer));
    if buffer.capacity() <= SCRATCH_BYTES_MAX {
        buffer.clear();
        let _ = SCRATCH.try_with(|scratch| scratch.set(buffer));
    }
    result
}

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Largest buffer that a thread keeps. Growing a larger one again is cheap compared to filling it.
const SCRATCH_BYTES_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_decodes_and_nothing_else_does() {
        let value = (7_u32, String::from("seven"), Some(-7_i64));
        let mut payload = Vec::new();
        Postcard::encode(&value, &mut payload).unwrap();
        assert_eq!(
            Postcard::decode::<(u32, String, Option<i64>)>(&payload).unwrap(),
            value
        );
        for end in 0..payload.len() {
            let cut = Postcard::decode::<(u32, String, Option<i64>)>(&payload[..end]);
            assert!(cut.is_err(), "{end}: {cut:?}");
        }
        payload.extend_from_slice(b"xy");
        let long = Postcard::decode::<(u32, String, Option<i64>)>(&payload);
        assert!(
            long.unwrap_err()
                .to_string()
                .starts_with("2 bytes are left over")
        );
    }

    /// A value whose encoding encodes another value.
    struct Nested;

    impl Serialize for Nested {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let inner = with_encoded::<Postcard, _, _>(&5_u8, <[u8]>::to_vec);
            inner
                .map_err(serde::ser::Error::custom)?
                .serialize(serializer)
        }
    }

    #[test]
    fn the_kept_buffer_may_be_asked_for_while_it_is_in_use() {
        for _ in 0..2 {
            let bytes = with_encoded::<Postcard, _, _>(&("outer", Nested), <[u8]>::to_vec);
            assert_eq!(bytes.unwrap(), b"\x05outer\x01\x05");
        }
    }

    #[test]
    fn a_large_buffer_is_not_kept() {
        let large = vec![0_u8; 2 * SCRATCH_BYTES_MAX];
        with_encoded::<Postcard, _, _>(&large, |bytes| assert!(bytes.len() > large.len())).unwrap();
        assert_eq!(SCRATCH.take().capacity(), 0);
        with_encoded::<Postcard, _, _>("small", |bytes| assert_eq!(bytes.len(), 6)).unwrap();
        assert!(SCRATCH.take().capacity() >= 6);
    }
}
