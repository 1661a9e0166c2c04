//! Error texts as a program prints them: what failed, why, and what to do.

use std::error::Error;
use std::net::TcpListener;

use tidewire::{
    Client, CloseReason, ConnectError, Context, GoAwayCode, Message, RequestError, SendError,
    Server, describe,
};
use tidewire_proto::error::EncodeError;

fn echo(cx: &mut Context<'_>, message: Message<'_>) -> tidewire::HandlerResult {
    cx.reply(message.payload)
}

/// Checks an error's text, and that no cause repeats it.
fn says(error: &(dyn Error + 'static), expected: &str) {
    assert_eq!(error.to_string(), expected);
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        assert!(
            expected.ends_with(&said) || !expected.contains(&said),
            "{said}"
        );
        cause = error.source();
    }
}

/// Regression: the text was "cannot connect", and only its cause had the address and the reason.
#[test]
fn a_refused_connection_names_its_target_and_the_reason() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    // The same port on another loopback address, without a listener.
    let address = format!("tcp://127.0.0.99:{}", holder.local_addr().unwrap().port());
    let error = Client::connect(&address).wait().unwrap_err();
    let expected =
        format!("cannot connect to {address}: connection refused; is the server running?");
    says(&error, &expected);
    assert_eq!(describe(&error), expected);

    let error = Client::connect("ipc:///nowhere/at/all.sock")
        .wait()
        .unwrap_err();
    let expected = "cannot connect to ipc:///nowhere/at/all.sock: the socket does not exist; is the server running, \
        and is the path right?";
    says(&error, expected);

    let error = Client::connect("inproc://nobody-here").wait().unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("cannot connect to inproc://nobody-here: nothing in this process"),
        "{text}"
    );
}

#[test]
fn a_server_that_cannot_start_says_where_and_why() {
    let first = tidewire::serve("tcp://127.0.0.1:0", echo).unwrap();
    let error = tidewire::serve(&first.to_string(), echo).unwrap_err();
    let text = error.to_string();
    let expected = format!("cannot listen on {first}: it is in use; choose another port");
    assert!(text.starts_with(&expected), "{text}");
    let error = Server::builder().lanes(0).listen("tcp://127.0.0.1:0");
    let error = error.unwrap().start(|_| echo).unwrap_err();
    assert!(error.to_string().contains("use 1 to "), "{error}");
    let error = Server::builder().listen("http://localhost:80").unwrap_err();
    assert!(error.to_string().starts_with("unknown transport \"http\""));
}

#[test]
fn texts_of_a_server_are_escaped() {
    let refused = ConnectError::Refused {
        reason: CloseReason::GoAway(GoAwayCode::Removed),
        text: "no\x1b[2J entry".to_owned(),
    };
    let error = refused;
    says(
        &error,
        "the server refused the connection: no\\u{1b}[2J entry",
    );
}

#[test]
fn messages_that_cannot_be_sent_are_refused_with_the_reason() {
    let encode = EncodeError::PayloadTooLarge {
        bytes: 70_000,
        limit: 65_507,
    };
    let text = "payload of 70000 bytes does not fit a frame (limit 65507)";
    says(&RequestError::from(encode), text);
    says(&SendError::from(encode), text);
    says(&SendError::from(encode), text);
    says(&tidewire::RoomError::from(encode), text);
    says(
        &RequestError::Closed(CloseReason::IdleTimeout.into()),
        "the connection ended before the reply: nothing came within the idle timeout",
    );
}

#[cfg(feature = "typed")]
#[test]
fn a_typed_call_that_has_no_answer_says_why() {
    use tidewire::typed::CallError;
    let error: CallError = CallError::Request(RequestError::TimedOut);
    says(&error, "no reply within the deadline");
}
