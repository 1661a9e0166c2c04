//! `tidewire check`: what the users of a configuration may do, and what in it is a mistake.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tidewire::auth::{Access, Chain, Identity};
use tidewire_command::output;
use tidewire_proto::body::name_skeleton;
use tidewire_proto::text::escaped;

use crate::failure::Failure;
use crate::serve::ServeArguments;
use crate::users::{UserFile, is_anonymous};

/// Flags of `tidewire check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArguments {
    /// The configuration file of a server
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The file with the tokens of users [default: the key auth_tokens of FILE]
    #[arg(long, value_name = "TOKENS")]
    auth_tokens: Option<PathBuf>,

    /// Show this user only
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

/// Prints what users may do.
///
/// # Errors
/// The file cannot be used, there is no such user, or something in it has no effect.
pub(crate) fn run(arguments: &CheckArguments) -> anyhow::Result<ExitCode> {
    let file = UserFile::read(&arguments.file, &ServeArguments::command())?;
    let tokens = file.token_names(arguments.auth_tokens.as_deref())?;
    // This reads the proofs of the users, as a server does.
    file.chain(Chain::new())?;
    if !file.has_users() {
        let what = format!(
            "{} has no [auth] and no [[users]]",
            arguments.file.display()
        );
        return Err(Failure::judgement(what, NO_USERS).into());
    }
    let (mut text, mut warnings) = (Vec::new(), 0);
    let without_effect = file.limits_without_effect(&ServeArguments::limits_of(&arguments.file));
    let mut alike: HashMap<String, Vec<&str>> = HashMap::new();
    for name in file.names() {
        alike.entry(name_skeleton(name)).or_default().push(name);
    }
    for name in file.names() {
        let Some(identity) = file.users.identity(name) else {
            continue;
        };
        if arguments
            .user
            .as_deref()
            .is_none_or(|wanted| wanted == name)
        {
            let proofs = proofs(&file, name, tokens.as_deref());
            warnings += describe(&file, &identity, &proofs, &mut text)?;
            for (_, limit) in without_effect.iter().filter(|(user, _)| *user == name) {
                warnings += 1;
                writeln!(text, "  warning: {limit}")?;
            }
            let others = alike.get(&name_skeleton(name)).into_iter().flatten();
            for other in others.filter(|other| **other != name) {
                warnings += 1;
                let other = escaped(other.as_bytes());
                writeln!(
                    text,
                    "  warning: {other} looks like this name; rename one of them"
                )?;
            }
        }
    }
    if let Some(wanted) = &arguments.user
        && file.users.identity(wanted).is_none()
    {
        let what = format!("{} has no user {wanted:?}", arguments.file.display());
        return Err(Failure::configuration(what, "check the name").into());
    }
    if arguments.user.is_none() && file.has_users() {
        for name in tokens.iter().flatten() {
            if file.users.identity(name).is_none() {
                warnings += 1;
                let name = escaped(name.as_bytes());
                writeln!(
                    text,
                    "warning: the tokens of {name} are refused, because no user has this name"
                )?;
            }
        }
    }
    output::remember(io::stdout().lock().write_all(&text));
    if warnings > 0 {
        let what = format!("warnings: {warnings}");
        return Err(Failure::judgement(what, "see the lines with `warning` above").into());
    }
    Ok(ExitCode::SUCCESS)
}

/// How a user can prove who it is, for people.
fn proofs(file: &UserFile, name: &str, tokens: Option<&[String]>) -> String {
    if is_anonymous(name) {
        return "whoever sends no credentials".to_owned();
    }
    let mut proofs: Vec<String> = file.proofs(name).map(|proof| proof.to_string()).collect();
    if tokens.is_some_and(|names| names.iter().any(|it| it == name)) {
        proofs.insert(0, "tokens".to_owned());
    }
    match (proofs.is_empty(), tokens) {
        (false, _) => proofs.join(", "),
        (true, Some(_)) => "no proof: neither a token nor another one".to_owned(),
        (true, None) => "no proof in this file; tokens need auth_tokens".to_owned(),
    }
}

/// Writes what one user may do. Returns the number of warnings.
fn describe(
    file: &UserFile,
    identity: &Identity,
    proofs: &str,
    out: &mut Vec<u8>,
) -> io::Result<usize> {
    let name = identity.name();
    writeln!(
        out,
        "{} ({})",
        escaped(identity.name().as_bytes()),
        escaped(proofs.as_bytes())
    )?;
    let mut warnings = 0;
    for (index, proof) in file.proofs(name).enumerate() {
        if let Some(other) = file.hides(name, index) {
            warnings += 1;
            let text = format!("{proof} is never asked for, because it is {other}'s before");
            writeln!(out, "    warning: {}", escaped(text.as_bytes()))?;
        }
    }
    for (action, access) in identity.permissions().each() {
        writeln!(out, "  {action:<10} {}", escaped(list(access).as_bytes()))?;
        for (allowed, denied) in access.useless() {
            warnings += 1;
            writeln!(
                out,
                "    warning: {allowed} allows nothing, because {denied} is denied"
            )?;
        }
        for denied in access.idle() {
            warnings += 1;
            writeln!(out, "    warning: {denied} denies nothing that is allowed")?;
        }
    }
    Ok(warnings)
}

/// The patterns of one kind of action as text.
fn list(access: &Access) -> String {
    let allowed: Vec<&str> = access.allowed().collect();
    let denied: Vec<&str> = access.denied().collect();
    match (allowed.is_empty(), denied.is_empty()) {
        (true, _) => "nothing".to_owned(),
        (false, true) => allowed.join(", "),
        (false, false) => format!("{}, but not {}", allowed.join(", "), denied.join(", ")),
    }
}

/// The remedy for a file without users.
const NO_USERS: &str =
    "add some: without them everybody may do everything, or with --auth-tokens whoever has a token";

const EXAMPLES: &str = "\
Examples:
  tidewire check tidewire.toml
  tidewire check tidewire.toml --auth-tokens tokens --user sensor-7

Exit codes: 0 nothing to warn of, 2 a file is wrong, 99 an entry has no effect, two names look alike, or there are no users.";
