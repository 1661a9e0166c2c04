//! The rooms and topics that keep a history: the values of `--history`.

use std::time::Duration;

use tidewire::{Chat, History, PubSub};
use tidewire_proto::topic::Pattern;

/// A value of `--history`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pattern: String,
    limits: History,
}

impl Kept {
    /// Reads a pattern, and behind commas the limits that are not the defaults.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let pattern = parts.next().unwrap_or_default();
        Pattern::parse(pattern).map_err(|error| format!("{pattern:?} is refused: {error}"))?;
        let mut limits = History::default();
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let number = value
                .parse::<usize>()
                .map_err(|_| format!("{part:?} is no limit; write one such as messages=100"))?;
            match key {
                "messages" => limits.messages_max = number,
                "bytes" => limits.bytes_max = number,
                "age" => limits.age_max = Some(Duration::from_secs(number as u64)),
                "names" => limits.rooms_max = number,
                _ => {
                    return Err(format!(
                        "{key:?} is no limit; use messages, bytes, age (in seconds) or names"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_has_a_pattern_and_limits() {
        let kept = Kept::parse("news.>,messages=3,age=60").unwrap();
        let expected = History {
            messages_max: 3,
            age_max: Some(Duration::from_secs(60)),
            ..History::default()
        };
        assert_eq!((&*kept.pattern, kept.limits), ("news.>", expected));
        assert_eq!(Kept::parse(">").unwrap().limits, History::default());
        for wrong in ["", "a..b", "a,3", "a,messages", "a,messages=x", "a,size=3"] {
            assert!(Kept::parse(wrong).is_err(), "{wrong}");
        }
    }
}
