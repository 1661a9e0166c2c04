//! The address of a collector and the headers for it, as people write them.

use tidewire_proto::setting::SettingError;
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Uri};

/// Parses the URL of a collector. The default path is OTLP's.
pub(super) fn parse(url: &str) -> Result<Uri, SettingError> {
    let refused = |text: String| SettingError::new("url", url, text);
    let no_url = || {
        refused(format!(
            "cannot export spans to {url:?}: it is no URL; write http://HOST:4318 or https://HOST:4318"
        ))
    };
    let authority = url.split_once("://").map_or("", |(_, rest)| rest);
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(SettingError::new(
            "url",
            "",
            "cannot export spans to a URL with a user's name or password; write Authorization into \
             OTEL_EXPORTER_OTLP_HEADERS",
        ));
    }
    let uri: Uri = url.parse().map_err(|_| no_url())?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(refused(format!(
            "cannot export spans to {url:?}: it begins neither with http:// nor with https://; write http://HOST:4318, \
             where the collector takes OTLP over HTTP (4317 is for gRPC)"
        )));
    }
    let is_place = uri.authority().is_some_and(|it| {
        let port = it.as_str().strip_prefix(it.host()).unwrap_or_default();
        // `Uri` accepts any text as a port.
        !it.host().is_empty() && (port.is_empty() || uri.port_u16().is_some())
    });
    if !is_place {
        return Err(no_url());
    }
    if uri.path() != "/" || uri.query().is_some() {
        return Ok(uri);
    }
    let whole = format!("{}/v1/traces", url.trim_end_matches('/'));
    whole.parse().map_err(|_| no_url())
}

/// Parses a list in the form of `OTEL_EXPORTER_OTLP_HEADERS`.
pub(super) fn headers(list: &str) -> Result<HeaderMap, SettingError> {
    let mut headers = HeaderMap::new();
    let items = list.split(',').map(str::trim).enumerate();
    for (index, item) in items.filter(|(_, item)| !item.is_empty()) {
        let (name, value) = header(item).ok_or_else(|| unreadable(index + 1))?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// The error of an item of the list, from 1. The text is left out, because headers have credentials.
fn unreadable(item: usize) -> SettingError {
    let text = format!(
        "cannot read item {item} of the headers for the collector; write NAME=VALUE with commas between several, and % \
         with two hexadecimal digits for other characters"
    );
    SettingError::new("headers", "", text)
}

fn header(item: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = item.split_once('=')?;
    let name = name.trim().parse().ok()?;
    let mut value = HeaderValue::from_bytes(&percent_decoded(value.trim())?).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            _ => byte,
        });
    }
    Some(decoded)
}
