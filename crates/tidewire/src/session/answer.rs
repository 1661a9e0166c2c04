//! Deferred answers: the token that a lane and the holder of an answer share, and buffers that are used again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;

/// The state that a lane and the holder of a [`Deferred`](crate::Deferred) share.
#[derive(Debug, Default)]
pub(crate) struct Token {
    cancelled: AtomicBool,
    /// The method's name, for codecs whose replies repeat it.
    name: String,
}

/// The content of a deferred answer.
#[derive(Debug)]
pub(crate) enum Content {
    Frame(Vec<u8>),
    /// No reply is wanted; only the entry is removed.
    Nothing,
    /// The codec cannot express a refusal, and its replies have an order. So the session must end.
    Inexpressible,
}

impl Token {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn set_name(&mut self, name: &str) {
        self.name.push_str(name);
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Prepares the token for another request.
    pub(crate) fn reset(&mut self) {
        *self.cancelled.get_mut() = false;
        if self.name.capacity() > TOKEN_NAME_KEPT_BYTES {
            self.name = String::new();
        }
        self.name.clear();
    }
}

/// Empty frames, returned by lanes for the threads that answer. Used once per deferred answer.
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
            // A full queue holds enough frames; this one is freed.
            let _ = self.queue.push(frame);
        }
    }
}

/// The frames and tokens of answered requests that a lane keeps for the next ones.
#[derive(Debug)]
pub(crate) struct SpareAnswers {
    /// Empty frames for the threads that answer later.
    frames: Arc<SpareFrames>,
    tokens: Vec<Arc<Token>>,
}

impl SpareAnswers {
    pub(super) fn new(frames: Arc<SpareFrames>) -> Self {
        Self {
            frames,
            tokens: Vec::new(),
        }
    }

    pub(crate) fn take_frame(&self) -> Vec<u8> {
        self.frames.take()
    }

    pub(crate) fn put_frame(&self, frame: Vec<u8>) {
        self.frames.put(frame);
    }

    /// Keeps the frame of an answer that is not sent.
    pub(super) fn put_content(&self, content: Content) {
        if let Content::Frame(frame) = content {
            self.frames.put(frame);
        }
    }

    pub(crate) fn take_token(&mut self) -> Arc<Token> {
        self.tokens.pop().unwrap_or_default()
    }

    pub(super) fn put_token(&mut self, mut token: Arc<Token>) {
        if self.tokens.len() < SPARE_TOKENS_MAX
            && let Some(inner) = Arc::get_mut(&mut token)
        {
            inner.reset();
            self.tokens.push(token);
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

/// Largest number of frames kept for all lanes: at most 4 MiB.
const SPARE_FRAMES_MAX: usize = 1024;

const SPARE_FRAME_BYTES_MAX: usize = 4096;

/// Largest number of tokens that a lane keeps for reuse: about 64 KiB.
const SPARE_TOKENS_MAX: usize = 1024;

/// Largest capacity of a method's name that a kept token keeps.
const TOKEN_NAME_KEPT_BYTES: usize = 256;
