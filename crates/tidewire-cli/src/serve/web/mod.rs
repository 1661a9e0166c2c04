//! The chat page of `serve --web`.
//!
//! The page is one file, which `web/client/build.mjs` makes from `web/chat`. It is committed, so that a build needs no
//! Node; a test of `web/client` compares it with what the build makes.

use tidewire::websocket::WebPage;

use super::ServeArguments;
use super::apps::App;
use crate::failure::Failure;

/// The chat page, or `None` without `--web`.
///
/// # Errors
/// The server would have no chat for it.
pub(super) fn page(arguments: &ServeArguments) -> anyhow::Result<Option<WebPage>> {
    if !arguments.web {
        return Ok(None);
    }
    let is_web = |bind: &String| bind.starts_with("ws://") || bind.starts_with("wss://");
    let remedy = if !matches!(arguments.app, App::Chat) {
        "leave --web out, or use --app chat"
    } else if arguments.codec.name() != "tw1" {
        "leave --web out, or use --codec tw1"
    } else if !arguments.binds.iter().any(is_web) {
        "listen on --bind ws://127.0.0.1:8080, or on wss://"
    } else {
        return Ok(Some(WebPage::html(CHAT, POLICY.trim_end())?));
    };
    let what = "--web needs a chat server at a ws:// or wss:// address with the codec tw1";
    Err(Failure::configuration(what, remedy).into())
}

/// Logs where the page is: browsers open `http://`, and the addresses of the server begin with `ws://`.
pub(super) fn tell(arguments: &ServeArguments, addresses: &[String]) {
    let addresses = addresses.iter().filter(|_| arguments.web);
    for rest in addresses.filter_map(|address| address.strip_prefix("ws")) {
        tracing::info!("the chat page is at http{rest}");
    }
}

const CHAT: &[u8] = include_bytes!("chat.html");

/// The hashes of its script and its style.
const POLICY: &str = include_str!("chat.csp");
