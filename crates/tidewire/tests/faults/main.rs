//! Bad input and faults: each ends in a typed, counted close or refusal, and other peers are not affected.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod drain;
mod input;
mod lanes;
mod limits;
mod panics;
mod places;
mod silence;
mod slow;

use std::error::Error;

use tidewire::{Kind, OwnedMessage};
use tidewire_proto::body::{GoAwayBody, GoAwayCode};
use tidewire_testkit::Peer;
use tidewire_testkit::fixtures::{echo, limited, lines, tw1};

/// Returns the code of the go-away, if that is the last frame.
fn last_words(frames: &[OwnedMessage]) -> Option<GoAwayCode> {
    let last = frames.last().filter(|frame| frame.kind == Kind::GoAway)?;
    Some(GoAwayBody::decode(&last.payload).unwrap().code)
}

/// Checks that a line client gets the reason of its end, in a line that starts like every refusal.
fn told_why(person: &mut Peer, reason: &str) {
    let payload = person
        .receive()
        .map(|message| message.payload)
        .unwrap_or_default();
    let line = String::from_utf8_lossy(&payload);
    assert!(line.starts_with("! ") && line.contains(reason), "{line:?}");
}

/// Joins the texts of an error and its causes, as a person would read them.
fn whole_story(error: &dyn Error) -> String {
    let mut story = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        story = format!("{story}: {cause}");
        source = cause.source();
    }
    story
}
