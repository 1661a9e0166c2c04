//! The answer to a request that was deferred, on its way to its lane.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;

use super::SessionId;

/// The state that a lane and the holder of a [`Deferred`](crate::Deferred) share.
#[derive(Debug, Default)]
pub(crate) struct Token {
    cancelled: AtomicBool,
    /// The method that was called, for codecs whose replies repeat it.
    pub(crate) name: String,
}

/// A deferred answer on its way to its lane.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) session: SessionId,
    pub(crate) place: u64,
    pub(crate) token: Arc<Token>,
    pub(crate) content: Content,
}

/// The content of a deferred answer.
#[derive(Debug)]
pub(crate) enum Content {
    Frame(Vec<u8>),
    /// Nobody is to be told anything; only the place is given back.
    Nothing,
    /// The codec has no words for a refusal, and counts on the order of the replies: the session must end.
    Inexpressible,
}

impl Answer {
    /// Memory of its frame.
    pub(crate) fn held_bytes(&self) -> usize {
        match &self.content {
            Content::Frame(frame) => frame.capacity(),
            Content::Nothing | Content::Inexpressible => 0,
        }
    }
}

impl Token {
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Makes the token fit for another request.
    pub(crate) fn reset(&mut self) {
        *self.cancelled.get_mut() = false;
        if self.name.capacity() > TOKEN_NAME_KEPT_BYTES {
            self.name = String::new();
        }
        self.name.clear();
    }
}

/// Emptied frames on their way back from lanes to those who answer. Touched once per deferred answer.
#[derive(Debug)]
pub(crate) struct SpareFrames {
    queue: ArrayQueue<Vec<u8>>,
}

impl SpareFrames {
    pub(crate) fn take(&self) -> Vec<u8> {
        self.queue.pop().unwrap_or_default()
    }

    pub(crate) fn put(&self, mut frame: Vec<u8>) {
        if frame.capacity() > 0 && frame.capacity() <= SPARE_FRAME_BYTES_MAX {
            frame.clear();
            // A full queue means that enough are kept; this one is freed.
            let _ = self.queue.push(frame);
        }
    }
}

impl Default for SpareFrames {
    fn default() -> Self {
        Self {
            queue: ArrayQueue::new(SPARE_FRAMES_MAX),
        }
    }
}

/// Frames kept for all lanes: at most 4 MiB.
const SPARE_FRAMES_MAX: usize = 1024;

/// Larger frames are not worth keeping.
const SPARE_FRAME_BYTES_MAX: usize = 4096;

/// Room for a method's name that a kept token may hold on to.
const TOKEN_NAME_KEPT_BYTES: usize = 256;
