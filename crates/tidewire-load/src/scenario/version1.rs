//! Scenarios of version 1: a chat, closed loops, and unknown keys are only warned of.

use super::read::{Read, TableContext, check_names, number};
use super::{
    CONCURRENCY_MAX, DURATION_SECS_MAX, Guard, OnViolation, Scenario, Step, THINK_TIME_MS_MAX,
    ThinkTime, Trust, keys,
};

pub(super) fn scenario(root: &TableContext<'_, '_>) -> Read<Scenario> {
    root.warn_unknown(keys::VERSION1_ROOT);
    let target = target(root)?;
    let contexts = root.steps()?;
    let steps: Vec<Step> = contexts.iter().map(step).collect::<Read<_>>()?;
    let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    check_names(&contexts, &names);
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

/// The server that the file names. Both keys may be left out together, as in the configuration that the original prints
/// with its report; one alone, or a misspelt one, is a mistake, and must not lead to another server.
fn target(root: &TableContext<'_, '_>) -> Read<Option<String>> {
    let is_meant = |key| root.has(key) || root.misspelt(key).is_some();
    if !is_meant("host") && !is_meant("port") {
        return Ok(None);
    }
    let expected = "a host name or address such as \"127.0.0.1\"";
    let (host, value) = root.text("host", expected)?;
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(root.invalid("host", value, expected));
    }
    let expected = "a port from 1 to 65535";
    let port = root.integer("port", 1..=u64::from(u16::MAX), expected)?;
    Ok(Some(format!("tcp://{host}:{port}")))
}

fn step(context: &TableContext<'_, '_>) -> Read<Step> {
    context.warn_unknown(keys::VERSION1_STEP);
    let name = context.name()?;
    let concurrency = concurrency(context)?;
    context.check_receivers(concurrency);
    let duration_secs = duration_secs(context, "duration_secs")?;
    let think_time_ms = think_time(context, Shortest::AboveZero)?;
    Ok(Step::chat(name, concurrency, duration_secs, think_time_ms))
}

pub(super) fn concurrency(context: &TableContext<'_, '_>) -> Read<u32> {
    let expected = "a whole number of agents from 1 to 1000000";
    Ok(context.integer("concurrency", 1..=u64::from(CONCURRENCY_MAX), expected)? as u32)
}

/// The length of a step or a stage.
pub(super) fn duration_secs(context: &TableContext<'_, '_>, key: &str) -> Read<f64> {
    let expected = "a number of seconds above 0 and at most 604800 (a week)";
    let is_allowed = |secs| secs > 0.0 && secs <= DURATION_SECS_MAX;
    context.number(key, is_allowed, expected)
}

/// Whether no think time at all is possible.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shortest {
    /// A loop that waits for replies needs none.
    Zero,
    /// Without replies it would be an endless rate.
    AboveZero,
}

pub(super) fn think_time(context: &TableContext<'_, '_>, shortest: Shortest) -> Read<ThinkTime> {
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
    let value = context.value(key, expected)?;
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
        .ok_or_else(|| context.invalid(key, value, expected))
}
