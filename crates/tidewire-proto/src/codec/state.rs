//! The state that a codec keeps for one connection.

use std::any::Any;
use std::fmt;

/// Holds a codec's state of one connection: sequence numbers, tables of headers, an agreed version. A lane makes one
/// for each session and passes it to [`Codec::decode_next`](super::Codec::decode_next) and
/// [`Codec::adapt_frame`](super::Codec::adapt_frame). It is empty, and holds no memory, until the codec first uses it.
///
/// ```
/// use tidewire_proto::codec::ConnectionState;
///
/// #[derive(Default)]
/// struct Sequences {
///     sent: u32,
/// }
///
/// let mut state = ConnectionState::default();
/// state.of::<Sequences>().sent += 1;
/// assert_eq!(state.of::<Sequences>().sent, 1);
/// ```
#[derive(Default)]
pub struct ConnectionState(Option<Box<dyn Any + Send>>);

impl ConnectionState {
    /// Returns the codec's own state. The first call creates the state by `Default`. A codec uses one type of state.
    ///
    /// # Panics
    /// Never.
    pub fn of<T: Default + Send + 'static>(&mut self) -> &mut T {
        let kept = self.0.take().and_then(|kept| kept.downcast::<T>().ok());
        let kept = self.0.insert(kept.unwrap_or_default());
        kept.downcast_mut().expect("it was made of this type")
    }
}

impl fmt::Debug for ConnectionState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.0.as_ref().map_or("nothing", |_| "..");
        write!(formatter, "ConnectionState({kept})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_keeps_what_its_codec_put_there() {
        let mut state = ConnectionState::default();
        assert_eq!(format!("{state:?}"), "ConnectionState(nothing)");
        state.of::<Vec<u8>>().push(7);
        state.of::<Vec<u8>>().push(8);
        assert_eq!(state.of::<Vec<u8>>(), &[7, 8]);
        assert_eq!(state.of::<u32>(), &0, "another type begins anew");
        assert_eq!(format!("{state:?}"), "ConnectionState(..)");
    }
}
