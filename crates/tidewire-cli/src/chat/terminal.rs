//! Where lines are read and shown: a line editor on a terminal, or plain streams.
//!
//! On a terminal somebody else's line may come while the user types. The editor's external printer then
//! takes the input line away, prints, and draws it again. It hands lines over through a queue of one, which
//! only a running editor empties: the thread that reads must never wait for the thread that shows, or both
//! would wait for ever. Without a terminal the opposite holds: the reader waits until a line has been dealt
//! with, so that a large file piped in is not held in memory.

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::mpsc::{self, Sender};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::config::Config;
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Editor, ExternalPrinter};

use super::Happening;
use super::command::Command;

/// Where lines are shown.
pub(super) trait Screen {
    /// Shows one line.
    ///
    /// # Errors
    /// Nobody reads any more.
    fn show(&mut self, line: &str) -> io::Result<()>;
}

/// The user's end of a conversation, before it starts.
pub(super) enum Terminal {
    /// A person at a terminal.
    Edited(Box<Editor<(), MemHistory>>),
    /// Pipes and files.
    Plain,
}

impl Terminal {
    /// A line editor if it is wanted and stdin and stdout are a terminal that can move its cursor, else plain streams.
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

    /// Asks for one line. `None` if there is nobody to ask, or they would rather not answer.
    pub(super) fn ask(&mut self, prompt: &str) -> Option<String> {
        match self {
            Self::Edited(editor) => editor.readline(prompt).ok(),
            Self::Plain => None,
        }
    }

    /// Whether somebody can be asked.
    pub(super) fn is_interactive(&self) -> bool {
        matches!(self, Self::Edited(_))
    }

    /// Starts to read lines, and returns where to show them.
    ///
    /// # Errors
    /// The system refused the thread.
    pub(super) fn start(
        self,
        prompt: String,
        lines: Sender<Happening>,
    ) -> io::Result<Box<dyn Screen>> {
        let thread = std::thread::Builder::new().name("tidewire-input".to_owned());
        if let Self::Edited(mut editor) = self {
            match editor.create_external_printer() {
                Ok(printer) => {
                    thread.spawn(move || read_edited(&mut editor, &prompt, &lines))?;
                    return Ok(Box::new(EditedScreen { printer }));
                }
                // A terminal that cannot move its cursor.
                Err(error) => tracing::debug!(%error, "lines are shown without editor"),
            }
        }
        thread.spawn(move || read_plain(&mut io::stdin().lock(), &lines))?;
        Ok(Box::new(PlainScreen { out: io::stdout() }))
    }
}

/// Puts the terminal back as it was, however this program ends: the editor's thread may be in the middle of
/// a line, with the terminal in raw mode, when a signal ends the conversation.
pub(super) struct Restore(Option<Termios>);

impl Restore {
    /// Remembers how stdin is, if it is a terminal.
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

struct EditedScreen<P> {
    printer: P,
}

impl<P: ExternalPrinter> Screen for EditedScreen<P> {
    fn show(&mut self, line: &str) -> io::Result<()> {
        self.printer
            .print(format!("{line}\n"))
            .map_err(io::Error::other)
    }
}

struct PlainScreen<W> {
    out: W,
}

impl<W: Write> Screen for PlainScreen<W> {
    fn show(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }
}

fn read_edited(editor: &mut Editor<(), MemHistory>, prompt: &str, lines: &Sender<Happening>) {
    loop {
        let happening = match editor.readline(prompt) {
            Ok(text) => Happening::Line {
                text,
                handled: None,
            },
            Err(ReadlineError::Interrupted) => Happening::Interrupt,
            // A resize of the window.
            Err(ReadlineError::Signal(_)) => continue,
            Err(_) => Happening::InputEnded,
        };
        // The editor must be at rest when the program ends, so it does not start another line after the last.
        let last = match &happening {
            Happening::Line { text, .. } => Command::parse(text) == Command::Quit,
            _ => true,
        };
        if lines.send(happening).is_err() || last {
            return;
        }
    }
}

fn read_plain(input: &mut impl BufRead, lines: &Sender<Happening>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.read_until(b'\n', &mut line) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => {
                // Nobody listens if the conversation has ended already.
                let _ = lines.send(Happening::InputEnded);
                return;
            }
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        let (handled, until_handled) = mpsc::channel();
        let happening = Happening::Line {
            text: text.to_owned(),
            handled: Some(handled),
        };
        if lines.send(happening).is_err() {
            return;
        }
        // Nothing is ever sent: it returns when the other end is dropped, with the line.
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
                Happening::Line { text, .. } => texts.push(text),
                Happening::InputEnded => texts.push("<end>".to_owned()),
                _ => texts.push("<other>".to_owned()),
            }
        }
        reader.join().unwrap();
        assert_eq!(texts, ["one", "\u{fffd}two", "", "last", "<end>"]);
    }

    #[test]
    fn the_plain_screen_ends_each_line() {
        let mut screen = PlainScreen { out: Vec::new() };
        screen.show("a").unwrap();
        screen.show("b").unwrap();
        assert_eq!(screen.out, b"a\nb\n");
    }
}
