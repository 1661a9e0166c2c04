//! The counting allocator counts the allocations of a thread, and only those.
//!
//! The counts belong to the process, and the test runner allocates on threads of its own at any time, so this is a test
//! binary with one test.

use std::hint::black_box;

use tidewire_io::allocation::{
    Allocations, CountingAllocator, bytes_held, is_counting, mark_this_thread, marked_allocations,
    thread_allocations,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Returns the allocations of `work` on this thread.
fn allocations_of(work: impl FnOnce()) -> Allocations {
    let before = thread_allocations().expect("the program counts");
    work();
    let after = thread_allocations().expect("the program counts");
    Allocations {
        count: after.count - before.count,
        bytes: after.bytes - before.bytes,
    }
}

#[test]
fn a_thread_counts_its_allocations_and_the_process_its_held_bytes() {
    assert!(is_counting());
    let nothing = Allocations::default();
    assert_eq!(allocations_of(|| _ = black_box(1)), nothing);
    let one = allocations_of(|| drop(black_box(Vec::<u8>::with_capacity(1_000))));
    assert_eq!((one.count, one.bytes), (1, 1_000));
    let zeroed = allocations_of(|| drop(black_box(vec![0_u8; 1_000])));
    assert_eq!((zeroed.count, zeroed.bytes), (1, 1_000));
    let grown = allocations_of(|| {
        let mut buffer = Vec::<u8>::with_capacity(1_000);
        buffer.reserve_exact(black_box(3_000));
        black_box(&buffer);
    });
    assert_eq!((grown.count, grown.bytes), (2, 3_000));

    // A refused allocation holds nothing, and a length near the largest does not overflow the count.
    let before = bytes_held();
    for refused in [isize::MAX as usize, isize::MAX as usize >> 2] {
        let refused_at_once = Vec::<u8>::new().try_reserve_exact(black_box(refused));
        assert!(black_box(refused_at_once).is_err());
        let mut grown = vec![1_u8; 100];
        assert!(grown.try_reserve_exact(black_box(refused - 200)).is_err());
        black_box(&grown);
    }
    assert!((bytes_held() - before).abs() < 1 << 20);

    // Far more bytes than the test runner may take or free at the same time.
    let (large, slack) = (64_i64 << 20, 1_i64 << 20);
    let before = bytes_held();
    let buffer = black_box(vec![1_u8; large as usize]);
    assert!((bytes_held() - before - large).abs() < slack);
    let elsewhere = std::thread::spawn(move || {
        mark_this_thread();
        let marked = marked_allocations();
        // The buffer is freed by another thread than its allocator.
        let freed = allocations_of(|| drop(buffer));
        let marked_then = marked_allocations();
        let allocated = allocations_of(|| drop(black_box(Box::new([0_u64; 8]))));
        (
            freed,
            marked_then - marked,
            allocated,
            marked_allocations() - marked_then,
        )
    });
    let (freed, marked_freed, allocated, marked) = elsewhere.join().expect("it does not panic");
    assert_eq!((freed, marked_freed), (nothing, 0));
    assert_eq!((allocated.count, allocated.bytes, marked), (1, 64, 1));
    assert!((bytes_held() - before).abs() < slack);
    // This thread is not marked.
    let marked = marked_allocations();
    assert_eq!(allocations_of(|| drop(black_box(Box::new(1_u64)))).count, 1);
    assert_eq!(marked_allocations(), marked);
}
