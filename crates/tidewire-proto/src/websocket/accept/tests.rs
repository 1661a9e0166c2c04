//! Handshakes that are accepted, and handshakes that are refused with their reason.

use super::*;

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// A good request: each line may be replaced.
const LINES: [&str; 6] = [
    "GET /chat HTTP/1.1",
    "Host: 127.0.0.1:8080",
    "Upgrade: websocket",
    "Connection: keep-alive, Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
];

fn head(lines: &[&str]) -> Vec<u8> {
    format!("{}\r\n\r\n", lines.join("\r\n")).into_bytes()
}

/// The request with a line in place of another one, and one more line.
fn changed(index: usize, line: &str, more: &str) -> Vec<u8> {
    let mut lines = LINES.to_vec();
    lines[index] = line;
    lines.push(more);
    lines.retain(|line| !line.is_empty());
    head(&lines)
}

fn with(more: &str) -> Vec<u8> {
    changed(0, LINES[0], more)
}

fn answer(head: &[u8]) -> Result<String, WebSocketFault> {
    let terms = ServerTerms::new("/chat", "tw1", MessageKind::Binary)
        .origins(Origins::new(["https://app.example"]).unwrap());
    match terms.answer(head)? {
        Answer::Accepted { head, .. } => Ok(String::from_utf8(head).unwrap()),
        Answer::Page(_) => panic!("there is no page"),
    }
}

#[test]
fn a_good_request_is_accepted() {
    let text = answer(&head(&LINES)).unwrap();
    assert!(text.starts_with("HTTP/1.1 101 "), "{text}");
    assert!(text.contains(&format!("Sec-WebSocket-Accept: {}\r\n", accept_key(KEY))));
    assert!(
        !text.contains("Protocol:") && !text.contains("Extensions"),
        "{text}"
    );
    for more in [
        "Origin: http://127.0.0.1:8080",
        "Origin: https://app.example",
        "Content-Length: 0",
        "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
    ] {
        let text = answer(&with(more)).unwrap();
        assert!(
            !text.contains("Extensions"),
            "compression is refused: {text}"
        );
    }
    let query = changed(0, "GET /chat?user=ann HTTP/1.1", "");
    assert!(answer(&query).is_ok());
    for offer in ["tw1", "lines, tw1", "lines\r\nSec-WebSocket-Protocol: tw1"] {
        let text = answer(&with(&format!("Sec-WebSocket-Protocol: {offer}"))).unwrap();
        assert!(text.contains("Sec-WebSocket-Protocol: tw1\r\n"), "{text}");
    }
}

/// The client's order counts. A client that names nothing gets the first codec of the server.
#[test]
fn a_client_chooses_among_the_codecs_of_a_server() {
    let terms = ServerTerms::new("/chat", "json", MessageKind::Text)
        .or_protocol("tw1", MessageKind::Binary)
        .or_protocol("lines", MessageKind::Text);
    for (offer, chosen) in [
        ("", 0),
        ("json", 0),
        ("tw1", 1),
        ("lines, tw1", 2),
        ("other\r\nSec-WebSocket-Protocol: tw1, json", 1),
    ] {
        let request = match offer {
            "" => head(&LINES),
            offer => with(&format!("Sec-WebSocket-Protocol: {offer}")),
        };
        let Answer::Accepted { head, protocol } = terms.answer(&request).unwrap() else {
            panic!("there is no page");
        };
        assert_eq!(protocol, chosen, "{offer}");
        let named = ["json", "tw1", "lines"][chosen];
        let line = format!("Sec-WebSocket-Protocol: {named}\r\n");
        let text = String::from_utf8(head).unwrap();
        assert_eq!(text.contains(&line), !offer.is_empty(), "{text}");
    }
    let other = terms.answer(&with("Sec-WebSocket-Protocol: srmp"));
    assert_eq!(other, Err(WebSocketFault::OtherCodec));
}

#[test]
fn bad_requests_are_refused_with_their_reason() {
    use WebSocketFault as Fault;
    let many: Vec<String> = (0..130).map(|number| format!("X-{number}: a")).collect();
    for (head, fault) in [
        (changed(0, "GET / HTTP/1.1", ""), Fault::OtherPath),
        (
            changed(0, "GET /chat/../chat HTTP/1.1", ""),
            Fault::OtherPath,
        ),
        (changed(0, "GET /%63hat HTTP/1.1", ""), Fault::OtherPath),
        (changed(0, "GET //chat HTTP/1.1", ""), Fault::OtherPath),
        (changed(0, "POST /chat HTTP/1.1", ""), Fault::BadMethod),
        (changed(0, "GET /chat HTTP/1.0", ""), Fault::BadRequest),
        (changed(0, "GET", ""), Fault::BadRequest),
        (changed(1, "", ""), Fault::BadRequest),
        (with("Host: other"), Fault::BadRequest),
        (changed(2, "", ""), Fault::NotWebSocket),
        (changed(2, "Upgrade: h2c", ""), Fault::NotWebSocket),
        (
            changed(3, "Connection: keep-alive", ""),
            Fault::NotWebSocket,
        ),
        (changed(4, "", ""), Fault::BadKey),
        (changed(4, "Sec-WebSocket-Key: short", ""), Fault::BadKey),
        (with(LINES[4]), Fault::BadRequest),
        (changed(5, "", ""), Fault::WrongVersion),
        (
            changed(5, "Sec-WebSocket-Version: 8", ""),
            Fault::WrongVersion,
        ),
        (with("Origin: https://evil.example"), Fault::ForeignOrigin),
        (with("Origin: null"), Fault::ForeignOrigin),
        (
            with("Sec-WebSocket-Protocol: chat, lines"),
            Fault::OtherCodec,
        ),
        // A proxy and this server could disagree about where these requests end.
        (with("Transfer-Encoding: chunked"), Fault::BadRequest),
        (with("Content-Length: 5"), Fault::BadRequest),
        (
            with("Content-Length: 0\r\nContent-Length: 5"),
            Fault::BadRequest,
        ),
        (with("Bad Name: x"), Fault::BadRequest),
        (with("X: a\0b"), Fault::BadRequest),
        (with(" folded"), Fault::BadRequest),
        (with(&many.join("\r\n")), Fault::HeadersTooLong),
    ] {
        assert_eq!(
            answer(&head),
            Err(fault),
            "{}",
            String::from_utf8_lossy(&head)
        );
        let refusal = String::from_utf8(refusal(fault, false)).unwrap();
        let status = format!("HTTP/1.1 {} ", fault.http_status().unwrap());
        assert!(refusal.starts_with(&status), "{refusal}");
        let (head, body) = refusal.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("Content-Length: {}", body.len())),
            "{refusal}"
        );
    }
}

/// Regression: the parser ends a line and a head at a line feed alone, and the rest was discarded unread. So a foreign
/// origin, and a whole second request, passed after such an end.
#[test]
fn a_line_feed_alone_ends_neither_a_line_nor_the_head() {
    for more in [
        "X: a\r\n\nOrigin: https://evil.example",
        "X: a\n\nOrigin: https://evil.example",
        "X: a\n\r\nOrigin: https://evil.example",
        "X: a\nOrigin: https://evil.example",
        "X: a\nY: b",
        "\nPOST /x HTTP/1.1\r\nContent-Length: 5",
    ] {
        assert_eq!(
            answer(&with(more)),
            Err(WebSocketFault::BadRequest),
            "{more:?}"
        );
    }
    let unix = format!("{}\n\nPOST /x HTTP/1.1\r\n\r\n", LINES.join("\n"));
    assert_eq!(answer(unix.as_bytes()), Err(WebSocketFault::BadRequest));
    assert!(answer(&with("X: a")).is_ok());
}

#[test]
fn the_limit_of_headers_is_a_setting() {
    let limits = HeadLimits {
        headers_max: 6,
        ..HeadLimits::default()
    };
    let terms = ServerTerms::new("/chat", "tw1", MessageKind::Binary).head_limits(limits);
    assert!(terms.answer(&with("A: b")).is_ok());
    assert_eq!(
        terms.answer(&with("A: b\r\nC: d")),
        Err(WebSocketFault::HeadersTooLong)
    );
}

/// A line end in a value would add a header to the answer.
#[test]
fn header_injection_finds_nothing_that_is_repeated() {
    let head = with("Sec-WebSocket-Protocol: tw1, x\r\n y: 1");
    assert!(answer(&head).is_err());
    let text = answer(&with("Sec-WebSocket-Protocol: tw1, \"a;b\", Set-Cookie: x")).unwrap();
    assert!(!text.contains("Cookie"), "{text}");
}

#[test]
fn a_page_request_gets_a_helpful_answer() {
    let text = String::from_utf8(refusal(WebSocketFault::NotWebSocket, false)).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 426 Upgrade Required\r\n"),
        "{text}"
    );
    assert!(
        text.contains("Sec-WebSocket-Version: 13") && text.contains("ws://"),
        "{text}"
    );
}

fn page() -> WebPage {
    WebPage::html(&b"<p>hello"[..], "default-src 'none'").unwrap()
}

fn paged(head: &[u8]) -> Result<Answer, WebSocketFault> {
    let terms = ServerTerms::new("/chat", "tw1", MessageKind::Binary);
    terms.page(page()).answer(head)
}

#[test]
fn a_request_without_upgrade_gets_the_page() {
    for (line, has_body) in [
        ("GET /chat HTTP/1.1", true),
        ("GET /chat?room=lobby HTTP/1.1", true),
        ("GET /chat HTTP/1.0", true),
        ("HEAD /chat HTTP/1.1", false),
    ] {
        let answer = paged(&head(&[line, "Host: a", "Origin: https://evil.example"]));
        assert_eq!(answer, Ok(Answer::Page(page().answer(has_body))), "{line}");
    }
    let accepted = paged(&head(&LINES)).unwrap();
    assert!(matches!(accepted, Answer::Accepted { .. }), "{accepted:?}");
}

/// The page has one spelling of its path. Nothing is resolved.
#[test]
fn there_is_one_page_and_two_methods() {
    use WebSocketFault as Fault;
    for (line, fault) in [
        ("GET / HTTP/1.1", Fault::NoSuchPage),
        ("HEAD /chat/ HTTP/1.1", Fault::NoSuchPage),
        ("GET /chat/../chat HTTP/1.1", Fault::NoSuchPage),
        ("GET /../../etc/passwd HTTP/1.1", Fault::NoSuchPage),
        ("GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1", Fault::NoSuchPage),
        ("GET http://a/chat HTTP/1.1", Fault::NoSuchPage),
        ("POST /chat HTTP/1.1", Fault::BadPageMethod),
        ("DELETE / HTTP/1.1", Fault::BadPageMethod),
        ("get /chat HTTP/1.1", Fault::BadPageMethod),
    ] {
        assert_eq!(paged(&head(&[line, "Host: a"])), Err(fault), "{line}");
    }
    for more in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
        let request = head(&["GET /chat HTTP/1.1", "Host: a", more]);
        assert_eq!(paged(&request), Err(Fault::BadRequest), "{more}");
    }
    let other = paged(&changed(0, "GET / HTTP/1.1", ""));
    assert_eq!(other, Err(Fault::OtherPath));
}

#[test]
fn a_refusal_of_head_has_no_body() {
    let text = String::from_utf8(refusal(WebSocketFault::NoSuchPage, true)).unwrap();
    assert!(text.starts_with("HTTP/1.1 404 "), "{text}");
    assert!(text.ends_with("\r\n\r\n"), "{text}");
}
