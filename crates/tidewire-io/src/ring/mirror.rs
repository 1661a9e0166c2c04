//! Memory that repeats itself, so that a span across the end of the ring is one slice.
//!
//! ```text
//!  addresses   base ............. base + capacity ............ base + 2 x capacity
//!  memory      [ page 0 | page 1 ][ page 0 | page 1 ]
//!                           └── a span of any start and up to `capacity` bytes ──┘
//! ```
//!
//! The same pages of an anonymous file are mapped twice, side by side. Frames that cross the end need no copy and no
//! second case in the decoder. Rejected: splitting such spans in two, as most rings do, because the decoder then needs
//! a second case. Rejected: padding the end to keep messages whole, because the ring carries bytes and does not know
//! messages.
//!
//! To the compiler the two halves are different memory. This is sound because bytes written through one half are read
//! through the other only after an acquire load that saw the release store made after the write. Neither the compiler
//! nor the processor moves memory accesses across that load and store.
//!
//! A forked child has the same pages. The child must not use the ring, because it has no thread that knows the state of
//! the other side.
#![expect(
    unsafe_code,
    reason = "mapping memory, and slices of memory that two threads share"
)]

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};
use std::slice;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;

/// Zeroed memory of `capacity` bytes that is mapped twice in a row. Pages take up memory once they are touched.
#[derive(Debug)]
pub(super) struct Mirror {
    base: NonNull<u8>,
    capacity: usize,
}

// SAFETY: the mapping belongs to the process and to no thread, and every caller that makes slices of it promises that
// they do not conflict.
unsafe impl Send for Mirror {}
// SAFETY: as above; the methods that take `&self` only compute addresses.
unsafe impl Sync for Mirror {}

impl Mirror {
    /// Maps the memory.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when the capacity is no power of two of at least a page. Otherwise the kernel refuses, usually
    /// because memory, mappings (`vm.max_map_count`) or descriptors are used up.
    pub(super) fn new(capacity: usize) -> io::Result<Self> {
        let is_possible = capacity.is_power_of_two()
            && capacity >= page_size()
            && capacity <= isize::MAX.cast_unsigned() / 2;
        if !is_possible {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the capacity of a ring is a power of two of at least one page (4,096 bytes as a rule)",
            ));
        }
        let file = memfd_create("tidewire-ring", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, capacity as u64)?;
        // SAFETY: no address is requested, so the kernel chooses one that nothing uses.
        let reserved = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                2 * capacity,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        // From here on, dropping the mirror unmaps everything, even if the next calls fail.
        let mirror = Self {
            base: NonNull::new(reserved.cast::<u8>()).ok_or(Errno::NOMEM)?,
            capacity,
        };
        for half in 0..2 {
            // SAFETY: the offset is within the reservation of twice the capacity.
            let address = unsafe { mirror.base.as_ptr().add(half * capacity) };
            // SAFETY: the call replaces a part of the reservation made above, which nothing else uses.
            unsafe {
                mmap(
                    address.cast::<c_void>(),
                    capacity,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED | MapFlags::FIXED,
                    &file,
                    0,
                )?;
            }
        }
        // The mappings keep the file alive, so its descriptor is closed here and a ring costs none.
        Ok(mirror)
    }

    /// The size in bytes.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the `length` bytes from `index` on. `index` counts from the start of the ring's life.
    ///
    /// # Safety
    ///
    /// While the slice lives, no thread writes to those bytes of the ring, through either half.
    #[inline]
    pub(super) unsafe fn span(&self, index: usize, length: usize) -> &[u8] {
        let start = self.address(index, length);
        // SAFETY: address() checked that the span is inside the mapping, which is readable, initialised by the kernel,
        // and lives as long as self. The caller promises that no thread writes to it.
        unsafe { slice::from_raw_parts(start, length) }
    }

    /// Returns the same bytes as [`span`](Self::span), to write to.
    ///
    /// # Safety
    ///
    /// While the slice lives, no other code reads or writes those bytes of the ring, through either half.
    #[inline]
    #[expect(
        clippy::mut_from_ref,
        reason = "two threads hold the mapping, each with slices of its own part"
    )]
    pub(super) unsafe fn span_mut(&self, index: usize, length: usize) -> &mut [u8] {
        let start = self.address(index, length);
        // SAFETY: address() checked that the span is inside the mapping, which is writable and lives as long as self.
        // No byte is in it twice, because it is no longer than the capacity. The caller promises that no other code
        // uses it.
        unsafe { slice::from_raw_parts_mut(start, length) }
    }

    #[inline]
    fn address(&self, index: usize, length: usize) -> *mut u8 {
        assert!(length <= self.capacity, "a span is at most the whole ring");
        let offset = index & (self.capacity - 1);
        // SAFETY: offset < capacity and length <= capacity, so start and end are within the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // SAFETY: this is exactly the reservation made in `new`, and slices of it borrow from self.
        let released = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), 2 * self.capacity) };
        debug_assert_eq!(released, Ok(()), "the mapping is this mirror's own");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_halves_are_the_same_memory_at_every_start() {
        let mirror = Mirror::new(page_size()).unwrap();
        let capacity = mirror.capacity();
        for start in [0, 1, capacity / 2, capacity - 1, capacity, 3 * capacity - 5] {
            // SAFETY: one slice at a time.
            let span = unsafe { mirror.span_mut(start, capacity) };
            for (distance, byte) in span.iter_mut().enumerate() {
                *byte = ((start + distance) % 251) as u8;
            }
            // The first half alone shows the same bytes, rotated by the start.
            // SAFETY: the slice above is not used any more.
            let seen = unsafe { mirror.span(0, capacity) };
            for (offset, &byte) in seen.iter().enumerate() {
                let index = start + (offset + capacity - start % capacity) % capacity;
                assert_eq!(byte, (index % 251) as u8, "start {start} offset {offset}");
            }
        }
    }

    #[test]
    fn impossible_capacities_are_refused() {
        for capacity in [
            0,
            1,
            page_size() / 2,
            page_size() + 1,
            3 * page_size(),
            1 << (usize::BITS - 1),
        ] {
            let refused = Mirror::new(capacity).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{capacity}");
        }
    }

    #[test]
    fn more_memory_than_there_is_an_address_for_is_an_error() {
        assert!(Mirror::new(1 << (usize::BITS - 3)).is_err());
    }

    #[test]
    #[should_panic(expected = "at most the whole ring")]
    fn a_span_beyond_the_ring_is_a_bug_of_the_caller() {
        let mirror = Mirror::new(page_size()).unwrap();
        // SAFETY: the call panics before there is a slice.
        let _ = unsafe { mirror.span(0, page_size() + 1) };
    }
}
