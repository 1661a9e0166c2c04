//! JSON as another format, for peers that have text and no Rust types.

use std::io::{Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidewire::typed::{CallError, Format};
use tidewire::{AnyCodec, RequestError, Router, Server};
use tidewire_proto::body::ErrorCode;
use tidewire_testkit::TestServer;

use crate::{CODECS, CalculatorError, Point, connect};

type Cause = Box<dyn std::error::Error + Send + Sync>;

struct Json;

impl Format for Json {
    fn encode<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), Cause> {
        Ok(serde_json::to_writer(out, value)?)
    }

    fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Cause> {
        Ok(serde_json::from_slice(payload)?)
    }
}

#[tidewire::service(format = Json)]
trait Textual {
    #[method(name = "Divide")]
    fn divide(&self, a: i64, b: i64) -> Result<i64, CalculatorError>;
    #[method(name = "Move")]
    fn shift(&self, point: Point, by: f64) -> Point;
}

struct Board;

impl Textual for Board {
    fn divide(&self, a: i64, b: i64) -> Result<i64, CalculatorError> {
        a.checked_div(b).ok_or(CalculatorError::DivisionByZero)
    }

    fn shift(&self, point: Point, by: f64) -> Point {
        Point {
            x: point.x + by,
            ..point
        }
    }
}

fn serve(name: &str) -> (TestServer, AnyCodec) {
    let codec = AnyCodec::by_name(name).unwrap();
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| {
        Router::new().mount(TextualServer::new(Board))
    });
    (server, codec)
}

#[test]
fn a_service_in_json_answers_typed_and_untyped_clients() {
    for name in CODECS {
        let (server, codec) = serve(name);
        let client = connect(&server, &codec);
        let textual = TextualClient::new(client.clone());
        assert_eq!(textual.divide(42, 6).wait().unwrap(), 7, "{name}");
        let failed = textual.divide(1, 0).wait();
        assert!(
            matches!(
                failed,
                Err(CallError::Failed(CalculatorError::DivisionByZero))
            ),
            "{name}: {failed:?}"
        );
        let call =
            |method, arguments: &str| client.request(arguments.as_bytes()).method(method).wait();
        let text = |method, arguments| {
            let reply = call(method, arguments).unwrap().into_payload();
            String::from_utf8(reply).unwrap()
        };
        assert_eq!(text("Divide", "[42, 6]"), r#"{"Ok":7}"#, "{name}");
        assert_eq!(text("Divide", "[42, 0]"), r#"{"Err":"DivisionByZero"}"#);
        assert_eq!(
            text("Move", r#"[{"x": 1, "y": 2, "label": "a\nb"}, 0.5]"#),
            r#"{"x":1.5,"y":2.0,"label":"a\nb"}"#
        );
        for garbage in ["", "[42]", "[42, 6] and", "{}", "\u{1}"] {
            let refused = call("Divide", garbage);
            assert!(
                matches!(
                    refused,
                    Err(RequestError::Refused {
                        code: ErrorCode::MalformedBody,
                        ..
                    })
                ),
                "{name}: {garbage:?}: {refused:?}"
            );
        }
        client.close().wait();
        assert_eq!(server.stop().refused, 5, "{name}");
    }
}

/// The bytes that a NewLife program sends and reads.
#[test]
fn a_peer_of_the_family_sees_its_own_format() {
    let (server, _) = serve("srmp-rpc");
    let mut wire = server.wire();
    wire.write_all(b"\x01\x01\x11\x00\x06Divide\x06\0\0\0[42,6]")
        .unwrap();
    wire.finish_writing().unwrap();
    let mut received = Vec::new();
    wire.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"\x81\x01\x13\x00\x06Divide\x08\0\0\0{\"Ok\":7}");
    server.stop();
}
