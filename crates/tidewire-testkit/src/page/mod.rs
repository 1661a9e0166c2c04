//! What holds for every page that a report is: checked in its text, and in a browser where there is one.

mod browser;
mod check;

pub use self::browser::{Browser, LOOK, check_everywhere, chromium};
pub use self::check::{by_id, check, count, parse, text};
