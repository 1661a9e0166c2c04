//! How a conversation looks: one line of text for everything that can happen.
//!
//! Everything that comes from peers passes [`visible`] on its way into a line, because a terminal obeys
//! control characters: an escape sequence in a message could retitle, clear or script the reader's screen,
//! and a line feed could forge a line of somebody else. The characters that reverse the direction of text
//! are replaced too, since with them a line can show other words than it holds. Rejected: trusting the
//! server to have done it, which is a peer like any other.

use std::fmt::Write;
use std::time::Duration;

/// Renders lines, with colours or without.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    colour: bool,
}

impl View {
    /// A view that colours names and notices if `colour`.
    pub(super) fn new(colour: bool) -> Self {
        Self { colour }
    }

    /// Somebody said something to the room.
    pub(super) fn said(self, name: &str, text: &[u8]) -> String {
        format!("[{}]: {}", self.name(name), visible(text))
    }

    /// Somebody said something to this user only.
    pub(super) fn whispered(self, name: &str, text: &[u8]) -> String {
        format!("[{} -> you]: {}", self.name(name), visible(text))
    }

    /// This user said something to one member only.
    pub(super) fn whisper_sent(self, to: &str, text: &str) -> String {
        format!("[you -> {}]: {}", self.name(to), visible(text.as_bytes()))
    }

    /// Somebody came.
    pub(super) fn joined(self, name: &str) -> String {
        self.notice(&format!("{} joined", visible(name.as_bytes())))
    }

    /// Somebody went.
    pub(super) fn left(self, name: &str) -> String {
        self.notice(&format!("{} left", visible(name.as_bytes())))
    }

    /// Messages did not arrive.
    pub(super) fn gap(self, lost: u64) -> String {
        match lost {
            1 => self.problem("1 message was lost here"),
            lost => self.problem(&format!("{lost} messages were lost here")),
        }
    }

    /// This user is in a room now, with these others. `count` includes the user; the names may be fewer.
    pub(super) fn entered(self, room: &str, own: &str, others: &[&str], count: usize) -> String {
        let (room, own) = (visible(room.as_bytes()), visible(own.as_bytes()));
        let who = match (others, count) {
            (_, 0 | 1) => "nobody else is here".to_owned(),
            ([], count) => format!("{count} people are here"),
            (names, _) => format!("here with you: {}", list(names)),
        };
        self.notice(&format!("you are in {room} as {own}; {who}"))
    }

    /// The answer to `/who`.
    pub(super) fn roster(self, room: &str, names: &[&str]) -> String {
        let room = visible(room.as_bytes());
        self.notice(&format!("{} in {room}: {}", names.len(), list(names)))
    }

    /// The connection is down, and what follows. `again` if an attempt to get it back has just failed.
    pub(super) fn reconnecting(self, cause: &str, delay: Duration, again: bool) -> String {
        let what = if again {
            "still no connection"
        } else {
            "connection lost"
        };
        let cause = visible(cause.as_bytes());
        let delay = delay.as_secs_f64();
        self.problem(&format!("{what}: {cause}; trying again in {delay:.1} s"))
    }

    /// Something that happened, in words of ours.
    pub(super) fn notice(self, text: &str) -> String {
        self.paint(DIM, &format!("* {text}"))
    }

    /// Something that went wrong, in words of ours.
    pub(super) fn problem(self, text: &str) -> String {
        self.paint(YELLOW, &format!("! {text}"))
    }

    /// A name, in a colour that is always the same for it.
    fn name(self, name: &str) -> String {
        let sum = name.bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31) + usize::from(byte)
        });
        self.paint(
            NAME_COLOURS[sum % NAME_COLOURS.len()],
            &visible(name.as_bytes()),
        )
    }

    fn paint(self, colour: &str, text: &str) -> String {
        if self.colour {
            format!("\u{1b}[{colour}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Text that cannot command a terminal: white space becomes a space, other control characters, characters
/// that reverse the direction of text, and what is not UTF-8 become `?`.
pub(super) fn visible(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        shown.extend(chunk.valid().chars().map(|character| match character {
            '\t' | '\n' | '\r' => ' ',
            character if character.is_control() || is_deceptive(character) => '?',
            character => character,
        }));
        if !chunk.invalid().is_empty() {
            shown.push('?');
        }
    }
    shown
}

/// Whether a character ends a line or changes the direction of what follows, while being no control character.
pub(crate) fn is_deceptive(character: char) -> bool {
    matches!(
        character,
        '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}'
    )
}

/// Names with commas between them; of a crowd only the first.
fn list(names: &[&str]) -> String {
    let mut text = String::new();
    for (index, name) in names.iter().take(NAMES_SHOWN_MAX).enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{separator}{}", visible(name.as_bytes()));
    }
    if names.len() > NAMES_SHOWN_MAX {
        let _ = write!(text, " and {} more", names.len() - NAMES_SHOWN_MAX);
    }
    text
}

/// Enough to see a room at a glance; a crowd of a thousand must not scroll the conversation away.
const NAMES_SHOWN_MAX: usize = 50;

const DIM: &str = "2";
const YELLOW: &str = "33";
const NAME_COLOURS: [&str; 5] = ["1;31", "1;32", "1;34", "1;35", "1;36"];

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: View = View { colour: false };

    #[test]
    fn messages_name_who_and_to_whom() {
        assert_eq!(PLAIN.said("bob", b"hi"), "[bob]: hi");
        assert_eq!(PLAIN.whispered("bob", b"psst"), "[bob -> you]: psst");
        assert_eq!(PLAIN.whisper_sent("bob", "psst"), "[you -> bob]: psst");
        assert_eq!(PLAIN.joined("bob"), "* bob joined");
        assert_eq!(PLAIN.left("bob"), "* bob left");
        assert_eq!(PLAIN.gap(1), "! 1 message was lost here");
        assert_eq!(PLAIN.gap(3), "! 3 messages were lost here");
    }

    #[test]
    fn peers_cannot_command_the_terminal_nor_forge_a_line() {
        let attack = "\u{1b}]0;owned\u{7}\n[bob]: yes\u{9b}2J\u{202e}x".as_bytes();
        let shown = PLAIN.said("m\u{1b}[31mal", attack);
        assert_eq!(shown, "[m?[31mal]: ?]0;owned? [bob]: yes?2J?x");
        assert_eq!(visible(b"a\xff\xfeb\x7f"), "a??b?");
        assert_eq!(visible("Grüße 王🐙\tok".as_bytes()), "Grüße 王🐙 ok");
        for line in [
            PLAIN.joined("a\u{1b}b"),
            PLAIN.left("a\u{1b}b"),
            PLAIN.whispered("a\u{1b}b", b"\r"),
            PLAIN.roster("a\u{1b}b", &["c\u{1b}d"]),
            PLAIN.entered("a\u{1b}", "b\u{1b}", &["c\u{1b}"], 2),
            PLAIN.reconnecting("\u{1b}c", Duration::ZERO, true),
        ] {
            assert!(!line.chars().any(char::is_control), "{line:?}");
        }
    }

    #[test]
    fn entering_tells_who_is_there() {
        assert_eq!(
            PLAIN.entered("lobby", "al", &[], 1),
            "* you are in lobby as al; nobody else is here"
        );
        assert_eq!(
            PLAIN.entered("lobby", "al", &["bob", "cy"], 3),
            "* you are in lobby as al; here with you: bob, cy"
        );
        assert_eq!(
            PLAIN.entered("lobby", "al", &[], 4_000),
            "* you are in lobby as al; 4000 people are here"
        );
    }

    #[test]
    fn a_crowd_is_cut() {
        let names = vec!["x"; NAMES_SHOWN_MAX + 7];
        let line = PLAIN.roster("lobby", &names);
        assert!(line.starts_with("* 57 in lobby: x, x"), "{line}");
        assert!(line.ends_with(" and 7 more"), "{line}");
    }

    #[test]
    fn a_lost_connection_says_when_it_is_tried_again() {
        assert_eq!(
            PLAIN.reconnecting("reset", Duration::from_millis(400), false),
            "! connection lost: reset; trying again in 0.4 s"
        );
        assert_eq!(
            PLAIN.reconnecting("refused", Duration::from_secs(5), true),
            "! still no connection: refused; trying again in 5.0 s"
        );
    }

    #[test]
    fn colours_surround_what_is_safe_already() {
        let view = View::new(true);
        assert_eq!(view.notice("x"), "\u{1b}[2m* x\u{1b}[0m");
        let line = view.said("bob", b"\x1b[2J");
        assert!(line.ends_with("\u{1b}[0m]: ?[2J"), "{line:?}");
        assert_eq!(line, view.said("bob", b"\x1b[2J"));
    }
}
