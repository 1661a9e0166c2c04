//! State of a service for a session, found by its type.

use std::any::Any;

use super::Context;

impl Context<'_> {
    /// Attaches a value to the session of this call. Returns the previous value of the same type. A session has one
    /// value of each type, so parts of a service do not disturb each other.
    ///
    /// The state is dropped when the session has ended, after [`Service::on_close`](crate::Service::on_close). In a
    /// call without an open session, such as [`Service::on_turn`](crate::Service::on_turn) and `on_close`, the value
    /// is dropped at once. Its memory does not count towards
    /// [`MemoryLimits::bytes_max`](crate::limits::MemoryLimits::bytes_max).
    ///
    /// ```
    /// use tidewire::{Client, Context, ErrorCode, HandlerError, HandlerResult, Message, Server, Service};
    ///
    /// struct Device {
    ///     readings: u64,
    /// }
    ///
    /// struct Gateway;
    ///
    /// impl Service for Gateway {
    ///     fn on_open(&mut self, cx: &mut Context<'_>) {
    ///         cx.set_state(Device { readings: 0 });
    ///     }
    ///
    ///     fn on_request(&mut self, cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
    ///         let device = cx.state_mut::<Device>();
    ///         let device = device.ok_or_else(|| HandlerError::new(ErrorCode::NotFound, "log in first"))?;
    ///         device.readings += 1;
    ///         let text = device.readings.to_string();
    ///         cx.reply(text.as_bytes())
    ///     }
    /// }
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(Gateway)?;
    /// let (one, other) = (Client::connect(&server.to_string()).wait()?, Client::connect(&server.to_string()).wait()?);
    /// one.request(b"21 degrees").wait()?;
    /// assert_eq!(one.request(b"22 degrees").wait()?.payload(), b"2");
    /// assert_eq!(other.request(b"17 degrees").wait()?.payload(), b"1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_state<T: Any + Send>(&mut self, state: T) -> Option<T> {
        let slot = self.core.sessions.table.slot_of(self.call.id())?;
        let session = &mut self.core.sessions[slot];
        session.profile.attach().set_state(state)
    }

    /// Returns the state of this type, if [`Self::set_state`] attached one to the session of this call.
    #[must_use]
    pub fn state<T: Any>(&self) -> Option<&T> {
        let session = self.core.sessions.table.find(self.call.id())?;
        session.profile.attached.as_ref()?.state()
    }

    /// Returns the state of this type for changes. It borrows the context, so copy the values that a reply needs, or
    /// [take](Self::take_state) the state and set it again.
    #[must_use]
    pub fn state_mut<T: Any>(&mut self) -> Option<&mut T> {
        let session = self.core.sessions.table.find_mut(self.call.id())?;
        session.profile.attached.as_mut()?.state_mut()
    }

    /// Removes and returns the session's state of this type, if there is one.
    pub fn take_state<T: Any>(&mut self) -> Option<T> {
        let session = self.core.sessions.table.find_mut(self.call.id())?;
        session.profile.attached.as_mut()?.take_state()
    }
}
