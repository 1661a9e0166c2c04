//! Methods by name.
//!
//! A codec that carries names (`tw1`, `json`, `srmp-rpc`, `uvrpc`) says which method a request is for, and the router
//! passes it to the handler of that name. It answers all other requests with
//! [`ErrorCode::MethodNotFound`](tidewire_proto::body::ErrorCode::MethodNotFound), so that the caller of a missing
//! method does not wait. The codec says how names compare: byte for byte, or for `uvrpc` without regard to case.
//!
//! A method is a closure, or one of several numbered methods of a value ([`Methods`]), such as a typed service. Both
//! are called the same way; a closure ignores the number.
//!
//! Rejected: one table in lower case, because in the other codecs `Add` and `add` are two methods. Rejected: a closure
//! for each method of a value, because the closures would have to share the value behind a lock.

use std::collections::HashMap;
use std::fmt;

use tidewire_io::clock::Moment;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;
use tidewire_proto::message::Message;

use crate::service::Context;
use crate::service::{ActionKind, HandlerError, HandlerResult, Part, Service};
use crate::session::CloseReason;
use crate::transport::ConnectError;

/// A service made of methods. Each lane has its own, as with every service.
///
/// ```
/// use tidewire::{Client, Router, Server};
///
/// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(
///     Router::new()
///         .on("echo", |cx, message| cx.reply(message.payload))
///         .on("version", |cx, _| cx.reply(b"1"))
/// )?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// assert_eq!(client.request(b"").method("version").wait()?.payload(), b"1");
/// assert!(client.request(b"").method("unheard").wait().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Router {
    handlers: Vec<Handler>,
    methods: Vec<MethodIndex>,
    exact: HashMap<Box<str>, usize>,
    lower: HashMap<Box<str>, usize>,
    otherwise: Option<Otherwise>,
    /// The hook that runs before every message.
    before: Option<Before>,
    parts: Vec<Box<dyn Part>>,
    /// Length of the longest name. A longer name is not looked up.
    name_bytes_max: usize,
    /// A received name in lower case.
    folded: String,
    /// The name of the last call as received, and its method. Most callers repeat the same method for a while.
    recent: Option<(String, MethodIndex)>,
}

/// Several methods that share one value. Each has a number. The attribute `#[tidewire::service]` implements this
/// trait, and [`Router::mount`] accepts it.
///
/// ```
/// use tidewire::{Client, Context, HandlerResult, Message, Methods, Router, Server};
///
/// #[derive(Default)]
/// struct Counter(u64);
///
/// impl Methods for Counter {
///     fn names(&self) -> &'static [&'static str] {
///         &["increase", "read"]
///     }
///
///     fn call(&mut self, number: usize, cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
///         self.0 += u64::from(number == 0);
///         cx.reply(self.0.to_string().as_bytes())
///     }
/// }
///
/// let server = Server::builder()
///     .listen("tcp://127.0.0.1:0")?
///     .start_one(Router::new().mount(Counter::default()))?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// client.request(b"").method("increase").wait()?;
/// assert_eq!(client.request(b"").method("read").wait()?.payload(), b"1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Methods: Send + 'static {
    /// Returns the names of the methods. The number of a method is the index of its name.
    fn names(&self) -> &'static [&'static str];

    /// Calls the method with this number. It runs on the lane's thread and must not block.
    ///
    /// # Errors
    /// The message is refused: the error is counted and, if the message was a request, sent back.
    fn call(&mut self, number: usize, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult;
}

/// The index of a method: its handler, and its number within that handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MethodIndex {
    handler: usize,
    number: usize,
}

type Handler = Box<dyn FnMut(usize, &mut Context<'_>, Message<'_>) -> HandlerResult + Send>;

type Before = Box<dyn FnMut(&mut Context<'_>, &Message<'_>) -> HandlerResult + Send>;

type Otherwise = Box<dyn FnMut(&mut Context<'_>, Message<'_>) -> HandlerResult + Send>;

impl Router {
    /// Creates a router without methods.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a method. If two methods have the same name, the later one is called. If two names differ only in case, a
    /// codec that ignores case calls the earlier one.
    #[must_use]
    pub fn on(
        mut self,
        name: &str,
        mut handler: impl FnMut(&mut Context<'_>, Message<'_>) -> HandlerResult + Send + 'static,
    ) -> Self {
        self.add(
            &[name],
            Box::new(move |_, cx, message| handler(cx, message)),
        );
        self
    }

    /// Adds the methods of a typed service, or of any other value that implements [`Methods`]. The same rules for
    /// names apply as for [`Router::on`].
    #[must_use]
    pub fn mount(mut self, mut methods: impl Methods) -> Self {
        let names = methods.names();
        let handler = move |number, cx: &mut Context<'_>, message: Message<'_>| {
            methods.call(number, cx, message)
        };
        self.add(names, Box::new(handler));
        self
    }

    /// Sets the handler for messages that name no method of this router, or no method at all, such as messages of
    /// codecs without names. Without this handler they are refused.
    #[must_use]
    pub fn otherwise(
        mut self,
        handler: impl FnMut(&mut Context<'_>, Message<'_>) -> HandlerResult + Send + 'static,
    ) -> Self {
        self.otherwise = Some(Box::new(handler));
        self
    }

    /// Adds a part, such as [`Chat`](crate::Chat) or [`PubSub`](crate::PubSub), so that one server has methods, rooms
    /// and topics. A message goes to the method of its name, then to the first part that [takes](Part::takes) it,
    /// then to [`Router::otherwise`].
    ///
    /// ```
    /// use tidewire::{Chat, Client, Context, PubSub, Router, Server, TopicEvent};
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(
    ///     Router::new()
    ///         .on("close", |cx, message| {
    ///             cx.rooms().announce("lobby", b"we close in a minute")?;
    ///             cx.topics().publish("state", message.payload)?;
    ///             cx.reply(b"done")
    ///         })
    ///         .with(Chat::new())
    ///         .with(PubSub::new())
    /// )?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// client.join("lobby").named("ada").wait()?;
    /// let states = client.subscribe("state").wait()?;
    /// assert_eq!(client.request(b"closing").method("close").wait()?.payload(), b"done");
    /// let TopicEvent::Message(state) = states.next_event().wait() else { panic!("no message") };
    /// assert_eq!(state.payload, b"closing");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with(mut self, part: impl Part) -> Self {
        self.parts.push(Box::new(part));
        self
    }

    /// Sets a hook that is called before every message of this router and its parts. An error refuses the message.
    /// Several hooks run in the order in which they were added.
    ///
    /// ```
    /// use tidewire::{Client, ErrorCode, HandlerError, Router, Server};
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(
    ///     Router::new()
    ///         .before(|_, message| match message.payload {
    ///             [] => Err(HandlerError::new(ErrorCode::MalformedBody, "say something")),
    ///             _ => Ok(()),
    ///         })
    ///         .on("echo", |cx, message| cx.reply(message.payload))
    /// )?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// assert!(client.request(b"hi").method("echo").wait().is_ok());
    /// assert!(client.request(b"").method("echo").wait().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn before(
        mut self,
        mut hook: impl FnMut(&mut Context<'_>, &Message<'_>) -> HandlerResult + Send + 'static,
    ) -> Self {
        self.before = Some(match self.before.take() {
            None => Box::new(hook),
            Some(mut first) => Box::new(move |cx, message| {
                first(cx, message)?;
                hook(cx, message)
            }),
        });
        self
    }

    fn add(&mut self, names: &[&str], handler: Handler) {
        self.recent = None;
        let handler_index = self.handlers.len();
        self.handlers.push(handler);
        for (number, name) in names.iter().enumerate() {
            let method = MethodIndex {
                handler: handler_index,
                number,
            };
            self.name_bytes_max = self.name_bytes_max.max(name.len());
            if let Some(index) = self.exact.get(*name) {
                self.methods[*index] = method;
                continue;
            }
            let index = self.methods.len();
            self.methods.push(method);
            self.exact.insert((*name).into(), index);
            let lower = name.to_ascii_lowercase().into_boxed_str();
            self.lower.entry(lower).or_insert(index);
        }
    }

    fn find(&mut self, name: &str, ignores_case: bool) -> Option<MethodIndex> {
        // An empty name matches no method, even if one was registered.
        if name.is_empty() || name.len() > self.name_bytes_max {
            return None;
        }
        if let Some((recent, method)) = &self.recent
            && recent == name
        {
            return Some(*method);
        }
        let method = self.look_up(name, ignores_case)?;
        let (recent, found) = self.recent.get_or_insert((String::new(), method));
        recent.clear();
        recent.push_str(name);
        *found = method;
        Some(method)
    }

    fn look_up(&mut self, name: &str, ignores_case: bool) -> Option<MethodIndex> {
        let found = match ignores_case {
            false => self.exact.get(name),
            true => {
                self.folded.clear();
                self.folded.push_str(name);
                self.folded.make_ascii_lowercase();
                self.lower.get(self.folded.as_str())
            }
        };
        found.map(|index| self.methods[*index])
    }
}

impl Router {
    fn has_method(&self, name: &str, ignores_case: bool) -> bool {
        match ignores_case {
            false => self.exact.contains_key(name),
            true => self.lower.contains_key(&*name.to_ascii_lowercase()),
        }
    }
}

impl Service for Router {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if let Some(hook) = &mut self.before {
            hook(cx, &message)?;
        }
        let ignores_case = cx.codec().format().ignores_method_case;
        if let Some(MethodIndex { handler, number }) = self.find(message.name, ignores_case) {
            return self.handlers[handler](number, cx, message);
        }
        for part in &mut self.parts {
            if part.takes(cx, &message) {
                return part.on_message(cx, message);
            }
        }
        match &mut self.otherwise {
            Some(handler) => handler(cx, message),
            None => Err(HandlerError::new(ErrorCode::MethodNotFound, NO_SUCH_METHOD)),
        }
    }

    fn action(&self, cx: &Context<'_>, message: &Message<'_>) -> ActionKind {
        if !message.name.is_empty()
            && self.has_method(message.name, cx.codec().format().ignores_method_case)
        {
            return ActionKind::Call;
        }
        let mut parts = self.parts.iter();
        match parts.find(|part| part.takes(cx, message)) {
            Some(part) => part.action(cx, message),
            // The handler of unknown methods gets messages of every kind.
            None if self.otherwise.is_some() => ActionKind::Call,
            None => ActionKind::of(message.kind),
        }
    }

    fn on_open(&mut self, cx: &mut Context<'_>) {
        self.parts.iter_mut().for_each(|part| part.on_open(cx));
    }

    fn on_close(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        self.parts
            .iter_mut()
            .for_each(|part| part.on_close(cx, reason));
    }

    /// Every part is called, so the parts of one router need distinct tokens.
    fn on_timer(&mut self, cx: &mut Context<'_>, token: u64) {
        self.parts
            .iter_mut()
            .for_each(|part| part.on_timer(cx, token));
    }

    fn on_panic(&mut self, cx: &mut Context<'_>) {
        self.parts.iter_mut().for_each(|part| part.on_panic(cx));
    }

    fn on_connect_failed(&mut self, cx: &mut Context<'_>, error: ConnectError) {
        let mut parts = self.parts.iter_mut();
        if let Some(part) = parts.find(|part| part.takes_connection(cx)) {
            part.on_connect_failed(cx, error);
        }
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        let due = self.parts.iter_mut().filter_map(|part| part.on_turn(cx));
        due.min()
    }

    fn has_work(&self) -> bool {
        self.parts.iter().any(|part| part.has_work())
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<_> = self.exact.keys().collect();
        names.sort();
        formatter
            .debug_struct("Router")
            .field("methods", &names)
            .finish_non_exhaustive()
    }
}

const NO_SUCH_METHOD: &str = "no such method";

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
        Ok(())
    }

    struct Pair;

    impl Methods for Pair {
        fn names(&self) -> &'static [&'static str] {
            &["first", "second"]
        }

        fn call(&mut self, _: usize, _: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
            Ok(())
        }
    }

    fn method(handler: usize, number: usize) -> Option<MethodIndex> {
        Some(MethodIndex { handler, number })
    }

    #[test]
    fn names_compare_as_the_codec_says() {
        let mut router = Router::new().on("Add", nothing).on("add", nothing);
        assert_eq!(router.find("Add", false), method(0, 0));
        assert_eq!(router.find("add", false), method(1, 0));
        assert_eq!(router.find("ADD", false), None);
        for name in ["Add", "add", "ADD"] {
            assert_eq!(router.find(name, true), method(0, 0), "{name}");
        }
        for name in ["", "ad", "adds"] {
            assert_eq!(router.find(name, true), None, "{name}");
        }
    }

    #[test]
    fn the_later_of_two_methods_with_one_name_counts() {
        let mut router = Router::new().on("add", nothing).on("add", nothing);
        assert_eq!(router.find("add", false), method(1, 0));
        assert_eq!(router.find("ADD", true), method(1, 0));
        assert_eq!(format!("{router:?}"), r#"Router { methods: ["add"], .. }"#);
    }

    #[test]
    fn mounted_methods_are_found_by_their_numbers() {
        let mut router = Router::new()
            .on("second", nothing)
            .mount(Pair)
            .on("third", nothing);
        assert_eq!(router.find("first", false), method(1, 0));
        assert_eq!(router.find("second", false), method(1, 1));
        assert_eq!(router.find("Second", true), method(1, 1));
        assert_eq!(router.find("third", false), method(2, 0));
    }
}
