//! State of a higher module that a lane keeps for it.

use std::any::Any;
use std::fmt;

/// The slot for the state. It allocates nothing until there is a state. All states must have the same type.
#[derive(Default)]
pub(crate) struct Attachment(Option<Box<dyn Any + Send>>);

impl Attachment {
    /// Whether the slot is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Takes the state out, so that the caller can use it and the lane at once.
    pub(crate) fn take<T: 'static>(&mut self) -> Option<Box<T>> {
        self.0.take()?.downcast().ok()
    }

    /// Puts the state into the slot.
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
