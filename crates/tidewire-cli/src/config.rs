//! `tidewire.toml`: the flags of `tidewire serve` in a file.
//!
//! Every flag is a key, with underscores for its hyphens, and the file's values become the defaults of the flags. The
//! command line and the environment therefore override the file by clap's own rules, the parsers of the flags check the
//! values, and no flag can be missing here. Every error names file, line and key. Rejected: a struct for serde beside
//! the one for clap, which would have to be kept equal by hand. Rejected: tables for flags, which would give each
//! setting two names. Users are tables, because no flag can hold them: see `users`.

use std::any::TypeId;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::OsStr;
use clap::{Arg, ArgAction, Command};
use thiserror::Error;
use tidewire_load::toml_file::{Mistake, TomlEntry, TomlFile, TomlTable};
use toml::de::DeValue;

use crate::units::Bytes;

/// Why a configuration file cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum ConfigError {
    #[error("cannot read the configuration {}; check the path and its permissions", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Mistake(#[from] Mistake),
}

/// Makes the values of the file at `path` the defaults of the flags of `command`.
pub(crate) fn with_defaults_of(command: Command, path: &Path) -> Result<Command, ConfigError> {
    let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    let file = TomlFile::parse(path.display(), &text)?;
    Ok(with_defaults(command, &file.root())?)
}

/// Makes the values of a file the defaults of the flags of `command`. It refuses a file with which no server would
/// start: unknown keys and wrong values.
pub(crate) fn with_defaults(
    mut command: Command,
    root: &TomlTable<'_>,
) -> Result<Command, Mistake> {
    // `users` reads the tables.
    for entry in root.entries().filter(|it| !TABLES.contains(&it.name())) {
        let Some((_, flag)) = flags(&command).find(|(known, _)| known == entry.name()) else {
            let known = keys(&command);
            let known: Vec<&str> = known.iter().map(String::as_str).chain(TABLES).collect();
            return Err(entry.unknown(&known, HELP));
        };
        let id = flag.get_id().clone();
        let values = values(flag, &entry)?;
        check(&command, flag, &values).map_err(|error| entry.unusable(in_one_line(&error)))?;
        let values = values.into_iter().map(OsStr::from);
        command = command.mut_arg(id, |flag| flag.default_values(values));
    }
    Ok(command)
}

/// The keys of a configuration file that are tables, which [`users`](crate::users) reads.
pub(crate) const TABLES: [&str; 2] = ["auth", "users"];

/// The keys that a file may hold, in the order of the flags.
pub(crate) fn keys(command: &Command) -> Vec<String> {
    flags(command).map(|(key, _)| key).collect()
}

/// The same keys, each with the id of its flag.
pub(crate) fn keys_with_ids(command: &Command) -> Vec<(String, String)> {
    let ids = flags(command).map(|(key, flag)| (key, flag.get_id().to_string()));
    ids.collect()
}

fn flags(command: &Command) -> impl Iterator<Item = (String, &Arg)> {
    command
        .get_arguments()
        .filter(|flag| !NOT_KEYS.contains(&flag.get_id().as_str()))
        .filter_map(|flag| Some((flag.get_long()?.replace('-', "_"), flag)))
}

/// Returns the value in the form that the flag takes.
fn values(flag: &Arg, entry: &TomlEntry<'_>) -> Result<Vec<String>, Mistake> {
    let expected = ValueKind::of(flag);
    let text_of = |value: &DeValue<'_>| value.as_str().map(str::to_owned);
    let texts = match (expected, entry.value()) {
        (ValueKind::Texts, DeValue::Array(array)) if !array.is_empty() => {
            array.iter().map(|entry| text_of(entry.get_ref())).collect()
        }
        (ValueKind::Switch, DeValue::Boolean(value)) => Some(vec![value.to_string()]),
        (ValueKind::Whole | ValueKind::Time | ValueKind::Size, DeValue::Integer(_)) => {
            entry.integer().map(|number| vec![number.to_string()])
        }
        (ValueKind::Time, DeValue::Float(float)) => Some(vec![float.as_str().to_owned()]),
        (ValueKind::Switch | ValueKind::Whole, _) => None,
        (_, value) => text_of(value).map(|text| vec![text]),
    };
    texts.ok_or_else(|| entry.wrong(expected.name()))
}

/// Lets the flag's own parser check its value.
fn check(command: &Command, flag: &Arg, values: &[String]) -> Result<(), clap::Error> {
    let long = flag.get_long().unwrap_or_default();
    let arguments = values.iter().map(|value| format!("--{long}={value}"));
    let arguments = std::iter::once(command.get_name().to_owned()).chain(arguments);
    command.clone().try_get_matches_from(arguments).map(drop)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    Switch,
    Whole,
    Time,
    Size,
    Text,
    Texts,
}

impl ValueKind {
    fn of(flag: &Arg) -> Self {
        let of = flag.get_value_parser().type_id();
        match flag.get_action() {
            ArgAction::Append => Self::Texts,
            _ if of == TypeId::of::<bool>() => Self::Switch,
            _ if of == TypeId::of::<usize>() || of == TypeId::of::<u64>() => Self::Whole,
            _ if of == TypeId::of::<Duration>() => Self::Time,
            _ if of == TypeId::of::<Bytes>() => Self::Size,
            _ => Self::Text,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Switch => "true or false",
            Self::Whole => "a whole number",
            Self::Time => "a number, or a time in quotes as \"2s\"",
            Self::Size => "a whole number, or a size in quotes as \"1G\"",
            Self::Text => "a text in quotes",
            Self::Texts => "a text in quotes or an array of them",
        }
    }
}

/// Joins clap's error of several lines, without its advice about the command line.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    lines.join("; ").trim_start_matches("error: ").to_owned()
}

/// Flags that concern the command line itself.
const NOT_KEYS: [&str; 3] = ["config", "help", "version"];

/// Advice about a key that is like no flag.
const HELP: &str = "`tidewire serve --help` lists the flags, which are the keys";

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;
    use clap::Parser;

    use super::*;
    use crate::serve::ServeArguments;

    /// A command with only the flags of serve.
    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        serve: ServeArguments,
    }

    fn apply(text: &str) -> Result<Command, Mistake> {
        with_defaults(
            ServeArguments::command(),
            &TomlFile::parse("t.toml", text)?.root(),
        )
    }

    fn parse(text: &str, arguments: &[&str]) -> String {
        let all = std::iter::once("serve").chain(arguments.iter().copied());
        let matches = apply(text).unwrap().try_get_matches_from(all).unwrap();
        let only = Only::from_arg_matches(&matches).unwrap();
        format!("{:?}", only.serve)
    }

    fn error(text: &str) -> String {
        apply(text).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn the_sample_parses_and_lists_every_key() {
        let sample = include_str!("../../../examples/tidewire.toml");
        // Keys without a default are comments in the file.
        let all: String = sample
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(rest) if rest.split_once(" = ").is_some_and(|(key, _)| is_key(key)) => rest,
                _ => line,
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        for text in [sample, &all] {
            apply(text).unwrap();
        }
        let file = TomlFile::parse("t.toml", &all).unwrap();
        let entries = file.root();
        let mut listed: Vec<&str> = entries.entries().map(|entry| entry.name()).collect();
        let mut known = keys(&ServeArguments::command());
        known.sort();
        listed.sort();
        assert_eq!(listed, known);
        // Its values are the defaults, so that a copy does not change the behaviour.
        assert_eq!(parse(sample, &[]), parse("", &[]));
    }

    fn is_key(text: &str) -> bool {
        !text.is_empty()
            && text
                .chars()
                .all(|letter| letter.is_ascii_lowercase() || letter == '_')
    }

    #[test]
    fn flags_override_the_file_and_it_overrides_defaults() {
        let file = "app = \"echo\"\nbind = [\"ipc:///a\", \"ipc:///b\"]\nlanes = 3\ndrain_ms = 1.5\nlog_lossy = true\n";
        let shown = parse(file, &[]);
        for part in [
            "app: Echo",
            r#"binds: ["ipc:///a", "ipc:///b"]"#,
            "lanes: 3",
            "drain_ms: 1.5ms",
            "log_lossy: true",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        let shown = parse(file, &["--bind", "ipc:///c", "--app", "sink"]);
        for part in ["app: Sink", r#"binds: ["ipc:///c"]"#, "lanes: 3"] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert!(parse(file, &["--log-lossy=false"]).contains("log_lossy: false"));
        assert!(parse("", &["--log-lossy"]).contains("log_lossy: true"));
        assert!(parse("bind = \"ipc:///one\"", &[]).contains(r#"binds: ["ipc:///one"]"#));
    }

    #[test]
    fn times_and_sizes_may_have_units() {
        let file = "drain_ms = \"2s\"\ntimeout = \"500ms\"\nmemory_bytes_max = \"1G\"\nlag_bytes_max = 4096\n";
        let shown = parse(file, &[]);
        for part in [
            "drain_ms: 2s",
            "timeout: Some(500ms)",
            "memory_bytes_max: Some(Bytes(1073741824))",
            "lag_bytes_max: Bytes(4096)",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        let wrong = error("memory_bytes_max = \"1X\"");
        assert!(wrong.contains("as 65536, 64k, 512M or 1G"), "{wrong}");
    }

    #[test]
    fn mistakes_are_told_with_file_line_and_key() {
        for (text, told) in [
            (
                "\nlane = 2",
                "t.toml:2: unknown key `lane`; did you mean `lanes`?",
            ),
            (
                "drain-ms = 2",
                "t.toml:1: unknown key `drain-ms`; did you mean `drain_ms`?",
            ),
            (
                "colour = 2",
                "t.toml:1: unknown key `colour`; `tidewire serve --help` lists",
            ),
            ("config = \"x\"", "t.toml:1: unknown key `config`"),
            (
                "# a\nlanes = \"2\"",
                "t.toml:2: `lanes` must be a whole number, but it is the string \"2\"",
            ),
            (
                "lanes = 2.5",
                "t.toml:1: `lanes` must be a whole number, but it is the float 2.5",
            ),
            (
                "drain_ms = true",
                "t.toml:1: `drain_ms` must be a number, or a time in quotes as \"2s\", but it is the boolean true",
            ),
            (
                "log_lossy = 1",
                "t.toml:1: `log_lossy` must be true or false",
            ),
            (
                "bind = []",
                "t.toml:1: `bind` must be a text in quotes or an array of them, but it is the array []",
            ),
            (
                "bind = [1]",
                "t.toml:1: `bind` must be a text in quotes or an array of them",
            ),
            (
                "app = [\"chat\"]",
                "t.toml:1: `app` must be a text in quotes, but",
            ),
            ("app = \"chatt\"", "t.toml:1: `app`: invalid value 'chatt'"),
            ("app = \"chatt\"", "a similar value exists: 'chat'"),
            ("codec = \"xml\"", "t.toml:1: `codec`: invalid value 'xml'"),
            ("lanes = -1", "t.toml:1: `lanes`: invalid value '-1'"),
            (
                "lanes = 1\nlanes = 2",
                "t.toml:2: not valid TOML: duplicate key",
            ),
            ("[serve]\nlanes = 1", "t.toml:1: unknown key `serve`"),
            (
                "[[user]]\nname = \"a\"",
                "t.toml:1: unknown key `user`; did you mean `users`?",
            ),
        ] {
            let error = error(text);
            assert!(error.contains(told), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
