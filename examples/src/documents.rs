//! The programs in the documents, which `cargo test --doc -p tidewire-examples` compiles and runs.

macro_rules! documents {
    ($($name:ident: $page:literal,)*) => {
        $(#[doc = include_str!(concat!("../../", $page))] mod $name {})*
    };
}

documents! {
    readme: "README.md",
    macros_readme: "crates/tidewire-macros/README.md",
    service_attribute: "crates/tidewire-macros/src/service.md",
    tutorial: "docs/tutorial.md",
    operating: "docs/operating.md",
    history: "docs/history.md",
    browser: "docs/browser.md",
    websocket: "docs/websocket.md",
    codecs: "docs/codecs.md",
    identity: "docs/identity.md",
    security: "docs/security.md",
    coming_from: "docs/coming-from.md",
    device_gateway: "docs/guides/device-gateway.md",
    chat_and_games: "docs/guides/chat-and-games.md",
    market_data: "docs/guides/market-data.md",
    service_calls: "docs/guides/service-calls.md",
}
