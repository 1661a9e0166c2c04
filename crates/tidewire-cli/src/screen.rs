//! The alternate screen of a terminal, for views that are drawn about once a second.
//!
//! A view uses standard error, so that standard output and the scrollback stay unchanged. Ctrl-C is a signal as usual.
//! While there is a view, the terminal echoes nothing, because typed keys would appear in the picture.
//!
//! Every path that ends the program calls [`restore`], including a panic on any thread and a signal's thread.

use std::io::{self, IsTerminal, Stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::{Frame, Terminal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcgetpgrp, tcsetattr,
};

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
        hush();
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

/// Waits this long for a key that ends a view: `q`. Other keys do nothing.
pub(crate) fn wait_for_quit(within: Duration) -> bool {
    let stdin = io::stdin();
    let is_hushed = USUAL
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_some();
    if !is_hushed {
        std::thread::sleep(within);
        return false;
    }
    let mut asked = [PollFd::new(&stdin, PollFlags::IN)];
    let time = Timespec::try_from(within).ok();
    if !matches!(poll(&mut asked, time.as_ref()), Ok(1..)) {
        return false;
    }
    let mut keys = [0; 64];
    match rustix::io::read(&stdin, &mut keys) {
        // The terminal is gone, and its signal ends the program.
        Ok(0) | Err(_) => {
            std::thread::sleep(within);
            false
        }
        Ok(count) => keys[..count].iter().any(|key| matches!(key, b'q' | b'Q')),
    }
}

/// Lets the terminal echo nothing and pass keys on at once. A program in the background must not change the terminal.
fn hush() {
    let stdin = io::stdin();
    // A terminal that does not control this process has no foreground.
    let is_ours = tcgetpgrp(&stdin).map_or(true, |group| group == rustix::process::getpgrp());
    let Some(usual) = is_ours.then(|| tcgetattr(&stdin).ok()).flatten() else {
        return;
    };
    let mut quiet = usual.clone();
    quiet
        .local_modes
        .remove(LocalModes::ECHO | LocalModes::ICANON);
    if tcsetattr(&stdin, OptionalActions::Now, &quiet).is_ok() {
        *USUAL.lock().unwrap_or_else(PoisonError::into_inner) = Some(usual);
    }
}

/// Gives the terminal its usual mode back. Keys that were typed into the view are not for the shell.
fn unhush() {
    let usual = USUAL.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(usual) = usual {
        let stdin = io::stdin();
        // A terminal that is gone has no mode.
        let _ = tcflush(&stdin, QueueSelector::IFlush);
        let _ = tcsetattr(&stdin, OptionalActions::Now, &usual);
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
        unhush();
        // A terminal that is gone cannot show an error.
        let _ = execute!(io::stderr(), LeaveAlternateScreen, Show);
    }
}

/// The usual mode of the terminal, while a view has another one.
static USUAL: Mutex<Option<Termios>> = Mutex::new(None);

/// Whether the terminal shows a view; only one at a time can.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);
