//! Bad input and faults: each ends in a typed, counted close or refusal, and nobody else notices.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod drain;
mod input;
mod lanes;
mod limits;
mod places;
mod silence;
mod slow;

use std::error::Error;

use tidewire::{Kind, OwnedMessage};
use tidewire_proto::body::{GoAwayBody, GoAwayCode};
use tidewire_testkit::Peer;
use tidewire_testkit::fixtures::{echo, limited, lines, tw1};

/// The code of the go-away that was the last frame before the end.
fn last_words(frames: &[OwnedMessage]) -> Option<GoAwayCode> {
    let last = frames.last().filter(|frame| frame.kind == Kind::GoAway)?;
    Some(GoAwayBody::decode(&last.payload).unwrap().code)
}

/// A line client is told why its session ends, in a line that starts like every refusal.
fn told_why(person: &mut Peer, reason: &str) {
    let payload = person
        .receive()
        .map(|message| message.payload)
        .unwrap_or_default();
    let line = String::from_utf8_lossy(&payload);
    assert!(line.starts_with("! ") && line.contains(reason), "{line:?}");
}

/// An error and everything below it, as a person would read it.
fn whole_story(error: &dyn Error) -> String {
    let mut story = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        story = format!("{story}: {cause}");
        source = cause.source();
    }
    story
}
