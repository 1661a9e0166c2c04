//! Two sides that disagree: another version, another signature, another type under the same name, garbage.

use tidewire::typed::CallError;
use tidewire::{Client, RequestError, Router, Server};
use tidewire_proto::body::ErrorCode;
use tidewire_testkit::TestServer;

use crate::{CalculatorClient, everywhere};

/// The calculator of other programs.
mod other {
    use crate::CalculatorError;

    #[tidewire::service(version = 2, name = "calculator")]
    pub(super) trait Next {
        fn greet(&self, name: String) -> String;
    }

    #[tidewire::service(version = 1, name = "calculator")]
    pub(super) trait Changed {
        fn greet(&self, name: String, loudly: bool) -> String;
        fn divide(&mut self, b: i64, a: i64) -> Result<i64, CalculatorError>;
        fn ping(&self) -> u8;
    }

    /// The same names on the wire with other meanings.
    #[tidewire::service]
    pub(super) trait Liar {
        #[method(name = "Repeat")]
        fn other_arguments(&self, number: u32, flag: bool) -> Vec<u8>;
    }

    #[tidewire::service]
    pub(super) trait Dreamer {
        #[method(name = "Repeat")]
        fn other_answer(&self, payload: Vec<u8>) -> (bool, bool);
    }
}

use other::{ChangedClient, DreamerClient, LiarClient, Next, NextClient, NextServer};

#[test]
fn another_version_or_signature_is_another_method_everywhere() {
    everywhere(|place, running| {
        let client = running.client();
        let next = NextClient::new(client.clone()).greet("Ada".into()).wait();
        let Err(CallError::MethodNotFound { method }) = next else {
            panic!("{place}: {next:?}");
        };
        assert!(method.starts_with("calculator.greet.v2."), "{method}");
        let changed = ChangedClient::new(client.clone());
        let results = [
            changed.greet("Ada".into(), true).wait().map(drop).err(),
            changed.ping().wait().map(drop).err(),
        ];
        for result in results {
            assert!(
                matches!(result, Some(CallError::MethodNotFound { .. })),
                "{place}: {result:?}"
            );
        }
        // The types are the same. Only the names show that the two numbers changed places.
        let divided = changed.divide(2, 10).wait();
        assert!(
            matches!(divided, Err(CallError::MethodNotFound { .. })),
            "{place}: {divided:?}"
        );
        assert_eq!(running.finish(&client).refused, 4, "{place}");
    });
}

#[test]
fn types_that_differ_under_one_name_are_distinguished_from_failures() {
    everywhere(|place, running| {
        let client = running.client();
        let liar = LiarClient::new(client.clone());
        let refused = liar.other_arguments(7, true).wait();
        assert!(
            matches!(refused, Err(CallError::BadParameters { method: "Repeat" })),
            "{place}: {refused:?}"
        );
        let dreamer = DreamerClient::new(client.clone());
        let misread = dreamer.other_answer(vec![9; 3]).wait();
        assert!(
            matches!(misread, Err(CallError::MalformedAnswer(_))),
            "{place}: {misread:?}"
        );
        assert_eq!(running.finish(&client).refused, 1, "{place}");
    });
}

/// Input of an unknown peer is never decoded wrongly, never panics, and never ends the service for others.
#[test]
fn garbage_is_refused_and_counted_everywhere() {
    everywhere(|place, running| {
        let client = running.client();
        let middle = CalculatorClient::METHODS[2];
        let mut offered = 0;
        let mut refuse = |client: &Client, payload: &[u8]| {
            let result = client.request(payload).method(middle).wait();
            assert!(
                matches!(
                    result,
                    Err(RequestError::Refused {
                        code: ErrorCode::MalformedBody,
                        ..
                    })
                ),
                "{place}: {payload:02X?}: {result:?}"
            );
            offered += 1;
        };
        let whole: &[u8] = b"\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02ok";
        for end in 0..whole.len() {
            refuse(&client, &whole[..end]);
        }
        refuse(&client, &[whole, b"!"].concat());
        refuse(&client, b"\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\x02ok");
        refuse(
            &client,
            b"\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02\xFF\xFE",
        );
        // A list of more points than fit into memory.
        refuse(&client, b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01");
        refuse(&client, &[0xFF; 100]);
        let reply = client.request(whole).method(middle).wait().unwrap();
        assert_eq!(reply.payload()[16..], *b"\x01\x02ok", "{place}");
        assert_eq!(running.finish(&client).refused, offered, "{place}");
    });
}

struct Polite;

impl Next for Polite {
    fn greet(&self, name: String) -> String {
        format!("good day, {name}")
    }
}

/// One server for old, new and untyped clients.
#[test]
fn versions_live_side_by_side_on_one_router() {
    for name in crate::CODECS {
        let codec = tidewire::AnyCodec::by_name(name).unwrap();
        let (held, _calls) = std::sync::mpsc::channel();
        let server = TestServer::over_tcp(Server::builder(), &codec, |_| {
            let abacus = crate::Abacus::new(held.clone());
            Router::new()
                .mount(crate::CalculatorServer::new(abacus))
                .mount(NextServer::new(Polite))
                .on("echo", |cx, message| cx.reply(message.payload))
        });
        let client = crate::connect(&server, &codec);
        let (old, new) = (
            CalculatorClient::new(client.clone()),
            NextClient::new(client.clone()),
        );
        assert_eq!(old.greet("Ada".into()).wait().unwrap(), "hello Ada");
        assert_eq!(new.greet("Ada".into()).wait().unwrap(), "good day, Ada");
        let echo = client.request(b"hi").method("echo").wait().unwrap();
        assert_eq!(echo.payload(), b"hi");
        client.close().wait();
        assert_eq!(server.stop().refused, 0, "{name}");
    }
}

/// A client with the wrong address gets the same error as one of an old server.
#[test]
fn a_server_without_the_service_has_not_found_its_methods() {
    let codec = tidewire::AnyCodec::by_name("tw1").unwrap();
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| Router::new());
    let client = crate::connect(&server, &codec);
    let error = CalculatorClient::new(client.clone())
        .ping()
        .wait()
        .unwrap_err();
    let method = CalculatorClient::METHODS[3];
    assert_eq!(
        error.to_string(),
        format!("the server has no method `{method}`, or only another version of it")
    );
    client.close().wait();
    assert_eq!(server.stop().refused, 1);
}
