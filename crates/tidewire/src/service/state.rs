//! State that a service attaches to a session, by its type.

use std::any::Any;

use super::Context;
use crate::session::Attached;

impl Context<'_> {
    /// Attaches a value to the session this call is about, and returns the one of the same type that it replaces. A session
    /// has one state of each type, so parts of a service that are put together do not disturb each other.
    ///
    /// The state is dropped when the session has ended, after [`Service::on_close`](crate::Service::on_close) saw it. Without
    /// an open session, as in [`Service::on_turn`](crate::Service::on_turn) and in `on_close`, there is nothing to attach it
    /// to: it is dropped at once. What it holds is not part of
    /// [`Limits::memory_bytes_max`](crate::Limits::memory_bytes_max).
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
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start(|_| Gateway)?;
    /// let (one, other) = (Client::connect(&server.to_string()).wait()?, Client::connect(&server.to_string()).wait()?);
    /// one.request(b"21 degrees").wait()?;
    /// assert_eq!(one.request(b"22 degrees").wait()?.payload(), b"2");
    /// assert_eq!(other.request(b"17 degrees").wait()?.payload(), b"1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_state<T: Any + Send>(&mut self, state: T) -> Option<T> {
        let slot = self.core.sessions.slot_of(self.id)?;
        let session = &mut self.core.sessions[slot];
        session.profile.attach().set_state(state)
    }

    /// The state of this type, if [`Self::set_state`] attached one to the session this call is about. A state of another type
    /// is not found.
    #[must_use]
    pub fn state<T: Any>(&self) -> Option<&T> {
        let session = self.core.sessions.find(self.id)?;
        session.profile.attached.as_ref()?.state()
    }

    /// As [`Self::state`], to change it. It borrows the context, so copy what a reply needs, or
    /// [take](Self::take_state) the state and set it again.
    #[must_use]
    pub fn state_mut<T: Any>(&mut self) -> Option<&mut T> {
        self.attached()?.state_mut()
    }

    /// Takes the state of this type away from the session, if it has one.
    pub fn take_state<T: Any>(&mut self) -> Option<T> {
        self.attached()?.take_state()
    }

    fn attached(&mut self) -> Option<&mut Attached> {
        let session = self.core.sessions.find_mut(self.id)?;
        session.profile.attached.as_deref_mut()
    }
}
