//! Origins that may connect, and texts that are none.

use super::*;

fn origins(text: &str) -> Origins {
    Origins::new([text]).unwrap()
}

#[test]
fn foreign_pages_are_refused_and_listed_ones_are_not() {
    let none = Origins::default();
    for (origin, host) in [
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("https://LOCALHOST", "localhost"),
        ("http://192.0.2.1:8080", "192.0.2.1:8080"),
    ] {
        assert!(none.allow(origin, host), "{origin}");
    }
    for (origin, host) in [
        ("http://evil.example", "127.0.0.1:8080"),
        // The name of the attacker points to this machine.
        ("http://evil.example:8080", "evil.example:8080"),
        ("http://192.0.2.1:8080", "192.0.2.1:9090"),
        ("http://192.0.2.1:8080", "127.0.0.1:8080"),
        ("null", "127.0.0.1:8080"),
        ("http://localhost.evil.example", "localhost.evil.example"),
        ("http://localhost:80.evil.example", "localhost"),
        ("http://127.0.0.1@evil.example", "127.0.0.1"),
        ("", ""),
    ] {
        assert!(!none.allow(origin, host), "{origin}");
    }
    let some = origins("https://app.example");
    assert!(some.allow("https://app.example", "api.example"));
    assert!(!some.allow("https://app.example.evil.example", "api.example"));
    assert!(!some.allow("http://app.example", "api.example"));
    assert!(origins("*").allow("null", "api.example"));
    assert!(origins("null").allow("null", "api.example"));
}

/// Regression: the page of a development server at another port of this machine was refused.
#[test]
fn a_page_of_this_machine_may_connect_to_this_machine() {
    let none = Origins::default();
    for (origin, host) in [
        ("http://localhost:5173", "localhost:24701"),
        ("http://localhost:5173", "127.0.0.1:24701"),
        ("https://127.0.0.1", "[::1]:24701"),
        ("http://[::1]:5173", "localhost"),
    ] {
        assert!(none.allow(origin, host), "{origin} {host}");
    }
    for (origin, host) in [
        ("http://localhost:5173", "api.example"),
        ("http://localhost:5173", "192.0.2.1:24701"),
        ("http://localhost.evil.example", "localhost"),
        ("http://evil.example", "localhost"),
    ] {
        assert!(!none.allow(origin, host), "{origin} {host}");
    }
}

/// Regression: these were accepted, and never matched a browser's origin.
#[test]
fn an_origin_loses_the_parts_that_browsers_leave_out() {
    for (text, origin) in [
        ("https://app.example/", "https://app.example"),
        ("https://app.example:443", "https://app.example"),
        ("http://app.example:80/", "http://app.example"),
        ("HTTPS://App.Example", "https://app.example"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
    ] {
        assert!(origins(text).allow(origin, "api.example"), "{text}");
    }
    assert!(!origins("https://app.example:443").allow("https://app.example:444", "api.example"));
}

#[test]
fn a_wildcard_stands_for_hosts_below_a_name_and_nothing_else() {
    let below = origins("https://*.example.com");
    for origin in ["https://a.example.com", "https://a.b.example.com"] {
        assert!(below.allow(origin, "api.example"), "{origin}");
    }
    for origin in [
        "https://example.com",
        "https://.example.com",
        "https://aexample.com",
        "https://a.example.com.evil.example",
        "https://evil.example/.example.com",
        "https://evil.example#.example.com",
        "https://u:p@a.example.com",
        "https://a.example.com:8443",
        "http://a.example.com",
    ] {
        assert!(!below.allow(origin, "api.example"), "{origin}");
    }
    let port = origins("https://*.example.com:8443");
    assert!(port.allow("https://a.example.com:8443", "api.example"));
    assert!(!port.allow("https://a.example.com", "api.example"));
}

#[test]
fn an_origin_that_can_never_match_is_refused_with_the_remedy() {
    for (text, told) in [
        ("app.example", "write https://app.example"),
        ("app.example/", "write https://app.example"),
        ("localhost:3000", "write https://localhost:3000"),
        ("wss://app.example", "write https://app.example"),
        ("ws://app.example:81", "write http://app.example:81"),
        ("https://app.example/chat", "write https://app.example"),
        (
            "https://a.example, https://b.example",
            "write https://a.example",
        ),
        (" https://app.example", "write https://app.example"),
        ("https//app.example", "each by itself"),
        ("https://*", "each by itself"),
        ("https://a*.example", "each by itself"),
        ("https://a.*.example", "each by itself"),
        ("http://a b", "write http://a"),
        ("https://app.example:99999", "write https://app.example"),
        ("https://b\u{fc}cher.example", "xn--"),
        ("", "each by itself"),
        ("*.example", "write https://*.example"),
    ] {
        let error = Origins::new([text]).unwrap_err();
        assert!(error.to_string().contains(told), "{text:?}: {error}");
    }
}
