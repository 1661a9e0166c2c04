//! Lists of sessions and rooms: searched, sorted, and cut into pages.

use std::cmp::{Ordering, Reverse};

use tidewire::ServeError;
use tidewire::metrics::{RoomFigures, SessionFigures};
use tidewire::text::hexadecimal;

use crate::model::{Page, Room, Session};
use crate::sampler::{ANSWER_TIME_MAX, Sampler, behind};

/// The part of a list that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    /// Text within a name or address, in lower case. Empty for everything.
    search: String,
    sort: String,
    is_descending: bool,
    offset: usize,
    limit: usize,
}

/// A query has an unknown key or value.
pub(crate) type BadQuery = String;

impl Query {
    /// Parses the part of a URL after the question mark.
    pub(crate) fn parse(text: &str, sorts: &[&str]) -> Result<Self, BadQuery> {
        let mut query = Self {
            search: String::new(),
            sort: sorts[0].to_owned(),
            is_descending: true,
            offset: 0,
            limit: 50,
        };
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value)?;
            match key {
                "search" => query.search = value.to_lowercase(),
                "sort" if sorts.contains(&&*value) => query.sort = value,
                "sort" => {
                    return Err(format!(
                        "cannot sort by {value:?}; use {}",
                        sorts.join(", ")
                    ));
                }
                "order" if value == "asc" => query.is_descending = false,
                "order" if value == "desc" => query.is_descending = true,
                "order" => return Err(format!("the order {value:?} is not asc or desc")),
                "offset" => query.offset = number(key, &value)?,
                "limit" => query.limit = number(key, &value)?.clamp(1, LIMIT_MAX),
                _ => {
                    let known = "search, sort, order, offset and limit";
                    return Err(format!("unknown parameter {key:?}; there are {known}"));
                }
            }
        }
        Ok(query)
    }

    fn page<T, U>(&self, total: usize, sorted: &[T], show: impl Fn(&T) -> U) -> Page<U> {
        let entries = sorted.iter().skip(self.offset).take(self.limit);
        Page {
            total,
            found: sorted.len(),
            offset: self.offset,
            limit: self.limit,
            is_cut: sorted.len() > self.offset.saturating_add(self.limit),
            entries: entries.map(show).collect(),
        }
    }

    fn order(&self, ordering: Ordering) -> Ordering {
        match self.is_descending {
            true => ordering.reverse(),
            false => ordering,
        }
    }
}

/// Orders of sessions. The first is the default.
pub(crate) const SESSION_SORTS: [&str; 9] = [
    "lag", "age", "peer", "identity", "name", "queued", "memory", "rooms", "topics",
];

/// Orders of rooms and topics. The first is the default.
pub(crate) const ROOM_SORTS: [&str; 4] = ["members", "messages", "log", "name"];

/// A page of the open sessions. It holds the figures of all sessions found for the time of a sort.
pub(crate) fn sessions(sampler: &Sampler, query: &Query) -> Result<Page<Session>, ServeError> {
    let mut total = 0;
    let mut found = Vec::new();
    sampler.inspector.sessions(ANSWER_TIME_MAX, |session| {
        total += 1;
        if query.search.is_empty() || has_text(&session, &query.search) {
            found.push(session);
        }
    })?;
    match &*query.sort {
        "peer" => found.sort_by_cached_key(|it| it.peer.as_ref().map(ToString::to_string)),
        "identity" => found.sort_by(|one, other| identity(one).cmp(&identity(other))),
        "name" => found.sort_by(|one, other| one.name.cmp(&other.name)),
        "age" => found.sort_by_key(|it| Reverse(it.opened)),
        "queued" => found.sort_by_key(|it| it.queued_bytes),
        "memory" => found.sort_by_key(|it| it.memory_bytes),
        "rooms" => found.sort_by_key(|it| it.rooms),
        "topics" => found.sort_by_key(|it| it.topics),
        _ => found.sort_by_key(behind),
    }
    if query.is_descending {
        found.reverse();
    }
    Ok(query.page(total, &found, Session::of))
}

/// A page of the rooms, or of the topics and patterns with subscribers.
pub(crate) fn rooms(
    sampler: &Sampler,
    query: &Query,
    topics: bool,
) -> Result<Page<Room>, ServeError> {
    let mut found = sampler.inspector.rooms(ANSWER_TIME_MAX)?;
    found.retain(|room| room.is_topic == topics);
    let total = found.len();
    found.retain(|room| room.name.to_lowercase().contains(&query.search));
    let compare = |one: &RoomFigures, other: &RoomFigures| match &*query.sort {
        "name" => one.name.cmp(&other.name),
        "messages" => one.messages.cmp(&other.messages),
        "log" => one.log_bytes.cmp(&other.log_bytes),
        _ => one.members.cmp(&other.members),
    };
    found.sort_by(|one, other| {
        let ordering = query.order(compare(one, other));
        ordering.then_with(|| one.name.cmp(&other.name))
    });
    Ok(query.page(total, &found, Room::of))
}

fn identity(session: &SessionFigures) -> Option<&str> {
    session.identity.as_ref().map(|it| it.name())
}

fn has_text(session: &SessionFigures, search: &str) -> bool {
    let has = |text: &str| text.to_lowercase().contains(search);
    session.name.as_deref().is_some_and(has)
        || identity(session).is_some_and(has)
        || session.peer.as_ref().is_some_and(|it| has(&it.to_string()))
        || session.id.to_string() == search
}

fn number(key: &str, value: &str) -> Result<usize, BadQuery> {
    value
        .parse()
        .map_err(|_| format!("{key} is not a number: {value:?}"))
}

fn decode(text: &str) -> Result<String, BadQuery> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = tail.get(..2).and_then(|it| std::str::from_utf8(it).ok());
                let byte = digits.and_then(hexadecimal).map(|it| it as u8);
                bytes.push(
                    byte.ok_or_else(|| format!("a percent sign without two digits: {text:?}"))?,
                );
                rest = &tail[2..];
            }
            other => bytes.push(*other),
        }
    }
    String::from_utf8(bytes).map_err(|_| "a parameter is not UTF-8".to_owned())
}

const LIMIT_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_what_the_url_says() {
        let query = Query::parse(
            "search=%C3%84nn+x&sort=age&order=asc&offset=100&limit=5000",
            &SESSION_SORTS,
        )
        .unwrap();
        assert_eq!(
            (query.search.as_str(), query.sort.as_str()),
            ("änn x", "age")
        );
        assert_eq!(
            (query.is_descending, query.offset, query.limit),
            (false, 100, LIMIT_MAX)
        );
        assert_eq!(Query::parse("", &ROOM_SORTS).unwrap().sort, "members");
        for bad in [
            "sort=colour",
            "limit=x",
            "offset=-1",
            "search=%f",
            "search=%zz",
            "search=%ff",
            "order=up",
            "x=1",
        ] {
            assert!(Query::parse(bad, &SESSION_SORTS).is_err(), "{bad}");
        }
    }
}
