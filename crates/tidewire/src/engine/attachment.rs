//! State of a module above, which a lane keeps for it.

use std::any::Any;
use std::fmt;

/// The place for it, without memory until there is some. It belongs to one type.
#[derive(Default)]
pub(crate) struct Attachment(Option<Box<dyn Any + Send>>);

impl Attachment {
    /// Whether there is no state, or it was taken.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Takes the state, to work on it and on the lane at once.
    pub(crate) fn take<T: 'static>(&mut self) -> Option<Box<T>> {
        self.0.take()?.downcast().ok()
    }

    /// Puts the state, or the first one, in its place.
    pub(crate) fn put<T: Send + 'static>(&mut self, state: Box<T>) {
        self.0 = Some(state);
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.0.as_ref().map_or("nothing", |_| "..");
        write!(formatter, "Attachment({kept})")
    }
}
