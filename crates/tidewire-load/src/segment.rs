//! A share of a scenario, for a run that is spread over several processes or machines.
//!
//! Agents are dealt out by number: part K of N has the agents K − 1, K − 1 + N, and so on. Every agent has its own seed
//! and its own times, so the parts are disjoint and together are the whole, wherever they run.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Part `part` of `parts`, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Number of the part, from 1.
    pub part: u32,
    /// How many there are.
    pub parts: u32,
}

impl Segment {
    /// Everything.
    pub const WHOLE: Self = Self { part: 1, parts: 1 };

    /// Whether there is only this part.
    #[inline]
    pub fn is_whole(self) -> bool {
        self.parts == 1
    }

    /// Whether the agent with this number belongs to this part.
    #[inline]
    pub fn has(self, agent: u32) -> bool {
        // Asked for every delivery; a whole does without the division.
        self.is_whole() || agent % self.parts == self.part - 1
    }

    /// The numbers of those of `agents` agents that belong to this part.
    pub fn agents(self, agents: u32) -> impl Iterator<Item = u32> {
        (self.part - 1..agents).step_by(self.parts as usize)
    }

    /// How many of `agents` belong to this part.
    pub fn count(self, agents: u32) -> u32 {
        (agents + self.parts - self.part) / self.parts
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.part, self.parts)
    }
}

impl FromStr for Segment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text
            .split_once('/')
            .and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
        match numbers {
            Some((part, parts)) if (1..=parts).contains(&part) && parts <= PARTS_MAX => {
                Ok(Self { part, parts })
            }
            _ => Err(format!(
                "{text:?} is no part of a whole: write K/N with 1 ≤ K ≤ N ≤ {PARTS_MAX}, for example 2/4"
            )),
        }
    }
}

/// Reads the time at which parts start together: RFC 3339, or seconds since 1970.
pub fn parse_start(text: &str) -> Result<SystemTime, String> {
    let error = || {
        format!(
            "{text:?} is no time: write it as 2026-11-22T12:00:00Z, or as seconds since 1970, such as $(date -d '+30 sec' +%s)"
        )
    };
    if let Ok(secs) = text.parse::<f64>() {
        let since = std::time::Duration::try_from_secs_f64(secs).map_err(|_| error())?;
        return SystemTime::UNIX_EPOCH.checked_add(since).ok_or_else(error);
    }
    OffsetDateTime::parse(text, &Rfc3339)
        .map(SystemTime::from)
        .map_err(|_| error())
}

/// Most parts: more machines than anybody tests from.
const PARTS_MAX: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_together_the_whole() {
        for (agents, parts) in [(1, 1), (10, 3), (64, 7), (3, 5)] {
            let mut all = Vec::new();
            for part in 1..=parts {
                let segment = Segment { part, parts };
                let own: Vec<u32> = segment.agents(agents).collect();
                assert_eq!(
                    own.len() as u32,
                    segment.count(agents),
                    "{segment} of {agents}"
                );
                assert!((0..agents).all(|agent| segment.has(agent) == own.contains(&agent)));
                all.extend(own);
            }
            all.sort_unstable();
            assert_eq!(all, (0..agents).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn starts_are_times_in_either_form() {
        let expected = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        assert_eq!(parse_start("1700000000"), Ok(expected));
        assert_eq!(parse_start("2023-11-14T22:13:20Z"), Ok(expected));
        for text in ["", "soon", "-1", "nan", "2023-11-14", "1e300"] {
            assert!(parse_start(text).is_err(), "{text}");
        }
    }

    #[test]
    fn texts_are_read_or_refused_with_what_is_right() {
        assert_eq!("2/4".parse(), Ok(Segment { part: 2, parts: 4 }));
        assert_eq!("2/4".parse::<Segment>().unwrap().to_string(), "2/4");
        for text in [
            "", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3", "1/10001", "-1/2",
        ] {
            let error = text.parse::<Segment>().unwrap_err();
            assert!(error.contains("for example 2/4"), "{error}");
        }
    }
}
