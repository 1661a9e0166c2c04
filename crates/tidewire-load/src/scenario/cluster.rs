//! The keys of clusters: the histories that servers keep, and the faults of a step.

use std::time::Duration;

use tidewire::History;

use super::read::{Read, conflict, refuse_unknown, required, tables};
use super::{
    BACKPLANE_NAME, DURATION_SECS_MAX, Fault, FaultAction, Pattern, Step, keys, node_name,
};
use crate::toml_file::{TomlEntry, TomlTable};

/// Reads the limits of the histories. Agents of the other patterns have no use for one.
pub(super) fn history(root: &TomlTable<'_>, steps: &[Step]) -> Read<Option<History>> {
    let Some(entry) = root.get("history") else {
        return Ok(None);
    };
    let table = entry.open_table("a table")?;
    refuse_unknown(&table, keys::HISTORY)?;
    let mut other = steps.iter().filter(|step| step.pattern != Pattern::Chat);
    if let Some(step) = other.next() {
        let (name, pattern) = (&step.name, step.pattern.name());
        let found = format!("step {name:?} is a {pattern}, and only agents of a chat recover");
        return Err(conflict(root, "history", "left out here", &found));
    }
    let whole = |key, most: u64, of: &str| {
        let expected = format!("a whole number of {of} from 1 to {most}");
        table.read(key, |it| it.whole_in(1..=most, &expected))
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
pub(super) fn faults(list: &TomlEntry<'_>, duration_secs: f64) -> Read<Vec<Fault>> {
    let expected = [
        "a list of faults such as [{ at_secs = 8, kill = \"node 2\" }]",
        "a table such as { at_secs = 8, kill = \"node 2\" }",
    ];
    let mut faults = Vec::new();
    for table in tables(list, FAULTS_MAX, expected)? {
        refuse_unknown(&table, keys::FAULT)?;
        let is_within = |secs| (0.0..duration_secs).contains(&secs);
        let within = format!("a number of seconds from 0 to below the duration of {duration_secs}");
        let at_secs = required(&table, "at_secs", &within)?.number_if(is_within, &within)?;
        let mut actions = FaultAction::ALL
            .into_iter()
            .filter(|action| table.get(action.name()).is_some());
        let action = actions.next().unwrap_or(FaultAction::Kill);
        let process = required(&table, action.name(), PROCESS)?;
        if let Some(other) = actions.next() {
            let found = format!("`{}` is there, too", action.name());
            return Err(conflict(&table, other.name(), "left out here", &found));
        }
        faults.push(Fault {
            at_secs,
            action,
            process: process.text_if(is_process, PROCESS)?.to_owned(),
        });
    }
    faults.sort_by(|one, other| one.at_secs.total_cmp(&other.at_secs));
    Ok(faults)
}

fn is_process(name: &str) -> bool {
    let number = name.strip_prefix("node ").and_then(|it| it.parse().ok());
    name == BACKPLANE_NAME || number.is_some_and(|number| name == node_name(number))
}

const PROCESS: &str = "the name of a process: \"node 1\" and so on, or \"nats\"";

/// Most messages of a history: more do not fit its bytes.
const MESSAGES_MAX: u64 = 100_000_000;

/// Most bytes of a history, which is the most that a server keeps.
const BYTES_MAX: u64 = 1 << 30;

/// Most faults of a step.
const FAULTS_MAX: usize = 10_000;
