// The client in Chromium, against real servers.
import assert from "node:assert/strict"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { after, before, test } from "node:test"
import { peer } from "../peer.mjs"
import { serve, token } from "../server.mjs"
import { launch, servePage } from "./chromium.mjs"

let browser, pages
before(async () => {
  browser = await launch()
  pages = await servePage()
})
after(async () => {
  await browser.close()
  pages.close()
})

/** A page with the client, whose console errors fail the test. */
async function open(origin = pages.origin) {
  const page = await browser.newPage()
  await page.goto(origin)
  await page.evaluate(async () => {
    globalThis.tidewire = await import("/tidewire.js")
    globalThis.text = (bytes) => new TextDecoder().decode(bytes)
    globalThis.until = async (source, type) => {
      for (;;) {
        const event = await source.nextEvent()
        if (event.type === type) return event
        if (event.type === "ended") throw new Error(`no ${type} came before the end`)
      }
    }
  })
  return page
}

test("a page of a foreign origin is refused, and one that is allowed is not", async () => {
  const closed = await serve("--app", "rpc", "--bind", "ws://127.0.0.1:0/")
  // Pages of this machine may always connect to it, so this page has the name of another one.
  const origin = pages.origin.replace("127.0.0.1", "pages.example")
  const page = await open(origin)
  const connect = (url) => page.evaluate((url) => tidewire.Client.connect(url).then((client) => client.close(), (error) => error.reason.name), url)
  assert.equal(await connect(closed.url), "cut")
  await closed.stop()
  const open_ = await serve("--app", "rpc", "--bind", "ws://127.0.0.1:0/", "--ws-origin", origin)
  assert.equal(await connect(open_.url), undefined)
  await page.close()
  await open_.stop()
})

test("100,000 messages one by one in a tab: all are delivered, in order", async () => {
  // The server waits for slow readers, so it loses nothing.
  const server = await serve("--app", "pubsub", "--slow-subscriber", "block", "--bind", "ws://127.0.0.1:0/", "--ws-origin", "*")
  const page = await open()
  const seen = await page.evaluate(async (url) => {
    const [publisher, reader] = [await tidewire.Client.connect(url), await tidewire.Client.connect(url)]
    const seen = { delivered: 0, lost: 0, last: -1, outOfOrder: 0 }
    const onEvent = (event) => {
      if (event.type === "gap") seen.lost += event.lost
      if (event.type !== "message") return
      const number = +text(event.payload)
      if (number !== seen.last + 1) seen.outOfOrder++
      seen.last = number
      seen.delivered++
    }
    await reader.subscribe("n", { onEvent })
    for (let number = 0; number < 100_000; number++) {
      if (number % 1_000 === 0) await publisher.drained()
      publisher.publish("n", String(number))
    }
    while (seen.last < 99_999) await new Promise((resolve) => setTimeout(resolve, 5))
    await Promise.all([publisher.close(), reader.close()])
    return seen
  }, server.url)
  assert.deepEqual(seen, { delivered: 100_000, lost: 0, last: 99_999, outOfOrder: 0 })
  await page.close()
  await server.stop()
})

test("a tab goes on after its server restarted", async () => {
  const first = await serve("--app", "chat", "--bind", "ws://127.0.0.1:0/", "--ws-origin", "*")
  const page = await open()
  await page.evaluate(async (url) => {
    globalThis.client = await tidewire.Client.connect(url, { reconnect: { first: 20, max: 100 } })
    globalThis.room = await client.join("lobby", "ann")
  }, first.url)
  await first.kill()
  assert.equal(await page.evaluate(async () => (await until(room, "interrupted")).reason.name), "cut")
  const second = await serve("--app", "chat", "--bind", `ws://127.0.0.1:${new URL(first.url).port}/`, "--ws-origin", "*")
  const members = await page.evaluate(async () => {
    await until(room, "resumed")
    const members = await room.list()
    await client.close()
    return members.map((it) => it.name)
  })
  assert.deepEqual(members, ["ann"])
  await page.close()
  await second.stop()
})

test("back pressure in a tab: a server that does not read", async () => {
  let received = 0
  let accepted
  const server = await peer((frame, connection) => {
    if (frame.kind === "hello") {
      accepted = connection.socket
      connection.welcome()
      accepted.pause()
      return true
    }
    if (frame.kind === "publish" && Number(frame.payload.subarray(0, 8)) === received) received++
    if (frame.kind === "request") connection.send("reply", { id: frame.id })
  })
  const page = await open()
  const offered = await page.evaluate(async (url) => {
    globalThis.client = await tidewire.Client.connect(url, { bufferedBytesMax: 100_000 })
    const filler = "x".repeat(4_000)
    let offered = 0
    // The network takes some megabytes first, so the queue is filled until it does not drain by itself.
    for (let before = -1; before !== offered; ) {
      before = offered
      try {
        for (;;) {
          client.publish("n", String(offered).padStart(8, "0") + filler)
          offered++
        }
      } catch (error) {
        if (error.kind !== "queue_full" || client.bufferedAmount <= 100_000) throw error
      }
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
    globalThis.drained = client.drained()
    return offered
  }, server.url)
  assert.equal(received, 0)
  accepted.resume()
  await page.evaluate(() => drained)
  await page.evaluate(() => client.flush())
  assert.equal(received, offered, "everything that was taken is delivered, in order")
  await page.evaluate(() => client.close())
  await page.close()
  server.stop()
})

test("a token that expires is renewed in a tab", async () => {
  const directory = mkdtempSync(join(tmpdir(), "tidewire-"))
  const file = join(directory, "tokens")
  const shorts = ["3s", "15s", "60s"].map((time) => token(file, "ann", "--valid-for", time))
  const long = token(file, "ann", "--valid-for", "1h")
  const server = await serve("--app", "pubsub", "--bind", "ws://127.0.0.1:0/", "--ws-origin", "*", "--auth-tokens", file)
  const page = await open()
  const outcome = await page.evaluate(async ({ url, shorts, long }) => {
    let asked, ann, eve
    // On a busy machine the first token may expire before both have connected.
    for (const short of shorts) {
      asked = 0
      ann = await tidewire.Client.connect(url, { credentials: () => (asked++ ? long : short) }).catch(() => null)
      eve = ann && (await tidewire.Client.connect(url, { credentials: short }).catch(() => null))
      if (eve) break
      await ann?.close()
    }
    const topic = await ann.subscribe("news")
    const { reason } = await until(eve, "closed")
    ann.publish("news", "still here")
    const said = text((await topic.nextEvent()).payload)
    const { connections } = ann.metrics
    await Promise.all([ann.close(), eve.close()])
    return { asked, code: reason.code, said, connections }
  }, { url: server.url, shorts, long })
  assert.deepEqual(outcome, { asked: 2, code: 8, said: "still here", connections: 1 })
  await page.close()
  await server.stop()
  rmSync(directory, { recursive: true })
})
