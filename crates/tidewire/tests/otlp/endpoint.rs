//! URLs and headers of a collector, as people write them.

use tidewire::SettingError;
use tidewire::otlp::OtlpBuilder;

use crate::collector::Collector;
use crate::make_spans;

fn refused(url: &str) -> SettingError {
    OtlpBuilder::new(url).unwrap_err()
}

#[test]
fn a_path_replaces_that_of_otlp() {
    let collector = Collector::start([]);
    for (path, asked) in [("", "/v1/traces"), ("/", "/v1/traces"), ("/own", "/own")] {
        let url = format!("{}{path}", collector.url());
        let export = OtlpBuilder::new(&url).unwrap().start().unwrap();
        make_spans(&export, 1);
        assert_eq!(export.finish().written, 1);
        assert_eq!(collector.requests().last().unwrap().path, asked);
    }
    for url in [
        "https://otel.example",
        "HTTP://localhost:1",
        "http://[::1]:4318",
    ] {
        assert!(OtlpBuilder::new(url).is_ok(), "{url}");
    }
}

#[test]
fn a_wrong_url_is_refused_with_a_remedy() {
    for url in ["", "http://", "http://x:y", "http://a b", "http://x:"] {
        let error = refused(url);
        assert_eq!(error.value(), url);
        assert!(error.to_string().contains("it is no URL"));
        assert!(error.to_string().contains("write http://HOST:4318"));
    }
    for url in ["localhost:4318", "grpc://x:4317", "/v1/traces", "ftp://x"] {
        assert!(refused(url).to_string().contains("begins neither with"));
    }
    let error = refused("http://ann:secret@x:4318");
    assert_eq!(error.value(), "");
    assert!(!error.to_string().contains("secret"));
}

#[test]
fn headers_are_read_as_the_variable_has_them() {
    let collector = Collector::start([]);
    let builder = OtlpBuilder::new(collector.url()).unwrap();
    let builder = builder
        .headers("authorization=Bearer%20abc, x-scope-orgid = 7,,a=b=c")
        .unwrap();
    assert!(!format!("{builder:?}").contains("abc"), "a secret");
    let export = builder.start().unwrap();
    make_spans(&export, 1);
    assert_eq!(export.finish().written, 1);
    let request = &collector.requests()[0];
    assert_eq!(request.header("authorization"), "Bearer abc");
    assert_eq!(request.header("x-scope-orgid"), "7");
    assert_eq!(request.header("a"), "b=c");
    for list in ["secret", "a=%zz", "a=%2", "a=%0d%0ax: y", "ä=1", "=1"] {
        let builder = OtlpBuilder::new(collector.url()).unwrap();
        let error = builder.headers(&format!("ok=1,{list}")).unwrap_err();
        assert!(error.to_string().contains("cannot read item 2"), "{list}");
    }
}
