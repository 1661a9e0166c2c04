//! Scenarios of version 1: a chat, closed loops, and unknown keys are only warned of.

use super::read::{
    Read, Shortest, check_names, check_receivers, concurrency, duration_secs, misspelt, name,
    required, steps, think_time,
};
use super::{Guard, OnViolation, Scenario, Step, Trust, keys};
use crate::toml_file::{Mistake, TomlTable};

pub(super) fn scenario(root: &TomlTable<'_>, warnings: &mut Vec<Mistake>) -> Read<Scenario> {
    warn_unknown(root, keys::VERSION1_ROOT, warnings);
    let target = target(root)?;
    let tables = steps(root)?;
    let steps = tables.iter().map(|table| step(table, warnings));
    let steps: Vec<Step> = steps.collect::<Read<_>>()?;
    check_names(&tables, &steps, warnings);
    Ok(Scenario {
        version: 1,
        target,
        nodes: 1,
        backplane: None,
        history: None,
        trust: Trust::default(),
        steps,
        repeat: 1,
        seed: None,
        // The exit codes of version 1 know no invalid measurement; the verdict is told all the same.
        guard: Guard {
            on_violation: OnViolation::Warn,
            ..Guard::default()
        },
    })
}

fn warn_unknown(table: &TomlTable<'_>, known: &[&str], warnings: &mut Vec<Mistake>) {
    let unknown = table.unknown(known);
    warnings.extend(unknown.iter().map(|entry| entry.ignored(known)));
}

/// The server that the file names. Both keys may be left out together, as in the configuration that the original prints
/// with its report; one alone, or a misspelt one, is a mistake, and must not lead to another server.
fn target(root: &TomlTable<'_>) -> Read<Option<String>> {
    let is_meant = |key| root.get(key).is_some() || misspelt(root, key).is_some();
    if !is_meant("host") && !is_meant("port") {
        return Ok(None);
    }
    let expected = "a host name or address such as \"127.0.0.1\"";
    let is_host = |host: &str| !host.is_empty() && !host.contains(char::is_whitespace);
    let host = required(root, "host", expected)?.text_if(is_host, expected)?;
    let expected = "a port from 1 to 65535";
    let port = required(root, "port", expected)?.whole_in(1..=u16::MAX.into(), expected)?;
    Ok(Some(format!("tcp://{host}:{port}")))
}

fn step(table: &TomlTable<'_>, warnings: &mut Vec<Mistake>) -> Read<Step> {
    warn_unknown(table, keys::VERSION1_STEP, warnings);
    let name = name(table)?;
    let concurrency = concurrency(table)?;
    check_receivers(table, concurrency, warnings);
    let duration_secs = duration_secs(table, "duration_secs")?;
    let think_time_ms = think_time(table, Shortest::AboveZero)?;
    Ok(Step::chat(name, concurrency, duration_secs, think_time_ms))
}
