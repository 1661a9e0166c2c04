//! Credentials of more than a kilobyte, which only encrypted connections take.

use std::io::Read as _;

use tidewire::auth::{AuthOutcome, AuthRequest, Authenticate};
use tidewire_proto::handshake::FEATURE_LONG_CREDENTIALS;
use tidewire_testkit::certificates::usual;
use tidewire_testkit::{DEADLINE, TestServer};

use super::*;

/// Identifies all peers by the length of the token.
struct Length;

impl Authenticate for Length {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        AuthOutcome::admit(everything(&request.token().len().to_string()))
    }
}

fn token(bytes: usize) -> Token {
    Token::new(&"t".repeat(bytes)).unwrap()
}

fn connect_with(url: &str, bytes: usize) -> Result<Client, ConnectError> {
    let builder = Client::builder().tls(usual().0.client());
    builder.credentials(token(bytes)).connect(url).wait()
}

/// Regression: a token of a login server with 30 roles has 1,546 bytes, and no client could send it.
#[test]
fn tokens_of_eight_kilobytes_pass_over_tls_and_secure_websockets() {
    let tw1 = AnyCodec::by_name("tw1").unwrap();
    for codec in [tw1, AnyCodec::by_name("json").unwrap()] {
        let secured = || {
            Server::builder()
                .authenticate(Length)
                .tls(usual().1.server())
        };
        let tls = TestServer::over_tls(secured(), &codec, |_| tell_name);
        let wss = TestServer::over_secure_websocket(secured(), &codec, |_| tell_name);
        for url in [tls.url(), wss.url()] {
            for bytes in [1_024, 1_025, 1_546, 8_192] {
                let client = Client::builder()
                    .codec(codec.clone())
                    .tls(usual().0.client())
                    .credentials(token(bytes))
                    .connect(&url)
                    .wait();
                assert_eq!(name_of(&client.unwrap()), bytes.to_string(), "{url}");
            }
        }
    }
    assert!(Token::new(&"t".repeat(8_193)).is_err());
}

#[test]
fn elsewhere_the_limit_is_told_with_the_size() {
    let server = serve_with(Length, |_| tell_name);
    let client = connect_with(&server.addresses()[0].to_string(), 1_024).unwrap();
    assert_eq!(name_of(&client), "1024");
    let error = connect_with(&server.addresses()[0].to_string(), 1_546).unwrap_err();
    let told = error.to_string();
    assert!(
        told.contains("1546 bytes") && told.contains("8192"),
        "{told}"
    );

    // A foreign client that says it has the feature gets no further.
    let mut frame = Vec::new();
    let credentials = [b't'; 1_546];
    let hello = Hello {
        version: PROTOCOL_VERSION,
        features: FEATURE_LONG_CREDENTIALS,
        frame_bytes_max: 65_536,
        credentials: &credentials,
        agent: "test",
    };
    hello.encode_frame(&mut frame).unwrap();
    let address = server.addresses()[0].socket_address().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(&frame).unwrap();
    let mut told = Vec::new();
    // The end may be a reset.
    let _ = stream.read_to_end(&mut told);
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("1546 bytes"), "{told:?}");
}
