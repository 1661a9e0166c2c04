//! Parses a typed line.
//!
//! A line is a message unless it starts with a slash; two slashes begin a message that starts with one. No name
//! contains a space, so a name ends at the first space.

/// A parsed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command<'a> {
    /// The line is empty, or only white space.
    Nothing,
    /// Send this to all members of the room.
    Say(&'a str),
    Who,
    /// Send this to one member only.
    Whisper {
        to: &'a str,
        text: &'a str,
    },
    /// Leave this room and enter that one.
    Join(&'a str),
    Help,
    Quit,
    /// A command without its arguments; this is its form.
    Incomplete(&'static str),
    Unknown(&'a str),
}

impl<'a> Command<'a> {
    /// Parses a line without its terminator.
    pub(super) fn parse(line: &'a str) -> Self {
        let Some(command) = line.strip_prefix('/') else {
            return if line.trim().is_empty() {
                Self::Nothing
            } else {
                Self::Say(line)
            };
        };
        if command.starts_with('/') {
            return Self::Say(command);
        }
        let (name, rest) = command
            .split_once(char::is_whitespace)
            .unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "who" => Self::Who,
            "msg" => match rest.split_once(char::is_whitespace) {
                Some((to, text)) => Self::Whisper {
                    to,
                    text: text.trim_start(),
                },
                None => Self::Incomplete("/msg NAME text"),
            },
            "join" if rest.is_empty() => Self::Incomplete("/join ROOM"),
            "join" => Self::Join(rest),
            "help" => Self::Help,
            "quit" => Self::Quit,
            _ => Self::Unknown(name),
        }
    }
}

pub(super) const HELP: [&str; 6] = [
    "/who               who is in this room",
    "/msg NAME text     say something to one person only",
    "/join ROOM         leave this room and enter another",
    "/quit              leave; so do Ctrl-C and Ctrl-D",
    "//text             say something that starts with a slash",
    "any other line goes to all members of the room",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_said_as_they_are() {
        assert_eq!(Command::parse("hi /who"), Command::Say("hi /who"));
        assert_eq!(Command::parse("  hi "), Command::Say("  hi "));
        assert_eq!(Command::parse("//who"), Command::Say("/who"));
        assert_eq!(Command::parse(" \t"), Command::Nothing);
        assert_eq!(Command::parse(""), Command::Nothing);
    }

    #[test]
    fn commands_take_names() {
        let whisper = |to, text| Command::Whisper { to, text };
        assert_eq!(
            Command::parse("/msg bob  hi  you"),
            whisper("bob", "hi  you")
        );
        assert_eq!(Command::parse("/join den "), Command::Join("den"));
        assert_eq!(Command::parse("/who"), Command::Who);
        assert_eq!(Command::parse("/help"), Command::Help);
        assert_eq!(Command::parse("/quit now"), Command::Quit);
    }

    #[test]
    fn what_lacks_something_says_how_to_write_it() {
        for line in ["/msg", "/msg bob", "/msg bob "] {
            assert!(
                matches!(Command::parse(line), Command::Incomplete(usage) if usage.starts_with("/msg")),
                "{line}"
            );
        }
        assert_eq!(Command::parse("/join"), Command::Incomplete("/join ROOM"));
        assert_eq!(Command::parse("/dance a"), Command::Unknown("dance"));
        assert_eq!(Command::parse("/"), Command::Unknown(""));
    }
}
