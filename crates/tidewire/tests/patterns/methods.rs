//! Methods by name, over every codec that transmits names.

use std::io::{Read, Write};

use tidewire::{Client, Kind, Message, RequestError, Router, Server};
use tidewire_proto::body::ErrorCode;
use tidewire_proto::error::EncodeError;
use tidewire_testkit::TestServer;

use crate::{CODECS, CODECS_WITH_NAMES, client_of, codec};

fn router() -> Router {
    Router::new()
        .on("echo", |cx, message| cx.reply(message.payload))
        .on("Version", |cx, _| cx.reply(b"1"))
        .on("later", |cx, message| {
            Ok(cx.defer().reply(message.payload)?)
        })
}

fn serve(name: &str) -> TestServer {
    TestServer::over_tcp(Server::builder(), &codec(name), |_| router())
}

fn call(client: &Client, method: &str) -> Result<Vec<u8>, RequestError> {
    let reply = client.request(b"hi").method(method).wait()?;
    Ok(reply.into_payload())
}

fn is_not_found(result: &Result<Vec<u8>, RequestError>) -> bool {
    matches!(
        result,
        Err(RequestError::Refused {
            code: ErrorCode::MethodNotFound,
            ..
        })
    )
}

#[test]
fn each_name_finds_its_method_and_no_other() {
    for name in CODECS_WITH_NAMES {
        let server = serve(name);
        let client = client_of(&server, name);
        for _ in 0..3 {
            assert_eq!(call(&client, "echo").unwrap(), b"hi", "{name}");
            assert_eq!(call(&client, "Version").unwrap(), b"1", "{name}");
            assert_eq!(call(&client, "later").unwrap(), b"hi", "{name}");
            for unknown in ["ech", "echo2", "nothing"] {
                let result = call(&client, unknown);
                assert!(is_not_found(&result), "{name}: {result:?}");
            }
        }
        client.close().wait();
        assert_eq!(server.stop().refused, 9, "{name}");
    }
}

#[test]
fn case_matters_except_in_uvrpc() {
    for name in CODECS_WITH_NAMES {
        let server = serve(name);
        let client = client_of(&server, name);
        for method in ["ECHO", "Echo"] {
            let result = call(&client, method);
            if name == "uvrpc" {
                assert_eq!(result.unwrap(), b"hi");
            } else {
                assert!(is_not_found(&result), "{name}: {result:?}");
            }
        }
        client.close().wait();
        server.stop();
    }
}

#[test]
fn a_codec_without_names_refuses_to_call_something_else() {
    for name in CODECS {
        if CODECS_WITH_NAMES.contains(&name) {
            continue;
        }
        let server = TestServer::over_tcp(Server::builder(), &codec(name), |_| {
            router().otherwise(|cx, message| {
                assert_eq!(message.name, "");
                cx.reply(b"by no name")
            })
        });
        let client = client_of(&server, name);
        let refused = call(&client, "echo");
        assert!(
            matches!(
                refused,
                Err(RequestError::Encode(EncodeError::NameUnsupported { .. }))
            ),
            "{name}: {refused:?}"
        );
        let reply = client.request(b"hi").wait().unwrap();
        assert_eq!(reply.payload(), b"by no name", "{name}");
        client.close().wait();
        server.stop();
    }
}

/// NewLife's clients reject a reply that does not name the action.
#[test]
fn replies_over_srmp_rpc_repeat_the_name() {
    let server = serve("srmp-rpc");
    let mut wire = server.wire();
    // `later` answers through a token, and the unknown method with an error.
    wire.write_all(b"\x01\x01\x0B\x00\x04echo\x02\0\0\0hi")
        .unwrap();
    wire.write_all(b"\x01\x02\x0C\x00\x05later\x02\0\0\0hi")
        .unwrap();
    wire.write_all(b"\x01\x03\x05\x00\x04nope").unwrap();
    wire.finish_writing().unwrap();
    let mut received = Vec::new();
    wire.read_to_end(&mut received).unwrap();
    for reply in [
        &b"\x81\x01\x0B\x00\x04echo\x02\0\0\0hi"[..],
        b"\x81\x02\x0C\x00\x05later\x02\0\0\0hi",
        b"\x04nope\x94\x01\0\0\x0E\0\0\0no such method",
    ] {
        assert!(
            received.windows(reply.len()).any(|window| window == reply),
            "{received:02X?}"
        );
    }
    server.stop();
}

#[test]
fn a_one_way_message_to_an_unknown_method_is_only_counted() {
    let server = serve("tw1");
    let mut peer = server.peer();
    peer.send(&Message::new(Kind::OneWay, 0, b"hi").with_name("nothing"));
    let request = Message::with_id(Kind::Request, 0, 7, b"hi").with_name("echo");
    peer.send(&request);
    let answer = peer.receive().unwrap();
    assert_eq!((answer.kind, answer.id), (Kind::Reply, 7));
    drop(peer);
    assert_eq!(server.stop().refused, 1);
}
