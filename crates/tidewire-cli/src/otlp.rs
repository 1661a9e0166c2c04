//! The flags of the export of spans by OTLP, which needs the feature `otlp`.
//!
//! They are there without it, too, so that whoever gives one is told how to build a `tidewire` that has it.

use clap::Args;
use thiserror::Error;
use tidewire::log::{Log, LogBuilder};
#[cfg(feature = "otlp")]
use tidewire::otlp::OtlpBuilder;
#[cfg(feature = "otlp")]
pub(crate) use tidewire::otlp::SpanExport;

/// The collector of spans, and what it gets.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tracing")]
pub(crate) struct OtlpArguments {
    /// URL of a collector of OpenTelemetry that spans are exported to, by OTLP over HTTP, such as
    /// http://127.0.0.1:4318. Needs a tidewire that was built with --features otlp. See docs/operating.md
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,

    /// Spans that are exported: debug for the beginnings and ends of sessions; trace for every read, message and write,
    /// too
    #[arg(long, value_name = "LEVEL", default_value = "debug", value_parser = ["debug", "trace"])]
    otlp_level: String,
}

/// The flags ask for an export that cannot be.
#[derive(Debug, Error)]
pub(crate) enum OtlpError {
    #[cfg(feature = "otlp")]
    #[error(transparent)]
    Endpoint(tidewire::SettingError),
    #[cfg(not(feature = "otlp"))]
    #[error(
        "cannot export spans to {url}: this tidewire was built without it; build one with `cargo install --locked --path \
         crates/tidewire-cli --features otlp`, or leave --otlp out"
    )]
    Absent { url: String },
}

impl OtlpArguments {
    /// Starts the log, and beside it the export of spans if there is a collector.
    pub(crate) fn start(&self, log: LogBuilder) -> anyhow::Result<(Log, Option<SpanExport>)> {
        match &self.otlp {
            None => Ok((log.start()?, None)),
            Some(url) => self.start_export(url, log),
        }
    }

    #[cfg(feature = "otlp")]
    fn start_export(
        &self,
        url: &str,
        log: LogBuilder,
    ) -> anyhow::Result<(Log, Option<SpanExport>)> {
        let headers = HEADERS.iter().find_map(|name| std::env::var(name).ok());
        let builder = OtlpBuilder::new(url)
            .and_then(|builder| builder.headers(&headers.unwrap_or_default()))
            .map_err(OtlpError::Endpoint)?;
        let export = builder
            .service_name("tidewire")
            .level(self.otlp_level.parse()?)
            .start()?;
        Ok((log.start_with(export.layer())?, Some(export)))
    }

    #[cfg(not(feature = "otlp"))]
    #[expect(clippy::unused_self, reason = "the feature uses the level")]
    fn start_export(&self, url: &str, _: LogBuilder) -> anyhow::Result<(Log, Option<SpanExport>)> {
        let url = url.to_owned();
        Err(OtlpError::Absent { url }.into())
    }
}

/// Exports the spans that wait, and returns what to tell if some were lost.
#[cfg(feature = "otlp")]
pub(crate) fn finish(export: SpanExport) -> Option<String> {
    let metrics = export.finish();
    let lost = metrics.offered - metrics.written;
    (lost > 0).then(|| {
        format!(
            "spans: offered={} exported={} refused={} dropped={}\n",
            metrics.offered,
            metrics.written,
            metrics.failed,
            lost - metrics.failed
        )
    })
}

/// An export that never is.
#[cfg(not(feature = "otlp"))]
#[derive(Debug)]
pub(crate) enum SpanExport {}

#[cfg(not(feature = "otlp"))]
#[expect(
    clippy::needless_pass_by_value,
    reason = "with the feature an export is consumed"
)]
pub(crate) fn finish(export: SpanExport) -> Option<String> {
    match export {}
}

/// The variables with the headers of requests, the more special one first.
#[cfg(feature = "otlp")]
const HEADERS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_HEADERS",
];
