//! The history that the servers of a run keep.

use std::time::Duration;

use tidewire::History;

use super::read::{Read, TableContext};
use super::{DURATION_SECS_MAX, Pattern, Step, keys};

/// Reads the limits of the histories. Agents of the other patterns have no use for one.
pub(super) fn history(root: &TableContext<'_, '_>, steps: &[Step]) -> Read<Option<History>> {
    let Some(context) = root.table("history")? else {
        return Ok(None);
    };
    context.refuse_unknown(keys::HISTORY)?;
    let mut other = steps.iter().filter(|step| step.pattern != Pattern::Chat);
    if let Some(step) = other.next() {
        let (name, pattern) = (&step.name, step.pattern.name());
        let found = format!("step {name:?} is a {pattern}, and only agents of a chat recover");
        return Err(root.conflict("history", "left out here", found));
    }
    let whole = |key, most: u64, of: &str| {
        let expected = format!("a whole number of {of} from 1 to {most}");
        let is_there = context.has(key);
        let read = || context.integer(key, 1..=most, &expected);
        is_there.then(read).transpose()
    };
    let mut limits = History::default();
    if let Some(messages) = whole("messages", MESSAGES_MAX, "messages")? {
        limits.messages_max = messages as usize;
    }
    if let Some(bytes) = whole("bytes", BYTES_MAX, "bytes")? {
        limits.bytes_max = bytes as usize;
    }
    let age = whole("age", DURATION_SECS_MAX as u64, "seconds")?;
    limits.age_max = age.map(Duration::from_secs);
    Ok(Some(limits))
}

/// The limits of a history in the words of `tidewire serve --history`.
pub fn history_limits(history: &History) -> String {
    let mut text = format!(
        "messages={},bytes={}",
        history.messages_max, history.bytes_max
    );
    if let Some(age) = history.age_max {
        text += &format!(",age={}", age.as_secs());
    }
    text
}

/// Most messages of a history: more do not fit its bytes.
const MESSAGES_MAX: u64 = 100_000_000;

/// Most bytes of a history, which is the most that a server keeps.
const BYTES_MAX: u64 = 1 << 30;
