//! The error of a setting, or of a text that names one.
//!
//! A user does one thing with all of them: read which setting is wrong and write another value. So they are one type,
//! and each place that reads a setting writes the text. Rejected: an enum for each setting, which nobody matched on.

use thiserror::Error;

/// A setting cannot have the value that it was given, or a text is not of the form that it must have. `Display` names
/// the value, the mistake and the remedy.
///
/// ```
/// use tidewire_proto::room::Policy;
///
/// let error = "dorp".parse::<Policy>().unwrap_err();
/// assert_eq!((error.setting(), error.value()), ("policy", "dorp"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
#[non_exhaustive]
pub struct SettingError {
    setting: &'static str,
    value: String,
    text: String,
}

impl SettingError {
    /// The error of a setting that cannot have this value. The text says why, and what to write instead.
    #[must_use]
    #[cold]
    pub fn new(setting: &'static str, value: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            setting,
            value: value.into(),
            text: text.into(),
        }
    }

    /// Returns the name of the setting, such as `policy` or `origin`.
    #[must_use]
    pub const fn setting(&self) -> &'static str {
        self.setting
    }

    /// Returns the value that was refused. It is empty if the value may be a secret.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }
}
