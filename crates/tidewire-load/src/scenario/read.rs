//! The keys that both versions read in the same way.

use tidewire_proto::text::is_hazardous;

use super::{CONCURRENCY_MAX, DURATION_SECS_MAX, STEPS_MAX, THINK_TIME_MS_MAX, ThinkTime, keys};
use crate::toml_file::{Mistake, TomlEntry, TomlTable, nearest_key};

pub(super) type Read<T> = Result<T, Mistake>;

/// A key that must be there. `expected` says what its value is.
pub(super) fn required<'f>(
    table: &TomlTable<'f>,
    key: &str,
    expected: &str,
) -> Read<TomlEntry<'f>> {
    table.get(key).ok_or_else(|| {
        let found = match misspelt(table, key) {
            None => "the key is missing".to_owned(),
            Some(written) => {
                let (name, line) = (written.name(), written.line());
                format!("the key is missing; did you mean it by `{name}` in line {line}?")
            }
        };
        conflict(table, key, expected, &found)
    })
}

/// A key of the table that means nothing but resembles this one.
pub(super) fn misspelt<'f>(table: &TomlTable<'f>, key: &str) -> Option<TomlEntry<'f>> {
    let resembles = |written: &str| nearest_key(written, &[key]).is_some();
    let mut entries = table.entries();
    entries.find(|it| !keys::is_known(it.name()) && resembles(it.name()))
}

/// Refuses the first key that means nothing in this table.
pub(super) fn refuse_unknown(table: &TomlTable<'_>, known: &[&str]) -> Read<()> {
    let unknown = table.unknown(known);
    let first = unknown.first();
    first.map_or(Ok(()), |entry| {
        Err(entry.unknown(known, "docs/scenario.md lists the keys"))
    })
}

/// Refuses a value for a reason that lies in other keys.
pub(super) fn conflict(table: &TomlTable<'_>, key: &str, expected: &str, found: &str) -> Mistake {
    table.mistake(key, format!(" must be {expected}, but {found}"))
}

/// The tables of a list. The two texts say what the list and what each entry must be.
pub(super) fn tables<'f>(
    list: &TomlEntry<'f>,
    most: usize,
    [expected, entry]: [&str; 2],
) -> Read<Vec<TomlTable<'f>>> {
    match list.value().as_array() {
        Some(entries) if entries.len() <= most => list.list(|it| it.open_table(entry)),
        _ => Err(list.wrong(expected)),
    }
}

/// Every `[[steps]]` table.
pub(super) fn steps<'f>(root: &TomlTable<'f>) -> Read<Vec<TomlTable<'f>>> {
    let expected = ["one to 255 [[steps]] tables", "a table"];
    let list = required(root, "steps", expected[0])?;
    let steps = tables(&list, STEPS_MAX, expected)?;
    match steps.is_empty() {
        true => Err(list.wrong(expected[0])),
        false => Ok(steps),
    }
}

pub(super) fn name(step: &TomlTable<'_>) -> Read<String> {
    let expected = "a text that is not empty and has no control characters";
    let is_allowed = |name: &str| !name.trim().is_empty() && !name.chars().any(is_hazardous);
    let name = required(step, "name", expected)?.text_if(is_allowed, expected)?;
    Ok(name.to_owned())
}

pub(super) fn concurrency(step: &TomlTable<'_>) -> Read<u32> {
    let (key, expected) = ("concurrency", "a whole number of agents from 1 to 1000000");
    let range = 1..=u64::from(CONCURRENCY_MAX);
    Ok(required(step, key, expected)?.whole_in(range, expected)? as u32)
}

/// The length of a step or a stage.
pub(super) fn duration_secs(table: &TomlTable<'_>, key: &str) -> Read<f64> {
    let expected = "a number of seconds above 0 and at most 604800 (a week)";
    let is_allowed = |secs| secs > 0.0 && secs <= DURATION_SECS_MAX;
    required(table, key, expected)?.number_if(is_allowed, expected)
}

/// The shortest think time that is possible.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shortest {
    /// A loop that waits for replies needs none.
    Zero,
    /// Without replies it would be an endless rate.
    AboveZero,
}

pub(super) fn think_time(step: &TomlTable<'_>, shortest: Shortest) -> Read<ThinkTime> {
    let expected = match shortest {
        Shortest::Zero => {
            "two numbers of milliseconds [shortest, longest], 0 ≤ shortest ≤ longest ≤ 86400000"
        }
        Shortest::AboveZero => {
            "two numbers of milliseconds [shortest, longest], \
             0 ≤ shortest ≤ longest ≤ 86400000 and longest > 0"
        }
    };
    let entry = required(step, "think_time_ms", expected)?;
    let numbers = entry.list(|it| Ok::<_, Mistake>(it.number()));
    let think_time = match numbers.unwrap_or_default()[..] {
        [Some(min_ms), Some(max_ms)] => Some(ThinkTime { min_ms, max_ms }),
        _ => None,
    };
    // Below half a nanosecond the range would round to a mean of nothing and an endless rate.
    let is_long_enough = |think: &ThinkTime| shortest == Shortest::Zero || think.max_ns() > 0;
    think_time
        .filter(|think| think.min_ms >= 0.0 && think.min_ms <= think.max_ms)
        .filter(|think| think.max_ms <= THINK_TIME_MS_MAX)
        .filter(is_long_enough)
        .ok_or_else(|| entry.wrong(expected))
}

/// Warns of a fan-out with nobody to deliver to.
pub(super) fn check_receivers(step: &TomlTable<'_>, concurrency: u32, warnings: &mut Vec<Mistake>) {
    if concurrency == 1 {
        let text = " of 1 leaves nobody to deliver to: 0 deliveries are expected";
        warnings.push(step.mistake("concurrency", text));
    }
}

/// Warns of a name that an earlier step has.
pub(super) fn check_names(
    tables: &[TomlTable<'_>],
    steps: &[super::Step],
    warnings: &mut Vec<Mistake>,
) {
    for (index, step) in steps.iter().enumerate() {
        let mut earlier = steps[..index].iter();
        if let Some(first) = earlier.position(|earlier| earlier.name == step.name) {
            let line = tables[first].mistake("name", "").line();
            let text = format!(
                " repeats the name of line {line}: the two cannot be told apart in a report"
            );
            warnings.push(tables[index].mistake("name", text));
        }
    }
}
