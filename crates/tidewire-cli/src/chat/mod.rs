//! `tidewire chat`: a user, a room and a connection that reconnects by itself.
//!
//! One thread owns the [`Conversation`] and takes all events from one channel: typed lines, events of the connection,
//! signals. The threads that feed it do nothing else. Rejected: handling lines on the thread that reads them. It would
//! need a lock around the conversation, and the line editor's printer deadlocks when its own thread waits for that
//! lock.
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
use tidewire::{Backoff, Client, Event, RequestError, Room};
use tidewire_command::output::{self, OutputError};
use tidewire_command::{signals, threads};
use tidewire_proto::body::{ErrorCode, typed_name};
use tidewire_proto::codec::Codec;
use tidewire_proto::text::visible;

use crate::connection::{ConnectionArguments, Need};
use crate::failure::{FORBIDDEN, Failure, LIMIT_REMEDY};
use crate::logging::LogArguments;
use conversation::{Conversation, Flow};
use terminal::{Restore, Terminal};
use view::View;

/// Flags of `tidewire chat`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ChatArguments {
    #[command(flatten)]
    connection: ConnectionArguments,

    /// Your name, unique on the server; on a terminal you are asked for it if it is left out
    #[arg(long)]
    name: Option<String>,

    /// The room to enter
    #[arg(long, default_value = "lobby")]
    room: String,

    /// Print a JSON object per line, such as {"event":"message","name":…,"payload":…}; typed lines are read as usual
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

/// An event for the conversation.
enum ChatInput {
    /// The user typed a line. The sender may wait until `handled` is dropped.
    Line {
        text: String,
        handled: Option<Sender<()>>,
    },
    InputEnded,
    /// Ctrl-C, or a termination signal.
    Interrupt,
    Event {
        event: Event,
        handled: Sender<()>,
    },
}

/// Why a conversation is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The user's input has ended, or the user quit.
    Done,
    /// A signal came, so it must end soon.
    Interrupted,
}

/// Chats until the user quits or the input ends.
pub(crate) fn run(arguments: &ChatArguments) -> anyhow::Result<ExitCode> {
    let _restore = Restore::new();
    let connection = &arguments.connection;
    if connection.codec().format().is_typed() {
        let what = "this client needs more than codec lines can say";
        return Err(
            Failure::configuration(what, "talk to a server of lines with `nc HOST PORT`").into(),
        );
    }
    Need::Rooms.check(&connection.codec(), "`tidewire chat`")?;
    let mut terminal = Terminal::open(!arguments.json);
    let client = connection
        .client()?
        .reconnect(Backoff::default())
        .connect(&connection.address)
        .wait()?;
    let Some((name, joined)) = enter(&client, &mut terminal, arguments)? else {
        client.close().wait();
        return Ok(ExitCode::SUCCESS);
    };

    let (sender, happenings) = mpsc::channel();
    let interrupts = sender.clone();
    let interrupt = move || {
        // The conversation may be over.
        let _ = interrupts.send(ChatInput::Interrupt);
    };
    let restore = Restore::new();
    signals::watch(WAY_OUT, interrupt, move || drop(restore))?;
    pump_events(client.clone(), sender.clone())?;
    let room = typed_name(&arguments.room).into_owned();
    let interactive = terminal.is_interactive();
    let colour = interactive && std::env::var_os("NO_COLOR").is_none();
    let screen = terminal.start(format!("{}> ", visible(name.as_bytes())), sender)?;
    let view = match arguments.json {
        true => View::Json,
        false if colour && io::stdout().is_terminal() => View::Coloured,
        false => View::Plain,
    };
    let mut conversation = Conversation::new(client.clone(), screen, view, name, room);
    let result = converse(&mut conversation, &joined, &happenings).and_then(|end| {
        // A person has seen which lines were refused; a script has only the exit code.
        if end == End::Done && !interactive {
            conversation.handle_end()?;
        }
        conclude(&mut conversation, &client, &happenings)
    });
    match result {
        // The reader of the output is gone, like `head` when it has enough.
        Err(error) if error.downcast_ref().is_some_and(output::is_closed) => Ok(ExitCode::SUCCESS),
        Err(error) => match error.downcast::<io::Error>() {
            Ok(error) => Err(OutputError::from(error).into()),
            Err(error) => Err(error),
        },
        Ok(()) if interactive => Ok(ExitCode::SUCCESS),
        Ok(()) => match shortfall(conversation.refused(), conversation.unconfirmed()) {
            None => Ok(ExitCode::SUCCESS),
            Some(what) => Err(Failure::refused(what, remedy(conversation.refused())).into()),
        },
    }
}

/// Counts the lines that were refused or not confirmed, for a script; `None` if all were sent.
fn shortfall(refused: u64, unconfirmed: u64) -> Option<String> {
    let refused = match refused {
        0 => String::new(),
        1 => "1 line was not sent or was refused".to_owned(),
        lines => format!("{lines} lines were not sent or were refused"),
    };
    let unconfirmed = match unconfirmed {
        0 => String::new(),
        1 => "1 line is not confirmed: it may have been heard or not".to_owned(),
        lines => format!("{lines} lines are not confirmed: they may have been heard or not"),
    };
    let mut parts = vec![refused, unconfirmed];
    parts.retain(|part| !part.is_empty());
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Returns the remedy for lines that were refused or not confirmed. Only a refusal comes with a reason.
fn remedy(refused: u64) -> &'static str {
    match refused {
        0 => "ask in the room what was heard before you send it again",
        _ => "the lines that start with ! say why",
    }
}

/// Joins the room, and asks for another name as long as the server refuses it. Returns `None` if the user gave up.
fn enter(
    client: &Client,
    terminal: &mut Terminal,
    arguments: &ChatArguments,
) -> anyhow::Result<Option<(String, Room)>> {
    let room = &typed_name(&arguments.room);
    let mut name = arguments.name.clone();
    loop {
        let asked = match name.take() {
            Some(name) => name,
            None if terminal.is_interactive() => match terminal.ask("your name: ") {
                Some(name) => name,
                None => return Ok(None),
            },
            None => {
                return Err(Failure::configuration("no name was given", "pass --name NAME").into());
            }
        };
        let asked = typed_name(&asked).into_owned();
        match client.join(room).named(&asked).wait() {
            Ok(joined) => return Ok(Some((asked, joined))),
            Err(RequestError::Refused { code, text, .. }) if is_about_name(code, &text) => {
                let shown = visible(asked.as_bytes());
                let refusal = format!(
                    "the name {shown:?} is refused: {}",
                    visible(text.as_bytes())
                );
                if !terminal.is_interactive() {
                    let remedy = "choose another with --name";
                    return Err(Failure::refused(refusal, remedy).into());
                }
                output::print_line(format_args!("! {refusal}; choose another"));
            }
            Err(RequestError::Refused {
                code: ErrorCode::Unsupported | ErrorCode::NotFound | ErrorCode::MethodNotFound,
                text,
                ..
            }) => {
                let what = format!("this server has no rooms: {text}");
                let remedy = "start one that has with `tidewire serve --app chat`";
                return Err(Failure::refused(what, remedy).into());
            }
            Err(RequestError::Refused { code, text, .. }) => {
                let text = visible(text.strip_prefix(ABOUT_ROOM).unwrap_or(&text).as_bytes());
                let what = format!("the room {room:?} cannot be entered: {text}");
                let remedy = match code {
                    ErrorCode::LimitReached => LIMIT_REMEDY,
                    ErrorCode::Forbidden => FORBIDDEN,
                    _ => "choose another with --room",
                };
                return Err(Failure::refused(what, remedy).into());
            }
            Err(error) => {
                return Err(anyhow::Error::new(error).context("cannot enter the room"));
            }
        }
    }
}

/// Whether another name would help. A room's name is refused with the same codes, and the text says so.
fn is_about_name(code: ErrorCode, text: &str) -> bool {
    matches!(
        code,
        ErrorCode::NameEmpty | ErrorCode::NameTaken | ErrorCode::NameInvalid
    ) && !text.starts_with(ABOUT_ROOM)
}

/// The beginning of the text by which a server refuses a room's name.
const ABOUT_ROOM: &str = "room: ";

fn converse(
    conversation: &mut Conversation,
    joined: &Room,
    happenings: &Receiver<ChatInput>,
) -> anyhow::Result<End> {
    conversation.handle_entered(joined)?;
    loop {
        let happening = match conversation.retry_at() {
            None => happenings.recv().map_err(RecvTimeoutError::from),
            Some(at) => happenings.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        // Dropping `handled` lets the sending thread go on.
        let flow = match happening {
            Err(RecvTimeoutError::Timeout) => conversation.handle_retry()?,
            Err(RecvTimeoutError::Disconnected) => Flow::Quit,
            Ok(ChatInput::InputEnded) => Flow::Quit,
            Ok(ChatInput::Interrupt) => return Ok(End::Interrupted),
            Ok(ChatInput::Line { text, handled }) => {
                let flow = conversation.handle_line(&text)?;
                drop(handled);
                flow
            }
            Ok(ChatInput::Event { event, handled }) => {
                conversation.handle_event(event)?;
                drop(handled);
                Flow::Continue
            }
        };
        if flow == Flow::Quit {
            return Ok(End::Done);
        }
    }
}

/// Passes the connection's events on, one at a time: the library's queue is bounded and reports its losses.
fn pump_events(client: Client, events: Sender<ChatInput>) -> io::Result<()> {
    threads::start("events", move || {
        loop {
            let event = client.next_event().wait();
            let last = event == Event::Ended;
            let (handled, until_handled) = mpsc::channel();
            if events.send(ChatInput::Event { event, handled }).is_err() || last {
                return;
            }
            // No value is ever sent: the call returns when the other end is dropped, with the event.
            let _ = until_handled.recv();
        }
    })
}

/// Writes the waiting output, closes the connection and shows the last events. A server that does not read has a short
/// time to do so.
fn conclude(
    conversation: &mut Conversation,
    client: &Client,
    happenings: &Receiver<ChatInput>,
) -> anyhow::Result<()> {
    // The end of the connection is an event like the others.
    drop(client.close());
    let deadline = Instant::now() + CLOSE_TIMEOUT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match happenings.recv_timeout(left) {
            Ok(ChatInput::Event {
                event: Event::Ended,
                ..
            })
            | Err(_) => return Ok(()),
            // The user requested it.
            Ok(ChatInput::Event {
                event: Event::Closed { .. },
                ..
            }) => {}
            // Refusals come before the answer that `handle_end` waited for.
            Ok(ChatInput::Event { event, handled }) => {
                conversation.handle_event(event)?;
                drop(handled);
            }
            Ok(ChatInput::Line { .. } | ChatInput::InputEnded | ChatInput::Interrupt) => {}
        }
    }
}

/// The maximum time to end after a signal, if the output has no reader.
const WAY_OUT: Duration = Duration::from_secs(10);

/// The maximum time to close the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  tidewire chat 127.0.0.1:8080 --name alice
  tidewire chat ipc:///tmp/chat.sock --name bob --room den
  echo 'the build is green' | tidewire chat 127.0.0.1:8080 --name builder

  tail -f /dev/null | tidewire chat 127.0.0.1:8080 --name logger --json > lobby.jsonl

In the conversation: /who, /msg NAME text, /join ROOM, /quit, /help.

Exit codes: 0 all was sent, 2 wrong usage, 3 no server, 4 the server refused the name or, without a terminal, a line \
was not sent, was refused or is not confirmed, 5 no answer in time, 1 anything else.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_confirmed_are_not_called_unsent() {
        assert_eq!(shortfall(0, 0), None);
        let told = |refused, unconfirmed| shortfall(refused, unconfirmed).unwrap();
        assert_eq!(told(1, 0), "1 line was not sent or was refused");
        assert_eq!(
            told(0, 1),
            "1 line is not confirmed: it may have been heard or not"
        );
        assert_eq!(
            told(2, 3),
            "2 lines were not sent or were refused, 3 lines are not confirmed: they may have been heard or not"
        );
    }

    /// The bug: the remedy was to read lines that did not exist.
    #[test]
    fn lines_that_are_only_unconfirmed_have_a_remedy_of_their_own() {
        assert!(remedy(0).contains("what was heard"));
        assert!(remedy(1).contains("start with !"));
    }
}
