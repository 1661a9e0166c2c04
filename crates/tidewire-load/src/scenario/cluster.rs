//! The keys of clusters: the histories that servers keep, and the faults of a step.

use std::time::Duration;

use tidewire::History;

use super::read::{Read, TableContext};
use super::{
    BACKPLANE_NAME, DURATION_SECS_MAX, Fault, FaultAction, Pattern, Step, keys, node_name,
};

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

/// Reads the faults of a step of this length, in the order of their times.
pub(super) fn faults(step: &TableContext<'_, '_>, duration_secs: f64) -> Read<Vec<Fault>> {
    let expected = [
        "a list of faults such as [{ at_secs = 8, kill = \"node 2\" }]",
        "a table such as { at_secs = 8, kill = \"node 2\" }",
    ];
    let mut faults = Vec::new();
    for context in step.tables("faults", 0..=FAULTS_MAX, expected)? {
        context.refuse_unknown(keys::FAULT)?;
        let is_within = |secs| (0.0..duration_secs).contains(&secs);
        let within = format!("a number of seconds from 0 to below the duration of {duration_secs}");
        let at_secs = context.number("at_secs", is_within, &within)?;
        let mut actions = FaultAction::ALL
            .into_iter()
            .filter(|action| context.has(action.name()));
        let action = actions.next().unwrap_or(FaultAction::Kill);
        let name = "the name of a process: \"node 1\" and so on, or \"nats\"";
        let (process, value) = context.text(action.name(), name)?;
        if let Some(other) = actions.next() {
            let found = format!("`{}` is there, too", action.name());
            return Err(context.conflict(other.name(), "left out here", found));
        }
        let number = process
            .strip_prefix("node ")
            .and_then(|number| number.parse().ok());
        if process != BACKPLANE_NAME && number.is_none_or(|number| process != node_name(number)) {
            return Err(context.invalid(action.name(), value, name));
        }
        faults.push(Fault {
            at_secs,
            action,
            process: process.to_owned(),
        });
    }
    faults.sort_by(|one, other| one.at_secs.total_cmp(&other.at_secs));
    Ok(faults)
}

/// Most messages of a history: more do not fit its bytes.
const MESSAGES_MAX: u64 = 100_000_000;

/// Most bytes of a history, which is the most that a server keeps.
const BYTES_MAX: u64 = 1 << 30;

/// Most faults of a step.
const FAULTS_MAX: usize = 10_000;
