// The dashboard in a real browser: log in, close a session, drain.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";
import { assertNamed, assertReadable } from "../../client/tests/browser/looks.mjs";

const ROOT = new URL("../../../", import.meta.url).pathname;
const BINARY = process.env.TIDEWIRE_BIN ?? `${process.env.CARGO_TARGET_DIR ?? `${ROOT}target`}/debug/tidewire`;
const BROWSER = process.env.TIDEWIRE_CHROMIUM ?? "/usr/bin/chromium";
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
// Long enough for a busy machine. A test that fails waits for it.
const LONG = 120_000;

let browser;
let directory;
before(async () => {
  browser = await chromium.launch({ executablePath: BROWSER, args: FLAGS });
  directory = await mkdtemp(join(tmpdir(), "tidewire-admin-"));
});
after(async () => {
  await browser.close();
  await rm(directory, { recursive: true });
});

// A node of a cluster as the overview has it, with everything that may be wrong.
const NODE = {
  id: "eu-1", cut_off: true, reconnects: 2, sent: 9, unsent: 1, received: 7, lost: 3, requests: 5, requests_failed: 1, served: 4,
  peers: [{ id: "eu-2", lag_ms: 0.4, received: 7, lost: 3 }, { id: "<b>n</b>", lag_ms: null, received: 0, lost: 0 }],
};

// Starts a program, and reads its lines until one matches.
function start(...flags) {
  const child = spawn(BINARY, flags, { stdio: ["pipe", "pipe", "inherit"] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    child,
    ended: new Promise((resolve) => { child.on("exit", resolve); }),
    async line(pattern) {
      for (;;) {
        const { value, done } = await lines.next();
        assert.ok(!done, `the program ended before it said ${pattern}`);
        const match = pattern.exec(value);
        if (match) return match[1] ?? match[0];
      }
    },
  };
}

// A server with an admin server, and a page that shows the latter.
async function site(t, app, ...flags) {
  const server = start("serve", "--app", app, "--bind", "tcp://127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "error", ...flags);
  t.after(() => server.child.kill("SIGKILL"));
  const address = await server.line(/^listening on (.*)$/);
  const admin = await server.line(/admin=(.*)$/);
  const context = await browser.newContext();
  t.after(() => context.close());
  const page = await context.newPage();
  page.setDefaultTimeout(LONG);
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error" && !message.text().includes("401")) errors.push(message.text());
  });
  await page.goto(admin);
  return { server, address, admin, page, errors };
}

// The label of what has the focus.
const focused = (page) => page.evaluate(() => document.activeElement.getAttribute("aria-label"));

async function join_chat(t, address, name) {
  const client = start("chat", address, "--name", name);
  t.after(() => client.child.kill("SIGKILL"));
  await client.line(/you are in lobby/);
  return client;
}

test("a session is closed with a reason", async (t) => {
  const { address, page, errors } = await site(t, "chat");
  const client = await join_chat(t, address, "ann");
  await page.getByRole("button", { name: "Refresh" }).click();
  const close = page.locator("#entries").getByRole("button", { name: "Close the session of ann" });
  // By the keyboard: the focus is in the dialog, and Enter in the reason confirms.
  await close.focus();
  await page.keyboard.press("Enter");
  await page.getByLabel("Reason, which the peer is told").fill("maintenance");
  await page.keyboard.press("Enter");
  await client.ended;
  await page.getByText("There are no sessions.").waitFor();
  assert.equal(await focused(page), "Entries", "the button has gone, and the focus stays at the table");
  assert.deepEqual(errors, []);
});

test("a name that a peer chose is never HTML", async (t) => {
  const { address, page, errors } = await site(t, "pubsub");
  const name = "a.&lt;<img/src=x";
  const client = start("sub", address, name);
  t.after(() => client.child.kill("SIGKILL"));
  await page.getByRole("tab", { name: "Topics" }).click();
  const cell = page.locator("#entries td").filter({ hasText: name });
  while ((await cell.count()) === 0) {
    await page.getByRole("button", { name: "Refresh" }).click();
    // "0 topics" or "1 topic": the client may subscribe between the count of cells and the refresh.
    await page.locator("#found").filter({ hasText: /topic/ }).waitFor();
  }
  assert.equal(await cell.textContent(), name);
  assert.equal(await page.locator("#entries img, #entries b").count(), 0);
  assert.deepEqual(errors, []);
});

test("a confirmation that is cancelled does nothing", async (t) => {
  const { page, server } = await site(t, "chat");
  await page.getByRole("button", { name: "Drain" }).click();
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Drain" }).click();
  await page.getByRole("button", { name: "Cancel" }).click();
  assert.equal(await page.locator("dialog[open]").count(), 0);
  assert.equal(server.child.exitCode, null);
});

test("a cluster is shown with its nodes, and no cluster without a backplane", async (t) => {
  const { page, errors } = await site(t, "chat");
  await page.getByText("Ready").waitFor();
  assert.equal(await page.getByText("Cluster").count(), 1);
  assert.ok(await page.getByText("Cluster").isHidden());
  // The next overview of this server, which has no backplane, hides it again: so one step shows it and reads it.
  const shown = await page.evaluate((node) => {
    showCluster(node);
    const section = document.getElementById("cluster");
    return { hidden: section.hidden, text: section.innerText, html: section.querySelectorAll("b").length };
  }, NODE);
  assert.equal(shown.hidden, false);
  for (const part of ["Node eu-1 is cut off from the others", "Connected again", "eu-2", "400 µs", "<b>n</b>"]) {
    assert.ok(shown.text.includes(part), `${part} in ${shown.text}`);
  }
  assert.equal(shown.html, 0, "an id is text");
  assert.deepEqual(errors, []);
});

test("refusals of WebSocket are shown, and what a reload reads", async (t) => {
  const { page, errors } = await site(t, "chat");
  await page.getByText("Ready").waitFor();
  assert.ok(!(await page.locator("#identity").innerText()).includes("NaN"), "the server has all figures");
  const shown = await page.evaluate(async () => {
    const overview = await ask("/api/overview");
    Object.assign(overview.counters, { websocket_origins_refused: 71, websocket_handshakes_refused: 72, websocket_frames_refused: 73 });
    showIdentity(overview);
    return document.getElementById("identity").innerText;
  });
  for (const part of ["WebSocket origins refused\n71", "WebSocket handshakes refused\n72", "WebSocket sessions with bad frames\n73"]) {
    assert.ok(shown.includes(part), `${part} in ${shown}`);
  }
  await page.getByRole("button", { name: "Reload" }).click();
  await page.getByText("Log level, limits, users").waitFor();
  assert.deepEqual(errors, []);
});

test("pages are turned by the keyboard", async (t) => {
  const { page, errors } = await site(t, "chat");
  // Two pages of sessions that are none.
  await page.route("**/api/sessions?*", async (route) => {
    const offset = Number(new URL(route.request().url()).searchParams.get("offset"));
    const entry = { peer: "tcp://192.0.2.1:1", transport: "tcp", age_seconds: 1, lag_bytes: 0, queued_bytes: 0, lag_messages: 0, memory_bytes: 0, rooms: 0, topics: 0, lane: 0 };
    const entries = [...Array(offset === 0 ? 50 : 10).keys()].map((it) => ({ ...entry, id: String(offset + it) }));
    await route.fulfill({ json: { total: 60, found: 60, offset, entries } });
  });
  await page.getByRole("button", { name: "Refresh" }).click();
  await page.getByText("1 to 50").waitFor();
  await page.getByRole("button", { name: "Next" }).focus();
  await page.keyboard.press("Enter");
  await page.getByText("51 to 60").waitFor();
  assert.equal(await focused(page), "Entries", "there is no next page, and the focus stays at the table");
  await page.getByRole("button", { name: "Previous" }).focus();
  await page.keyboard.press("Enter");
  await page.getByText("1 to 50").waitFor();
  assert.equal(await focused(page), "Entries");
  assert.deepEqual(errors, []);
});

test("a drain ends the server, and the page says so", async (t) => {
  const { page, server, address } = await site(t, "chat");
  await join_chat(t, address, "ann");
  await page.getByRole("button", { name: "Drain" }).click();
  await page.locator("#confirm-go").click();
  assert.equal(await server.ended, 0);
  await page.getByText(/Not connected. The figures are of \d/).waitFor();
  await page.locator("#figures.old").waitFor();
  for (const name of ["Reload", "Drain"]) assert.ok(await page.getByRole("button", { name, exact: true }).isDisabled(), name);
});

test("the token is asked for once, and a log-out forgets it", async (t) => {
  const file = join(directory, "token");
  await writeFile(file, "c2VjcmV0\n", { mode: 0o600 });
  const { page, admin } = await site(t, "chat", "--admin-token-file", file);
  const token = page.getByLabel("Token of");
  await token.fill("wrong");
  await page.keyboard.press("Enter");
  await page.getByText("the token is wrong").waitFor();
  assert.ok(await page.locator("#figures").isHidden());
  await token.fill("c2VjcmV0");
  await page.keyboard.press("Enter");
  await page.getByText("Ready").waitFor();
  assert.equal(await page.evaluate(() => document.cookie), "", "scripts do not see the cookie");
  await page.goto(admin);
  await page.getByText("Ready").waitFor();
  await page.getByRole("button", { name: "Log out" }).click();
  await token.waitFor();
  await page.goto(admin);
  await token.waitFor();
});

test("tabs and sorting work by the keyboard, and nothing is wider than a telephone", async (t) => {
  const { page, address, errors } = await site(t, "chat");
  await page.setViewportSize({ width: 360, height: 740 });
  await join_chat(t, address, "ann");
  await page.getByRole("tab", { name: "Sessions" }).focus();
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.getByRole("tab", { name: "Rooms" }).getAttribute("aria-selected"), "true");
  await page.locator("#entries").getByText("lobby").waitFor();
  await page.locator("#entries").getByRole("button", { name: "Name" }).press("Enter");
  await page.locator("th[aria-sort]").filter({ hasText: "Name" }).waitFor();
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
  assert.deepEqual(errors, []);
});

test("figures change by themselves, a search filters, and a reload says so", async (t) => {
  const { page, address, errors } = await site(t, "chat");
  const tiles = page.locator("#tiles");
  await tiles.getByText("0 opened, 0 refused").waitFor();
  await join_chat(t, address, "ann");
  // The server sends the next overview without a request.
  await tiles.getByText("1 opened, 0 refused").waitFor();
  await join_chat(t, address, "bob");
  await tiles.getByText("2 opened, 0 refused").waitFor();
  await page.getByRole("searchbox", { name: "Search by name, identity or address" }).fill("ann");
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByText("1 of 2 sessions").waitFor();
  assert.equal(await page.locator("#entries").getByText("ann", { exact: true }).count(), 1);
  assert.equal(await page.locator("#entries").getByText("bob", { exact: true }).count(), 0);
  await page.getByRole("button", { name: "Reload" }).click();
  await page.locator("#toast").getByText("are read again").waitFor();
  assert.deepEqual(errors, []);
});

// Regression: with several of these pages open, none said which server it is of.
test("title and head name the server", async (t) => {
  const { page, admin, errors } = await site(t, "chat");
  const { host } = new URL(admin);
  await page.locator("#about").getByText(`${host}, version `).waitFor();
  assert.equal(await page.title(), `${host} – Tidewire`);
  assert.deepEqual(errors, []);
});

// Regression: after a load test that lost nothing, "Dropped: closed 31,495" looked like a loss.
test("messages to subscribers that are gone are said to be no loss", async (t) => {
  const { page, errors } = await site(t, "chat");
  await page.getByText("Ready").waitFor();
  const note = page.getByText("are no loss of those that stayed");
  assert.ok(await note.isHidden());
  // The next overview of this server, which dropped nothing, hides it again: so one step shows it and reads it.
  const shown = await page.evaluate(() => {
    showLosses({ dropped: { policy: 0, left: 0, closed: 31_495 }, datagrams_dropped: {}, closed: {} });
    const { hidden, innerText } = document.getElementById("no-losses");
    return { hidden, innerText, list: document.getElementById("losses").innerText };
  });
  assert.equal(shown.hidden, false);
  assert.match(shown.innerText, /or whose session ended, are no loss/);
  assert.match(shown.list, /Dropped: after the session ended\s+31,495/);
  assert.deepEqual(errors, []);
});

test("a screen reader finds the parts of the page by their names", async (t) => {
  const { page, address } = await site(t, "chat");
  await join_chat(t, address, "ann");
  await page.getByText("Ready").waitFor();
  const regions = ["Now", "Last five minutes", "Memory", "Dropped and closed", "Identity and certificate", "Lists", "Entries"];
  const parts = [["banner"], ["main"], ["search"], ["navigation", "Pages"], ["tablist", "Lists"], ["tabpanel", "Sessions"], ...regions.map((name) => ["region", name])];
  for (const [role, name] of parts) await page.getByRole(role, { name, exact: true }).waitFor();
  await assertNamed(page);
  // With the section of a cluster. Later overviews would hide it again.
  await page.evaluate((node) => {
    source.close();
    showCluster(node);
  }, NODE);
  const named = [...(await page.locator("body").ariaSnapshot()).matchAll(/- region "([^"]*)"/g)].map(([, name]) => name);
  assert.ok(named.includes("Cluster") && named.includes("Entries"), `${named}`);
  // The section of a table and the frame that scrolls it once had one name.
  assert.deepEqual(named, [...new Set(named)]);
});

test("on telephones and large screens, light and dark, nothing is cut off and all texts can be read", async (t) => {
  const { page, admin, address } = await site(t, "chat");
  await join_chat(t, address, "ann");
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    for (const [width, height] of [[360, 740], [1280, 800], [3840, 2160]]) {
      await page.setViewportSize({ width, height });
      await page.goto(admin);
      await page.locator("#entries").getByRole("button", { name: "Close the session of ann" }).waitFor();
      // Warnings and errors have colours of their own. Later overviews would hide these again.
      await page.evaluate((node) => {
        source.close();
        showCluster(node);
        toast("That failed");
      }, NODE);
      await assertReadable(page, colorScheme);
      await page.evaluate(() => showLogin());
      await page.getByLabel("Token of").fill("wrong");
      await page.evaluate(() => { document.getElementById("login-error").textContent = "the token is wrong"; });
      await assertReadable(page, colorScheme);
    }
  }
});
