//! The commands in the documents do what the documents say.
//!
//! A block of a document that begins with `…` matches any text. In `console,running` the last command continues to run.
//! In `console,slow` all commands need a release build, a compiler or a minute. Blocks of `rust` whose first line is
//! `// PATH`, and of `toml` whose first line is `# PATH`, are files that the reader writes.
//!
//! Ports of the documents are fixed, those of the tests are free ones: servers are told to take port 0, and the port
//! that they got replaces theirs in later commands.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{DEADLINE, Process};

#[test]
fn the_commands_of_the_readme_work() {
    Reader::read("README.md", Pace::Fast);
}

/// With a release build that `TIDEWIRE_BINARY` names, as in `.ci/run tutorial`, the reader also builds a project from
/// nothing, which takes minutes.
#[test]
fn the_tutorial_works_to_the_letter() {
    let pace = match std::env::var_os("TIDEWIRE_BINARY") {
        Some(_) => Pace::Slow,
        None => Pace::Fast,
    };
    Reader::read("docs/tutorial.md", pace);
}

#[test]
fn the_commands_of_the_guides_work() {
    for page in [
        "browser",
        "codecs",
        "command-line",
        "identity",
        "websocket",
        "guides/chat-and-games",
        "guides/device-gateway",
        "guides/market-data",
        "guides/service-calls",
    ] {
        Reader::read(&format!("docs/{page}.md"), Pace::Fast);
    }
}

/// Regression: the recipe for a server that other machines reach was refused, because it had no users.
#[test]
fn the_commands_of_the_page_about_security_work() {
    let mut reader = Reader::begin();
    // The files of a public authority.
    reader.run("tidewire cert dev --out public");
    reader.run("cp public/server.pem fullchain.pem && cp public/server.key privkey.pem");
    reader.read_page("docs/security.md", Pace::Fast);
}

/// The other commands need hours, rivals or several machines. Their flags are checked: the command accepts a final
/// `--help` only if all flags before it are right.
#[test]
fn commands_that_are_not_run_have_flags_that_exist() {
    let mut count = 0;
    for page in [
        "admin",
        "bench",
        "operating",
        "performance",
        "measuring",
        "distributed",
        "history",
        "cluster",
        "scale",
        "security",
    ] {
        let reader = Reader::begin();
        let page = repository().join(format!("docs/{page}.md"));
        let text = std::fs::read_to_string(page).unwrap();
        let blocks = Block::all(&text);
        let lines = blocks.iter().flat_map(|block| {
            // Outside of shell blocks, typed text follows a prompt.
            let is_typed = |line: &&str| block.has("sh") || line.starts_with("$ ");
            block
                .lines
                .iter()
                .copied()
                .filter(is_typed)
                .collect::<Vec<_>>()
        });
        for line in lines {
            let line = line.strip_prefix("$ ").unwrap_or(line);
            // The tests of tidewire-bench have the others.
            if line.starts_with("tidewire ") && !line.starts_with("tidewire bench ") {
                let command = line.split("  ").next().unwrap();
                reader.run(&format!("{command} --help"));
                count += 1;
            }
        }
    }
    assert!(count > 10, "only {count} commands were found");
}

/// Whether commands of `console,slow` are run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    Fast,
    Slow,
}

/// A block of a document that a reader does something with.
struct Block<'a> {
    info: &'a str,
    lines: Vec<&'a str>,
}

impl<'a> Block<'a> {
    fn all(text: &'a str) -> Vec<Self> {
        let mut blocks = Vec::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(info) = line.strip_prefix("```") {
                let lines = lines.by_ref().take_while(|line| *line != "```").collect();
                blocks.push(Self { info, lines });
            }
        }
        blocks
    }

    fn has(&self, word: &str) -> bool {
        self.info.split(',').any(|known| known == word)
    }

    /// The commands, each with the lines that it prints.
    fn commands(&self) -> Vec<(&'a str, Vec<&'a str>)> {
        let mut commands: Vec<(&str, Vec<&str>)> = Vec::new();
        for &line in &self.lines {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => commands.push((command, Vec::new())),
                (None, Some((_, printed))) => printed.push(line),
                (None, None) => panic!("output without a command: {line}"),
            }
        }
        commands
    }
}

/// A reader who types the commands of a document.
struct Reader {
    scratch: tempfile::TempDir,
    directory: PathBuf,
    /// Addresses of the document, and the real addresses.
    addresses: Vec<(String, String)>,
    running: Vec<Running>,
    /// Commands that ended, to be typed again for subscribers that were not ready yet.
    typed: Vec<String>,
    /// The longest time of a command.
    patience: Duration,
}

/// A command that still runs, and the lines that it has not printed yet.
struct Running {
    process: Process,
    pending: Vec<String>,
    /// How many commands had been typed before.
    since: usize,
}

impl Reader {
    fn read(page: &str, pace: Pace) {
        Self::begin().read_page(page, pace);
    }

    fn read_page(&mut self, page: &str, pace: Pace) {
        let text = std::fs::read_to_string(repository().join(page)).unwrap();
        if pace == Pace::Slow {
            self.patience = BUILD_MAX;
        }
        let mut count = 0;
        for block in Block::all(&text) {
            if block.has("console") && (pace == Pace::Slow || !block.has("slow")) {
                count += block.commands().len();
                self.type_block(&block);
            } else if block.has("toml") {
                self.write_file(&block, "# ", ".toml");
            } else if pace == Pace::Slow && block.has("rust") {
                self.write_file(&block, "// ", ".rs");
            }
        }
        assert!(count > 0, "{page} has no commands");
        self.wait_for_pending();
    }

    fn begin() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        // Commands begin beside a clone of the repository, or in something like it that they may write to.
        let repository = repository();
        std::os::unix::fs::symlink(&repository, scratch.path().join("tidewire")).unwrap();
        for folder in ["examples", "scenarios"] {
            std::os::unix::fs::symlink(repository.join(folder), scratch.path().join(folder))
                .unwrap();
        }
        Self {
            directory: scratch.path().to_owned(),
            scratch,
            addresses: Vec::new(),
            running: Vec::new(),
            typed: Vec::new(),
            patience: DEADLINE,
        }
    }

    fn type_block(&mut self, block: &Block<'_>) {
        let mut commands = block.commands();
        let last = block.has("running").then(|| commands.pop().unwrap());
        for (command, printed) in commands {
            if let Some(directory) = command.strip_prefix("cd ") {
                self.directory.push(directory);
                continue;
            }
            let lines = self.run(command);
            for expected in printed {
                let found = lines.iter().any(|line| matches(line, expected));
                assert!(
                    found,
                    "`{command}` did not print {expected:?}, only {lines:#?}"
                );
            }
            self.typed.push(command.to_owned());
        }
        if let Some((command, printed)) = last {
            self.start(command, &printed);
        }
    }

    /// Runs a command, which must succeed. Returns what it printed.
    fn run(&self, command: &str) -> Vec<String> {
        let mut text = command.replace("/tmp/", &format!("{}/", self.scratch.path().display()));
        for (written, real) in &self.addresses {
            text = text.replace(written, real);
        }
        let ended = Process::spawn(&mut self.shell(&text)).wait_for(self.patience);
        assert!(ended.status.success(), "`{command}`: {}", ended.text());
        ended
            .transcript
            .iter()
            .map(|line| self.as_written(line))
            .collect()
    }

    /// Starts a command that continues to run. A server is ready when this returns.
    fn start(&mut self, command: &str, printed: &[&str]) {
        let is_server = command.starts_with("tidewire serve");
        let mut text = command.replace("/tmp/", &format!("{}/", self.scratch.path().display()));
        let mut binds = Vec::new();
        if is_server {
            let words = command.split_whitespace();
            binds.extend(words.filter_map(host_and_port).map(str::to_owned));
            if !command.contains("--bind") {
                binds.push("127.0.0.1:8080".to_owned());
                text.push_str(" --bind tcp://127.0.0.1:8080");
            }
            for bind in &binds {
                // An address for other machines has its own rules, so it stays such an address.
                let free = match bind.starts_with("0.0.0.0:") {
                    true => "0.0.0.0:0",
                    false => "127.0.0.1:0",
                };
                text = text.replace(bind, free);
            }
        } else {
            for (written, real) in &self.addresses {
                text = text.replace(written, real);
            }
        }
        let mut process = Process::spawn(&mut self.shell(&format!("exec {text}")));
        if is_server {
            process.expect("ready codec=");
            let lines = process.transcript().iter();
            let real = lines.filter_map(|line| line.strip_prefix("listening on "));
            let real: Vec<String> = real.filter_map(host_and_port).map(str::to_owned).collect();
            assert_eq!(real.len(), binds.len(), "{:?}", process.transcript());
            self.addresses
                .retain(|(written, _)| !binds.contains(written));
            self.addresses.extend(binds.into_iter().zip(real));
        }
        let mut pending: Vec<String> = printed.iter().map(|&line| line.to_owned()).collect();
        if is_server {
            let lines = process.transcript().iter();
            let lines: Vec<String> = lines.map(|line| self.as_written(line)).collect();
            // Later servers may have the same addresses, so the lines are checked now.
            pending.retain(|expected| !lines.iter().any(|line| matches(line, expected)));
            assert!(
                pending.is_empty(),
                "`{command}` did not print {pending:?}, only {lines:#?}"
            );
        }
        self.running.push(Running {
            process,
            pending,
            since: self.typed.len(),
        });
    }

    /// Waits until all running commands have printed their lines. A subscriber may have come later than its message, so
    /// later commands are typed again.
    fn wait_for_pending(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let mut again = self.typed.len();
            for index in 0..self.running.len() {
                // Takes what has come.
                self.running[index].process.has_line("");
                let lines = self.running[index].process.transcript().iter();
                let lines: Vec<String> = lines.map(|line| self.as_written(line)).collect();
                let running = &mut self.running[index];
                running
                    .pending
                    .retain(|expected| !lines.iter().any(|line| matches(line, expected)));
                if !running.pending.is_empty() {
                    again = again.min(running.since);
                    let pending = &running.pending;
                    assert!(
                        Instant::now() < deadline,
                        "{pending:?} did not come, only {lines:#?}"
                    );
                }
            }
            if self
                .running
                .iter()
                .all(|running| running.pending.is_empty())
            {
                return;
            }
            for command in &self.typed[again..] {
                self.run(command);
            }
        }
    }

    fn shell(&self, text: &str) -> Command {
        let binary = std::env::var("TIDEWIRE_BINARY");
        let binary = binary.unwrap_or_else(|_| env!("CARGO_BIN_EXE_tidewire").to_owned());
        let folder = Path::new(&binary).parent().unwrap().display().to_string();
        let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
        let mut command = Command::new("sh");
        command
            .args(["-c", text])
            .current_dir(&self.directory)
            .env("PATH", path)
            .env_remove("RUST_LOG")
            .env_remove("TIDEWIRE_TOKEN")
            .env_remove("TIDEWIRE_POLLER");
        command
    }

    /// Writes a file that the document shows. Programs that begin with no path are only compiled, by the doctests.
    fn write_file(&self, block: &Block<'_>, comment: &str, ending: &str) {
        if let Some(path) = block.lines[0].strip_prefix(comment)
            && path.ends_with(ending)
        {
            std::fs::write(self.directory.join(path), block.lines.join("\n")).unwrap();
        }
    }

    /// A line that was printed, with the addresses of the document and without the mark of standard error.
    fn as_written(&self, line: &str) -> String {
        let mut line = line.strip_prefix("2: ").unwrap_or(line).to_owned();
        for (written, real) in &self.addresses {
            line = line.replace(real, written);
        }
        line
    }
}

fn repository() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    repository.canonicalize().unwrap()
}

/// The host and port of an address that has them. It may be in quotes.
fn host_and_port(address: &str) -> Option<&str> {
    let address = address.trim_matches('\'');
    let behind = |scheme| address.strip_prefix(scheme);
    let schemes = ["tcp://", "tls://", "udp://", "ws://"];
    let place = schemes.into_iter().find_map(behind)?;
    place.split(['/', '?']).next()
}

/// Whether a line matches a document's line, in which `…` matches any text.
fn matches(line: &str, expected: &str) -> bool {
    let mut parts = expected.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or("")) else {
        return false;
    };
    let mut is_open = false;
    for part in parts {
        let Some((_, behind)) = rest.split_once(part) else {
            return false;
        };
        rest = behind;
        is_open = part.is_empty();
    }
    is_open || rest.is_empty()
}

/// The longest time of a command that builds a program for release, on two cores.
const BUILD_MAX: Duration = Duration::from_secs(20 * 60);

#[test]
fn dots_stand_for_anything() {
    assert!(matches("p99 3.1 ms", "p99 … ms") && matches("ready now", "ready …"));
    assert!(matches("as it is", "as it is"));
    assert!(!matches("p99 3.1 s", "p99 … ms") && !matches("not ready", "ready …"));
    assert!(!matches("as it is not", "as it is"));
}
