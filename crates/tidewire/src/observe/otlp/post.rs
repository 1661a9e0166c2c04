//! One request to a collector, and the meaning of its answer.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use thiserror::Error;
use ureq::Agent;
use ureq::http::{HeaderMap, Uri};

use crate::system::http_agent;

/// The collector of an export. Connections are kept between requests.
#[derive(Debug)]
pub(super) struct Collector {
    uri: Uri,
    headers: HeaderMap,
    agent: Agent,
}

/// A batch was not taken.
#[derive(Debug, Error)]
pub(super) enum PostError {
    /// The batch may be taken later: the collector cannot be reached, or is overloaded.
    #[error("{0}")]
    Unreachable(ureq::Error),
    #[error("the collector answered with status {0}")]
    Overloaded(u16),
    /// The collector will never take the batch.
    #[error("the collector answered with status {0}; check the path of the URL and the headers")]
    Refused(u16),
}

impl Collector {
    pub(super) fn new(uri: Uri) -> Self {
        Self {
            uri,
            headers: HeaderMap::new(),
            agent: http_agent(),
        }
    }

    pub(super) fn set_headers(&mut self, headers: HeaderMap) {
        self.headers = headers;
    }

    /// The URL without its query, in which some collectors have a key.
    pub(super) fn place(&self) -> String {
        let mut place = self.uri.to_string();
        place.truncate(place.find('?').unwrap_or(place.len()));
        place
    }

    /// Posts a batch. Returns the number of spans that the collector refused.
    pub(super) fn post(&self, batch: &[u8], timeout: Duration) -> Result<u64, PostError> {
        let mut request = self
            .agent
            .post(&self.uri)
            .content_type("application/x-protobuf")
            .config()
            .timeout_global(Some(timeout))
            .build();
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut response = request.send(batch).map_err(PostError::Unreachable)?;
        match response.status().as_u16() {
            200..300 => {}
            status @ (429 | 502..=504) => return Err(PostError::Overloaded(status)),
            status => return Err(PostError::Refused(status)),
        }
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        // The batch is taken, even if the rest of the answer is lost. Its text is the collector's and is not repeated.
        let answer = body.read_to_vec().unwrap_or_default();
        let answer = ExportTraceServiceResponse::decode(&*answer).unwrap_or_default();
        let refused = answer.partial_success.map_or(0, |it| it.rejected_spans);
        Ok(u64::try_from(refused).unwrap_or(0))
    }
}

impl PostError {
    pub(super) fn may_pass(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }
}

const ANSWER_BYTES_MAX: u64 = 64 * 1024;
