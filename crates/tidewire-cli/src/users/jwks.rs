//! Key sets that issuers publish at a URL (JWKS). A thread of its own fetches them; lanes and reloads only see the
//! result.
//!
//! A set is fetched once when it is first needed, so that a server that starts knows its keys, and then again and
//! again. The last good one is kept while the issuer cannot be reached, or answers something else. Rejected: fetching
//! when a token has an unknown key id, because anybody could then make the server ask the issuer; issuers publish new
//! keys before they use them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;
use tidewire::SettingError;
use tidewire::auth::JwtIssuer;
use tidewire::system::http_agent;
use ureq::http::Uri;

/// The sets of a server, by URL.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySets(Arc<SharedSets>);

#[derive(Debug, Default)]
struct SharedSets {
    sets: Mutex<BTreeMap<String, Set>>,
    /// How often a set has changed.
    changes: AtomicU64,
}

#[derive(Debug)]
struct Set {
    /// The last good text.
    text: Option<Vec<u8>>,
    refresh: Duration,
    due: Instant,
    /// Whether the last attempt failed, so that a long failure has one line in the log.
    has_failed: bool,
}

/// A set cannot be fetched.
#[derive(Debug, Error)]
enum FetchError {
    #[error("{0}")]
    Http(#[from] ureq::Error),
    #[error("the issuer answered with status {0}")]
    Status(u16),
    #[error(transparent)]
    Set(#[from] SettingError),
}

impl KeySets {
    /// The last good text of the set at a URL. It is fetched now if this server has not asked for it before; `None` if
    /// that failed, and it will be tried again.
    pub(super) fn text(&self, url: &str, refresh: Duration) -> Option<Vec<u8>> {
        if let Some(set) = self.0.sets().get(url) {
            return set.text.clone();
        }
        let mut set = Set {
            text: None,
            refresh,
            due: Instant::now(),
            has_failed: false,
        };
        set.note(url, fetch(url));
        let text = set.text.clone();
        let mut sets = self.0.sets();
        let is_first = sets.is_empty();
        sets.insert(url.to_owned(), set);
        drop(sets);
        if is_first {
            let shared = Arc::downgrade(&self.0);
            let named = thread::Builder::new().name("tidewire-jwks".to_owned());
            if let Err(error) = named.spawn(move || keep_fresh(&shared)) {
                tracing::error!(%error, "key sets of issuers will not be fetched again: no thread");
            }
        }
        text
    }

    /// How often a set has changed since the start.
    pub(crate) fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::Acquire)
    }
}

impl SharedSets {
    fn sets(&self) -> MutexGuard<'_, BTreeMap<String, Set>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches the sets that are due. No lock is held meanwhile.
    fn fetch_due(&self) {
        let now = Instant::now();
        let sets = self.sets();
        let due = sets.iter().filter(|(_, set)| set.due <= now);
        let due: Vec<String> = due.map(|(url, _)| url.clone()).collect();
        drop(sets);
        for url in due {
            let fetched = fetch(&url);
            if let Some(set) = self.sets().get_mut(&url)
                && set.note(&url, fetched)
            {
                self.changes.fetch_add(1, Ordering::Release);
            }
        }
    }
}

impl Set {
    /// Notes the outcome of an attempt. Returns whether the set has changed.
    fn note(&mut self, url: &str, fetched: Result<Vec<u8>, FetchError>) -> bool {
        let pause = match &fetched {
            Ok(_) => self.refresh,
            Err(_) => self.refresh.min(RETRY),
        };
        self.due = Instant::now() + pause;
        match fetched {
            Ok(text) => {
                if self.has_failed {
                    tracing::info!(url, "the key set of an issuer is fetched again");
                }
                self.has_failed = false;
                self.text.replace(text) != self.text
            }
            Err(error) => {
                if !self.has_failed {
                    let is_kept = self.text.is_some();
                    tracing::error!(
                        url,
                        %error,
                        is_kept,
                        "cannot fetch the key set of an issuer; the last good one is kept, if there is one; trying again"
                    );
                }
                self.has_failed = true;
                false
            }
        }
    }
}

/// Fetches sets for as long as the server has them.
fn keep_fresh(shared: &Weak<SharedSets>) {
    loop {
        thread::sleep(LOOK);
        match shared.upgrade() {
            Some(shared) => shared.fetch_due(),
            None => return,
        }
    }
}

/// Whether the keys at this URL can be trusted: nobody on the way can change them.
pub(super) fn is_trusted(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else {
        return false;
    };
    let host = uri.host().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    let is_local = host == "localhost" || address.is_ok_and(|it| it.is_loopback());
    match uri.scheme_str() {
        Some("https") => !host.is_empty(),
        Some("http") => is_local,
        _ => false,
    }
}

/// Fetches a set, and checks that its keys can be used.
fn fetch(url: &str) -> Result<Vec<u8>, FetchError> {
    let request = http_agent().get(url).config();
    let mut response = request.timeout_global(Some(TIMEOUT)).build().call()?;
    let status = response.status().as_u16();
    if status != 200 {
        return Err(FetchError::Status(status));
    }
    let body = response.body_mut().with_config().limit(SET_BYTES_MAX);
    let text = body.read_to_vec()?;
    JwtIssuer::new("", [""]).key_set(&text)?;
    Ok(text)
}

/// The longest set that is read. Login servers publish a few kilobytes.
const SET_BYTES_MAX: u64 = 256 * 1024;

/// The time for one set. The start of a server waits for it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How often the thread looks whether a set is due.
const LOOK: Duration = Duration::from_millis(500);

/// The pause after a failure, unless sets are fetched more often than that.
const RETRY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use tidewire_testkit::jwt::SigningKey;

    use super::*;

    /// Answers one request after the other with these bodies and statuses, and then no more. Returns the URL.
    fn issuer(answers: Vec<(u16, String)>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    head.extend(byte);
                }
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        url
    }

    fn set(kid: &str) -> String {
        let key = SigningKey::new().jwk(kid);
        format!("{{\"keys\":[{key}]}}")
    }

    #[test]
    fn a_set_is_fetched_again_and_the_last_good_one_is_kept() {
        let (first, second) = (set("a"), set("b"));
        let answers = vec![
            (200, first.clone()),
            (500, "down".to_owned()),
            (200, "{\"keys\":[]}".to_owned()),
            (200, first.clone()),
            (200, second.clone()),
        ];
        let url = issuer(answers);
        let sets = KeySets::default();
        // The thread has nothing to do, so that the test decides when.
        let text = |sets: &KeySets| sets.text(&url, Duration::from_secs(3_600));
        assert_eq!(text(&sets), Some(first.clone().into_bytes()));
        let fetch = || {
            if let Some(set) = sets.0.sets().get_mut(&url) {
                set.due = Instant::now();
            }
            sets.0.fetch_due();
        };
        for changes in [0, 0, 0] {
            fetch();
            assert_eq!(sets.changes(), changes);
            assert_eq!(text(&sets), Some(first.clone().into_bytes()));
        }
        fetch();
        assert_eq!(sets.changes(), 1);
        assert_eq!(text(&sets), Some(second.into_bytes()));
        fetch();
        assert_eq!(sets.changes(), 1, "the issuer is gone");
        assert!(text(&sets).is_some());
    }

    #[test]
    fn a_server_starts_without_an_issuer_that_is_down() {
        let url = issuer(Vec::new());
        let sets = KeySets::default();
        assert_eq!(sets.text(&url, Duration::from_secs(3_600)), None);
    }

    #[test]
    fn keys_come_encrypted_or_from_this_machine() {
        for url in [
            "https://login.example.org/keys",
            "http://127.0.0.1:8080/",
            "http://[::1]/k",
            "http://localhost/k",
        ] {
            assert!(is_trusted(url), "{url}");
        }
        for url in [
            "http://login.example.org/keys",
            "ftp://127.0.0.1/",
            "login.example.org",
            "https://",
            "",
            "http://127.0.0.1.example/",
        ] {
            assert!(!is_trusted(url), "{url}");
        }
    }
}
