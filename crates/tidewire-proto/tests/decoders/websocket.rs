//! WebSocket: handshakes and frames of both sides.

use std::sync::Arc;

use tidewire_proto::layer::{Layer, LayerError, Stack, WebSocketFault};
use tidewire_proto::websocket::{
    Answer, ClientTerms, Masks, MessageKind, Origins, ServerTerms, WebPage, WebSocketLayer,
};

/// A handshake that may fail, and frames behind one that did not.
pub fn websocket(bytes: &[u8]) {
    let Some((&choice, stream)) = bytes.split_first() else {
        return;
    };
    let kind = match choice & 1 {
        0 => MessageKind::Binary,
        _ => MessageKind::Text,
    };
    let piece = usize::from(choice >> 4) + 1;
    for prefix in prefixes(choice) {
        let network = [&prefix[..], stream].concat();
        let whole = read(choice, kind, &network, network.len());
        let pieces = read(choice, kind, &network, piece);
        match (&whole, &pieces) {
            (Ok(one), Ok(other)) => assert_eq!(one, other, "cuts change the outcome"),
            // Many pings at once are a flood, and the same in pieces are none.
            (Err(LayerError::WebSocket(WebSocketFault::ControlFlood)), _) => {}
            // The fault may be another: a bad text that is cut after its header is refused because it is text.
            (Err(LayerError::WebSocket(_)), Err(LayerError::WebSocket(_))) => {}
            (one, other) => panic!("{one:?} and {other:?}"),
        }
    }
}

/// A head that is checked whole: an accepted head has no line that another reader would see and this reader did not.
pub fn websocket_head(bytes: &[u8]) {
    let Some((&choice, stream)) = bytes.split_first() else {
        return;
    };
    // Half of the inputs follow the lines of a good request, so that the fuzzer begins with accepted input.
    let head = match choice & 16 {
        0 => stream.to_vec(),
        _ => [GOOD_LINES, stream, b"\r\n\r\n"].concat(),
    };
    let terms = server_terms(choice, MessageKind::Binary);
    let answer = match is_server(choice) {
        true => terms.answer(&head).ok(),
        false => {
            let accepted = client_terms(MessageKind::Binary).check(&head, "key");
            let (head, protocol) = (Vec::new(), 0);
            accepted.ok().map(|()| Answer::Accepted { head, protocol })
        }
    };
    let Some(answer) = answer else { return };
    let text = String::from_utf8_lossy(&head);
    let text = text
        .strip_suffix("\r\n\r\n")
        .expect("an accepted head has an end");
    let headers: Vec<_> = text.split("\r\n").skip(1).map(header).collect();
    let values = |wanted: &str| -> Vec<&str> {
        let found = headers
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| *value).collect()
    };
    if is_server(choice) && matches!(answer, Answer::Accepted { .. }) {
        assert!(
            values("transfer-encoding").is_empty(),
            "a body was accepted"
        );
        let hosts = values("host");
        assert_eq!(hosts.len(), 1, "one host");
        for origin in values("origin") {
            assert!(origins(choice).allow(origin, hosts[0]), "{origin:?}");
        }
    }
}

/// The name and the value of a line, which is not empty and has no other line in it.
fn header(line: &str) -> (&str, &str) {
    assert!(!line.contains(['\r', '\n']), "{line:?}");
    let (name, value) = line.split_once(':').expect("a header has a name");
    (name, value.trim())
}

/// A good request without its end.
const GOOD_LINES: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";

/// Nothing, and the peer's good part of the handshake.
fn prefixes(choice: u8) -> [Vec<u8>; 2] {
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let good = match is_server(choice) {
        true => request.to_vec(),
        false => {
            let (request, _) = client_terms(MessageKind::Binary).request(&mut Masks::new(SEED));
            let terms = ServerTerms::new("/", "tw1", MessageKind::Binary);
            match terms.answer(&request).expect("the request is good") {
                Answer::Accepted { head, .. } => head,
                other => panic!("there is no page: {other:?}"),
            }
        }
    };
    [Vec::new(), good]
}

fn is_server(choice: u8) -> bool {
    choice & 2 == 0
}

/// The terms of a server that has a page, or allows an origin, if the choice says so.
fn server_terms(choice: u8, kind: MessageKind) -> ServerTerms {
    let mut terms = ServerTerms::new("/", "tw1", kind).or_protocol("json", MessageKind::Text);
    if choice & 4 != 0 {
        let page = WebPage::html(&b"<!doctype html>"[..], "default-src 'none'");
        terms = terms.page(page.expect("a short page"));
    }
    terms.origins(origins(choice))
}

fn origins(choice: u8) -> Origins {
    match choice & 8 {
        0 => Origins::default(),
        _ => Origins::new(["https://app.example"]).expect("an origin"),
    }
}

fn client_terms(kind: MessageKind) -> ClientTerms {
    ClientTerms::new("a", "/", "tw1", kind).expect("a plain host and path")
}

/// The plaintext of these bytes, which come in pieces, and whether they asked for the page and got it.
fn read(
    choice: u8,
    kind: MessageKind,
    network: &[u8],
    piece: usize,
) -> Result<(Vec<u8>, bool), LayerError> {
    let layer = match is_server(choice) {
        true => WebSocketLayer::accepting(Arc::new(server_terms(choice, kind))),
        false => WebSocketLayer::connecting(Arc::new(client_terms(kind)), Masks::new(SEED)),
    };
    let mut stack = Stack::from(Box::new(layer) as Box<dyn Layer>);
    stack.start()?;
    let (mut plain, mut buffer) = (Vec::new(), [0; 1 << 10]);
    for bytes in network.chunks(piece.max(1)) {
        stack.receive(bytes)?;
        loop {
            match stack.read(&mut buffer)? {
                0 => break,
                count => plain.extend_from_slice(&buffer[..count]),
            }
        }
        let unsent = stack.unsent().len();
        stack.advance(unsent);
    }
    assert!(plain.len() <= network.len(), "bytes from nowhere");
    let has_page = choice & 4 != 0;
    assert!(has_page || !stack.has_served_page(), "there is no page");
    Ok((plain, stack.has_served_page()))
}

const SEED: [u64; 2] = [1, 2];
