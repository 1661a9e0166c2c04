//! The page in a browser, where there is one.

use std::fs;

use serde_json::json;
use tidewire_testkit::page::{Browser, LOOK, check_everywhere, chromium};

use super::sample;

#[test]
fn a_browser_shows_the_page_without_complaint_at_every_width() {
    check_everywhere(&[
        ("open", sample::open().to_html()),
        ("sweep", sample::sweep().to_html()),
        ("failed", sample::failed().to_html()),
    ]);
}

/// The check of the checks: what would be wrong with a page is noticed.
#[test]
fn a_page_that_fetches_fails_and_overflows_is_found_out() {
    let Some(program) = chromium() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(&program, &directory.path().join("profile"));
    let page = directory.path().join("spoilt.html");
    let wrong = "<body><img src=\"other.png\"/><p style=\"width: 400px\">wide</p><script>missing();</script>";
    let spoilt = sample::sweep().to_html().replacen("<body>", wrong, 1);
    fs::write(&page, spoilt).unwrap();
    browser.open(&page, 360, "light", "");
    let found = browser.evaluate(LOOK);
    assert!(found["overflow"].as_u64().unwrap() >= 40, "{found}");
    let complaints = browser.complaints(&page).join("\n");
    for expected in [
        "missing is not defined",
        "other.png",
        "Content Security Policy",
    ] {
        assert!(complaints.contains(expected), "{expected}: {complaints}");
    }
}

#[test]
fn a_tooltip_says_what_lies_under_the_pointer_and_stays_inside() {
    let Some(program) = chromium() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(&program, &directory.path().join("profile"));
    let page = directory.path().join("sweep.html");
    fs::write(&page, sample::sweep().to_html()).unwrap();
    browser.open(&page, 360, "light", "");
    assert_eq!(browser.evaluate(TIP)["hidden"], true);
    let place = browser.evaluate(FIRST_BAR);
    for kind in ["mouseMoved", "mousePressed"] {
        let parameters = json!({
            "type": kind, "x": place["x"], "y": place["y"], "button": "left", "clickCount": 1,
        });
        browser.call("Input.dispatchMouseEvent", &parameters);
        let tip = browser.evaluate(TIP);
        assert_eq!(tip["hidden"], false, "{kind}");
        assert_eq!(tip["text"], place["text"]);
        assert!(tip["text"].as_str().unwrap().starts_with(sample::HOSTILE));
        assert_eq!(tip["inside"], true, "{tip}");
    }
    assert!(browser.complaints(&page).is_empty());
}

/// The first bar that is seen, after it was scrolled to. The event of the scrolling, which hides the tooltip, comes
/// with the next frame, so it is waited for.
const FIRST_BAR: &str = r#"(async () => {
  const bar = [...document.querySelectorAll("figure g[data-tip]")].find((one) => one.getClientRects().length > 0);
  bar.scrollIntoView({ block: "center", behavior: "instant" });
  for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
  const box = bar.getBoundingClientRect();
  return { x: box.left + box.width / 2, y: box.top + box.height / 2, text: bar.dataset.tip };
})()"#;

const TIP: &str = r#"(() => {
  const tip = document.getElementById("tip");
  const box = tip.getBoundingClientRect();
  const inside = box.left >= 0 && box.right <= innerWidth && box.top >= 0 && box.bottom <= innerHeight;
  return { hidden: tip.hidden, text: tip.textContent, inside };
})()"#;
