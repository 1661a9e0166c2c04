//! Access to the admin server: checks of a request's host, of its page's origin, and of its token.
//!
//! A page of the web may make a browser send requests to this machine. By *DNS rebinding* its own name becomes
//! 127.0.0.1, and it could read the answers. So only requests for an IP address, `localhost` or a configured name are
//! answered: an address cannot be rebound. By *request forgery* it could send a POST without reading the answer. So a
//! POST needs a header that pages of other origins cannot set, and its `Origin`, if any, must be of this server.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::header::{self, HeaderMap};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode, Version};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tidewire::auth::Token;
use tidewire::text::hexadecimal;

use crate::http::{PeerAddress, network};

#[derive(Debug)]
pub(crate) struct Access {
    /// The hash of the token. `None` if every client that reaches the server may do everything.
    token: Option<[u8; 32]>,
    /// Names besides addresses and `localhost`, in lower case.
    hosts: Vec<String>,
    attributes: &'static str,
    logins: Mutex<Logins>,
}

/// Browsers that have shown the token, and recent failures.
#[derive(Debug, Default)]
struct Logins {
    /// The number in the cookie, and when it was made. The oldest is first.
    open: VecDeque<([u8; 16], Instant)>,
    /// The failures of each address, in the second that began then.
    failures: HashMap<IpAddr, (u32, Instant)>,
}

/// A refused request: its status and the reason.
pub(crate) type Refusal = (StatusCode, &'static str);

impl Access {
    /// `hosts` are in lower case. `is_encrypted` says whether the cookie may be kept from plain connections.
    pub(crate) fn new(token: Option<&Token>, hosts: &[String], is_encrypted: bool) -> Self {
        Self {
            token: token.map(|token| hash(token.secret())),
            hosts: hosts.to_vec(),
            attributes: match is_encrypted {
                true => "Path=/; HttpOnly; SameSite=Strict; Secure",
                false => "Path=/; HttpOnly; SameSite=Strict",
            },
            logins: Mutex::default(),
        }
    }

    /// Checks everything but the token.
    pub(crate) fn check_source(&self, request: &Parts) -> Result<(), Refusal> {
        let host = single(&request.headers, header::HOST)?;
        if request.version != Version::HTTP_11 && host.is_none() {
            return Err((
                StatusCode::BAD_REQUEST,
                "the request has no host; use HTTP/1.1",
            ));
        }
        let host = host.ok_or((StatusCode::BAD_REQUEST, "the request has no host"))?;
        let target = request.uri.authority().map(|it| it.as_str());
        if !self.allows_host(host) || target.is_some_and(|target| target != host) {
            return Err((
                StatusCode::MISDIRECTED_REQUEST,
                "this name is not one of the admin server; use its IP address, or name it with --admin-host",
            ));
        }
        if request.headers.contains_key(header::UPGRADE) {
            return Err((
                StatusCode::BAD_REQUEST,
                "the admin server has no WebSocket; connect to a ws:// address of --bind",
            ));
        }
        // Programs on the way could see a different end of such a body. It would have two lengths if there is a
        // Content-Length, too, which `hyper` takes away.
        if request.headers.contains_key(header::TRANSFER_ENCODING) {
            return Err((
                StatusCode::LENGTH_REQUIRED,
                "send the body with Content-Length, and not in chunks",
            ));
        }
        if request.method == Method::POST {
            check_page(&request.headers, host)?;
        }
        Ok(())
    }

    fn allows_host(&self, host: &str) -> bool {
        let name = host_name(host).to_lowercase();
        let address = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        name == "localhost"
            || address.unwrap_or(&name).parse::<IpAddr>().is_ok()
            || self.hosts.contains(&name)
    }

    /// Checks the token of a request, or the cookie of a login.
    pub(crate) fn check_token(&self, request: &Parts) -> Result<(), Refusal> {
        let headers = &request.headers;
        if self.token.is_none() || self.has_login(headers) {
            return Ok(());
        }
        let given = single(headers, header::AUTHORIZATION)?;
        let given = given.and_then(bearer);
        match given {
            None => Err((
                StatusCode::UNAUTHORIZED,
                "this needs the token of --admin-token-file: send Authorization: Bearer TOKEN",
            )),
            Some(given) => self.check_secret(given, request),
        }
    }

    /// Compares a token, unless its address has just sent too many wrong tokens.
    ///
    /// Failures are counted for each address: a common count would let a guesser elsewhere keep out the owner of the
    /// right token. After too many failures the right token is refused, too, because otherwise a short token could be
    /// guessed at any rate. Users of one machine share its address, and could keep each other out anyway, by its
    /// connections.
    fn check_secret(&self, given: &str, request: &Parts) -> Result<(), Refusal> {
        let peer = request.extensions.get::<PeerAddress>();
        let peer = network(peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |it| it.0));
        if !self.logins().may_try(peer) {
            return Err((
                StatusCode::TOO_MANY_REQUESTS,
                "too many wrong tokens of this address in this second; try again",
            ));
        }
        let is_right = self
            .token
            .is_some_and(|token| token.ct_eq(&hash(given)).into());
        if is_right {
            return Ok(());
        }
        self.logins().note_failure(peer);
        Err((StatusCode::UNAUTHORIZED, "the token is wrong"))
    }

    /// Exchanges the token for a cookie, which scripts cannot read and other sites cannot send.
    pub(crate) fn log_in(&self, token: &str, request: &Parts) -> Result<String, Refusal> {
        self.check_secret(token.trim(), request)?;
        let mut number = [0; 16];
        let filled = rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty());
        if filled != Ok(number.len()) {
            return Err((
                StatusCode::INTERNAL_SERVER_ERROR,
                "the system has no random numbers",
            ));
        }
        let mut logins = self.logins();
        if logins.open.len() == LOGINS_MAX {
            logins.open.pop_front();
        }
        logins.open.push_back((number, Instant::now()));
        let number = u128::from_be_bytes(number);
        Ok(format!("{COOKIE}={number:032x}; {}", self.attributes))
    }

    /// Ends a login. Returns the cookie that removes the browser's.
    pub(crate) fn log_out(&self, headers: &HeaderMap) -> String {
        let numbers: Vec<_> = cookies(headers).collect();
        self.logins()
            .open
            .retain(|(number, _)| !numbers.contains(number));
        format!("{COOKIE}=; {}; Max-Age=0", self.attributes)
    }

    fn has_login(&self, headers: &HeaderMap) -> bool {
        let mut logins = self.logins();
        logins
            .open
            .retain(|(_, since)| since.elapsed() < LOGIN_AGE_MAX);
        cookies(headers).any(|found| logins.open.iter().any(|(number, _)| *number == found))
    }

    fn logins(&self) -> MutexGuard<'_, Logins> {
        self.logins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Logins {
    fn may_try(&mut self, peer: IpAddr) -> bool {
        self.failures
            .retain(|_, (_, since)| since.elapsed() < Duration::from_secs(1));
        let failures = self.failures.get(&self.counted(peer));
        failures.is_none_or(|(count, _)| *count < FAILURES_PER_SECOND)
    }

    fn note_failure(&mut self, peer: IpAddr) {
        let peer = self.counted(peer);
        let (count, _) = self.failures.entry(peer).or_insert((0, Instant::now()));
        *count += 1;
    }

    /// The address under which failures are counted. When the table is full, all addresses outside of it share one.
    fn counted(&self, peer: IpAddr) -> IpAddr {
        match self.failures.len() < FAILING_ADDRESSES_MAX || self.failures.contains_key(&peer) {
            true => peer,
            false => Ipv6Addr::UNSPECIFIED.into(),
        }
    }
}

/// Refuses a change that a page of another origin asks for.
fn check_page(headers: &HeaderMap, host: &str) -> Result<(), Refusal> {
    if !headers.contains_key(MARK) {
        return Err((
            StatusCode::FORBIDDEN,
            "a POST needs the header X-Tidewire-Admin: 1, which pages of other origins cannot send",
        ));
    }
    let origin = single(headers, header::ORIGIN)?;
    let of_host = |origin: &str| {
        let name = origin
            .strip_prefix("http://")
            .or(origin.strip_prefix("https://"));
        name == Some(host)
    };
    match origin.is_none_or(of_host) {
        true => Ok(()),
        false => Err((StatusCode::FORBIDDEN, "the page is of another origin")),
    }
}

/// The token of a header with the scheme `Bearer`, in any case.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn single(headers: &HeaderMap, name: header::HeaderName) -> Result<Option<&str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let refused = (
        StatusCode::BAD_REQUEST,
        "a header is doubled or has bytes that no header has",
    );
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| refused),
        (Some(_), Some(_)) => Err(refused),
    }
}

fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => host,
    }
}

fn cookies(headers: &HeaderMap) -> impl Iterator<Item = [u8; 16]> {
    let values = headers.get_all(header::COOKIE).iter();
    let pairs = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'));
    let numbers = pairs.filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='));
    numbers
        .filter(|number| number.len() == 32)
        .filter_map(|number| Some(hexadecimal(number)?.to_be_bytes()))
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

const COOKIE: &str = "tidewire_admin";

/// The header of requests that change something.
pub(crate) const MARK: &str = "x-tidewire-admin";

/// Browsers that are logged in at a time. A further login replaces the oldest.
const LOGINS_MAX: usize = 64;

/// The age at which a browser must show the token again: a working day.
const LOGIN_AGE_MAX: Duration = Duration::from_secs(12 * 3600);

const FAILURES_PER_SECOND: u32 = 10;

/// Addresses with a separate count of failures. More of them in a second than connections are open at a time are an
/// attack by many.
const FAILING_ADDRESSES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn access() -> Access {
        Access::new(
            Some(&Token::new("secret").unwrap()),
            &["ops.example".to_owned()],
            false,
        )
    }

    fn request(method: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri("/api/drain");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn only_names_that_cannot_be_rebound_are_answered() {
        let access = access();
        for host in [
            "127.0.0.1:9090",
            "localhost",
            "LOCALHOST:1",
            "[::1]:9090",
            "192.0.2.1",
            "ops.example:80",
        ] {
            assert_eq!(
                access.check_source(&request("GET", &[("host", host)])),
                Ok(()),
                "{host}"
            );
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "[::1",
            "x:y:z",
        ] {
            let refused = access
                .check_source(&request("GET", &[("host", host)]))
                .unwrap_err();
            assert_eq!(refused.0, StatusCode::MISDIRECTED_REQUEST, "{host}");
        }
        let doubled = [("host", "127.0.0.1"), ("host", "127.0.0.1")];
        assert_eq!(
            access
                .check_source(&request("GET", &doubled))
                .unwrap_err()
                .0,
            StatusCode::BAD_REQUEST
        );
    }

    #[test]
    fn a_change_is_asked_for_by_a_page_of_this_server_only() {
        let access = access();
        let (host, mark) = (("host", "127.0.0.1:9"), ("x-tidewire-admin", "1"));
        let check =
            |headers: &[(&str, &str)]| access.check_source(&request("POST", headers)).is_ok();
        assert!(check(&[host, mark]));
        assert!(check(&[host, mark, ("origin", "http://127.0.0.1:9")]));
        assert!(!check(&[host]));
        for origin in [
            "http://evil.example",
            "null",
            "http://127.0.0.1:10",
            "http://127.0.0.1:9.evil.example",
        ] {
            assert!(!check(&[host, mark, ("origin", origin)]), "{origin}");
        }
    }

    #[test]
    fn a_cookie_stands_for_the_token_until_it_is_given_back() {
        let access = access();
        let allowed = |name: &str, value: &str| {
            access
                .check_token(&request("GET", &[(name, value)]))
                .map_err(|it| it.0)
        };
        assert_eq!(allowed("accept", "*/*"), Err(StatusCode::UNAUTHORIZED));
        assert_eq!(allowed("authorization", "Bearer secret"), Ok(()));
        // RFC 9110, section 11.1: a scheme is the same in any case.
        assert_eq!(allowed("authorization", "bearer secret"), Ok(()));
        assert_eq!(allowed("authorization", "BEARER  secret"), Ok(()));
        assert_eq!(
            allowed("authorization", "Bearersecret"),
            Err(StatusCode::UNAUTHORIZED)
        );
        assert_eq!(
            allowed("authorization", "Bearer secre"),
            Err(StatusCode::UNAUTHORIZED)
        );
        let login = request("POST", &[]);
        assert_eq!(
            access.log_in("wrong", &login).unwrap_err().0,
            StatusCode::UNAUTHORIZED
        );
        let cookie = access.log_in("secret\n", &login).unwrap();
        assert!(cookie.ends_with("HttpOnly; SameSite=Strict"));
        let pair = cookie.split(';').next().unwrap();
        assert_eq!(allowed("cookie", &format!("a=b; {pair}")), Ok(()));
        assert_eq!(
            allowed("cookie", &format!("{pair}0")),
            Err(StatusCode::UNAUTHORIZED)
        );
        access.log_out(&request("GET", &[("cookie", pair)]).headers);
        assert_eq!(allowed("cookie", pair), Err(StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn guesses_and_logins_are_bounded() {
        let access = access();
        let from = request_from("192.0.2.1");
        let tries = (0..1000).map(|_| access.log_in("wrong", &from).unwrap_err().0);
        let compared = tries
            .filter(|status| *status == StatusCode::UNAUTHORIZED)
            .count();
        assert!(compared < 1000, "{compared}");
        for _ in 0..1000 {
            access.log_in("secret", &request_from("192.0.2.2")).unwrap();
        }
        assert_eq!(access.logins().open.len(), LOGINS_MAX);
    }

    fn request_from(address: &str) -> Parts {
        let mut request = request("POST", &[]);
        let address = address.parse().unwrap();
        request.extensions.insert(PeerAddress(address));
        request
    }

    fn fail(access: &Access, address: &str, times: u32) {
        let peer = network(address.parse().unwrap());
        (0..times).for_each(|_| access.logins().note_failure(peer));
    }

    /// Regression: ten wrong tokens a second from any client refused the right token of all others.
    #[test]
    fn the_right_token_is_not_refused_because_others_guess() {
        let access = access();
        fail(&access, "192.0.2.1", FAILURES_PER_SECOND);
        fail(&access, "2001:db8::1", FAILURES_PER_SECOND);
        let log_in = |address| access.log_in("secret", &request_from(address));
        for address in ["192.0.2.2", "127.0.0.1", "2001:db8:0:1::1"] {
            assert!(log_in(address).is_ok(), "{address}");
        }
        // Of the same network: its owner could change the address for each guess.
        let neighbour = "2001:db8::2".parse::<IpAddr>().unwrap();
        assert!(!access.logins().may_try(network(neighbour)));
        assert!(!access.logins().may_try("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn guesses_from_many_addresses_do_not_fill_memory() {
        let access = access();
        for number in 0..100_000_u32 {
            fail(&access, &Ipv4Addr::from(number).to_string(), 1);
        }
        let counted = access.logins().failures.len();
        assert!(counted <= FAILING_ADDRESSES_MAX + 1, "{counted}");
    }
}
