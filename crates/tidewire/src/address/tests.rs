use super::*;

#[test]
fn addresses_print_as_they_parse() {
    for text in [
        "tcp://127.0.0.1:8080",
        "tcp://[::1]:0",
        "tcp://localhost:1",
        "tls://127.0.0.1:8443",
        "tls://[::1]:0",
        "ws://127.0.0.1:8080/",
        "wss://[::1]:0/chat/eu-1",
        "udp://127.0.0.1:8080",
        "udp://[::1]:0",
        "ipc:///tmp/x.sock",
        "ipc://@abstract",
        "inproc://orders/eu-1",
    ] {
        let address = text.parse::<Address>().unwrap();
        assert_eq!(address.framing(), None);
        assert_eq!(address.to_string(), text);
        if !text.contains("localhost") {
            let endpoint = address.resolve().unwrap();
            assert_eq!(endpoint.to_string(), text);
            assert_eq!(Address::from(endpoint), address);
        }
    }
    assert_eq!(
        "127.0.0.1:80".parse::<Address>().unwrap().to_string(),
        "tcp://127.0.0.1:80"
    );
}

#[test]
fn framing_follows_a_question_mark() {
    for (text, framing) in [
        ("ipc:///tmp/x.sock?framing=none", StreamFraming::None),
        ("tcp://127.0.0.1:80?framing=length", StreamFraming::Length),
    ] {
        let address = text.parse::<Address>().unwrap();
        assert_eq!(address.framing(), Some(framing));
        assert_eq!(address.to_string(), text);
        let place = text.split('?').next().unwrap();
        assert_eq!(address.resolve().unwrap().to_string(), place);
    }
    for text in ["ipc:///a?b", "ipc:///a?framing=some", "tcp://h:1?x=1"] {
        let error = text.parse::<Address>().unwrap_err();
        assert!(
            matches!(error, AddressError::BadParameter { .. }),
            "{error}"
        );
    }
}

/// Regression: the error was `no valid port in`.
#[test]
fn framing_where_there_is_no_stream_is_refused_as_such() {
    for text in [
        "udp://127.0.0.1:1?framing=none",
        "inproc://a?framing=length",
    ] {
        let error = text.parse::<Address>().unwrap_err();
        assert!(matches!(error, AddressError::NoStream { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains("for tcp://, tls:// and ipc:// only"),
            "{error}"
        );
    }
    for text in ["udp://127.0.0.1:1?x=1", "inproc://a?b"] {
        let error = text.parse::<Address>().unwrap_err();
        assert!(
            matches!(error, AddressError::BadParameter { .. }),
            "{error}"
        );
    }
}

#[test]
fn wildcard_and_names_resolve() {
    let any = "tcp://*:9".parse::<Address>().unwrap().resolve().unwrap();
    assert_eq!(any.to_string(), "tcp://0.0.0.0:9");
    let any = "udp://*:9".parse::<Address>().unwrap().resolve().unwrap();
    assert_eq!(any.to_string(), "udp://0.0.0.0:9");
    assert!(
        "tcp://localhost:9"
            .parse::<Address>()
            .unwrap()
            .resolve()
            .is_ok()
    );
}

#[test]
fn mistakes_are_named() {
    let error = |text: &str| text.parse::<Address>().unwrap_err();
    assert!(matches!(
        error("http://x:1"),
        AddressError::UnknownTransport { .. }
    ));
    assert!(matches!(error("tcp://host"), AddressError::BadPort { .. }));
    assert!(matches!(error("udp://host"), AddressError::BadPort { .. }));
    assert!(matches!(
        error("tcp://host:70000"),
        AddressError::BadPort { .. }
    ));
    assert!(matches!(error("tcp://:1"), AddressError::Empty { .. }));
    assert!(matches!(error("ipc://"), AddressError::Empty { .. }));
    assert!(matches!(error("ipc://@"), AddressError::Empty { .. }));
    for text in ["inproc://", "inproc://two words"] {
        let error = error(text);
        assert!(matches!(error, AddressError::BadName { .. }));
        assert!(
            error.to_string().contains("1 to 100 ASCII letters"),
            "{error}"
        );
    }
    let long = format!("ipc:///{}", "x".repeat(200));
    assert!(matches!(error(&long), AddressError::PathTooLong { .. }));
}

#[test]
fn a_websocket_has_a_path_that_nothing_resolves() {
    let parse = |text: &str| text.parse::<Address>();
    let address = parse("ws://127.0.0.1:80").unwrap();
    assert_eq!(address.to_string(), "ws://127.0.0.1:80/");
    assert_eq!(address.websocket_path(), Some("/"));
    assert_eq!(address.websocket_host().unwrap(), "127.0.0.1:80");
    let address = parse("wss://[::1]:80/a/b").unwrap();
    assert!(address.is_tls() && address.websocket_path() == Some("/a/b"));
    assert_eq!(address.websocket_host().unwrap(), "[::1]:80");
    for text in [
        "ws://h:1/a?b=c",
        "ws://h:1/?framing=none",
        "ws://h:1/a#b",
        "ws://h:1/../a",
        "ws://h:1/a/.",
        "ws://h:1/a b",
        "ws://h:1/a\r\nCookie:x",
        "ws://h:1/\u{e4}",
    ] {
        let error = parse(text).unwrap_err();
        assert!(
            matches!(error, AddressError::BadPath { .. }),
            "{text}: {error}"
        );
    }
    for text in ["ws://h", "ws://h/a", "wss://h:x/a"] {
        let error = parse(text).unwrap_err();
        assert!(
            matches!(error, AddressError::BadPort { .. }),
            "{text}: {error}"
        );
    }
    for text in ["ws://h\r\nX:1", "ws://a b:1", "ws://a@b:1"] {
        assert!(parse(text).is_err(), "{text}");
    }
}

/// Regression: the system refused such an address as an invalid argument, and the error said neither cause nor remedy.
#[test]
fn a_link_local_address_needs_its_interface() {
    for transport in ["tcp", "tls", "ws", "wss", "udp"] {
        let address: Address = format!("{transport}://[fe80::1]:80").parse().unwrap();
        let error = address.resolve().unwrap_err();
        let host = "fe80::1".to_owned();
        assert_eq!(error, AddressError::NoZone { host });
        assert!(error.to_string().contains("[fe80::1%eth0]"), "{error}");
        // Each machine has this interface.
        let address: Address = format!("{transport}://[fe80::1%lo]:80").parse().unwrap();
        let endpoint = address.resolve().unwrap();
        let Some(SocketAddr::V6(found)) = endpoint.socket_address() else {
            panic!("another family: {endpoint}");
        };
        assert_ne!(found.scope_id(), 0);
    }
}
