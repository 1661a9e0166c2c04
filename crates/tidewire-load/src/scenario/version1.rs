//! Scenarios of version 1: a chat, closed loops, and unknown keys are only warned of.

use super::read::{Place, Reader, number};
use super::{
    CONCURRENCY_MAX, DURATION_SECS_MAX, Guard, OnViolation, Scenario, ScenarioError, Step,
    THINK_TIME_MS_MAX, ThinkTime,
};

pub(super) fn scenario(
    reader: &mut Reader<'_>,
    place: &Place<'_, '_>,
) -> Result<Scenario, ScenarioError> {
    reader.warn_unknown(place, ROOT_KEYS);
    let target = target(reader, place)?;
    let mut steps = Vec::new();
    let places = reader.steps(place)?;
    for place in &places {
        steps.push(step(reader, place)?);
    }
    let names: Vec<String> = steps.iter().map(|step| step.name.clone()).collect();
    reader.check_names(&places, &names);
    Ok(Scenario {
        version: 1,
        target,
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

/// Whether a key means something in this version.
pub(super) fn is_known(key: &str) -> bool {
    ROOT_KEYS.contains(&key) || STEP_KEYS.contains(&key)
}

/// The server that the file names. Both keys may be left out together, as in the configuration that the original prints
/// with its report; one alone, or a misspelt one, is a mistake, and must not lead to another server.
fn target(reader: &Reader<'_>, place: &Place<'_, '_>) -> Result<Option<String>, ScenarioError> {
    let is_meant = |key| place.has(key) || reader.misspelt(place, key).is_some();
    if !is_meant("host") && !is_meant("port") {
        return Ok(None);
    }
    let host = host(reader, place)?;
    let expected = "a port from 1 to 65535";
    let port = reader.integer(place, "port", 1, u64::from(u16::MAX), expected)?;
    Ok(Some(format!("tcp://{host}:{port}")))
}

fn host(reader: &Reader<'_>, place: &Place<'_, '_>) -> Result<String, ScenarioError> {
    let expected = "a host name or address such as \"127.0.0.1\"";
    let value = reader.value(place, "host", expected)?;
    let host = value.get_ref().as_str().unwrap_or_default();
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(reader.invalid(place, "host", value, expected));
    }
    Ok(host.to_owned())
}

fn step(reader: &mut Reader<'_>, place: &Place<'_, '_>) -> Result<Step, ScenarioError> {
    reader.warn_unknown(place, STEP_KEYS);
    let name = reader.name(place)?;
    let concurrency = concurrency(reader, place)?;
    reader.check_receivers(place, concurrency);
    let duration_secs = duration_secs(reader, place)?;
    let think_time_ms = think_time(reader, place, Shortest::AboveZero)?;
    Ok(Step::chat(name, concurrency, duration_secs, think_time_ms))
}

pub(super) fn concurrency(
    reader: &Reader<'_>,
    place: &Place<'_, '_>,
) -> Result<u32, ScenarioError> {
    let expected = "a whole number of agents from 1 to 1000000";
    let most = u64::from(CONCURRENCY_MAX);
    Ok(reader.integer(place, "concurrency", 1, most, expected)? as u32)
}

pub(super) fn duration_secs(
    reader: &Reader<'_>,
    place: &Place<'_, '_>,
) -> Result<f64, ScenarioError> {
    let expected = "a number of seconds above 0 and at most 604800 (a week)";
    let is_allowed = |secs| secs > 0.0 && secs <= DURATION_SECS_MAX;
    reader.number_in(place, "duration_secs", is_allowed, expected)
}

/// Whether no think time at all is possible.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shortest {
    /// A loop that waits for replies needs none.
    Zero,
    /// Without replies it would be an endless rate.
    AboveZero,
}

pub(super) fn think_time(
    reader: &Reader<'_>,
    place: &Place<'_, '_>,
    shortest: Shortest,
) -> Result<ThinkTime, ScenarioError> {
    let key = "think_time_ms";
    let expected = match shortest {
        Shortest::Zero => {
            "two numbers of milliseconds [shortest, longest], 0 ≤ shortest ≤ longest ≤ 86400000"
        }
        Shortest::AboveZero => {
            "two numbers of milliseconds [shortest, longest], \
             0 ≤ shortest ≤ longest ≤ 86400000 and longest > 0"
        }
    };
    let value = reader.value(place, key, expected)?;
    let think_time = match value.get_ref().as_array().map(|array| &array[..]) {
        Some([min, max]) => number(min.get_ref())
            .zip(number(max.get_ref()))
            .map(|(min_ms, max_ms)| ThinkTime { min_ms, max_ms }),
        _ => None,
    };
    // Below half a nanosecond the range would round to a mean of nothing and an endless rate.
    let is_long_enough = |think: &ThinkTime| shortest == Shortest::Zero || think.max_ns() > 0;
    think_time
        .filter(|think| think.min_ms >= 0.0 && think.min_ms <= think.max_ms)
        .filter(|think| think.max_ms <= THINK_TIME_MS_MAX)
        .filter(is_long_enough)
        .ok_or_else(|| reader.invalid(place, key, value, expected))
}

const ROOT_KEYS: &[&str] = &["version", "host", "port", "steps"];

const STEP_KEYS: &[&str] = &["name", "concurrency", "duration_secs", "think_time_ms"];
