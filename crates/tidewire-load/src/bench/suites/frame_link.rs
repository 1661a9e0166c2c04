//! A bare connection that moves frames of one size: for limits that need more than an echo.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use tidewire::io::socket::Stream;

/// A stream of frames of so many bytes.
#[derive(Debug)]
pub(super) struct FrameLink<const FRAME_BYTES: usize> {
    stream: Stream,
    /// The beginning of a frame whose end has not come.
    rest: Vec<u8>,
    /// Bytes to write.
    pub(super) output: Vec<u8>,
}

impl<const FRAME_BYTES: usize> FrameLink<FRAME_BYTES> {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream,
            rest: Vec::new(),
            output: Vec::new(),
        }
    }

    /// Reads once into a [`buffer`] that all links of a thread share, lets `handle` answer every whole frame, and writes what
    /// it wrote.
    pub(super) fn exchange(
        &mut self,
        buffer: &mut [u8],
        mut handle: impl FnMut(&[u8; FRAME_BYTES], &mut Vec<u8>),
    ) -> io::Result<()> {
        let kept = self.rest.len();
        buffer[..kept].copy_from_slice(&self.rest);
        let filled = match self.stream.read(&mut buffer[kept..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => kept + count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => kept,
            Err(error) => return Err(error),
        };
        let (frames, rest) = buffer[..filled].as_chunks();
        for frame in frames {
            handle(frame, &mut self.output);
        }
        self.rest.clear();
        self.rest.extend_from_slice(rest);
        self.flush()
    }

    /// Writes what the socket takes; the rest stays in `output` for the next time.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut written = 0;
        while written < self.output.len() {
            match self.stream.write(&self.output[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.output.drain(..written);
        Ok(())
    }
}

impl<const FRAME_BYTES: usize> AsFd for FrameLink<FRAME_BYTES> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A buffer to read into. A thread makes one, for filling it with zeros costs as much as many frames.
pub(super) fn buffer() -> Box<[u8]> {
    vec![0; BUFFER_BYTES].into_boxed_slice()
}

/// What one read takes at most.
const BUFFER_BYTES: usize = 64 * 1024;
