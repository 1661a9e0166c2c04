//! Checks that hold for every page of a report: in its text, and in a browser, if any.

mod browser;
mod check;

pub use self::browser::{Browser, LOOK, check_everywhere, chromium};
pub use self::check::{by_id, check, count, parse, text};
