//! A page in headless Chromium, if installed: by `TIDEWIRE_CHROMIUM`, or in the path as `chromium`.
//!
//! The browser is driven over a pipe by its own protocol (`--remote-debugging-pipe`: JSON, each ended by a zero byte),
//! which needs no port, no driver and no crate. It reads from descriptor 3 and writes to descriptor 4; a shell puts its
//! standard input and output there. `.ci/run page` installs the browser and names it, so that the tests cannot be
//! passed over there.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A browser with one open page.
#[derive(Debug)]
pub struct Browser {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: Option<String>,
    last_id: u64,
    /// The browser's events.
    events: Vec<Value>,
}

impl Browser {
    /// Starts a browser with a separate profile and opens an empty page.
    pub fn start(program: &Path, profile: &Path) -> Self {
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
            .expect("a shell starts the browser");
        let mut browser = Self {
            input: process.stdin.take().expect("a pipe for its input"),
            output: BufReader::new(process.stdout.take().expect("a pipe for its output")),
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

    /// Calls a method of the browser's protocol and waits for its result.
    pub fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).expect("values are JSON");
        bytes.push(0);
        let written = self.input.write_all(&bytes);
        written.expect("the browser takes a message");
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
        let read = self.output.read_until(0, &mut bytes);
        read.expect("the browser's output can be read");
        assert_eq!(bytes.pop(), Some(0), "the browser ended");
        serde_json::from_slice(&bytes).expect("the browser speaks JSON")
    }

    /// The value of an expression in the page.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", &parameters);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Opens a file at a width in pixels, in a colour scheme, for a medium such as `print`, and waits until it is
    /// loaded.
    pub fn open(&mut self, page: &Path, width: u32, scheme: &str, media: &str) {
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
    #[must_use]
    pub fn complaints(&self, page: &Path) -> Vec<String> {
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

/// The browser for tests, if any.
#[must_use]
pub fn chromium() -> Option<PathBuf> {
    if let Some(named) = env::var_os("TIDEWIRE_CHROMIUM") {
        return Some(PathBuf::from(named));
    }
    let path = env::var_os("PATH")?;
    let programs = env::split_paths(&path).map(|directory| directory.join("chromium"));
    programs.into_iter().find(|program| program.is_file())
}

/// Opens pages by their names at every width, in light, dark and print, and fails for every fault.
pub fn check_everywhere(pages: &[(&str, String)]) {
    let Some(program) = chromium() else {
        // Without a browser the test checks nothing; `.ci/run page` installs one.
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let mut browser = Browser::start(&program, &directory.path().join("profile"));
    for (name, content) in pages {
        let page = directory.path().join(format!("{name}.html"));
        fs::write(&page, content).expect("a page is written");
        for (width, scheme, media) in [
            (360, "light", ""),
            (390, "light", ""),
            (390, "dark", ""),
            (768, "light", ""),
            (1_280, "light", ""),
            (1_280, "dark", ""),
            (1_920, "light", ""),
            (1_920, "dark", ""),
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
            assert_eq!(found["brokenWords"], json!([]), "{case}");
            if width >= 1_280 {
                assert_eq!(found["wideTables"], json!([]), "{case}");
            }
            let drawings = found["drawings"].as_u64().expect("a number of drawings");
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

/// A script that reports the visible state: the excess width of the page, cut texts of drawings, broken words, visible
/// tables that need scrolling, and so on.
pub const LOOK: &str = r#"(() => {
  const root = document.documentElement;
  const seen = [...document.querySelectorAll("figure svg")].filter((svg) => svg.getClientRects().length > 0);
  const cutOff = seen.flatMap((svg) => {
    const frame = svg.getBoundingClientRect();
    const outside = (text) => {
      const box = text.getBoundingClientRect();
      return box.left < frame.left - 1 || box.right > frame.right + 1
        || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
    };
    return [...svg.querySelectorAll("text")].filter(outside).map((text) => text.textContent);
  });
  const brokenWords = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode;
    if (node.parentElement.closest("svg, script, #tip")) continue;
    for (const found of node.data.matchAll(/[\p{L}\p{N}]+/gu)) {
      // A path or a hash fits into no cell, and has to be broken.
      const before = node.data.slice(0, found.index).match(/\S*$/)[0];
      const behind = node.data.slice(found.index).match(/^\S*/)[0];
      if (before.length + behind.length > 20) continue;
      const range = document.createRange();
      range.setStart(node, found.index);
      range.setEnd(node, found.index + found[0].length);
      const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
      if (lines.size > 1) brokenWords.push(found[0]);
    }
  }
  const isWide = (box) => box.checkVisibility({ contentVisibilityAuto: true }) && box.scrollWidth > box.clientWidth + 1;
  const wideTables = [...document.querySelectorAll(".scroll")].filter(isWide).map((box) => box.innerText.slice(0, 60));
  const light = (colour) => colour.match(/\d+/g).slice(0, 3).reduce((sum, one) => sum + Number(one), 0);
  const table = document.querySelector("figure details:not(.long) table");
  return {
    viewport: window.innerWidth,
    overflow: Math.max(0, root.scrollWidth - root.clientWidth),
    drawings: seen.length,
    figures: document.querySelectorAll("figure").length,
    cutOff,
    brokenWords,
    wideTables,
    darkPage: light(getComputedStyle(document.body).backgroundColor) < 200,
    openTables: table.checkVisibility({ contentVisibilityAuto: true, visibilityProperty: true })
      && table.getBoundingClientRect().height > 0,
  };
})()"#;
