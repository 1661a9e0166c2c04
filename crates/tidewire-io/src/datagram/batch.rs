//! The memory for received datagrams, and the splitting of segment runs.

use std::array;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::iter::FusedIterator;
use std::net::{IpAddr, SocketAddr};

use quinn_udp::{BATCH_SIZE, RecvMeta};

/// Memory for the datagrams that one [`receive`](super::DatagramSocket::receive) takes. All sockets of a lane share one
/// batch.
///
/// Each slot takes a datagram or a run of them from one peer. The kernel never cuts a datagram, because a slot has room
/// for the largest. Of its 64 KiB a slot occupies only pages that were used.
pub struct DatagramBatch {
    memory: Box<[u8]>,
    metas: [RecvMeta; BATCH_SIZE],
    /// The number of slots in use since the last receive.
    filled: usize,
    datagram_bytes_max: usize,
}

/// One datagram, borrowed from the batch it is in.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Datagram<'a> {
    /// The sender. A socket of IPv6 writes peers of IPv4 as `::ffff:a.b.c.d`, and may answer them like that.
    pub peer: SocketAddr,
    /// The address of this machine that the datagram was sent to, when the socket is bound to all of them. Pass it to
    /// [`send_from`](super::DatagramSocket::send_from).
    pub local: Option<IpAddr>,
    /// The content, possibly empty. A truncated datagram has as many bytes as the batch allows.
    pub bytes: &'a [u8],
    /// Whether the datagram was larger than the batch allows (`MSG_TRUNC`). Count it, and do not decode it.
    pub truncated: bool,
}

impl DatagramBatch {
    /// The maximum number of slots of a batch.
    pub const SLOTS_MAX: usize = BATCH_SIZE;

    /// Creates a batch of `slots` slots, clamped to 1 up to [`SLOTS_MAX`](Self::SLOTS_MAX). Datagrams of every size are
    /// passed on whole.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self::with_limit(slots, usize::MAX)
    }

    /// Creates a batch like [`new`](Self::new), but datagrams of more than `datagram_bytes_max` bytes are truncated to
    /// that size, and marked.
    #[must_use]
    pub fn with_limit(slots: usize, datagram_bytes_max: usize) -> Self {
        let slots = slots.clamp(1, Self::SLOTS_MAX);
        Self {
            // The kernel provides zeroed pages only when they are touched.
            memory: vec![0; slots * SLOT_BYTES].into_boxed_slice(),
            metas: [RecvMeta::default(); BATCH_SIZE],
            filled: 0,
            datagram_bytes_max,
        }
    }

    /// The datagrams of the last receive, those of one peer in the order of their arrival.
    #[must_use]
    pub fn iter(&self) -> Datagrams<'_> {
        Datagrams {
            batch: self,
            slot: 0,
            offset: 0,
        }
    }

    /// The number of datagrams of the last receive.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.metas[..self.filled].iter().map(segments).sum()
    }

    /// Whether the last receive had no datagrams.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Whether the last receive used every slot, so that more may be waiting.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.filled == self.memory.len() / SLOT_BYTES
    }

    /// Forgets the datagrams of the last receive.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Lets `receive` fill the slots and return their number.
    pub(super) fn fill(
        &mut self,
        receive: impl FnOnce(&mut [IoSliceMut<'_>], &mut [RecvMeta]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.filled = 0;
        let slots = self.memory.len() / SLOT_BYTES;
        let mut chunks = self.memory.chunks_exact_mut(SLOT_BYTES);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        self.filled = receive(&mut slices[..slots], &mut self.metas)?;
        Ok(self.len())
    }
}

impl<'a> IntoIterator for &'a DatagramBatch {
    type Item = Datagram<'a>;
    type IntoIter = Datagrams<'a>;

    fn into_iter(self) -> Datagrams<'a> {
        self.iter()
    }
}

impl fmt::Debug for DatagramBatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The content is left out, because it is messages of users.
        formatter
            .debug_struct("DatagramBatch")
            .field("slots", &(self.memory.len() / SLOT_BYTES))
            .field("datagrams", &self.len())
            .finish_non_exhaustive()
    }
}

/// The datagrams of a batch.
#[derive(Clone, Debug)]
pub struct Datagrams<'a> {
    batch: &'a DatagramBatch,
    slot: usize,
    /// The offset of the next datagram in the slot.
    offset: usize,
}

impl<'a> Iterator for Datagrams<'a> {
    type Item = Datagram<'a>;

    #[inline]
    fn next(&mut self) -> Option<Datagram<'a>> {
        if self.slot == self.batch.filled {
            return None;
        }
        let meta = &self.batch.metas[self.slot];
        let run = &self.batch.memory[self.slot * SLOT_BYTES..][..meta.len];
        let rest = &run[self.offset..];
        let whole = &rest[..rest.len().min(stride(meta))];
        self.offset += whole.len();
        if self.offset == meta.len {
            self.slot += 1;
            self.offset = 0;
        }
        // A slot is larger than any datagram. If one is full to the last byte, the kernel may have cut the datagram.
        let is_cut = self.offset == 0 && meta.len == SLOT_BYTES;
        let length = whole.len().min(self.batch.datagram_bytes_max);
        Some(Datagram {
            peer: meta.addr,
            local: meta.dst_ip,
            bytes: &whole[..length],
            truncated: is_cut || length < whole.len(),
        })
    }
}

impl FusedIterator for Datagrams<'_> {}

/// The size of the datagrams in a run. Only the last datagram may be smaller.
fn stride(meta: &RecvMeta) -> usize {
    if meta.stride == 0 {
        meta.len
    } else {
        meta.stride
    }
}

fn segments(meta: &RecvMeta) -> usize {
    meta.len.div_ceil(stride(meta).max(1)).max(1)
}

/// A datagram and a run have at most 65,535 bytes with their headers: the limit of IPv4's length field for a datagram,
/// the kernel's limit for a run. Small datagrams use only the starts of the slots. The extra 64 bytes keep these starts
/// from competing for the same few cache sets.
const SLOT_BYTES: usize = 65_536 + 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(port: u16, len: usize, stride: usize) -> RecvMeta {
        let mut meta = RecvMeta::default();
        meta.addr.set_port(port);
        meta.len = len;
        meta.stride = stride;
        meta
    }

    /// Makes a batch as if these datagrams had been received, with the bytes of each slot counting up.
    fn received(mut batch: DatagramBatch, metas: &[RecvMeta]) -> DatagramBatch {
        let count = batch
            .fill(|slices, into| {
                for (slice, meta) in slices.iter_mut().zip(metas) {
                    for (index, byte) in slice[..meta.len].iter_mut().enumerate() {
                        *byte = index as u8;
                    }
                }
                into[..metas.len()].copy_from_slice(metas);
                Ok(metas.len())
            })
            .unwrap();
        assert_eq!(count, batch.iter().count());
        assert_eq!(count, batch.len());
        batch
    }

    fn shown(batch: &DatagramBatch) -> Vec<(u16, &[u8], bool)> {
        batch
            .iter()
            .map(|datagram| (datagram.peer.port(), datagram.bytes, datagram.truncated))
            .collect()
    }

    #[test]
    fn runs_are_taken_apart_and_empty_datagrams_are_datagrams() {
        let metas = [
            meta(1, 7, 3),
            meta(2, 0, 0),
            meta(3, 4, 2),
            meta(4, 2, 2),
            meta(5, 1, 9),
        ];
        let batch = received(DatagramBatch::new(8), &metas);
        assert_eq!(
            shown(&batch),
            [
                (1, [0, 1, 2].as_slice(), false),
                (1, &[3, 4, 5], false),
                (1, &[6], false),
                (2, &[], false),
                (3, &[0, 1], false),
                (3, &[2, 3], false),
                (4, &[0, 1], false),
                (5, &[0], false),
            ]
        );
        assert_eq!(
            format!("{batch:?}"),
            "DatagramBatch { slots: 8, datagrams: 8, .. }"
        );
    }

    #[test]
    fn a_datagram_over_the_limit_is_marked_and_leaves_its_neighbours_whole() {
        let metas = [meta(1, 6, 6), meta(2, 8, 4), meta(3, 3, 3), meta(4, 7, 4)];
        let batch = received(DatagramBatch::with_limit(4, 3), &metas);
        assert_eq!(
            shown(&batch),
            [
                (1, [0, 1, 2].as_slice(), true),
                (2, &[0, 1, 2], true),
                (2, &[4, 5, 6], true),
                (3, &[0, 1, 2], false),
                (4, &[0, 1, 2], true),
                (4, &[4, 5, 6], false),
            ]
        );
    }

    #[test]
    fn a_slot_without_a_byte_to_spare_counts_as_cut() {
        let batch = received(DatagramBatch::new(1), &[meta(1, SLOT_BYTES, 40_000)]);
        let cut: Vec<_> = batch.iter().map(|datagram| datagram.truncated).collect();
        assert_eq!(cut, [false, true]);
    }

    #[test]
    fn a_batch_is_emptied_by_a_receive_that_fails() {
        let mut batch = received(DatagramBatch::new(0), &[meta(1, 1, 1)]);
        assert!(!batch.is_empty());
        let failed = batch.fill(|slices, _| {
            assert_eq!(slices.len(), 1, "at least one slot");
            Err(io::ErrorKind::WouldBlock.into())
        });
        assert!(failed.is_err());
        assert!(batch.is_empty());
        assert_eq!(batch.iter().next(), None);
        let mut batch = received(DatagramBatch::new(99), &[meta(1, 1, 1)]);
        batch.clear();
        assert_eq!((batch.is_empty(), batch.len()), (true, 0));
    }
}
