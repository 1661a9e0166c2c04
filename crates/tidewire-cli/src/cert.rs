//! `tidewire cert dev`: certificates for a first try, made without any authority.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use tidewire_command::certificates::Certificates;
use tidewire_command::output;

use crate::failure::Failure;

/// Flags of `tidewire cert`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CertArguments {
    #[command(subcommand)]
    command: CertCommand,
}

#[derive(Debug, Subcommand)]
enum CertCommand {
    /// Make an authority, and certificates of a server and a client, for a year of development.
    Dev(DevArguments),
}

/// Flags of `tidewire cert dev`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct DevArguments {
    /// Directory for ca.pem, server.pem, server.key, client.pem and client.key, which is created if it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Names and IP addresses by which clients reach the server
    #[arg(value_name = "HOST", default_values = ["localhost", "127.0.0.1", "::1"])]
    hosts: Vec<String>,
}

/// Makes certificates.
///
/// # Errors
/// A host has no form of a name, or the files cannot be written.
pub(crate) fn run(arguments: &CertArguments) -> anyhow::Result<ExitCode> {
    let CertCommand::Dev(arguments) = &arguments.command;
    let out = &arguments.out;
    make_files(out, &arguments.hosts)?;
    output::print_line(commands(out, &arguments.hosts[0]));
    Ok(ExitCode::SUCCESS)
}

/// Makes the files of a server with these names in a directory.
///
/// # Errors
/// A host has no form of a name, or the files cannot be written.
pub(crate) fn make_files(directory: &Path, hosts: &[String]) -> Result<(), Failure> {
    let refused = |error: &dyn std::fmt::Display| {
        let what = format!("cannot make certificates for {}: {error}", hosts.join(", "));
        let remedy = "give names of hosts or IP addresses, without tls:// and port";
        Failure::configuration(what, remedy)
    };
    if let Some(host) = hosts.iter().find(|host| !is_host(host)) {
        return Err(refused(&format_args!("{host:?} is no name of a host")));
    }
    let files = make(hosts).map_err(|error| refused(&error))?;
    write(directory, &files).map_err(|error| {
        let what = format!(
            "cannot write the certificates to {}: {error}",
            directory.display()
        );
        let remedy = match error.kind() {
            io::ErrorKind::AlreadyExists => "name a directory without such files with --out",
            _ => {
                "name a directory that exists or can be made, and that this user may write, with --out"
            }
        };
        Failure::configuration(what, remedy)
    })
}

/// Whether a text is an IP address, or has the characters of a host name.
fn is_host(text: &str) -> bool {
    let is_named = |byte: u8| byte.is_ascii_alphanumeric() || b"-._*".contains(&byte);
    text.parse::<IpAddr>().is_ok() || (!text.is_empty() && text.bytes().all(is_named))
}

/// A name that no other authority has. Of two authorities of one name, a client would try the wrong key, and say that
/// the certificate is damaged and not that its authority is another one.
fn authority_name() -> String {
    format!("tidewire cert dev {:08x}", fastrand::u32(..))
}

/// Makes the five files: their names and texts.
fn make(hosts: &[String]) -> io::Result<[(&'static str, String); 5]> {
    let Certificates {
        authority,
        server,
        client,
    } = Certificates::make(&authority_name(), hosts, VALIDITY)?;
    Ok([
        ("ca.pem", authority),
        ("server.pem", server.certificate),
        ("server.key", server.key),
        ("client.pem", client.certificate),
        ("client.key", client.key),
    ])
}

/// Writes new files. Keys are readable by their owner only, from the beginning.
fn write(directory: &Path, files: &[(&str, String)]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for (name, text) in files {
        let mode = if name.ends_with(".key") { 0o600 } else { 0o644 };
        let path = directory.join(name);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(mode).open(&path);
        let in_file =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(in_file)?;
    }
    Ok(())
}

/// The commands that use the files.
fn commands(directory: &Path, host: &str) -> String {
    let directory = directory.display();
    let host = match host.contains(':') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    };
    format!(
        "tidewire serve --app rpc --bind tls://{host}:8443 --tls-cert {directory}/server.pem --tls-key \
         {directory}/server.key --tls-client-ca {directory}/ca.pem\n\
         tidewire call tls://{host}:8443 methods --ca {directory}/ca.pem --cert {directory}/client.pem --key \
         {directory}/client.key"
    )
}

const VALIDITY: Duration = Duration::from_secs(365 * 24 * 3_600);

const EXAMPLES: &str = "\
Examples:
  tidewire cert dev --out certificates
  tidewire cert dev --out certificates gateway.lan 192.168.1.7

It prints the two commands that use the files. Everybody who has client.key can be the client, and nobody can sign another \
certificate: the authority's key is not kept. For anything but development, see docs/security.md.";
