//! Sessions that the service closes, and peers that fall silent.

use std::sync::mpsc;
use std::time::Duration;

use tidewire::{Context, GoAwayCode, HandlerResult, Kind, Message};
use tidewire_proto::body::GoAwayBody;
use tidewire_proto::codec::Codec;

use super::{CodecKind, Setup};
use crate::wait::DEADLINE;

/// Regression: a reply and a close after a request with a deferred answer ended the session at once. Without ids both
/// answers were lost.
pub(super) fn closes_follow_earlier_messages(setup: &Setup) {
    let (sender, taken) = mpsc::channel();
    let mut service = Some(move |cx: &mut Context<'_>, message: Message<'_>| {
        if message.payload == b"later" {
            let _ = sender.send(Some(cx.defer()));
            return Ok(());
        }
        cx.reply(message.payload)?;
        cx.close_with(GoAwayCode::Removed, "enough");
        let _ = sender.send(None);
        Ok(())
    });
    let builder = setup.builder().lanes(1);
    let server = setup.serve_with(builder, |_| service.take().expect("one lane"));
    let mut peer = server.peer();
    peer.ask(b"later");
    peer.ask(b"now");
    let deferred = taken.recv_timeout(DEADLINE).expect("the first request");
    let closed = taken.recv_timeout(DEADLINE).expect("the second one");
    assert!(closed.is_none(), "the close");
    let answer = deferred.expect("a token").reply(b"later");
    answer.expect("the answer fits a frame");

    let mut said = peer.drain();
    let farewell = match setup.codec {
        CodecKind::Tw1 | CodecKind::Lines | CodecKind::Json => said.pop(),
        _ => None,
    };
    let answers: Vec<&[u8]> = said.iter().map(|message| &message.payload[..]).collect();
    if setup.codec().format().has_ids() {
        // The first request was not answered when the session was closed, and the close does not wait for it.
        assert_eq!(answers, [b"now"]);
    } else {
        assert_eq!(answers, [b"later", &b"now"[..]]);
    }
    match farewell {
        Some(message) if message.kind == Kind::GoAway => {
            let body = GoAwayBody::decode(&message.payload).expect("a go-away");
            assert_eq!((body.code, body.text), (GoAwayCode::Removed, "enough"));
        }
        Some(line) => assert_eq!(line.payload, b"! enough"),
        None => {}
    }
    drop(peer);
    let metrics = server.stop();
    assert_eq!(metrics.closed_by("service"), 1);
    let answered = u64::from(!setup.codec().format().has_ids());
    assert_eq!(metrics.deferred_answered, answered);
    assert_eq!(metrics.deferred_undelivered, 1 - answered);
}

/// Regression: the server's own output counted as a sign of life of a device that only took it.
pub(super) fn silent_peers_are_closed_although_they_are_sent_messages(setup: &Setup) {
    let mut builder = setup.builder();
    let mut limits = tidewire::Limits::default();
    limits
        .connections
        .set_receive_timeout(Duration::from_millis(100));
    builder = builder.limits(limits);
    let (sender, sessions) = mpsc::channel();
    let server = setup.serve_with(builder, |_| {
        let sender = sender.clone();
        move |cx: &mut Context<'_>, _: Message<'_>| -> HandlerResult {
            let _ = sender.send(cx.id());
            Ok(())
        }
    });
    let mut peer = server.peer();
    peer.send(&Message::new(Kind::OneWay, 0, b"here").with_name(setup.codec.method()));
    let id = sessions.recv_timeout(DEADLINE).expect("its only message");
    let device = server.server().sessions().find(id).expect("it is open");
    let command = Message::new(Kind::OneWay, 0, b"do").with_name(setup.codec.method());
    // The loop ends with the session. It sends one command at a time, so the end cuts no command.
    loop {
        if device.send(command).is_err() {
            peer.drain();
            break;
        }
        // Over UDP the end comes once. A command that was sent just before it is not answered.
        if peer.receive().is_none() {
            break;
        }
    }
    drop(peer);
    assert_eq!(server.stop().closed_by("idle_timeout"), 1);
}
