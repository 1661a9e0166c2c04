//! The export of spans. What they contain is tested in the library.

use crate::process::Process;

#[cfg(not(feature = "otlp"))]
#[test]
fn without_the_feature_the_flag_says_how_to_get_it() {
    let ended = Process::start(&["serve", "--otlp", "http://127.0.0.1:4318"]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(ended.text().contains("built without it"));
    assert!(ended.text().contains("--features otlp"));
}

#[cfg(feature = "otlp")]
mod exported {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use rustix::process::Signal;

    use super::Process;
    use crate::process::command;

    fn server(url: &str, flags: &[&str]) -> (Process, String) {
        let mut command = command(&[
            "serve",
            "--app",
            "echo",
            "--codec",
            "raw",
            "--bind",
            "tcp://127.0.0.1:0",
            "--otlp",
            url,
        ]);
        command.args(flags);
        command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=seven");
        command.env("OTEL_SERVICE_NAME", "ferry");
        let mut server = Process::spawn(&mut command);
        let line = server.expect("listening on tcp://");
        let address = line.trim_start_matches("listening on tcp://").to_owned();
        (server, address)
    }

    /// Makes the two spans of a session that was served and closed.
    fn visit(address: &str) {
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(b"x").unwrap();
        peer.read_exact(&mut [0]).unwrap();
    }

    #[test]
    fn spans_of_a_server_are_exported_when_it_ends() {
        let collector = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", collector.local_addr().unwrap());
        let (server, address) = server(&url, &[]);
        visit(&address);
        server.signal(Signal::TERM);
        let seen = collect(&collector);
        for expected in [
            "POST /v1/traces HTTP/1.1",
            "x-tenant: seven",
            "ferry",
            "connect",
            "close",
        ] {
            assert!(contains(&seen, expected.as_bytes()), "no {expected}");
        }
        assert!(!contains(&seen, b"handle"), "a span of the level trace");
        let ended = server.wait();
        assert_eq!(ended.status.code(), Some(0));
        assert!(!ended.text().contains("spans: "), "{}", ended.text());
    }

    #[test]
    fn the_level_trace_exports_a_span_of_each_message() {
        let collector = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", collector.local_addr().unwrap());
        let (server, address) = server(&url, &["--otlp-level", "trace"]);
        visit(&address);
        server.signal(Signal::TERM);
        let seen = collect(&collector);
        assert!(contains(&seen, b"handle"), "the message of the visit");
        assert_eq!(server.wait().status.code(), Some(0));
    }

    #[test]
    fn spans_that_no_collector_took_are_reported_at_the_end() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", gone.local_addr().unwrap());
        drop(gone);
        let (server, address) = server(&url, &[]);
        visit(&address);
        server.signal(Signal::TERM);
        let ended = server.wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
        let told = "spans: offered=2 exported=0 refused=0 dropped=2";
        assert!(ended.text().contains(told), "{}", ended.text());
        assert_eq!(ended.text().matches("spans cannot be exported").count(), 1);
    }

    #[test]
    fn a_wrong_url_is_refused_at_the_start() {
        for (url, why) in [
            ("localhost:4318", "begins neither with http://"),
            ("http://", "it is no URL"),
            (
                "http://ann:secret@localhost:4318",
                "OTEL_EXPORTER_OTLP_HEADERS",
            ),
        ] {
            let ended = Process::start(&["serve", "--otlp", url]).wait();
            assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
            assert!(ended.text().contains(why), "{}", ended.text());
            assert!(!ended.text().contains("secret"));
        }
    }

    /// Takes requests until one has the span of a session that was closed.
    fn collect(collector: &TcpListener) -> Vec<u8> {
        let mut seen = Vec::new();
        while !contains(&seen, b"reason") {
            let (mut stream, _) = collector.accept().unwrap();
            take(&mut stream, &mut seen);
        }
        seen
    }

    /// Takes the requests of a connection, and answers each with success.
    fn take(stream: &mut TcpStream, seen: &mut Vec<u8>) {
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            request.extend_from_slice(&buffer[..count]);
            if is_whole(&request) {
                seen.append(&mut request);
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                    .unwrap();
                if contains(seen, b"reason") {
                    return;
                }
            }
        }
    }

    fn is_whole(request: &[u8]) -> bool {
        let text = String::from_utf8_lossy(request).to_ascii_lowercase();
        let end = request.windows(4).position(|it| it == b"\r\n\r\n");
        let length = text.split("content-length: ").nth(1).and_then(|rest| {
            let digits = rest.split("\r\n").next()?;
            digits.parse::<usize>().ok()
        });
        end.zip(length)
            .is_some_and(|(end, length)| request.len() >= end + 4 + length)
    }

    fn contains(bytes: &[u8], part: &[u8]) -> bool {
        bytes.windows(part.len()).any(|it| it == part)
    }
}
