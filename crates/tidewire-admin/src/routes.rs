//! The table of requests and their answers.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tidewire::text::hexadecimal;
use tidewire::{GoAwayCode, SessionId};
use tokio::task::spawn_blocking;

use crate::access::{Access, Refusal};
use crate::events::Events;
use crate::http::{Answer, PeerAddress, Request, RequestEnd, Site, failure, json, text};
use crate::openmetrics::{CLASSIC_TYPE, CONTENT_TYPE, Exporter, classic};
use crate::page;
use crate::query::{self, Query, ROOM_SORTS, SESSION_SORTS};
use crate::sampler::{Health, Sampler};
use crate::settings::{Actions, Scope};

/// All pages of the admin server.
pub(crate) struct Routes {
    pub(crate) access: Access,
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) exporter: Arc<Exporter>,
    pub(crate) events: Arc<Events>,
    pub(crate) actions: Actions,
    pub(crate) scope: Scope,
    pub(crate) needs_backplane: bool,
    pub(crate) every: Duration,
}

impl Site for Routes {
    fn begin(self: &Arc<Self>) {
        let (events, sampler, every) = (
            Arc::clone(&self.events),
            Arc::clone(&self.sampler),
            self.every,
        );
        tokio::spawn(async move { events.run(sampler, every).await });
    }

    fn count(&self, end: RequestEnd) {
        self.exporter.requests.count(end);
    }

    async fn answer(self: Arc<Self>, request: Request) -> Answer {
        let (parts, body) = request.into_parts();
        let answered = self.route(&parts, body).await;
        answered.unwrap_or_else(|(status, reason)| {
            tracing::debug!(%status, reason, "a request to the admin server was refused");
            let mut answer = failure(status, reason);
            let more = match status {
                StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, "Bearer")),
                StatusCode::METHOD_NOT_ALLOWED => Some((header::ALLOW, "GET, HEAD, POST")),
                _ => None,
            };
            if let Some((name, value)) = more {
                let value = HeaderValue::from_static(value);
                answer.headers_mut().insert(name, value);
            }
            answer
        })
    }
}

#[derive(Deserialize)]
struct Login {
    token: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Close {
    /// The text for the peer.
    #[serde(default)]
    reason: String,
    /// Whether its client should connect again.
    #[serde(default)]
    reconnect: bool,
}

impl Routes {
    async fn route(&self, parts: &Parts, body: Incoming) -> Result<Answer, Refusal> {
        let path = parts.uri.path();
        if let (&Method::GET | &Method::HEAD, "/healthz" | "/readyz") = (&parts.method, path) {
            // A load balancer asks in HTTP/1.0 without a host, or with any. A page that reads the answer learns
            // nothing.
            return Ok(self.health(path == "/readyz").await);
        }
        if let Scope::Health { has_metrics } = self.scope {
            return match (&parts.method, path) {
                (&Method::GET | &Method::HEAD, "/metrics") if has_metrics => {
                    self.metrics(parts).await
                }
                _ => Err((
                    StatusCode::NOT_FOUND,
                    "this address has /healthz and /readyz, and /metrics if that is said",
                )),
            };
        }
        self.access.check_source(parts)?;
        match parts.method {
            Method::GET | Method::HEAD => self.get(parts, path).await,
            Method::POST => self.post(parts, path, body).await,
            _ => Err((StatusCode::METHOD_NOT_ALLOWED, "only GET, HEAD and POST")),
        }
    }

    async fn get(&self, parts: &Parts, path: &str) -> Result<Answer, Refusal> {
        // These pages have no figures, so a browser can show the form for the token, and a load balancer needs no
        // token.
        match path {
            "/" => return Ok(page::index()),
            "/admin.js" => return Ok(page::script()),
            "/admin.css" => return Ok(page::style()),
            "/api/schema" => return Ok(page::schema()),
            _ => self.access.check_token(parts)?,
        }
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let sampler = Arc::clone(&self.sampler);
        match path {
            "/metrics" => self.metrics(parts).await,
            "/api/events" => {
                let peer = parts.extensions.get::<PeerAddress>();
                let peer = peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |it| it.0);
                Ok(self.events.listen(peer))
            }
            "/api/overview" => {
                let overview = blocking(move || {
                    sampler.walk();
                    sampler.overview()
                });
                Ok(json(StatusCode::OK, &*overview.await?))
            }
            "/api/sessions" => {
                blocking(move || {
                    list(&query, &SESSION_SORTS, |query| {
                        query::sessions(&sampler, query)
                    })
                })
                .await
            }
            "/api/rooms" | "/api/topics" => {
                let topics = path == "/api/topics";
                blocking(move || {
                    list(&query, &ROOM_SORTS, |query| {
                        query::rooms(&sampler, query, topics)
                    })
                })
                .await
            }
            _ => Err((
                StatusCode::NOT_FOUND,
                "there is no such page; see / and /api/schema",
            )),
        }
    }

    async fn metrics(&self, parts: &Parts) -> Result<Answer, Refusal> {
        let exporter = Arc::clone(&self.exporter);
        let scraped = blocking(move || exporter.scrape()).await?;
        let scraped = scraped.map_err(|_| UNENCODABLE)?;
        Ok(match accepts_openmetrics(&parts.headers) {
            true => text(StatusCode::OK, CONTENT_TYPE, scraped),
            false => text(StatusCode::OK, CLASSIC_TYPE, classic(&scraped)),
        })
    }

    async fn post(&self, parts: &Parts, path: &str, body: Incoming) -> Result<Answer, Refusal> {
        if path == "/api/login" {
            let login: Login = read(body).await?;
            let cookie = self.access.log_in(&login.token, parts)?;
            return Ok(with_cookie("login", &cookie));
        }
        self.access.check_token(parts)?;
        let close = path.strip_prefix("/api/sessions/");
        let close = close.and_then(|rest| rest.strip_suffix("/close"));
        if let Some(id) = close {
            let wanted: Close = read(body).await?;
            return self.close(id, &wanted);
        }
        match path {
            "/api/logout" => Ok(with_cookie("logout", &self.access.log_out(&parts.headers))),
            "/api/drain" => act(self.actions.drain.as_ref(), "drain"),
            "/api/reload" => act(self.actions.reload.as_ref(), "reload"),
            _ => Err((
                StatusCode::NOT_FOUND,
                "there is no such action; see /api/schema",
            )),
        }
    }

    fn close(&self, id: &str, wanted: &Close) -> Result<Answer, Refusal> {
        let number = hexadecimal(id).and_then(|number| u64::try_from(number).ok());
        let number = number.ok_or((
            StatusCode::BAD_REQUEST,
            "the session's number is not hexadecimal",
        ))?;
        let code = match wanted.reconnect {
            true => GoAwayCode::Shutdown,
            false => GoAwayCode::Removed,
        };
        let id = SessionId::from_number(number);
        let not_open = (StatusCode::NOT_FOUND, "the session is not open");
        let session = self.sampler.sessions.find(id).ok_or(not_open)?;
        let closed = session.close_with(code, &wanted.reason);
        closed.map_err(|_| not_open)?;
        let peer = session.peer().map(tracing::field::display);
        let reason = tidewire::text::escaped(wanted.reason.as_bytes());
        tracing::info!(session = %id, peer, %reason, "the admin server closed a session");
        Ok(done("close"))
    }

    async fn health(&self, is_readiness: bool) -> Answer {
        let sampler = Arc::clone(&self.sampler);
        let plain = "text/plain; charset=utf-8";
        let health = blocking(move || sampler.health()).await;
        match health {
            Ok(Health::CutOff) if is_readiness && self.needs_backplane => text(
                StatusCode::SERVICE_UNAVAILABLE,
                plain,
                "cut off from the backplane\n".to_owned(),
            ),
            Ok(Health::CutOff) => text(StatusCode::OK, plain, "ok, cut off\n".to_owned()),
            Ok(Health::Healthy) => text(StatusCode::OK, plain, "ok\n".to_owned()),
            Ok(Health::Draining) if !is_readiness => {
                text(StatusCode::OK, plain, "ok, draining\n".to_owned())
            }
            Ok(Health::Draining) => text(
                StatusCode::SERVICE_UNAVAILABLE,
                plain,
                "draining\n".to_owned(),
            ),
            Ok(Health::Stuck(lane)) => {
                let why = format!("lane {lane} does not turn\n");
                text(StatusCode::SERVICE_UNAVAILABLE, plain, why)
            }
            Err((status, why)) => failure(status, why),
        }
    }
}

/// Whether a scraper names OpenMetrics among the formats that it reads, as Prometheus does.
fn accepts_openmetrics(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(header::ACCEPT).iter();
    accepted.any(|it| it.to_str().is_ok_and(|it| it.contains("openmetrics")))
}

/// Runs work that waits for lanes, on another thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    spawn_blocking(work).await.map_err(|_| {
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the answer panicked; please report it as a bug",
        )
    })
}

fn list<T: serde::Serialize>(
    text: &str,
    sorts: &[&str],
    find: impl FnOnce(&Query) -> Result<T, tidewire::ServeError>,
) -> Answer {
    match Query::parse(text, sorts) {
        Err(error) => failure(StatusCode::BAD_REQUEST, &error),
        Ok(query) => match find(&query) {
            Ok(page) => json(StatusCode::OK, &page),
            Err(error) => failure(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        },
    }
}

async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, Refusal> {
    let whole = Limited::new(body, BODY_BYTES_MAX).collect();
    let body = tokio::time::timeout(BODY_TIME_MAX, whole).await;
    let body = body.map_err(|_| (StatusCode::REQUEST_TIMEOUT, "the body did not come in time"))?;
    let body = body.map_err(|_| {
        (
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is cut, or longer than 4 KiB",
        )
    })?;
    serde_json::from_slice(&body.to_bytes()).map_err(|_| {
        (
            StatusCode::BAD_REQUEST,
            "the body is not the JSON of /api/schema",
        )
    })
}

fn act(
    action: Option<&Arc<dyn Fn() + Send + Sync>>,
    name: &'static str,
) -> Result<Answer, Refusal> {
    let action = action.ok_or((
        StatusCode::NOT_IMPLEMENTED,
        "this program does not offer the action",
    ))?;
    tracing::info!(action = name, "the admin server was asked to act");
    action();
    Ok(done(name))
}

fn done(action: &str) -> Answer {
    json(StatusCode::ACCEPTED, &json!({ "accepted": action }))
}

fn with_cookie(action: &str, cookie: &str) -> Answer {
    let mut answer = done(action);
    // The cookie has only digits and fixed text, so it is always a value.
    if let Ok(value) = HeaderValue::from_str(cookie) {
        answer.headers_mut().insert(header::SET_COOKIE, value);
    }
    answer
}

const BODY_BYTES_MAX: usize = 4 << 10;

/// The longest time for the body of a request. A peer without a token may begin a login, and there are few places.
const BODY_TIME_MAX: Duration = Duration::from_secs(10);

const UNENCODABLE: Refusal = (
    StatusCode::INTERNAL_SERVER_ERROR,
    "the metrics cannot be written; please report it as a bug",
);
