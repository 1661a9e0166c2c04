//! A chat with a history: `cargo run -p tidewire-examples --bin chat_history -- ADDRESS FILE TOKEN`
//!
//! A new member of a room gets its last 50 messages, even after a restart of the server. A moderator who knows TOKEN
//! bans a member by the method `kick` with the payload `TOKEN NAME`. The member's client does not reconnect, and no
//! session can use this name or a similar name again. The server keeps 1,000 such names.
//!
//! A worker writes everything to FILE, one line each: `say ROOM NAME TEXT` or `kick NAME`, separated by tabs. No lane
//! waits for the disk: while the worker has 10,000 lines to write, messages are refused.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidewire::text::{name_skeleton, validate_name};
use tidewire::workers::{WhenPoolFull, WorkerPool};
use tidewire::{
    Chat, Context, ErrorCode, GoAwayCode, HandlerError, HandlerResult, History, Message, Router,
    Server,
};

/// The last messages of each room: the author's name and the text.
type Rooms = HashMap<String, VecDeque<(String, Vec<u8>)>>;

/// Returns the messages of former runs, and the skeletons of the kicked names.
fn read(lines: &str) -> (Rooms, HashSet<String>) {
    let (mut rooms, mut kicked) = (Rooms::new(), HashSet::new());
    for line in lines.lines() {
        match *line.splitn(4, '\t').collect::<Vec<_>>() {
            ["say", room, name, text] => {
                let said = rooms.entry(room.to_owned()).or_default();
                said.push_back((name.to_owned(), text.into()));
                said.drain(..said.len().saturating_sub(MESSAGES_MAX));
            }
            ["kick", name] => drop(kicked.insert(name_skeleton(name))),
            _ => eprintln!("skipped a damaged line: {line:?}"),
        }
    }
    (rooms, kicked)
}

/// The state that all lanes share.
struct Shared {
    writer: WorkerPool<String>,
    kicked: Mutex<HashSet<String>>,
    token: String,
}

impl Shared {
    /// Queues a line for the file.
    fn write(&self, line: String) -> HandlerResult {
        let busy = |_| HandlerError::new(ErrorCode::LimitReached, "too busy; try again later");
        self.writer.submit(line).map_err(busy)
    }

    fn admit(&self, name: &str) -> HandlerResult {
        let kicked = self.kicked.lock().unwrap_or_else(PoisonError::into_inner);
        match kicked.contains(&name_skeleton(name)) {
            true => Err(HandlerError::new(ErrorCode::NameInvalid, KICKED)),
            false => Ok(()),
        }
    }

    fn kick(&self, cx: &mut Context<'_>, message: &Message<'_>) -> HandlerResult {
        let words = std::str::from_utf8(message.payload)?.split_once(' ');
        let Some((_, name)) = words.filter(|(token, _)| *token == self.token) else {
            let text = "moderators only: send TOKEN NAME";
            return Err(HandlerError::new(ErrorCode::Unsupported, text));
        };
        // Without this check a moderator could forge lines of other members.
        validate_name(name)?;
        // The name is refused from here on. The member is removed after that.
        let mut kicked = self.kicked.lock().unwrap_or_else(PoisonError::into_inner);
        if kicked.len() >= KICKED_MAX {
            let text = "the list of kicked names is full; take some out of the file";
            return Err(HandlerError::new(ErrorCode::LimitReached, text));
        }
        self.write(format!("kick\t{name}\n"))?;
        kicked.insert(name_skeleton(name));
        // The member may have left already.
        let _ = cx.rooms().close_member(name, GoAwayCode::Removed, KICKED);
        cx.reply(&[])
    }
}

fn chat(shared: &Arc<Shared>, rooms: Rooms) -> Chat {
    let (joins, says) = (Arc::clone(shared), Arc::clone(shared));
    let chat = Chat::new()
        .history(History::last(MESSAGES_MAX))
        .on_join(move |_, _room, name| joins.admit(name))
        .on_say(move |_, message| {
            // A member who joined during the kick cannot send messages either.
            says.admit(message.from)?;
            let text = std::str::from_utf8(&message.payload)?;
            if text.contains(char::is_control) {
                let text = "one line of text, please";
                return Err(HandlerError::new(ErrorCode::MalformedBody, text));
            }
            match message.to {
                // Whispers are not kept.
                Some(_) => Ok(()),
                None => says.write(format!("say\t{}\t{}\t{text}\n", message.room, message.from)),
            }
        });
    rooms
        .into_iter()
        .fold(chat, |chat, (room, said)| chat.restore_history(room, said))
}

fn main() -> std::process::ExitCode {
    tidewire_examples::report(run())
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, path, token] = &arguments[..] else {
        return Err("usage: chat_history ADDRESS FILE TOKEN".into());
    };
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let bytes = std::fs::read(path)?;
    // A program that was killed may have written half a line, which could be read as a different line.
    let end = bytes.iter().rposition(|byte| *byte == b'\n');
    let whole = end.map_or(0, |at| at + 1);
    file.set_len(whole as u64)?;
    let (rooms, kicked) = read(&String::from_utf8_lossy(&bytes[..whole]));
    // A single thread keeps the lines in order.
    let writer = WorkerPool::new(1, LINES_MAX, WhenPoolFull::Refuse, move |line: String| {
        if let Err(error) = (&file).write_all(line.as_bytes()) {
            eprintln!("cannot write to the history: {error}");
        }
    })?;
    let shared = Arc::new(Shared {
        writer,
        kicked: Mutex::new(kicked),
        token: token.clone(),
    });
    let chat = chat(&shared, rooms);
    let server = Server::builder().listen(address)?.lanes(2).start(|_| {
        let shared = Arc::clone(&shared);
        let kick = move |cx: &mut Context<'_>, message: Message<'_>| shared.kick(cx, &message);
        Router::new().on("kick", kick).with(chat.clone())
    })?;
    println!("listening on {server}");
    server.wait_for_signals(Duration::from_secs(5))?;
    // The writer is dropped last, and first writes the queued lines.
    Ok(())
}

const MESSAGES_MAX: usize = 50;
const LINES_MAX: usize = 10_000;
const KICKED_MAX: usize = 1_000;
const KICKED: &str = "you were kicked";
