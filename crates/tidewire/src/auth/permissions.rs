//! The permissions of an identity: patterns that are allowed and denied, for each kind of action.

use std::fmt;
use std::sync::Arc;
use tidewire_proto::setting::SettingError;

use tidewire_proto::body::NameError;
use tidewire_proto::topic::{Pattern, PatternBuf};

/// Something that a peer asks for, with the topic, pattern, room or method that it concerns.
/// [`Permissions`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action<'a> {
    /// Publishing to this topic.
    Publish(&'a str),
    /// Subscribing to this pattern.
    Subscribe(&'a str),
    /// Joining this room.
    Join(&'a str),
    /// Sending a message to this room or to a member.
    Say(&'a str),
    /// Calling this method, or sending it a one-way message. A method without a name is `#` and its channel, such as
    /// `#0`.
    Call(&'a str),
    /// An action without permission, such as a leave, or with a check by the service.
    Free,
}

/// Patterns of topics, rooms or methods. The [rules of patterns](tidewire_proto::topic) hold: `dev.7`, `dev.*` and
/// `dev.>`. [`Permissions`] has an example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    allow: Vec<PatternBuf>,
    deny: Vec<PatternBuf>,
    /// The patterns in lower case, if they differ.
    lower: Option<Box<Self>>,
}

/// The permissions of an identity. An action is allowed if a pattern allows it and no pattern denies it.
///
/// ```
/// use tidewire::auth::{Access, Action, Permissions};
///
/// let permissions = Permissions {
///     publish: Access::new(["dev.{name}.>"], ["dev.{name}.secret"])?,
///     subscribe: Access::new(["news.*", "dev.>"], ["dev.9.>"])?,
///     ..Permissions::nothing()
/// };
/// let permissions = permissions.of("7")?; // for the identity "7"
/// assert!(permissions.allows(Action::Publish("dev.7.temperature"), false));
/// assert!(!permissions.allows(Action::Publish("dev.8.temperature"), false));
/// assert!(!permissions.allows(Action::Publish("dev.7.secret"), false));
/// // Its messages would include those of dev.9, which are denied.
/// assert!(!permissions.allows(Action::Subscribe("dev.>"), false));
/// # Ok::<(), tidewire::SettingError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Topics that it may publish to.
    pub publish: Access,
    /// Patterns that it may subscribe to.
    pub subscribe: Access,
    /// Rooms that it may join.
    pub join: Access,
    /// Rooms that it may say something in.
    pub say: Access,
    /// Methods that it may call.
    pub call: Access,
}

impl Access {
    /// Allowed patterns and denied patterns. `{name}` in a pattern is replaced by the name of the identity.
    ///
    /// # Errors
    /// [`SettingError`] for the first text that is no pattern.
    pub fn new<'a>(
        allow: impl IntoIterator<Item = &'a str>,
        deny: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, SettingError> {
        Ok(Self::of_patterns(
            parse(allow.into_iter())?,
            parse(deny.into_iter())?,
        ))
    }

    /// Everything is allowed.
    #[must_use]
    pub fn everything() -> Self {
        Self::of_patterns(vec![PatternBuf::everything()], Vec::new())
    }

    fn of_patterns(allow: Vec<PatternBuf>, deny: Vec<PatternBuf>) -> Self {
        let text = |it: &PatternBuf| it.as_pattern().text().to_ascii_lowercase();
        let lower = |list: &[PatternBuf]| -> Vec<PatternBuf> {
            let lower = list.iter().map(|it| PatternBuf::parse(&text(it)));
            lower.filter_map(Result::ok).collect()
        };
        let mut patterns = allow.iter().chain(&deny);
        let lower = patterns
            .any(|it| text(it) != it.as_pattern().text())
            .then(|| {
                Box::new(Self {
                    allow: lower(&allow),
                    deny: lower(&deny),
                    lower: None,
                })
            });
        Self { allow, deny, lower }
    }

    /// The patterns that are allowed.
    pub fn allowed(&self) -> impl Iterator<Item = &str> {
        self.allow.iter().map(|pattern| pattern.as_pattern().text())
    }

    /// The patterns that are denied.
    pub fn denied(&self) -> impl Iterator<Item = &str> {
        self.deny.iter().map(|pattern| pattern.as_pattern().text())
    }

    /// Whether this topic, room or method is allowed.
    #[must_use]
    pub fn allows(&self, name: &str) -> bool {
        let is_in = |list: &[PatternBuf]| list.iter().any(|it| it.as_pattern().matches(name));
        is_in(&self.allow) && !is_in(&self.deny)
    }

    /// Whether every topic of this pattern is allowed. One pattern must allow all of them. A malformed pattern is not
    /// allowed.
    #[must_use]
    pub fn allows_all_of(&self, pattern: &str) -> bool {
        let Ok(wanted) = Pattern::parse(pattern) else {
            return false;
        };
        let is_allowed = |it: &PatternBuf| it.as_pattern().covers(&wanted);
        let is_denied = |it: &PatternBuf| it.as_pattern().overlaps(&wanted);
        self.allow.iter().any(is_allowed) && !self.deny.iter().any(is_denied)
    }

    /// The allowed patterns that have no effect, because one denied pattern covers them.
    pub fn useless(&self) -> impl Iterator<Item = (&str, &str)> {
        self.allow.iter().filter_map(|allowed| {
            let allowed = allowed.as_pattern();
            let mut denied = self.deny.iter().map(PatternBuf::as_pattern);
            let cover = denied.find(|denied| denied.covers(&allowed))?;
            Some((allowed.text(), cover.text()))
        })
    }

    /// The denied patterns that deny nothing, because no allowed pattern overlaps them.
    pub fn idle(&self) -> impl Iterator<Item = &str> {
        let denied = self.deny.iter().map(PatternBuf::as_pattern);
        let denies_nothing = |denied: &Pattern<'_>| {
            let mut allowed = self.allow.iter().map(PatternBuf::as_pattern);
            !allowed.any(|allowed| allowed.overlaps(denied))
        };
        denied.filter(denies_nothing).map(|denied| denied.text())
    }

    fn is_everything(&self) -> bool {
        self.deny.is_empty() && self.allow.contains(&PatternBuf::everything())
    }

    /// These patterns with the name of an identity in place of `{name}`.
    fn of(&self, name: &str) -> Result<Self, SettingError> {
        let fill = |list: &[PatternBuf]| {
            let filled = list
                .iter()
                .map(|it| it.as_pattern().text().replace(NAME, name));
            let filled: Vec<String> = filled.collect();
            parse(filled.iter().map(String::as_str))
        };
        Ok(Self::of_patterns(fill(&self.allow)?, fill(&self.deny)?))
    }

    /// Whether this method is allowed, without regard to case.
    fn allows_in_any_case(&self, method: &str) -> bool {
        let lower = self.lower.as_deref().unwrap_or(self);
        match method.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => lower.allows(&method.to_ascii_lowercase()),
            false => lower.allows(method),
        }
    }

    fn has_name(&self) -> bool {
        self.allowed()
            .chain(self.denied())
            .any(|it| it.contains(NAME))
    }

    fn held_bytes(&self) -> usize {
        let texts = self.allowed().chain(self.denied()).map(str::len);
        let entries = self.allow.capacity() + self.deny.capacity();
        let lower = self.lower.as_deref();
        let lower = lower.map_or(0, |it| size_of::<Self>() + it.held_bytes());
        texts.sum::<usize>() + entries * size_of::<PatternBuf>() + lower
    }
}

impl Permissions {
    /// Everything is allowed.
    #[must_use]
    pub fn everything() -> Self {
        let access = Access::everything;
        Self {
            publish: access(),
            subscribe: access(),
            join: access(),
            say: access(),
            call: access(),
        }
    }

    /// Nothing is allowed.
    #[must_use]
    pub fn nothing() -> Self {
        Self::default()
    }

    /// These permissions for the identity of this name: the name in place of `{name}`.
    ///
    /// # Errors
    /// The name makes a pattern invalid or wider: it has a wildcard, a dot or a space, and a pattern has `{name}`.
    pub fn of(&self, name: &str) -> Result<Self, SettingError> {
        if self.has_name() && name.contains(['.', '*', '>']) {
            return Err(no_pattern(name, NameError::WildcardMisplaced));
        }
        Ok(Self {
            publish: self.publish.of(name)?,
            subscribe: self.subscribe.of(name)?,
            join: self.join.of(name)?,
            say: self.say.of(name)?,
            call: self.call.of(name)?,
        })
    }

    /// The same as [`Self::of`]. Without `{name}` in a pattern, all names share one copy.
    pub(super) fn shared_of(self: &Arc<Self>, name: &str) -> Result<Arc<Self>, SettingError> {
        match self.has_name() {
            true => self.of(name).map(Arc::new),
            false => Ok(Arc::clone(self)),
        }
    }

    fn has_name(&self) -> bool {
        self.each().iter().any(|(_, access)| access.has_name())
    }

    pub(super) fn held_bytes(&self) -> usize {
        let patterns = self.each().map(|(_, access)| access.held_bytes());
        size_of::<Self>() + patterns.iter().sum::<usize>()
    }

    /// Whether an action is allowed. `ignores_case` says whether names of methods compare without regard to case.
    #[must_use]
    pub fn allows(&self, action: Action<'_>, ignores_case: bool) -> bool {
        match action {
            Action::Publish(topic) => self.publish.allows(topic),
            Action::Subscribe(pattern) => self.subscribe.allows_all_of(pattern),
            Action::Join(room) => self.join.allows(room),
            Action::Say(room) => self.say.allows(room),
            Action::Call(method) if ignores_case => self.call.allows_in_any_case(method),
            Action::Call(method) => self.call.allows(method),
            Action::Free => true,
        }
    }

    /// The kinds of actions by name, with their patterns.
    #[must_use]
    pub fn each(&self) -> [(&'static str, &Access); 5] {
        [
            ("publish", &self.publish),
            ("subscribe", &self.subscribe),
            ("join", &self.join),
            ("say", &self.say),
            ("call", &self.call),
        ]
    }

    /// Whether everything is allowed, so that no message needs a check.
    pub(crate) fn is_everything(&self) -> bool {
        self.each().iter().all(|(_, access)| access.is_everything())
    }
}

impl fmt::Display for Action<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Publish(topic) => write!(formatter, "publish to {topic}"),
            Self::Subscribe(pattern) => write!(formatter, "subscribe to {pattern}"),
            Self::Join(room) => write!(formatter, "join {room}"),
            Self::Say(room) => write!(formatter, "say anything in {room}"),
            Self::Call(method) => write!(formatter, "call {method}"),
            Self::Free => formatter.write_str("do this"),
        }
    }
}

fn no_pattern(text: &str, fault: NameError) -> SettingError {
    let explained = format!("{text:?} is not a pattern: {fault}");
    SettingError::new("pattern", text, explained)
}

fn parse<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<PatternBuf>, SettingError> {
    let parsed = texts.map(|text| PatternBuf::parse(text).map_err(|fault| no_pattern(text, fault)));
    parsed.collect()
}

/// The placeholder for the name of the identity.
const NAME: &str = "{name}";

#[cfg(test)]
mod tests {
    use super::*;

    fn access(allow: &[&'static str], deny: &[&'static str]) -> Access {
        Access::new(allow.iter().copied(), deny.iter().copied()).unwrap()
    }

    #[test]
    fn actions_are_denied_by_default_and_deny_wins() {
        let access = access(&["a.>", "b"], &["a.secret", "a.x.>"]);
        for (name, expected) in [
            ("a.b", true),
            ("b", true),
            ("b.c", false),
            ("c", false),
            ("a.secret", false),
            ("a.secret.b", true),
            ("a.x", true),
            ("a.x.y", false),
        ] {
            assert_eq!(access.allows(name), expected, "{name}");
        }
        assert!(!Access::default().allows("a"));
    }

    #[test]
    fn a_subscription_must_be_allowed_whole() {
        let access = access(&["a.>", "b.*"], &["a.secret"]);
        for (pattern, expected) in [
            ("a.b", true),
            ("a.b.*", true),
            ("a.>", false),
            ("a.*", false),
            ("a.secret", false),
            ("b.*", true),
            ("b.>", false),
            (">", false),
            ("*", false),
        ] {
            assert_eq!(access.allows_all_of(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn a_name_fills_patterns_and_cannot_widen_them() {
        let permissions = Permissions {
            publish: access(&["dev.{name}.>"], &["{name}"]),
            ..Permissions::nothing()
        };
        let of = permissions.of("7").unwrap();
        assert_eq!(of.publish, access(&["dev.7.>"], &["7"]));
        for name in ["*", ">", "a.b", "a b", "a\n"] {
            assert!(permissions.of(name).is_err(), "{name:?}");
        }
        assert!(Permissions::everything().of("ann.example").is_ok());
    }

    #[test]
    fn methods_compare_as_the_codec_does() {
        let permissions = Permissions {
            call: access(&[">"], &["Admin.>"]),
            ..Permissions::nothing()
        };
        assert!(permissions.allows(Action::Call("admin.stop"), false));
        assert!(!permissions.allows(Action::Call("admin.stop"), true));
        assert!(!permissions.allows(Action::Call("ADMIN.stop"), true));
        assert!(permissions.allows(Action::Call("#0"), true));
    }

    #[test]
    fn patterns_without_effect_are_found() {
        let access = access(&["a.b", "c.>"], &["a.>", "c.d", "e.*"]);
        assert_eq!(access.useless().collect::<Vec<_>>(), [("a.b", "a.>")]);
        assert_eq!(access.idle().collect::<Vec<_>>(), ["e.*"]);
    }
}
