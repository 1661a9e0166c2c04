//! Generates the client and the server of the benchmark's service without protoc, because its messages are written in
//! Rust.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let echo = Method::builder()
        .name("echo")
        .route_name("Echo")
        .input_type("crate::Payload")
        .output_type("crate::Payload")
        .codec_path("tonic_prost::ProstCodec")
        .client_streaming()
        .server_streaming()
        .build();
    let add = Method::builder()
        .name("add")
        .route_name("Add")
        .input_type("crate::Terms")
        .output_type("crate::Sum")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let take = Method::builder()
        .name("take")
        .route_name("Take")
        .input_type("crate::Payload")
        .output_type("crate::Nothing")
        .codec_path("tonic_prost::ProstCodec")
        .client_streaming()
        .build();
    let service = Service::builder()
        .name("Bench")
        .package("bench")
        .method(echo)
        .method(add)
        .method(take)
        .build();
    Builder::new().compile(&[service]);
}
