//! Reads and shows lines: a line editor on a terminal, or plain streams.
//!
//! On a terminal another member's line may come while the user types. The editor's external printer then removes the
//! input line, prints, and draws it again. It passes lines through a queue of one, which only a running editor empties:
//! the reading thread must never wait for the showing thread, or both would wait for ever. Without a terminal the
//! opposite holds: the reader waits until a line has been handled, so that a large file from a pipe is not held in
//! memory.

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::mpsc::{self, Sender};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::config::Config;
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Editor, ExternalPrinter};
use tidewire_command::threads;

use super::ChatInput;
use super::command::Command;

/// Shows one line. It fails if the output has no reader any more.
pub(super) type Screen = Box<dyn FnMut(&str) -> io::Result<()>>;

/// The user's side of a conversation, before it starts.
pub(super) enum Terminal {
    /// A person at a terminal.
    Edited(Box<Editor<(), MemHistory>>),
    /// Pipes and files.
    Plain,
}

impl Terminal {
    /// Opens a line editor if it is wanted and stdin and stdout are a terminal that can move its cursor, otherwise
    /// plain streams.
    pub(super) fn open(editor: bool) -> Self {
        if !editor || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Self::Plain;
        }
        // Pasted lines are several messages, as if typed.
        let config = Config::builder()
            .bracketed_paste(false)
            .auto_add_history(true)
            .build();
        match Editor::with_history(config, MemHistory::new()) {
            Ok(editor) => Self::Edited(Box::new(editor)),
            Err(error) => {
                tracing::debug!(%error, "no line editor");
                Self::Plain
            }
        }
    }

    /// Asks for one line. Returns `None` if there is no user to ask, or the user gave no answer.
    pub(super) fn ask(&mut self, prompt: &str) -> Option<String> {
        match self {
            Self::Edited(editor) => editor.readline(prompt).ok(),
            Self::Plain => None,
        }
    }

    /// Whether there is a user to ask.
    pub(super) fn is_interactive(&self) -> bool {
        matches!(self, Self::Edited(_))
    }

    /// Starts to read lines, and returns the output for them.
    pub(super) fn start(self, prompt: String, lines: Sender<ChatInput>) -> io::Result<Screen> {
        if let Self::Edited(mut editor) = self {
            match editor.create_external_printer() {
                Ok(mut printer) => {
                    threads::start("input", move || read_edited(&mut editor, &prompt, &lines))?;
                    return Ok(Box::new(move |line: &str| {
                        printer.print(format!("{line}\n")).map_err(io::Error::other)
                    }));
                }
                // The terminal cannot move its cursor.
                Err(error) => tracing::debug!(%error, "lines are shown without editor"),
            }
        }
        threads::start("input", move || read_plain(&mut io::stdin().lock(), &lines))?;
        Ok(Box::new(|line: &str| write_line(&mut io::stdout(), line)))
    }
}

/// Restores the terminal at the end of the program. The editor's thread may be in the middle of a line, with the
/// terminal in raw mode, when a signal ends the conversation.
pub(super) struct Restore(Option<Termios>);

impl Restore {
    /// Remembers the modes of stdin, if it is a terminal.
    pub(super) fn new() -> Self {
        Self(tcgetattr(io::stdin()).ok())
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if let Some(before) = &self.0
            && let Err(error) = tcsetattr(io::stdin(), OptionalActions::Drain, before)
        {
            tracing::debug!(%error, "the terminal stays as it is");
        }
    }
}

fn write_line(out: &mut impl Write, line: &str) -> io::Result<()> {
    writeln!(out, "{line}")?;
    out.flush()
}

fn read_edited(editor: &mut Editor<(), MemHistory>, prompt: &str, lines: &Sender<ChatInput>) {
    loop {
        let happening = match editor.readline(prompt) {
            Ok(text) => ChatInput::Line {
                text,
                handled: None,
            },
            Err(ReadlineError::Interrupted) => ChatInput::Interrupt,
            // The window was resized.
            Err(ReadlineError::Signal(_)) => continue,
            Err(_) => ChatInput::InputEnded,
        };
        // The editor must not be running when the program ends, so it does not start another line after the last one.
        let last = match &happening {
            ChatInput::Line { text, .. } => Command::parse(text) == Command::Quit,
            _ => true,
        };
        if lines.send(happening).is_err() || last {
            return;
        }
    }
}

fn read_plain(input: &mut impl BufRead, lines: &Sender<ChatInput>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.read_until(b'\n', &mut line) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => {
                // The conversation may have ended already.
                let _ = lines.send(ChatInput::InputEnded);
                return;
            }
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        let (handled, until_handled) = mpsc::channel();
        let happening = ChatInput::Line {
            text: text.to_owned(),
            handled: Some(handled),
        };
        if lines.send(happening).is_err() {
            return;
        }
        // No value is ever sent: the call returns when the other end is dropped, with the line.
        let _ = until_handled.recv();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_input_comes_line_by_line_and_ends() {
        let (sender, happenings) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            read_plain(&mut &b"one\r\n\xfftwo\n\nlast"[..], &sender);
        });
        let mut texts = Vec::new();
        for happening in happenings {
            match happening {
                ChatInput::Line { text, .. } => texts.push(text),
                ChatInput::InputEnded => texts.push("<end>".to_owned()),
                _ => texts.push("<other>".to_owned()),
            }
        }
        reader.join().unwrap();
        assert_eq!(texts, ["one", "\u{fffd}two", "", "last", "<end>"]);
    }

    #[test]
    fn the_plain_screen_ends_each_line() {
        let mut out = Vec::new();
        write_line(&mut out, "a").unwrap();
        write_line(&mut out, "b").unwrap();
        assert_eq!(out, b"a\nb\n");
    }
}
