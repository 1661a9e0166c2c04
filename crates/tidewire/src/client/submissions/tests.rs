//! Tests of lists of submissions, without threads.

use super::*;

type Batch = Submissions<Nothing>;

fn message(batch: &mut Batch, bytes: &[u8]) {
    let pushed = batch.push_message::<()>(false, |out| {
        out.extend_from_slice(bytes);
        Ok(())
    });
    pushed.unwrap();
}

/// Takes out messages, and checks their bytes and number.
fn assert_messages(batch: &mut Batch, expected: &[u8], number: u64) {
    match batch.take() {
        Some((Submission::Messages { count, .. }, bytes)) => {
            assert_eq!((bytes, count), (expected, number));
        }
        other => panic!("{other:?}"),
    }
}

/// Checks name and payload of the next request, and passes it.
fn assert_request(batch: &mut Batch, expected_name: &str, expected: &[u8]) {
    let (_, name, payload) = batch.request().unwrap();
    assert_eq!((name, payload), (expected_name, expected));
    batch.pass();
}

#[test]
fn messages_in_a_row_are_one_submission_and_keep_their_place() {
    let mut batch = Batch::default();
    message(&mut batch, b"ab");
    message(&mut batch, b"c");
    batch.push_request(RequestHead::due_at(1), "na", b"pay");
    message(&mut batch, b"d");
    assert_eq!((batch.message_bytes, batch.messages()), (4, 3));
    assert_eq!(batch.whole - batch.message_bytes, 5);
    assert!(batch.request().is_none(), "messages come first");
    assert_messages(&mut batch, b"abc", 2);
    assert_request(&mut batch, "na", b"pay");
    assert_messages(&mut batch, b"d", 1);
    assert!(batch.is_empty() && batch.take().is_none());
}

#[test]
fn messages_that_end_where_they_are_handed_on_stay_apart() {
    let mut batch = Batch::default();
    for bytes in [&b"ab"[..], b"c"] {
        let pushed = batch.push_message::<()>(true, |out| {
            out.extend_from_slice(bytes);
            Ok(())
        });
        pushed.unwrap();
    }
    assert_messages(&mut batch, b"ab", 1);
    assert_messages(&mut batch, b"c", 1);
}

#[test]
fn an_incomplete_message_leaves_nothing() {
    let mut batch = Batch::default();
    message(&mut batch, b"a");
    let refused = batch.push_message(false, |out| {
        out.push(b'!');
        Err("on purpose")
    });
    assert_eq!(refused, Err("on purpose"));
    batch.push_request(RequestHead::due_at(1), "", b"b");
    assert_eq!(batch.bytes, b"ab");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        batch.push_message::<()>(false, |out| {
            out.push(b'!');
            panic!("on purpose")
        })
    }));
    assert!(panicked.is_err());
    message(&mut batch, b"c");
    assert_eq!((batch.bytes.as_slice(), batch.messages()), (&b"abc"[..], 2));
}

/// Requests past their deadlines are removed, and the bytes of the others stay valid.
#[test]
fn due_requests_are_skipped() {
    let mut batch = Batch::default();
    let ids = [30, 10, 20].map(|deadline_ns| {
        let mut head = RequestHead::due_at(deadline_ns);
        head.slot = Some(SlotId::new(deadline_ns as usize));
        batch.push_request(head, "", &[deadline_ns as u8]);
        head.slot.unwrap()
    });
    message(&mut batch, b"x");
    let mut expired = Vec::new();
    assert_eq!(batch.expire(9, &mut expired), Some(10));
    assert!(expired.is_empty());
    assert_eq!(batch.expire(20, &mut expired), Some(30));
    assert_eq!(expired, ids[1..]);
    assert_eq!((batch.list.len(), batch.bytes.len()), (2, 4));
    let (head, name, payload) = batch.request().unwrap();
    assert_eq!((head.slot, name, payload), (Some(ids[0]), "", &[30][..]));
    // A request that was seen but not passed can still expire.
    expired.clear();
    assert_eq!(batch.expire(u64::MAX, &mut expired), None);
    assert_eq!(expired, ids[..1]);
    assert_messages(&mut batch, b"x", 1);
    assert!(batch.is_empty());
}

#[test]
fn submissions_come_out_with_their_bytes() {
    let mut batch = Batch::default();
    batch.push_request(RequestHead::due_at(1), "na", b"pay");
    batch.push(Submission::Control(Nothing));
    message(&mut batch, b"d");
    batch.push_request(RequestHead::due_at(2), "", b"p");
    batch.push_request(RequestHead::due_at(3), "me", b"q");
    assert_request(&mut batch, "na", b"pay");
    // A passed request does not expire.
    let mut expired = Vec::new();
    assert_eq!(batch.expire(1, &mut expired), Some(2));
    assert!(expired.is_empty() && batch.request().is_none());
    assert!(matches!(
        batch.take(),
        Some((Submission::Control(Nothing), b""))
    ));
    assert_eq!(batch.messages(), 1);
    assert_messages(&mut batch, b"d", 1);
    assert_eq!(batch.messages(), 0);
    assert_request(&mut batch, "", b"p");
    assert_request(&mut batch, "me", b"q");
    assert!(batch.request().is_none() && batch.is_empty());
}

#[test]
fn much_memory_is_not_kept() {
    let mut batch = Batch::default();
    batch.push_request(RequestHead::due_at(1), "", &[0; 1_000]);
    batch.clear(1_000);
    assert!(batch.bytes.capacity() >= 1_000);
    batch.push_request(RequestHead::due_at(1), "", &[0; 10_000]);
    batch.clear(1_000);
    assert!(batch.bytes.capacity() < 10_000);
    assert!(batch.is_empty() && batch.message_bytes == 0);
    assert_eq!(batch.expire(u64::MAX, &mut Vec::new()), None);
}
