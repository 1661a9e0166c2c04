//! The text of a conversation: one line for each event.
//!
//! The text of peers passes [`visible`] on its way into a line, and their names [`displayed_name`]. The server should
//! have refused names that make a line look like one of another kind, but it is a peer like any other.

use std::time::Duration;

use serde_json::{Value, json};
use tidewire_proto::body::displayed_name;
use tidewire_proto::text::visible;

use crate::payload::{insert_payload, json_text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Plain,
    /// Text with colours for names and notices.
    Coloured,
    /// A JSON object per line.
    Json,
}

impl View {
    pub(super) fn message(self, name: &str, text: &[u8]) -> String {
        let line = || format!("[{}]: {}", self.name(name), visible(text));
        self.line("message", json!({"name": name}), Some(text), line)
    }

    /// A message to this user only.
    pub(super) fn whispered(self, name: &str, text: &[u8]) -> String {
        let line = || format!("[{} -> you]: {}", self.name(name), visible(text));
        self.line("whispered", json!({"name": name}), Some(text), line)
    }

    /// A message of this user to one member only.
    pub(super) fn whisper_sent(self, to: &str, text: &str) -> String {
        let text = text.as_bytes();
        let line = || format!("[you -> {}]: {}", self.name(to), visible(text));
        self.line("whisper_sent", json!({"to": to}), Some(text), line)
    }

    pub(super) fn joined(self, name: &str) -> String {
        let line = || self.notice(&format!("{} joined", displayed_name(name)));
        self.line("joined", json!({"name": name}), None, line)
    }

    pub(super) fn left(self, name: &str) -> String {
        let line = || self.notice(&format!("{} left", displayed_name(name)));
        self.line("left", json!({"name": name}), None, line)
    }

    /// Messages did not arrive.
    pub(super) fn gap(self, lost: u64) -> String {
        self.line("gap", json!({"lost": lost}), None, || match lost {
            1 => self.problem("1 message was lost here"),
            lost => self.problem(&format!("{lost} messages were lost here")),
        })
    }

    /// The user has joined a room with these other members. `count` includes the user; the names may be fewer.
    pub(super) fn entered(self, room: &str, own: &str, others: &[&str], count: usize) -> String {
        let fields = json!({"room": room, "name": own, "others": others, "members": count});
        let (room, own) = (displayed_name(room), displayed_name(own));
        let who = match (others, count) {
            (_, 0 | 1) => "no other member is here".to_owned(),
            ([], count) => format!("{count} people are here"),
            (names, _) => format!("here with you: {}", list(names)),
        };
        let line = || self.notice(&format!("you are in {room} as {own}; {who}"));
        self.line("entered", fields, None, line)
    }

    /// The answer to `/who`.
    pub(super) fn roster(self, room: &str, names: &[&str]) -> String {
        self.line(
            "roster",
            json!({"room": room, "names": names}),
            None,
            || {
                let room = displayed_name(room);
                self.notice(&format!("{} in {room}: {}", names.len(), list(names)))
            },
        )
    }

    /// The connection is down, with the next step. `again` means that an attempt to reconnect has just failed.
    pub(super) fn reconnecting(self, cause: &str, delay: Duration, again: bool) -> String {
        let (delay_ms, seconds) = (delay.as_millis() as u64, delay.as_secs_f64());
        let fields = json!({"cause": cause, "delay_ms": delay_ms, "again": again});
        self.line("reconnecting", fields, None, || {
            let what = if again {
                "still no connection"
            } else {
                "connection lost"
            };
            let cause = visible(cause.as_bytes());
            self.problem(&format!("{what}: {cause}; trying again in {seconds:.1} s"))
        })
    }

    pub(super) fn notice(self, text: &str) -> String {
        let line = || self.paint(DIM, &format!("* {text}"));
        self.line("notice", json!({"text": text}), None, line)
    }

    /// An error of this program.
    pub(super) fn problem(self, text: &str) -> String {
        let line = || self.paint(YELLOW, &format!("! {text}"));
        self.line("problem", json!({"text": text}), None, line)
    }

    /// Makes the line of an event: for programs of its fields and its payload, for people what `text` returns.
    fn line(
        self,
        event: &str,
        mut fields: Value,
        payload: Option<&[u8]>,
        text: impl FnOnce() -> String,
    ) -> String {
        if self != Self::Json {
            return text();
        }
        fields["event"] = event.into();
        if let (Value::Object(object), Some(payload)) = (&mut fields, payload) {
            insert_payload(object, payload);
        }
        json_text(&fields)
    }

    /// Returns a name in a colour that is always the same for it.
    fn name(self, name: &str) -> String {
        let sum = name.bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31) + usize::from(byte)
        });
        self.paint(
            NAME_COLOURS[sum % NAME_COLOURS.len()],
            &displayed_name(name),
        )
    }

    fn paint(self, colour: &str, text: &str) -> String {
        if self == Self::Coloured {
            format!("\u{1b}[{colour}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Joins names with commas; of many names only the first ones.
fn list(names: &[&str]) -> String {
    let shown = names
        .iter()
        .take(NAMES_SHOWN_MAX)
        .map(|name| displayed_name(name));
    let text = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_SHOWN_MAX) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// Maximum number of names: enough to see a room at a glance. A thousand names must not scroll the conversation away.
const NAMES_SHOWN_MAX: usize = 50;

const DIM: &str = "2";
const YELLOW: &str = "33";
const NAME_COLOURS: [&str; 5] = ["1;31", "1;32", "1;34", "1;35", "1;36"];

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: View = View::Plain;

    #[test]
    fn messages_name_who_and_to_whom() {
        assert_eq!(PLAIN.message("bob", b"hi"), "[bob]: hi");
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
        let shown = PLAIN.message("m\u{1b}[31mal", attack);
        assert_eq!(shown, "[m??31mal]: ?]0;owned??[bob]: yes?2J?x");
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

    /// The server accepts such names, but its users must not be deceived by them.
    #[test]
    fn a_name_cannot_forge_a_line_of_another_kind() {
        assert_eq!(PLAIN.message("bob -> you", b"hi"), "[bob?-??you]: hi");
        assert_eq!(PLAIN.joined("bob left\n*"), "* bob?left?? joined");
        assert_eq!(PLAIN.message("", b"hi"), "[?]: hi");
        let line = PLAIN.entered("a; here with you: root", "al", &[], 1);
        assert!(
            line.starts_with("* you are in a??here?with?you??root as al;"),
            "{line}"
        );
    }

    #[test]
    fn entering_tells_who_is_there() {
        assert_eq!(
            PLAIN.entered("lobby", "al", &[], 1),
            "* you are in lobby as al; no other member is here"
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
        let view = View::Coloured;
        assert_eq!(view.notice("x"), "\u{1b}[2m* x\u{1b}[0m");
        let line = view.message("bob", b"\x1b[2J");
        assert!(line.ends_with("\u{1b}[0m]: ?[2J"), "{line:?}");
        assert_eq!(line, view.message("bob", b"\x1b[2J"));
    }

    #[test]
    fn programs_get_an_object_for_everything() {
        let view = View::Json;
        assert_eq!(
            view.message("b\u{1b}b", b"hi"),
            r#"{"event":"message","name":"b\u001bb","payload":"hi"}"#
        );
        for (line, event) in [
            (view.whispered("b", b"\xff"), "whispered"),
            (view.whisper_sent("b", "x"), "whisper_sent"),
            (view.joined("b"), "joined"),
            (view.left("b"), "left"),
            (view.gap(1), "gap"),
            (view.entered("r", "a", &["b"], 2), "entered"),
            (view.roster("r", &["a"]), "roster"),
            (
                view.reconnecting("reset", Duration::ZERO, true),
                "reconnecting",
            ),
            (view.notice("n"), "notice"),
            (view.problem("p"), "problem"),
        ] {
            let object: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(object["event"], event);
        }
    }
}
