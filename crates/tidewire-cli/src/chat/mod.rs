//! `tidewire chat`: a person, a room and a connection that comes back by itself.
//!
//! One thread owns the [`Conversation`] and takes what happens from one channel: typed lines, events of the
//! connection, signals. The threads that feed it do nothing else. Rejected: handling lines on the thread
//! that reads them, which would need a lock around the conversation, and the line editor's printer
//! deadlocks when its own thread waits for that lock.
//!
//! ```text
//! stdin ──▶ terminal ─┐
//! connection ─▶ pump ─┼─▶ conversation ──▶ view ──▶ screen
//! signals ────────────┘
//! ```

mod command;
mod conversation;
mod members;
mod terminal;
mod view;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use clap::Args;
use tidewire::io::poller::PollerChoice;
use tidewire::proto::body::ErrorCode;
use tidewire::{Backoff, Client, Event, Joined, RequestError};

use crate::failure::Failure;
use crate::signals;
use conversation::{Conversation, Flow};
use terminal::{Restore, Terminal};
use view::{View, visible};

pub(crate) use view::is_deceptive;

/// Flags of `tidewire chat`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ChatArguments {
    /// Address of the server, HOST:PORT, tcp://HOST:PORT or ipc://PATH
    #[arg(value_name = "ADDR")]
    address: String,

    /// Your name, unique on the server; on a terminal you are asked if it is left out
    #[arg(long)]
    name: Option<String>,

    /// The room to enter
    #[arg(long, default_value = "lobby")]
    room: String,
}

/// Something the conversation must deal with.
enum Happening {
    /// The user typed a line. Whoever sent it may wait for `handled` to be dropped.
    Line {
        text: String,
        handled: Option<Sender<()>>,
    },
    /// There is no more input.
    InputEnded,
    /// Ctrl-C, or a termination signal.
    Interrupt,
    /// Something happened to the connection.
    Event { event: Event, handled: Sender<()> },
}

/// Chats until the user quits or the input ends.
///
/// # Errors
/// The server cannot be reached, or refuses the name and there is nobody to ask for another.
pub(crate) fn run(arguments: ChatArguments) -> anyhow::Result<ExitCode> {
    let _restore = Restore::new();
    let mut terminal = Terminal::open();
    let client = Client::builder()
        .poller(PollerChoice::from_env()?.unwrap_or_default())
        .reconnect(Backoff::default())
        .request_timeout(REQUEST_TIMEOUT)
        .connect(&arguments.address)?;
    let Some((name, joined)) = enter(&client, &mut terminal, &arguments)? else {
        client.close();
        return Ok(ExitCode::SUCCESS);
    };

    let (sender, happenings) = mpsc::channel();
    let interrupts = sender.clone();
    signals::watch(move || interrupts.send(Happening::Interrupt).is_ok())?;
    pump_events(client.clone(), sender.clone())?;
    let colour = terminal.is_interactive() && std::env::var_os("NO_COLOR").is_none();
    let screen = terminal.start(format!("{}> ", visible(name.as_bytes())), sender)?;
    let view = View::new(colour && io::stdout().is_terminal());
    let conversation = Conversation::new(client.clone(), screen, view, name, arguments.room);
    let result = converse(conversation, &joined, &happenings);
    close(client);
    match result {
        // Whoever read our output is gone, as `head` does when it has enough.
        Err(error) if is_closed_output(&error) => Ok(ExitCode::SUCCESS),
        result => result.map(|()| ExitCode::SUCCESS),
    }
}

/// Enters the room, asking for another name as long as the server refuses it. `None` if the user gave up.
fn enter(
    client: &Client,
    terminal: &mut Terminal,
    arguments: &ChatArguments,
) -> anyhow::Result<Option<(String, Joined)>> {
    let mut name = arguments.name.clone();
    loop {
        let asked = match name.take() {
            Some(name) => name,
            None if terminal.is_interactive() => match terminal.ask("your name: ") {
                Some(name) => name.trim().to_owned(),
                None => return Ok(None),
            },
            None => {
                return Err(Failure::configuration("no name was given", "pass --name NAME").into());
            }
        };
        match client.join(&arguments.room, &asked) {
            Ok(joined) => return Ok(Some((asked, joined))),
            Err(RequestError::Refused { code, text }) if is_about_name(code, &text) => {
                let shown = visible(asked.as_bytes());
                let refusal = format!(
                    "the name {shown:?} is refused: {}",
                    visible(text.as_bytes())
                );
                if !terminal.is_interactive() {
                    let remedy = "choose another with --name";
                    return Err(Failure::configuration(refusal, remedy).into());
                }
                say_before_start(&format!("! {refusal}; choose another"));
            }
            Err(RequestError::Refused { text, .. }) => {
                let text = visible(text.as_bytes());
                let what = format!("the room {:?} cannot be entered: {text}", arguments.room);
                return Err(Failure::configuration(what, "choose another with --room").into());
            }
            Err(error) => {
                let what = format!("cannot enter the room: {error}");
                return Err(Failure::unreachable(what, "try again, or check the server").into());
            }
        }
    }
}

/// Whether another name would help. A room's name is refused with the same codes, and says so.
fn is_about_name(code: ErrorCode, text: &str) -> bool {
    matches!(
        code,
        ErrorCode::NameEmpty | ErrorCode::NameTaken | ErrorCode::NameInvalid
    ) && !text.starts_with("room: ")
}

/// Deals with everything that happens, until the end.
fn converse(
    mut conversation: Conversation,
    joined: &Joined,
    happenings: &Receiver<Happening>,
) -> anyhow::Result<()> {
    conversation.handle_entered(joined)?;
    loop {
        let wait = conversation
            .retry_at()
            .map(|at| at.saturating_duration_since(Instant::now()));
        let happening = match wait {
            None => happenings.recv().map_err(RecvTimeoutError::from),
            Some(wait) => happenings.recv_timeout(wait),
        };
        // Dropping `handled` lets the thread that sent it go on.
        let flow = match happening {
            Err(RecvTimeoutError::Timeout) => conversation.handle_retry()?,
            Err(RecvTimeoutError::Disconnected) => Flow::Quit,
            Ok(Happening::InputEnded | Happening::Interrupt) => Flow::Quit,
            Ok(Happening::Line { text, handled }) => {
                let flow = conversation.handle_line(&text)?;
                drop(handled);
                flow
            }
            Ok(Happening::Event { event, handled }) => {
                conversation.handle_event(event)?;
                drop(handled);
                Flow::Continue
            }
        };
        if matches!(flow, Flow::Quit) {
            return Ok(());
        }
    }
}

/// Hands the connection's events over, one at a time: the library's queue is bounded and says what it lost.
fn pump_events(client: Client, events: Sender<Happening>) -> io::Result<()> {
    std::thread::Builder::new()
        .name("tidewire-events".to_owned())
        .spawn(move || {
            loop {
                let event = client.next_event();
                let last = event == Event::Ended;
                let (handled, until_handled) = mpsc::channel();
                if events.send(Happening::Event { event, handled }).is_err() || last {
                    return;
                }
                // Nothing is ever sent: it returns when the other end is dropped, with the event.
                let _ = until_handled.recv();
            }
        })?;
    Ok(())
}

/// Writes what is waiting and closes the connection, but does not wait for a server that does not read.
fn close(client: Client) {
    let (closed, until_closed) = mpsc::channel::<()>();
    let closing = std::thread::Builder::new().spawn(move || {
        client.close();
        drop(closed);
    });
    if let Err(error) = closing {
        tracing::debug!(%error, "the connection is cut");
        return;
    }
    // Nothing is ever sent; a timeout means that the server takes nothing, so nothing more can be done.
    let _ = until_closed.recv_timeout(CLOSE_TIMEOUT);
}

fn is_closed_output(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Shows a line on a terminal that no editor and no screen has yet.
fn say_before_start(line: &str) {
    use io::Write;
    // A terminal that is gone will end the next question.
    let _ = writeln!(io::stdout(), "{line}");
}

/// Every answer of a chat server is immediate; a person would not wait longer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long quitting may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  tidewire chat 127.0.0.1:8080 --name alice
  tidewire chat ipc:///tmp/chat.sock --name bob --room den
  echo 'the build is green' | tidewire chat 127.0.0.1:8080 --name builder

In the conversation: /who, /msg NAME text, /join ROOM, /quit, /help.";
