//! What all outputs of a lane share: buffers, the list of those to flush, and the logs of rooms and topics, of which every
//! subscriber is written its part.

use std::sync::Arc;

use tidewire_proto::room::RoomLog;

use super::answer::{SpareFrames, Token};
use super::buffers::BufferPool;

/// See the module.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) buffers: BufferPool,
    /// Emptied frames on their way back from lanes to those who answer later.
    pub(crate) spare_frames: Arc<SpareFrames>,
    /// Tokens of answered requests, to be used again.
    pub(crate) spare_tokens: Vec<Arc<Token>>,
    /// Sessions with output to write at the end of the turn.
    pub(super) dirty: Vec<usize>,
    pub(crate) logs: Logs,
}

impl Outbox {
    pub(super) fn new(spare_frames: Arc<SpareFrames>) -> Self {
        Self {
            buffers: BufferPool::default(),
            spare_frames,
            spare_tokens: Vec::new(),
            dirty: Vec::new(),
            logs: Logs::default(),
        }
    }
}

/// The lane's logs of rooms and topics, by alias.
#[derive(Debug, Default)]
pub(crate) struct Logs(Vec<Option<Box<RoomLog>>>);

impl Logs {
    #[inline]
    pub(crate) fn get(&self, alias: u16) -> Option<&RoomLog> {
        self.0.get(usize::from(alias))?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, alias: u16) -> Option<&mut RoomLog> {
        self.0.get_mut(usize::from(alias))?.as_deref_mut()
    }

    /// Adds the log of a room, unless it has one.
    pub(crate) fn open(&mut self, alias: u16) {
        let index = usize::from(alias);
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index].get_or_insert_with(|| Box::new(RoomLog::new()));
    }

    /// Drops the log of a room that has no subscriber any more.
    pub(crate) fn close(&mut self, alias: u16) {
        if let Some(log) = self.0.get_mut(usize::from(alias)) {
            *log = None;
        }
    }
}
