//! Messages of a chat from before this run of the program.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tidewire_proto::body::validate_name;

use super::Chat;
use crate::history::PastMessage;

/// Messages that wait for the first member of their room. The clones of a chat share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Past(Arc<Mutex<HashMap<String, Vec<PastMessage>>>>);

impl Past {
    pub(super) fn take(&self, room: &str) -> Vec<PastMessage> {
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rooms.remove(room).unwrap_or_default()
    }
}

impl Chat {
    /// Starts the [history](Chat::history) of a room with messages that a former run of the program kept: each with
    /// the name of its author, oldest first. The limits of the history apply to them. They wait in memory for the
    /// first member of the room. A message whose author's name is not valid is left out. Without a history the
    /// messages are never delivered.
    ///
    /// Call it once and give every lane a clone of the chat: clones share these messages.
    ///
    /// ```
    /// use tidewire::{Chat, Client, Event, History, Kind, Server};
    ///
    /// let kept = vec![("ada".to_owned(), b"good night".to_vec())];
    /// let chat = Chat::new().history(History::last(50)).restore_history("lobby", kept);
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(chat.clone())?;
    /// let bob = Client::connect(&server.to_string()).wait()?;
    /// bob.join("lobby").named("bob").wait()?;
    /// let told = loop {
    ///     if let Event::Message(message) = bob.next_event().wait()
    ///         && message.kind == Kind::Deliver { break message };
    /// };
    /// assert_eq!((&*told.name, &told.payload[..]), ("ada", &b"good night"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn restore_history(
        self,
        room: impl Into<String>,
        messages: impl IntoIterator<Item = (String, Vec<u8>)>,
    ) -> Self {
        let messages = messages.into_iter();
        let mut valid = messages.filter(|(from, _)| validate_name(from).is_ok());
        let mut rooms = self.past.0.lock().unwrap_or_else(PoisonError::into_inner);
        rooms.entry(room.into()).or_default().extend(&mut valid);
        drop(rooms);
        self
    }
}
