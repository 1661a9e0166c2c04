//! The page in headless Chromium, where there is one: by `TIDEWIRE_CHROMIUM`, or in the path as `chromium`.
//!
//! The browser is driven over the pipe of its own protocol (`--remote-debugging-pipe`: JSON, each ended by a zero byte),
//! which needs no port, no driver and no crate. It reads from descriptor 3 and writes to descriptor 4; a shell puts its
//! standard input and output there. `.ci/run page` installs the browser and names it, so that the test cannot be
//! passed over there.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::sample;

/// A browser with one open page.
struct Browser {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: Option<String>,
    last_id: u64,
    /// Everything it told without being asked.
    events: Vec<Value>,
}

impl Browser {
    fn start(program: &Path, profile: &Path) -> Self {
        let mut process = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null"])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut browser = Self {
            input: process.stdin.take().unwrap(),
            output: BufReader::new(process.stdout.take().unwrap()),
            process,
            session: None,
            last_id: 0,
            events: Vec::new(),
        };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let target = &target["targetId"];
        let attached = browser.call(
            "Target.attachToTarget",
            &json!({"targetId": target, "flatten": true}),
        );
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Calls a method and waits for its result.
    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.input.write_all(&bytes).unwrap();
        loop {
            let mut answer = self.next();
            if answer["id"] == self.last_id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    /// Waits for an event, which may have come already.
    fn wait_for(&mut self, event: &str) {
        while !self.events.iter().any(|one| one["method"] == event) {
            let next = self.next();
            self.events.push(next);
        }
    }

    fn next(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.output.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the browser ended");
        serde_json::from_slice(&bytes).unwrap()
    }

    fn evaluate(&mut self, expression: &str) -> Value {
        let parameters =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", &parameters);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    fn open(&mut self, page: &Path, width: u32, scheme: &str, media: &str) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}),
        );
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call(
            "Emulation.setEmulatedMedia",
            &json!({"media": media, "features": features}),
        );
        self.events.clear();
        let url = format!("file://{}", page.display());
        self.call("Page.navigate", &json!({"url": url}));
        self.wait_for("Page.loadEventFired");
    }

    /// Everything that was fetched besides the page itself, and everything that was complained about.
    fn complaints(&self, page: &Path) -> Vec<String> {
        let own = format!("file://{}", page.display());
        let is_complaint = |event: &&Value| match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                let url = event["params"]["request"]["url"]
                    .as_str()
                    .unwrap_or_default();
                url != own && !url.starts_with("data:")
            }
            Some("Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded") => true,
            _ => false,
        };
        let complaints = self.events.iter().filter(is_complaint);
        complaints.map(ToString::to_string).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The browser to test in, if there is one.
fn chromium() -> Option<PathBuf> {
    if let Some(named) = env::var_os("TIDEWIRE_CHROMIUM") {
        return Some(PathBuf::from(named));
    }
    let path = env::var_os("PATH")?;
    let programs = env::split_paths(&path).map(|directory| directory.join("chromium"));
    programs.into_iter().find(|program| program.is_file())
}

#[test]
fn a_browser_shows_the_page_without_complaint_at_every_width() {
    let Some(program) = chromium() else {
        // Nothing is known then, and nothing is claimed; `.ci/run page` installs one.
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(&program, &directory.path().join("profile"));
    let reports = [
        ("open", sample::open()),
        ("sweep", sample::sweep()),
        ("old", sample::old()),
    ];
    for (name, report) in reports {
        let page = directory.path().join(format!("{name}.html"));
        fs::write(&page, report.to_html()).unwrap();
        for (width, scheme, media) in [
            (360, "light", ""),
            (360, "dark", ""),
            (768, "light", ""),
            (1_440, "dark", ""),
            (794, "light", "print"),
        ] {
            browser.open(&page, width, scheme, media);
            let case = format!("{name} at {width} in {scheme} {media}");
            let found = browser.evaluate(LOOK);
            let complaints = browser.complaints(&page);
            assert!(complaints.is_empty(), "{case}: {complaints:?}");
            assert_eq!(found["viewport"], width, "{case}");
            assert_eq!(found["overflow"], 0, "{case}: {found}");
            assert_eq!(found["cutOff"], json!([]), "{case}");
            let drawings = found["drawings"].as_u64().unwrap();
            assert_eq!(
                Some(drawings),
                found["figures"].as_u64(),
                "{case}: one of the two"
            );
            let is_dark = scheme == "dark" && media != "print";
            assert_eq!(found["darkPage"], is_dark, "{case}: {found}");
            assert_eq!(found["openTables"], media == "print", "{case}");
        }
    }
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

/// What can be seen: how far the page is wider than the window, which texts of drawings are cut off, and so on.
const LOOK: &str = r#"(() => {
  const root = document.documentElement;
  const seen = [...document.querySelectorAll("figure svg")].filter((svg) => svg.getClientRects().length > 0);
  const cutOff = seen.flatMap((svg) => {
    const frame = svg.getBoundingClientRect();
    const outside = (text) => {
      const box = text.getBoundingClientRect();
      return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
    };
    return [...svg.querySelectorAll("text")].filter(outside).map((text) => text.textContent);
  });
  const light = (colour) => colour.match(/\d+/g).slice(0, 3).reduce((sum, one) => sum + Number(one), 0);
  const table = document.querySelector("figure details:not(.long) table");
  return {
    viewport: window.innerWidth,
    overflow: Math.max(0, root.scrollWidth - root.clientWidth),
    drawings: seen.length,
    figures: document.querySelectorAll("figure").length,
    cutOff,
    darkPage: light(getComputedStyle(document.body).backgroundColor) < 200,
    openTables: table.checkVisibility({ contentVisibilityAuto: true, visibilityProperty: true }) && table.getBoundingClientRect().height > 0,
  };
})()"#;

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
