// The dashboard. Everything that comes from a server or a peer becomes text: no HTML is ever made of it.
"use strict";

const $ = (id) => document.getElementById(id);
const KEPT = 300; // points of a chart: five minutes
const PAGE = 50;

// Makes an element with properties and children. A child that is no element becomes text.
function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.map((it) => (it instanceof Node ? it : String(it))));
  return element;
}

// ---- numbers for people

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
function count(value) { return value < 100000 ? whole.format(value) : short.format(value); }
function rate(value) { return value < 10 && value > 0 ? value.toFixed(1) : count(value); }
function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]}`;
}
function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? `${(value * 1000).toFixed(0)} µs` : `${value.toFixed(value < 10 ? 1 : 0)} ms`;
}
function percent(value) { return value === null ? "–" : `${(value * 100).toFixed(0)} %`; }
function duration(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2).map(([size, unit]) => {
    const value = Math.floor(seconds / size);
    seconds -= value * size;
    return `${value} ${unit}`;
  }).join(" ");
}
function clock(at) { return at.toLocaleTimeString("en", { hour12: false }); }
function plural(number, noun) { return `${whole.format(number)} ${number === 1 ? noun.slice(0, -1) : noun}`; }
function words(name) { return name.replaceAll("_", " "); }

// ---- talking to the server

async function ask(path, body) {
  const options = body === undefined ? {} : {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Tidewire-Admin": "1" },
    body: JSON.stringify(body),
  };
  const response = await fetch(path, options);
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) showLogin();
  if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
  return answer;
}

let toastTimer;
function toast(text) {
  $("toast").textContent = text;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { $("toast").textContent = ""; }, 6000);
}

let source;
function listen() {
  source?.close();
  source = new EventSource("/api/events");
  source.addEventListener("overview", (event) => showOverview(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    showLost();
    // After an answer that is no stream, the browser does not connect again by itself. The next request shows why.
    if (source.readyState === EventSource.CLOSED) {
      setTimeout(() => begin(), 2000);
    }
  });
}

async function begin() {
  try {
    showOverview(await ask("/api/overview"));
  } catch (error) {
    if ($("login").hidden) {
      showLost();
      setTimeout(begin, 2000);
    }
    return;
  }
  listen();
  loadList();
}

function showLogin() {
  // This only notes that there is a token, for the button to log out. Nothing here keeps the token itself.
  sessionStorage.setItem("token", "needed");
  source?.close();
  $("figures").hidden = true;
  $("actions").hidden = true;
  $("login").hidden = false;
  setState("", "Not logged in");
  $("token").focus();
}

// ---- the overview

const history = [];
let heard; // the time of the last overview

// Old figures must not look like those of now.
function showLost() {
  setState("lost", heard ? `Not connected. The figures are of ${clock(heard)}` : "Not connected");
  $("figures").classList.add("old");
  setActions(false);
}

function setActions(isPossible) {
  for (const button of document.querySelectorAll("#reload, #drain, #figures button")) button.disabled = !isPossible;
}

function setState(name, text) {
  $("state").className = name;
  if ($("state-text").textContent !== text) $("state-text").textContent = text;
}

function showOverview(it) {
  const wasHidden = $("figures").hidden;
  const wasLost = $("figures").classList.contains("old");
  heard = new Date();
  $("figures").classList.remove("old");
  if (wasLost) setActions(true);
  $("login").hidden = true;
  $("figures").hidden = false;
  $("actions").hidden = false;
  $("logout").hidden = sessionStorage.getItem("token") === null;
  const stuck = it.lanes.filter((lane) => !lane.turns).map((lane) => lane.lane);
  if (stuck.length > 0) setState("stuck", `Lane ${stuck.join(", ")} does not turn`);
  else if (it.ready) setState("ready", "Ready");
  else setState("draining", "Draining");
  // With several of these pages open, the title tells the servers apart.
  const server = it.node ? `node ${it.node.id} at ${location.host}` : location.host;
  document.title = `${server} – Tidewire`;
  $("about").textContent = `${server}, version ${it.version}, up ${duration(it.uptime_seconds)}`;
  // The first overview has no interval, and so no rates.
  if (it.interval_seconds > 0) {
    history.push(it);
    if (history.length > KEPT) history.shift();
  }
  showTiles(it);
  showCharts();
  showLanes(it.lanes);
  showMemory(it.memory);
  showLosses(it);
  showIdentity(it);
  showCluster(it.node);
  showSlowest(it.tops);
  if (wasHidden || wasLost) loadList();
}

function showTiles(it) {
  const { rates } = it;
  const tiles = [
    ["Sessions", count(it.sessions.open), `${count(it.sessions.opened)} opened, ${count(it.sessions.refused)} refused`],
    ["Messages in", `${rate(rates.frames_in)}/s`, `${bytes(rates.bytes_in)}/s`],
    ["Deliveries", `${rate(rates.delivered)}/s`, `${bytes(rates.bytes_out)}/s out`],
    ["Fan-out", rates.fan_out === null ? "–" : rate(rates.fan_out), "subscribers of a message"],
    ["Dropped", `${rate(rates.dropped)}/s`, `${count(it.in_flight)} in flight`],
    ["Lanes answer in", milliseconds(it.turns.last_ms), `median ${milliseconds(it.turns.p50_ms)}, longest ${milliseconds(it.turns.max_ms)} in the last minute`],
    ["Load", percent(load(it)), `of ${it.lanes.length} ${it.lanes.length === 1 ? "lane" : "lanes"}`],
    ["Memory", bytes(it.memory.bytes), `of ${bytes(it.memory.bytes_max)}`],
  ];
  fill($("tiles"), tiles, ([name, value, note]) => make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, note))));
}

function load(it) {
  const loads = it.lanes.map((lane) => lane.load).filter((value) => value !== null);
  return loads.length === 0 ? null : loads.reduce((sum, value) => sum + value, 0) / loads.length;
}

// Replaces the children of an element only if their text has changed, so that a selection and the focus stay.
function fill(parent, items, render) {
  const next = items.map(render);
  const same = next.length === parent.children.length && next.every((child, index) => child.isEqualNode(parent.children[index]));
  if (!same) parent.replaceChildren(...next);
}

// Title, format of a figure, the smallest maximum of the scale, and the curves.
const CHARTS = [
  ["Messages a second", rate, 1, [["in", (it) => it.rates.frames_in], ["delivered", (it) => it.rates.delivered], ["dropped", (it) => it.rates.dropped]]],
  ["Bytes a second", bytes, 1, [["in", (it) => it.rates.bytes_in], ["out", (it) => it.rates.bytes_out]]],
  ["Time of an answer", milliseconds, 1e-3, [["slowest lane", (it) => it.turns.last_ms]]],
  ["Load of lanes", percent, 1, [["mean", load], ["busiest", (it) => Math.max(...it.lanes.map((lane) => lane.load ?? 0))]]],
  ["Sessions", count, 1, [["open", (it) => it.sessions.open]]],
  ["Memory", bytes, 1, [["held", (it) => it.memory.bytes]]],
];

function showCharts() {
  const figures = CHARTS.map(([title, show, least, all]) => {
    // With one lane, the mean and the busiest are one curve.
    const curves = title === "Load of lanes" && history.at(-1)?.lanes.length === 1 ? all.slice(0, 1) : all;
    const values = curves.map(([, figure]) => history.map((it) => figure(it) ?? 0));
    const highest = Math.max(0, ...values.flat());
    const most = Math.max(least, highest);
    const caption = make("figcaption", {}, make("b", {}, title));
    curves.forEach(([name], index) => {
      const last = values[index].at(-1);
      const key = make("i", { className: `k${index + 1}` });
      caption.append(make("span", {}, key, `${name} ${last === undefined ? "–" : show(last)}`));
    });
    const spoken = curves.map(([name], index) => `${name} ${values[index].length ? show(values[index].at(-1)) : "not known"}`);
    return make("figure", {}, caption, chart(values, most, `${title}: ${spoken.join(", ")}`),
      make("div", { className: "scale", ariaHidden: "true" }, make("span", {}, `${duration(history.length)} ago`), make("span", {}, `0 to ${show(most)}, highest ${history.length ? show(highest) : "–"}`), make("span", {}, "now")));
  });
  $("charts").replaceChildren(...figures);
}

function chart(values, most, label) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 300 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  for (const y of [2, 50, 98]) {
    const line = document.createElementNS(space, "line");
    for (const [name, value] of Object.entries({ x1: 0, x2: 300, y1: y, y2: y, class: "grid" })) line.setAttribute(name, value);
    svg.append(line);
  }
  values.forEach((points, index) => {
    const path = document.createElementNS(space, "path");
    const step = 300 / Math.max(1, points.length - 1);
    path.setAttribute("d", points.map((value, at) => `${at ? "L" : "M"}${(at * step).toFixed(1)} ${(98 - 96 * value / most).toFixed(1)}`).join(""));
    path.setAttribute("class", `s${index + 1}`);
    svg.append(path);
  });
  return svg;
}

function showLanes(lanes) {
  const columns = [
    ["Lane", (it) => it.lane], ["Load", (it) => percent(it.load), true], ["Answer", (it) => (it.turns ? milliseconds(it.answer_ms) : "none"), true],
    ["Sessions", (it) => (it.sessions === null ? "–" : count(it.sessions)), true], ["In/s", (it) => rate(it.frames_in_rate), true],
    ["Out/s", (it) => rate(it.delivered_rate), true], ["Memory", (it) => (it.memory_bytes === null ? "–" : bytes(it.memory_bytes)), true],
  ];
  table($("lanes"), columns, lanes, "There are no lanes.");
}

function showMemory(memory) {
  const kinds = [["Sessions", memory.sessions], ["Output and partial frames", memory.kept], ["Spare buffers and mail", memory.common], ["Rooms and topics", memory.rooms]];
  const total = Math.max(1, memory.bytes_max);
  $("memory-total").textContent = `${bytes(memory.bytes)} of ${bytes(memory.bytes_max)} (${(100 * memory.bytes / total).toFixed(1)} %)`;
  $("memory-bar").setAttribute("aria-label", $("memory-total").textContent);
  const spans = kinds.map((_, index) => $("memory-bar").children[index] ?? $("memory-bar").appendChild(make("span", { className: `k${index + 1}` })));
  kinds.forEach(([, value], index) => { spans[index].style.width = `${100 * value / total}%`; });
  const pairs = kinds.map(([name, value], index) => [name, bytes(value), "", `k${index + 1}`]);
  pairs.push(["Changes of pressure", count(memory.pressure_changes), memory.pressure_changes > 0 ? "warn" : ""]);
  showPairs($("memory-kinds"), pairs);
}

function showPairs(list, pairs) {
  const next = pairs.flatMap(([name, value, kind, key]) => {
    const dt = make("dt", {}, name);
    if (key) dt.prepend(make("span", { className: `key ${key}` }));
    return [dt, make("dd", { className: kind ?? "" }, value)];
  });
  fill(list, next, (it) => it);
}

function showLosses(it) {
  // A load test that lost nothing ends with many of these, and they look like losses.
  $("no-losses").hidden = !(it.dropped.left > 0 || it.dropped.closed > 0);
  const named = { left: "after the subscriber left", closed: "after the session ended" };
  const lost = Object.entries(it.dropped).map(([reason, value]) => [`Dropped: ${named[reason] ?? words(reason)}`, count(value), value > 0 && reason !== "closed" && reason !== "left" ? "warn" : ""]);
  const some = ([, value]) => value > 0;
  const datagrams = Object.entries(it.datagrams_dropped).filter(some).map(([reason, value]) => [`Datagrams: ${words(reason)}`, count(value), "warn"]);
  const closed = Object.entries(it.closed).filter(some).sort((one, other) => other[1] - one[1]).map(([reason, value]) => [`Closed: ${words(reason)}`, count(value)]);
  showPairs($("losses"), [...lost, ...datagrams, ...closed]);
}

function showIdentity(it) {
  const { identity, certificate, counters } = it;
  const bad = (value) => (value > 0 ? "warn" : "");
  const pairs = [
    ["Let in", count(identity.authenticated)],
    ["Credentials refused", count(identity.auth_refused), bad(identity.auth_refused)],
    ["Messages forbidden", count(identity.forbidden), bad(identity.forbidden)],
    ["Users read again", count(identity.auth_reloads)],
    ["Users that could not be used", count(identity.auth_reloads_refused), bad(identity.auth_reloads_refused)],
    ["Handshakes refused", count(identity.handshakes_refused), bad(identity.handshakes_refused)],
    ["WebSocket origins refused", count(counters.websocket_origins_refused), bad(counters.websocket_origins_refused)],
    ["WebSocket handshakes refused", count(counters.websocket_handshakes_refused), bad(counters.websocket_handshakes_refused)],
    ["WebSocket sessions with bad frames", count(counters.websocket_frames_refused), bad(counters.websocket_frames_refused)],
  ];
  if (certificate === null) {
    pairs.push(["Certificate", "none"]);
  } else {
    const day = new Date(certificate.expires_ms).toISOString().slice(0, 10);
    const left = certificate.days_left;
    pairs.push([left < 0 ? "Certificate has expired" : "Certificate expires", `${day} (${Math.floor(left)} days)`, left < 7 ? "bad" : left < 21 ? "warn" : ""]);
  }
  showPairs($("identity"), pairs);
}

// A server without a backplane has no cluster.
function showCluster(node) {
  $("cluster").hidden = node === null;
  if (node === null) return;
  const state = $("cluster-state");
  state.textContent = node.cut_off ? `Node ${node.id} is cut off from the others` : `Node ${node.id} reaches the others`;
  state.className = node.cut_off ? "error" : "";
  const bad = (value) => (value > 0 ? "warn" : "");
  showPairs($("cluster-pairs"), [
    ["Sent to other nodes", count(node.sent)],
    ["Not sent", count(node.unsent), bad(node.unsent)],
    ["Received", count(node.received)],
    ["Lost on the way", count(node.lost), bad(node.lost)],
    ["Connected again", count(node.reconnects), bad(node.reconnects)],
    ["Requests to other nodes", count(node.requests)],
    ["Of these, not answered", count(node.requests_failed), bad(node.requests_failed)],
    ["Requests of other nodes answered", count(node.served)],
  ]);
  const columns = [
    ["Node", (it) => it.id], ["Answers in", (it) => milliseconds(it.lag_ms), true],
    ["Messages of it", (it) => count(it.received), true], ["Lost", (it) => count(it.lost), true],
  ];
  table($("nodes"), columns, node.peers, "No other node lives.");
}

// ---- tables

// Columns are [title, figure, is a number, key to sort by]. A figure may be an element.
function table(element, columns, rows, none, sort) {
  const head = make("tr", {}, ...columns.map(([title, , isNumber, key]) => {
    const cell = make("th", { scope: "col", className: isNumber ? "number" : "" });
    if (!sort || !key) { cell.append(title); return cell; }
    const button = make("button", { type: "button" }, title);
    button.dataset.sort = key;
    if (sort.by === key) cell.setAttribute("aria-sort", sort.order === "asc" ? "ascending" : "descending");
    cell.append(button);
    return cell;
  }));
  const body = rows.map((row) => make("tr", {}, ...columns.map(([, figure, isNumber]) => {
    const value = figure(row);
    const cell = make("td", { className: isNumber ? "number" : "" }, value);
    if (!(value instanceof Node) && String(value).length > 24) cell.title = value;
    return cell;
  })));
  if (rows.length === 0) body.push(make("tr", {}, make("td", { colSpan: columns.length, className: "empty" }, none)));
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.close : undefined;
  const next = [make("thead", {}, head), make("tbody", {}, ...body)];
  fill(element, next, (it) => it);
  // The session of the button may have ended. Then the focus stays at the table.
  if (focused) ([...element.querySelectorAll("button")].find((it) => it.dataset.close === focused) ?? element.closest(".scroll")).focus();
}

function closeButton(session) {
  const who = session.name ?? session.identity ?? session.peer ?? session.id;
  const button = make("button", { type: "button", className: "quiet", ariaLabel: `Close the session of ${who}` }, "Close");
  button.dataset.close = session.id;
  button.dataset.who = who;
  return button;
}

const none = "–";
const SESSIONS = [
  ["Session", (it) => it.id], ["Peer", (it) => it.peer ?? it.transport, false, "peer"], ["Identity", (it) => it.identity ?? none, false, "identity"],
  ["Name", (it) => it.name ?? none, false, "name"], ["Age", (it) => duration(it.age_seconds), true, "age"], ["Behind", (it) => bytes(it.lag_bytes + it.queued_bytes), true, "lag"],
  ["Messages", (it) => count(it.lag_messages), true], ["Policy", (it) => it.policy ?? none], ["Queued", (it) => bytes(it.queued_bytes), true, "queued"],
  ["Memory", (it) => bytes(it.memory_bytes), true, "memory"], ["Rooms", (it) => it.rooms, true, "rooms"], ["Topics", (it) => it.topics, true, "topics"],
  ["Reading", (it) => (it.paused ? "paused" : "yes")], ["Lane", (it) => it.lane, true], ["", closeButton],
];
const ROOMS = [
  ["Name", (it) => it.name, false, "name"], ["Members", (it) => count(it.members), true, "members"], ["Messages", (it) => count(it.messages), true, "messages"],
  ["Log", (it) => bytes(it.log_bytes), true, "log"], ["Lanes", (it) => it.lanes, true], ["State", (it) => (it.congested ? "holds publishers" : "flows")],
];

function showSlowest(tops) {
  const columns = SESSIONS.filter(([title]) => ["Peer", "Identity", "Name", "Behind", "Messages", "Policy", "Reading", ""].includes(title));
  table($("slowest"), columns, tops.slowest, "Every session has received everything.");
}

// ---- lists

const list = { kind: "sessions", search: "", by: "lag", order: "desc", offset: 0, asked: 0 };

async function loadList() {
  list.asked += 1;
  const asked = list.asked;
  const query = new URLSearchParams({ search: list.search, sort: list.by, order: list.order, offset: list.offset, limit: PAGE });
  let page;
  try {
    page = await ask(`/api/${list.kind}?${query}`);
  } catch (error) {
    $("found").textContent = error.message;
    return;
  }
  // A later request is on its way, and its answer counts.
  if (asked !== list.asked) return;
  const columns = list.kind === "sessions" ? SESSIONS : ROOMS;
  table($("entries"), columns, page.entries, list.search === "" ? `There are no ${list.kind}.` : "Nothing was found.", { by: list.by, order: list.order });
  const found = list.search === "" ? "" : `${whole.format(page.found)} of `;
  $("found").textContent = `${found}${plural(page.total, list.kind)}, as of ${clock(new Date())}`;
  const last = Math.min(page.found, page.offset + page.entries.length);
  $("page").textContent = page.found === 0 ? "" : `${whole.format(page.offset + 1)} to ${whole.format(last)}`;
  const pager = document.activeElement;
  $("previous").disabled = page.offset === 0;
  $("next").disabled = last >= page.found;
  // A button that becomes disabled loses the focus. The focus goes to the entries.
  if (pager.disabled) $("entries").closest(".scroll").focus();
}

function choose(kind) {
  Object.assign(list, { kind, offset: 0, by: kind === "sessions" ? "lag" : "members", order: "desc" });
  for (const tab of $("tabs").children) {
    const isChosen = tab.id === `tab-${kind}`;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
  }
  $("list").setAttribute("aria-labelledby", `tab-${kind}`);
  $("search").placeholder = kind === "sessions" ? "Name, identity, address" : "Name";
  loadList();
}

// ---- actions

let onConfirm;
function confirmThen(title, text, verb, withReason, act) {
  $("confirm-title").textContent = title;
  $("confirm-text").textContent = text;
  $("confirm-go").textContent = verb;
  $("confirm-fields").hidden = !withReason;
  $("reason").value = "";
  $("reconnect").checked = false;
  onConfirm = act;
  $("confirm").returnValue = "cancel";
  $("confirm").showModal();
}

async function perform(path, body, told) {
  try {
    await ask(path, body);
    toast(told);
  } catch (error) {
    toast(`That failed: ${error.message}`);
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button");
  if (!button) return;
  if (button.dataset.close) {
    const { close, who } = button.dataset;
    confirmThen("Close the session?", `The session of ${who} ends when everything that was sent to it is written.`, "Close the session", true, async () => {
      const body = { reason: $("reason").value, reconnect: $("reconnect").checked };
      await perform(`/api/sessions/${encodeURIComponent(close)}/close`, body, `The session of ${who} is being closed.`);
      setTimeout(loadList, 300);
    });
  } else if (button.dataset.sort) {
    const by = button.dataset.sort;
    list.order = list.by === by && list.order === "desc" ? "asc" : "desc";
    list.by = by;
    list.offset = 0;
    loadList().then(() => document.querySelector(`[data-sort="${by}"]`)?.focus());
  }
});

$("confirm").addEventListener("close", () => {
  if ($("confirm").returnValue === "confirm") onConfirm?.();
});
// Enter in the field confirms. Without this, it would press the first button, which cancels.
$("reason").addEventListener("keydown", (event) => {
  if (event.key === "Enter") { event.preventDefault(); $("confirm-go").click(); }
});
$("drain").addEventListener("click", () => confirmThen("Drain the server?", "Every client is told to go away, and the server stops.", "Drain", false,
  () => perform("/api/drain", {}, "The server drains.")));
$("reload").addEventListener("click", () => perform("/api/reload", {}, "Log level, limits, users, tokens and certificates are read again. The log says how it ended."));
$("logout").addEventListener("click", async () => {
  await perform("/api/logout", {}, "Logged out.");
  showLogin();
});
$("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("login-error").textContent = "";
  try {
    await ask("/api/login", { token: $("token").value });
    $("token").value = "";
    $("login").hidden = true;
    $("main").focus();
    begin();
  } catch (error) {
    $("login-error").textContent = error.message;
  }
});
$("search-form").addEventListener("submit", (event) => {
  event.preventDefault();
  list.search = $("search").value.trim();
  list.offset = 0;
  loadList();
});
$("refresh").addEventListener("click", loadList);
$("previous").addEventListener("click", () => { list.offset = Math.max(0, list.offset - PAGE); loadList(); });
$("next").addEventListener("click", () => { list.offset += PAGE; loadList(); });
$("tabs").addEventListener("click", (event) => {
  if (event.target.id.startsWith("tab-")) choose(event.target.id.slice(4));
});
$("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const tabs = [...$("tabs").children];
  const tab = tabs[(tabs.indexOf(event.target) + step + tabs.length) % tabs.length];
  tab.focus();
  choose(tab.id.slice(4));
});

begin();
