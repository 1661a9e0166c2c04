// The chat page of `tidewire serve --web` in Chromium: two tabs, hostile names, a restart, many messages, and its picture.
import assert from "node:assert/strict"
import { execFileSync } from "node:child_process"
import { mkdirSync, mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { after, before, test } from "node:test"
import WebSocket from "ws"
import { Client } from "../../dist/tidewire.js"
import { binary, relay, serve, token, until } from "../server.mjs"
import { launch } from "./chromium.mjs"
import { assertNamed, assertReadable } from "./looks.mjs"

const HOSTILE = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`

let browser
before(async () => (browser = await launch()))
after(() => browser.close())

const chat = (bind = "ws://127.0.0.1:0", ...more) => serve("--app", "chat", "--bind", bind, "--web", ...more)
const pageOf = (url) => url.replace(/^ws/, "http")

/** Opens the page and enters a room. Whatever the browser reports fails the test at `check`. */
async function enter(context, url, name, room = "lobby") {
  const page = await context.newPage()
  const faults = []
  page.on("pageerror", (error) => faults.push(String(error)))
  page.on("console", (message) => message.type() === "error" && !/WebSocket connection/.test(message.text()) && faults.push(message.text()))
  page.check_ = () => assert.deepEqual(faults, [])
  await page.goto(pageOf(url))
  await page.getByLabel("Name", { exact: true }).fill(name)
  await page.getByLabel("Room", { exact: true }).fill(room)
  await page.getByRole("button", { name: "Enter" }).click()
  return page
}

const say = async (page, words) => {
  await page.getByLabel("Message", { exact: true }).fill(words)
  await page.keyboard.press("Enter")
}

test("two tabs chat, and no name or message becomes HTML", async () => {
  const server = await chat()
  const context = await browser.newContext()
  const ann = await enter(context, server.url, "ann")
  await ann.locator("#list").getByText("You are in lobby as ann.").waitFor()
  // A name of markup is refused by the server, and the refusal is text.
  const refused = await enter(context, server.url, HOSTILE)
  await refused.getByRole("alert").filter({ hasText: "name" }).waitFor()
  const bob = await enter(context, server.url, "bob")
  await ann.locator("#list").getByText("bob joined.").waitFor()
  await say(bob, HOSTILE)
  await ann.locator("#list .what", { hasText: HOSTILE }).waitFor()
  await say(ann, "/msg bob only for you")
  await bob.locator("#list .private .what", { hasText: "only for you" }).waitFor()
  // Coloured blocks do not touch: their round corners would leave notches.
  await say(bob, "mine")
  const mine = bob.locator("#list .mine", { hasText: "mine" })
  await mine.waitFor()
  assert.deepEqual(await mine.evaluate((it) => [it.previousElementSibling.className, it.clientTop, getComputedStyle(it).backgroundClip]), ["private", 3, "padding-box"])
  await say(ann, "/msg eve are you there?")
  await ann.locator("#list .gap", { hasText: "Not sent: no member is called eve." }).waitFor()
  // Words that look like a command are not said to the room.
  await ann.locator("#text").fill("/who")
  await ann.getByRole("button", { name: "Send" }).click()
  await ann.locator("#list .gap", { hasText: "There is no command /who." }).waitFor()
  await say(ann, "see https://example.com/a?b=1. ok")
  const link = bob.locator("#list .what a")
  await link.waitFor()
  assert.deepEqual(await link.evaluate((it) => [it.href, it.textContent, it.rel]), ["https://example.com/a?b=1", "https://example.com/a?b=1", "noopener noreferrer"])
  assert.equal(await bob.locator("#list .what", { hasText: "/who" }).count(), 0)
  // The words that are not sent stay with their room.
  await ann.locator("#text").fill("not sent yet")
  // A second room, with its unread messages.
  await ann.getByLabel("Name of another room").fill("tea")
  await ann.getByRole("button", { name: "Join" }).click()
  await ann.locator("#title", { hasText: "tea" }).waitFor()
  assert.equal(await ann.locator("#text").inputValue(), "")
  await ann.locator("#list").getByText("You are in tea as ann.").waitFor()
  await say(bob, "unread")
  await ann.locator("#rooms .unread", { hasText: "1" }).waitFor()
  await ann.getByRole("button", { name: /lobby/ }).click()
  await ann.locator("#list .what", { hasText: /^unread$/ }).waitFor()
  assert.equal(await ann.locator("#text").inputValue(), "not sent yet")
  await bob.close()
  await ann.locator("#away li", { hasText: "bob, left at" }).waitFor()
  for (const page of [ann, refused]) {
    assert.doesNotMatch(await page.title(), /owned/)
    assert.equal(await page.locator("img").count(), 0)
    page.check_()
  }
  assert.equal(await ann.locator("script").count(), 1)
  await context.close()
  await server.stop()
})

test("a server with users asks for a token, and asks again when it has expired", async () => {
  const directory = mkdtempSync(join(tmpdir(), "tidewire-"))
  const file = join(directory, "tokens")
  // Long enough for a busy machine to enter.
  const short = token(file, "ann", "--valid-for", "10s")
  const server = await chat("ws://127.0.0.1:0", "--auth-tokens", file)
  const context = await browser.newContext()
  const page = await enter(context, server.url, "ann")
  await page.getByRole("alert").filter({ hasText: "credentials" }).waitFor()
  await page.getByLabel("Token").fill(short)
  await page.keyboard.press("Enter")
  await page.locator("#list").getByText("You are in lobby as ann.").waitFor()
  await page.getByRole("alert").filter({ hasText: "credentials" }).waitFor()
  assert.equal(await page.locator("#chat").isVisible(), false)
  page.check_()
  await context.close()
  await server.stop()
  rmSync(directory, { recursive: true })
})

/** The bug: browsers offer `http/1.1` by ALPN, and servers of `wss://` refused it. */
test("a page over https chats over wss", async () => {
  const directory = mkdtempSync(join(tmpdir(), "tidewire-"))
  execFileSync(binary, ["cert", "dev", "--out", directory])
  const server = await chat("wss://127.0.0.1:0/chat", "--tls-cert", join(directory, "server.pem"), "--tls-key", join(directory, "server.key"))
  const context = await browser.newContext({ ignoreHTTPSErrors: true })
  const page = await enter(context, server.url, "ann")
  await page.locator("#list").getByText("You are in lobby as ann.").waitFor()
  page.check_()
  await context.close()
  await server.stop()
  rmSync(directory, { recursive: true })
})

/** A server that does not keep the rule for names: the page must show them as text as well. */
test("a hostile server cannot make the page run its text", async () => {
  const { WebSocketServer } = await import("ws")
  const server = await chat()
  const hostile = new WebSocketServer({ port: 0, host: "127.0.0.1" })
  const text8 = (text) => [Buffer.byteLength(text), ...Buffer.from(text)]
  const frame = (kind, flags, channel, rest) => Buffer.from([...u32(4 + rest.length), kind, flags, channel, 0, ...rest])
  const u32 = (n) => [n & 255, (n >> 8) & 255, (n >> 16) & 255, n >>> 24]
  hostile.on("connection", (socket) => {
    socket.on("message", (data) => {
      if (data[4] === 1) socket.send(frame(2, 0, 0, [1, 0, ...u32(0), ...u32(65536), ...u32(0), ...u32(1), ...u32(0), ...text8(HOSTILE)]))
      if (data[4] !== 12) return
      socket.send(frame(4, 0, 3, [...data.subarray(8, 12), ...u32(1), ...u32(2)]))
      socket.send(frame(15, 0, 3, [1, ...u32(2), ...text8(HOSTILE)]))
      socket.send(frame(11, 0, 3, [...u32(2), ...Buffer.from(HOSTILE)]))
      socket.send(frame(5, 0, 3, [...u32(0), 9, 0, ...Buffer.from(HOSTILE)]))
      // A gap of 7 messages.
      socket.send(frame(16, 0, 3, [...u32(7), ...u32(0)]))
    })
  })
  const context = await browser.newContext()
  const target = `ws://127.0.0.1:${hostile.address().port}/`
  await context.routeWebSocket(/./, (route) => {
    const upstream = new WebSocket(target)
    const early = []
    upstream.on("open", () => early.splice(0).forEach((data) => upstream.send(data)))
    upstream.on("message", (data) => route.send(data))
    route.onMessage((data) => (upstream.readyState === 1 ? upstream.send(data) : early.push(data)))
  })
  const page = await enter(context, server.url, "ann")
  await page.locator("#list .who", { hasText: "<img" }).waitFor()
  await page.locator("#members button", { hasText: "<img" }).waitFor()
  await page.locator("#list .gap", { hasText: "Not said: <img" }).waitFor()
  await page.locator("#list .gap", { hasText: "7 messages are missing here: this page read too slowly." }).waitFor()
  assert.doesNotMatch(await page.title(), /owned/)
  assert.equal(await page.locator("img").count(), 0)
  page.check_()
  await context.close()
  hostile.close()
  hostile.clients.forEach((socket) => socket.terminate())
  await server.stop()
})

test("a tab goes on after its server restarted", async () => {
  const first = await chat()
  const context = await browser.newContext()
  const page = await enter(context, first.url, "ann")
  await page.locator("#list").getByText("You are in lobby as ann.").waitFor()
  await first.kill()
  await page.locator("#state.bad", { hasText: "trying again" }).waitFor()
  await page.locator("#list .gap", { hasText: "The connection ended here. Messages may be missing." }).waitFor()
  await say(page, "lost?")
  await page.locator("#list").getByText(/Not sent: .*no connection/).waitFor()
  const second = await chat(`ws://127.0.0.1:${new URL(first.url).port}`)
  await page.locator("#list").getByText("Connected again.").waitFor()
  const client = await Client.connect(second.url, { WebSocket })
  const room = await client.join("lobby", "bob")
  await say(page, "back")
  for await (const event of room) if (event.type === "message") break
  await client.close()
  page.check_()
  await context.close()
  await second.stop()
})

/** The bug: the page did not know positions, and a server with a history refused it. */
test("a server with a history: a tab shows what was said before, and what it missed, and its own words once", async () => {
  const server = await chat("ws://127.0.0.1:0", "--history", ">,messages=4")
  const client = await Client.connect(server.url, { WebSocket })
  const bob = await client.join("lobby", "bob")
  bob.say("before")
  await bob.list()
  const context = await browser.newContext()
  const gate = await relay(server.url)
  const page = await enter(context, gate.url, "ann")
  await page.locator("#list").getByText("You are in lobby as ann.").waitFor()
  await page.locator("#list .what", { hasText: /^before$/ }).waitFor()
  await say(page, "mine")
  await until(bob, "message")
  const cut = async () => {
    gate.isDown = true
    gate.cut()
    await page.locator("#state.bad").waitFor()
  }
  await cut()
  bob.say("missed")
  await bob.list()
  gate.isDown = false
  await page.locator("#list").getByText("What was said in between follows.").waitFor()
  await page.locator("#list .what", { hasText: /^missed$/ }).waitFor()
  assert.equal(await page.locator("#list .what", { hasText: /^mine$/ }).count(), 1)
  await cut()
  for (let number = 1; number <= 6; number++) bob.say(`later ${number}`)
  await bob.list()
  gate.isDown = false
  await page.locator("#list .gap", { hasText: "2 messages are missing here." }).waitFor()
  await page.locator("#list .what", { hasText: "later 6" }).waitFor()
  assert.equal(await page.locator("#list .what", { hasText: "later" }).count(), 4)
  page.check_()
  await client.close()
  await context.close()
  gate.stop()
  await server.stop()
})

/** The bug: lists of rooms and members were made again whenever somebody came, so that a button lost the focus. */
test("by keyboard: the focus stays while members come and go, and nothing that hides takes it along", async () => {
  const server = await chat()
  const context = await browser.newContext({ viewport: { width: 360, height: 740 } })
  const page = await enter(context, server.url, "mia")
  await page.locator("#list").getByText("You are in lobby as mia.").waitFor()
  const focused = () => page.evaluate(() => document.activeElement.textContent || document.activeElement.id)
  const client = await Client.connect(server.url, { WebSocket })
  const bob = await client.join("lobby", "bob")
  // From the field for messages back to the lists, which are behind a button on a telephone.
  const menu = page.getByRole("button", { name: "Rooms and members" })
  await menu.focus()
  await page.keyboard.press("Enter")
  assert.equal(await menu.getAttribute("aria-expanded"), "true")
  await page.getByRole("button", { name: "bob" }).focus()
  const clients = []
  for (const name of ["ann", "carol", "zoe"]) {
    const other = await Client.connect(server.url, { WebSocket })
    await other.join("lobby", name)
    clients.push(other)
    await page.locator("#members").getByText(name).waitFor()
  }
  await clients[0].close()
  await page.locator("#away").getByText("ann").waitFor()
  assert.equal(await focused(), "bob")
  assert.deepEqual(await page.locator("#members li").allTextContents(), ["bob", "carol", "zoe"])
  await page.keyboard.press("Escape")
  assert.equal(await focused(), "Rooms and members")
  assert.equal(await page.locator("#side").isVisible(), false)
  // A second room, and what is unread there, also when the lists are hidden.
  await page.keyboard.press("Enter")
  await page.getByLabel("Name of another room").fill("tea")
  await page.keyboard.press("Enter")
  await page.locator("#title", { hasText: "tea" }).waitFor()
  bob.say("x".repeat(100_000))
  await page.getByRole("button", { name: "Rooms and members (1 unread)" }).waitFor()
  await page.getByRole("button", { name: /^lobby/ }).focus()
  await page.keyboard.press("Enter")
  await page.locator("#title", { hasText: "lobby" }).waitFor()
  // A message that no page sends is cut.
  await page.locator("#list .what", { hasText: "… (cut: 100000 bytes)" }).waitFor()
  assert.ok((await page.locator("#list .what", { hasText: "cut:" }).textContent()).length < 33_000)
  await page.locator("#view").focus()
  await page.keyboard.press("Home")
  await page.waitForFunction(() => document.querySelector("#view").scrollTop === 0)
  await page.getByRole("button", { name: "Newest messages" }).focus()
  await page.keyboard.press("Enter")
  await page.getByRole("button", { name: "Newest messages" }).waitFor({ state: "hidden" })
  assert.equal(await page.evaluate(() => document.activeElement.id), "view")
  // The bug: an event of scrolling that was on its way undid the button.
  await page.evaluate(() => {
    document.querySelector("#view").scrollTop = 0
    document.querySelector("#newest").click()
  })
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))))
  assert.equal(await page.locator("#newest").isVisible(), false)
  assert.ok(await page.evaluate(() => document.querySelector("#view").scrollTop > 0))
  page.check_()
  await Promise.all([client, ...clients].map((it) => it.close()))
  await context.close()
  await server.stop()
})

/** The parts that a screen reader names and speaks. Each has a role, and each control a name. */
test("a screen reader finds the parts of the page, and hears what is new", async () => {
  const server = await chat()
  const context = await browser.newContext()
  const page = await enter(context, server.url, "mia")
  await page.locator("#list").getByText("You are in lobby as mia.").waitFor()
  for (const [role, name] of [["navigation", "Rooms"], ["main", "Messages"], ["region", "Messages, oldest first"], ["region", "Members"], ["heading", "lobby"]]) {
    await page.getByRole(role, { name, exact: true }).waitFor()
  }
  const client = await Client.connect(server.url, { WebSocket })
  const room = await client.join("lobby", "bob")
  room.say("are you there?")
  await page.getByRole("log").getByText("bob: are you there?").waitFor({ state: "attached" })
  await page.getByRole("status").getByText("connected").waitFor()
  await assertNamed(page)
  assert.equal(await page.locator('#list > [aria-posinset="1"]').getAttribute("aria-setsize"), String(await page.locator("#list > li").count()))
  await client.close()
  await context.close()
  await server.stop()
})

/** The first line that is visible. */
const topLine = () => {
  const top = document.querySelector("#view").getBoundingClientRect().top
  return [...document.querySelectorAll("#list > li")].find((it) => it.getBoundingClientRect().bottom > top + 1).querySelector(".what").textContent
}

/** The bug: a drawing of new messages undid what the user had scrolled before the page was told of it. */
test("by keyboard, wheel and finger: who scrolls up stays there while messages come", async () => {
  const server = await chat()
  const context = await browser.newContext({ viewport: { width: 900, height: 600 }, hasTouch: true })
  const page = await enter(context, server.url, "ann")
  await page.locator("#list").getByText("You are in lobby as ann.").waitFor()
  const client = await Client.connect(server.url, { WebSocket })
  const room = await client.join("lobby", "bob")
  let count = 0
  const speak = () => room.say(`message ${count++} ${"with some words ".repeat(count % 20)}`)
  while (count < 500) speak()
  const timer = setInterval(speak, 5)
  const newest = page.getByRole("button", { name: "Newest messages" })
  const cdp = await context.newCDPSession(page)
  // The finger rests before it leaves the screen, so that the view does not move on by itself.
  const drag = async (distance) => {
    let timestamp = Date.now() / 1000
    const touch = (type, ...touchPoints) => cdp.send("Input.dispatchTouchEvent", { type, touchPoints, timestamp })
    await touch("touchStart", { x: 400, y: 200 })
    for (let y = 10; y <= distance; y += 10) {
      timestamp += 0.016
      await touch("touchMove", { x: 400, y: 200 + y })
    }
    timestamp += 1
    await touch("touchEnd")
  }
  await page.mouse.move(400, 200)
  await page.locator("#view").focus()
  const ways = [
    () => page.keyboard.press("ArrowUp"),
    () => page.keyboard.press("PageUp"),
    () => page.mouse.wheel(0, -50),
    () => drag(150),
    () => page.keyboard.press("Home"),
  ]
  // On a busy machine a message may come between a gesture and its first frame, and undo it. The bug undid nearly all.
  const isSeen = () => newest.waitFor({ timeout: 3_000 }).then(() => true, () => false)
  for (const scrollUp of ways) {
    let tries = 0
    do assert.ok(tries++ < 3, `three times in vain: ${scrollUp}`)
    while (await scrollUp().then(isSeen) === false)
    await page.keyboard.press("End")
    await newest.waitFor({ state: "hidden" })
  }
  // And the lines stay where they are, also when another room is shown meanwhile, and when the width changes.
  await page.keyboard.press("PageUp")
  await newest.waitFor()
  const more = () => page.waitForFunction((past) => [...document.querySelectorAll("#list > li")].some((it) => Number(it.getAttribute("aria-setsize")) > past), count + 50)
  // A key may scroll for some frames.
  await more()
  const line = await page.evaluate(topLine)
  await more()
  assert.equal(await page.evaluate(topLine), line)
  await page.getByLabel("Name of another room").fill("tea")
  await page.keyboard.press("Enter")
  await page.locator("#title", { hasText: "tea" }).waitFor()
  await page.getByRole("button", { name: /^lobby/ }).click()
  await newest.waitFor()
  assert.equal(await page.evaluate(topLine), line)
  await page.setViewportSize({ width: 600, height: 600 })
  await more()
  await page.setViewportSize({ width: 900, height: 600 })
  await more()
  assert.equal(await page.evaluate(topLine), line)
  clearInterval(timer)
  page.check_()
  await client.close()
  await context.close()
  await server.stop()
})

/** Frames that took longer than 50 ms are reported, and not asserted: the machine may be busy. */
test("10,000 messages, and the page still answers", async (t) => {
  const server = await chat("ws://127.0.0.1:0", "--slow-subscriber", "drop_oldest")
  const context = await browser.newContext()
  const page = await enter(context, server.url, "ann")
  await page.locator("#list").getByText("You are in lobby as ann.").waitFor()
  await page.evaluate(() => {
    globalThis.frames = []
    let last = performance.now()
    const tick = (now) => {
      frames.push(now - last)
      last = now
      requestAnimationFrame(tick)
    }
    requestAnimationFrame(tick)
  })
  const client = await Client.connect(server.url, { WebSocket })
  const room = await client.join("lobby", "bob")
  const talk = async (from, to) => {
    for (let number = from; number < to; number++) {
      if (number % 500 === 0) await client.drained()
      room.say(`message ${number} ${"with some words ".repeat(number % 5)}`)
    }
  }
  await talk(0, 10_000)
  await page.locator("#list .what", { hasText: /^message 9999 / }).waitFor()
  const during = await page.evaluate(() => frames.splice(0))
  assert.ok((await page.locator("#list > li").count()) < 400, "only what is near the visible part is in the document")
  // To the beginning and back, by keyboard.
  await page.locator("#view").focus()
  await page.keyboard.press("Home")
  await page.locator("#list .what", { hasText: /^message 0 / }).waitFor()
  await page.getByRole("button", { name: "Newest messages" }).click()
  await page.locator("#list .what", { hasText: /^message 9999 / }).waitFor()
  await say(page, "answered")
  await page.locator("#list .mine", { hasText: "answered" }).waitFor()
  // The bug: when the page forgot its oldest lines, those that were visible moved away.
  await page.evaluate(() => (view.scrollTop = view.scrollHeight * 0.7))
  await page.getByRole("button", { name: "Newest messages" }).waitFor()
  const visible = await page.evaluate(topLine)
  await talk(10_000, 20_200)
  await page.waitForFunction(() => Number(document.querySelector("#list > li").getAttribute("aria-setsize")) > 20_200)
  assert.equal(await page.evaluate(topLine), visible)
  const after = await page.evaluate(() => frames.splice(0))
  const long = (all) => `${all.filter((it) => it > 50).length} of ${all.length} frames over 50 ms, longest ${Math.round(Math.max(...all))} ms`
  t.diagnostic(`while 10,000 messages came: ${long(during)}`)
  t.diagnostic(`while scrolling through them: ${long(after)}`)
  page.check_()
  await client.close()
  await context.close()
  await server.stop()
})

test("at all sizes, light and dark, nothing is cut off and all texts can be read; and pictures of it", async () => {
  const server = await chat()
  const bots = []
  for (const name of ["bob", "carol", "Дмитрий", "Zoë"]) {
    const client = await Client.connect(server.url, { WebSocket })
    bots.push([client, await client.join("lobby", name)])
  }
  const out = process.env.TIDEWIRE_PICTURES
  if (out) mkdirSync(out, { recursive: true })
  for (const colorScheme of ["light", "dark"]) {
    for (const [width, height] of [[360, 740], [390, 844], [1000, 540], [1280, 800], [1920, 1080], [3840, 2160]]) {
      const context = await browser.newContext({ colorScheme, viewport: { width, height }, locale: "en-GB" })
      const page = await context.newPage()
      await page.goto(pageOf(server.url))
      // The texts of a refusal, and of the part that opens for a token.
      await page.evaluate(() => {
        document.querySelector("#refusal").textContent = "this name is in use. Try another name."
        document.querySelector("details").open = true
      })
      await assertReadable(page, colorScheme)
      await page.reload()
      if (out) await page.screenshot({ path: `${out}/enter-${width}-${colorScheme}.png` })
      await page.getByLabel("Name", { exact: true }).fill("ann")
      await page.getByRole("button", { name: "Enter" }).click()
      await page.locator("#list").getByText("You are in lobby as ann.").waitFor()
      bots[0][1].say("Is the new build on the test machine?")
      bots[1][1].say("Since noon. Fan-out to 500 over WebSocket looks good, and nothing was lost.")
      await page.locator("#list .what", { hasText: "Since noon" }).waitFor()
      await say(page, "Then I try it from a browser now.")
      await bots[2][1].whisper("ann", "The numbers are on the wiki.")
      bots[3][1].say("Спасибо! Grüße aus dem Büro.")
      const far = await bots[0][0].join("tea", "bob")
      await far.leave()
      await page.locator("#list .what", { hasText: "Grüße" }).waitFor()
      if (out) await page.screenshot({ path: `${out}/chat-${width}-${colorScheme}.png` })
      // Warnings and errors have colours of their own.
      await say(page, "/msg eve are you there?")
      await page.locator("#list .gap", { hasText: "Not sent" }).waitFor()
      await page.evaluate(() => document.querySelector("#state").classList.add("bad"))
      await assertReadable(page, colorScheme)
      if (width === 390) {
        await page.getByRole("button", { name: "Rooms and members" }).click()
        await page.getByRole("button", { name: "carol" }).waitFor()
        if (out) await page.screenshot({ path: `${out}/side-${width}-${colorScheme}.png` })
      }
      await context.close()
    }
  }
  await Promise.all(bots.map(([client]) => client.close()))
  await server.stop()
})
