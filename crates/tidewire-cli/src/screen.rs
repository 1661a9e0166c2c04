//! The alternate screen of a terminal, for views that are drawn about once a second.
//!
//! A view uses standard error, so that standard output and the scrollback stay unchanged. The terminal stays in its usual mode:
//! Ctrl-C is a signal as usual, and there are no keys.
//!
//! Every path that ends the program calls [`restore`], including a panic on any thread and a signal's thread.

use std::io::{self, IsTerminal, Stderr};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::{Frame, Terminal};

/// The screen. Dropping it gives the terminal back.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<Stderr>>,
}

impl Screen {
    /// Whether standard error is a terminal that can show a view.
    pub(crate) fn is_possible() -> bool {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        io::stderr().is_terminal() && !is_dumb
    }

    /// Takes the terminal over.
    pub(crate) fn start() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                before(panic);
            }));
        });
        let terminal = Terminal::new(CrosstermBackend::new(io::stderr()))?;
        IS_SHOWN.store(true, Ordering::SeqCst);
        let screen = Self { terminal };
        execute!(io::stderr(), EnterAlternateScreen)?;
        Ok(screen)
    }

    pub(crate) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        // After a panic on another thread the screen belongs to its message.
        if IS_SHOWN.load(Ordering::SeqCst) {
            self.terminal.draw(render)?;
        }
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back, if it was taken.
pub(crate) fn restore() {
    if IS_SHOWN.swap(false, Ordering::SeqCst) {
        // A terminal that is gone cannot show an error.
        let _ = execute!(io::stderr(), LeaveAlternateScreen, Show);
    }
}

/// Whether the terminal shows a view; only one at a time can.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);
