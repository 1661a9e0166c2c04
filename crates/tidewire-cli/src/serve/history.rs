//! The rooms and topics that keep a history: the values of `--history`.

use tidewire::{Chat, History, PubSub};
use tidewire_proto::topic::Pattern;

use crate::units::{Bytes, parse_validity};

/// A value of `--history`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HistoryRule {
    pattern: String,
    limits: History,
}

impl HistoryRule {
    /// Reads a pattern, and after commas the limits that are not the defaults.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let pattern = parts.next().unwrap_or_default();
        Pattern::parse(pattern).map_err(|error| format!("{pattern:?} is refused: {error}"))?;
        let mut limits = History::default();
        let mut seen = Vec::new();
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if seen.contains(&key) {
                return Err(format!("{key} is there twice; write each limit once"));
            }
            seen.push(key);
            match key {
                "messages" => limits.messages_max = number(part, value)?,
                "bytes" => limits.bytes_max = Bytes::at_least(value, 1)?.0,
                "age" => limits.age_max = Some(parse_validity(value)?),
                "names" => limits.names_max = number(part, value)?,
                _ => {
                    return Err(format!(
                        "{key:?} is no limit; use messages, bytes (as 64k), age (in seconds, or as 12h) or names"
                    ));
                }
            }
        }
        let pattern = pattern.to_owned();
        Ok(Self { pattern, limits })
    }

    /// Lets a chat keep the histories of these rooms.
    pub(super) fn of_rooms(kept: &[Self], chat: Chat) -> Chat {
        kept.iter()
            .fold(chat, |chat, it| chat.history_of(&it.pattern, it.limits))
    }

    /// Lets a server keep the histories of these topics.
    pub(super) fn of_topics(kept: &[Self], topics: PubSub) -> PubSub {
        kept.iter()
            .fold(topics, |topics, it| topics.history(&it.pattern, it.limits))
    }
}

/// Reads a number that is not 0: a history of nothing is none.
fn number(part: &str, value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(0) => Err(format!(
            "{part} keeps nothing; leave the history out, or use 1 or more"
        )),
        Ok(number) => Ok(number),
        Err(_) => Err(format!(
            "{part:?} is no limit; write one such as messages=100"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_history_has_a_pattern_and_limits() {
        let kept = HistoryRule::parse("news.>,messages=3,age=60").unwrap();
        let expected = History {
            messages_max: 3,
            age_max: Some(Duration::from_secs(60)),
            ..History::default()
        };
        assert_eq!((&*kept.pattern, kept.limits), ("news.>", expected));
        assert_eq!(HistoryRule::parse(">").unwrap().limits, History::default());
        let units = HistoryRule::parse("a,bytes=64k,age=12h").unwrap().limits;
        assert_eq!(units.bytes_max, 64 << 10);
        assert_eq!(units.age_max, Some(Duration::from_secs(43_200)));
        for wrong in [
            "",
            "a..b",
            "a,3",
            "a,messages",
            "a,messages=x",
            "a,size=3",
            // The bug: these were taken in silence.
            "a,messages=0",
            "a,names=0",
            "a,bytes=0",
            "a,age=0",
            "a,messages=1,messages=2",
        ] {
            assert!(HistoryRule::parse(wrong).is_err(), "{wrong}");
        }
    }
}
