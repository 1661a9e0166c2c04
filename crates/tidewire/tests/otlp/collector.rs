//! A collector of OpenTelemetry that speaks as much HTTP as a test needs.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

/// The answer to a request. Requests without a planned answer are taken.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Status(u16),
    /// Takes all spans but as many.
    Partial(i64),
    /// Takes the spans, with an answer that is no message.
    Garbage,
    Redirect(String),
    /// Reads no further and says nothing.
    Never,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    headers: Vec<(String, String)>,
    pub(crate) message: ExportTraceServiceRequest,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(its, _)| its == name);
        found.map_or("", |(_, value)| value)
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let scopes = self.message.resource_spans.iter();
        let scopes = scopes.flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }
}

/// A running collector. Dropping it ends its listener.
#[derive(Debug)]
pub(crate) struct Collector {
    url: String,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    replies: VecDeque<Reply>,
    requests: Vec<Request>,
    /// Spans that [`Collector::wait_for_spans`] has not counted.
    unseen: usize,
    is_over: bool,
}

impl Collector {
    pub(crate) fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = State {
            replies: replies.into_iter().collect(),
            requests: Vec::new(),
            unseen: 0,
            is_over: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.state.lock().unwrap().is_over {
                    return;
                }
                let shared = Arc::clone(&accepting);
                thread::spawn(move || serve(stream.unwrap(), &shared));
            }
        });
        Self { url, shared }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Ends the collector, and returns its URL once nothing listens there.
    pub(crate) fn into_url(self) -> String {
        let url = self.url.clone();
        drop(self);
        let address = url.trim_start_matches("http://").to_owned();
        while TcpStream::connect(&address).is_ok() {
            thread::yield_now();
        }
        url
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.state.lock().unwrap().requests.clone()
    }

    /// The spans of all requests, also of refused requests.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.requests().iter().flat_map(Request::spans).collect()
    }

    /// Waits until as many more spans have come and been answered with success or refusal.
    pub(crate) fn wait_for_spans(&self, count: usize) {
        let mut state = self.shared.state.lock().unwrap();
        while state.unseen < count {
            state = self.shared.changed.wait(state).unwrap();
        }
        state.unseen -= count;
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap().is_over = true;
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
    }
}

/// Answers the requests of one connection until the peer closes it.
fn serve(stream: TcpStream, shared: &Shared) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader) {
        let mut state = shared.state.lock().unwrap();
        let reply = state.replies.pop_front();
        let stays_unread = matches!(reply, Some(Reply::Status(429 | 503)));
        let count = if stays_unread {
            0
        } else {
            request.spans().len()
        };
        state.requests.push(request);
        let accepted = ExportTraceServiceResponse::default().encode_to_vec();
        let (status, header, body) = match reply {
            None => (200, String::new(), accepted),
            Some(Reply::Status(status)) => (status, String::new(), b"no".to_vec()),
            Some(Reply::Garbage) => (200, String::new(), vec![0xff; 100]),
            Some(Reply::Redirect(url)) => (307, format!("location: {url}/v1/traces\r\n"), vec![]),
            Some(Reply::Partial(refused)) => (200, String::new(), partial(refused)),
            Some(Reply::Never) => {
                drop(state);
                // The peer gives up.
                let _ = reader.read(&mut [0]);
                return;
            }
        };
        drop(state);
        let head = format!(
            "HTTP/1.1 {status} x\r\ncontent-length: {}\r\n{header}\r\n",
            body.len()
        );
        let stream = reader.get_mut();
        if stream
            .write_all(&[head.as_bytes(), &body].concat())
            .is_err()
        {
            return;
        }
        shared.state.lock().unwrap().unseen += count;
        shared.changed.notify_all();
    }
}

fn partial(rejected_spans: i64) -> Vec<u8> {
    let partial_success = Some(ExportTracePartialSuccess {
        rejected_spans,
        error_message: "\x1b[31mtoo old".to_owned(),
    });
    ExportTraceServiceResponse { partial_success }.encode_to_vec()
}

/// Reads a request, or returns `None` at the end of the connection.
fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = || {
        let mut line = String::new();
        let count = reader.read_line(&mut line).ok()?;
        (count > 0).then(|| line.trim_end().to_owned())
    };
    let path = line()?.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let line = line()?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length?.1.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    let message = ExportTraceServiceRequest::decode(&*body).unwrap();
    Some(Request {
        path,
        headers,
        message,
    })
}

/// The value of an attribute as text.
pub(crate) fn attribute(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|it| it.key == name);
    let found = found.unwrap_or_else(|| panic!("no {name} in {attributes:?}"));
    match found.value.as_ref().and_then(|it| it.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::BoolValue(value)) => value.to_string(),
        Some(Value::IntValue(value)) => value.to_string(),
        other => panic!("{name} is {other:?}"),
    }
}
