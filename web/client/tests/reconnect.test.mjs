// Ends of connections, and servers that do what a test says. Each test of a mend names the bug.
import assert from "node:assert/strict"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { test } from "node:test"
import WebSocket from "ws"
import { Client, ConnectError } from "../dist/tidewire.js"
import { later, peer, source } from "./peer.mjs"
import { serve, token, until } from "./server.mjs"

const text = (bytes) => new TextDecoder().decode(bytes)
const connect = (url, options = {}) => Client.connect(url, { WebSocket, reconnect: { first: 10, max: 50 }, ...options })

/** The bug: the server agreed to a join after the room was left, and kept a member that nobody was. */
test("a room that is left while it is joined again leaves no ghost", async () => {
  const [asked, left] = [later(), later()]
  const server = await peer((frame, connection, number) => {
    if (frame.kind === "join" && number === 1) {
      connection.send("reply", { channel: 3, id: frame.id }, (body) => body.uint(1, 4).uint(1, 4))
      connection.socket.terminate()
    } else if (frame.kind === "join") asked.fulfil(() => connection.send("reply", { channel: 9, id: frame.id }, (body) => body.uint(2, 4).uint(1, 4)))
    else if (frame.kind === "leave") {
      connection.send("reply", { channel: frame.channel, id: frame.id })
      left.fulfil([number, frame.channel])
    }
  })
  const client = await connect(server.url)
  const room = await client.join("lobby", "ann")
  const agree = await asked.promise
  await room.leave()
  assert.deepEqual(await until(room, "ended"), { type: "ended" })
  agree()
  assert.deepEqual(await left.promise, [2, 9])
  await client.close()
  server.stop()
})

test("a join that is given up is taken back when the server agrees", async () => {
  const [asked, left] = [later(), later()]
  const server = await peer((frame, connection) => {
    if (frame.kind === "join") asked.fulfil(() => connection.send("reply", { channel: 4, id: frame.id }, (body) => body.uint(2, 4).uint(1, 4)))
    if (frame.kind === "leave") left.fulfil(frame.channel)
  })
  const client = await connect(server.url)
  const giveUp = new AbortController()
  const joining = client.join("lobby", "ann", { signal: giveUp.signal })
  const agree = await asked.promise
  giveUp.abort()
  await assert.rejects(joining, { name: "AbortError" })
  agree()
  assert.equal(await left.promise, 4)
  await client.close()
  server.stop()
})

test("rooms and subscriptions come back in the order in which they were made, before requests", async () => {
  const seen = later()
  const order = []
  const server = await peer((frame, connection, number) => {
    if (frame.kind === "request" && number === 1) return connection.socket.terminate()
    if (number === 2 && frame.kind !== "hello") order.push(frame.kind === "request" ? "request" : text(frame.payload.subarray(1)))
    if (["subscribe", "join", "request"].includes(frame.kind)) connection.send("reply", { channel: frame.id, id: frame.id }, (body) => body.uint(7, 4).uint(1, 4))
    if (number === 2 && frame.kind === "request") seen.fulfil()
  })
  const client = await connect(server.url)
  const patterns = ["b", "a", "c.>", "a.*"]
  for (const pattern of patterns) await client.subscribe(pattern)
  await (await client.subscribe("gone")).unsubscribe().catch(() => {})
  const room = await client.join("lobby", "ann")
  await client.request("x", { idempotent: true })
  await seen.promise
  assert.deepEqual(order, [...patterns, "lobby\u0003ann", "request"])
  await until(room, "resumed")
  await client.close()
  server.stop()
})

/** The bug: subscriptions beyond the client's own window were refused at a reconnect, and ended. */
test("more subscriptions than the window come back after a restart", async () => {
  const first = await serve("--app", "pubsub", "--bind", "ws://127.0.0.1:0/")
  const client = await connect(first.url, { pendingMax: 3 })
  const subscriptions = []
  for (let index = 0; index < 20; index++) subscriptions.push(await client.subscribe(`topic.${index}`))
  await first.kill()
  const second = await serve("--app", "pubsub", "--bind", `ws://127.0.0.1:${new URL(first.url).port}/`)
  for (const subscription of subscriptions) await until(subscription, "resumed")
  for (let index = 0; index < 20; index++) client.publish(`topic.${index}`, String(index))
  for (const [index, subscription] of subscriptions.entries()) assert.equal(text((await until(subscription, "message")).payload), String(index))
  await client.close()
  await second.stop()
})

test("a reply that comes after its deadline still resumes a subscription", async () => {
  let count = 0
  const asked = later()
  const server = await peer((frame, connection, number) => {
    if (frame.kind !== "subscribe") return
    const agree = () => connection.send("reply", { channel: 5, id: frame.id })
    if (number === 1) {
      agree()
      return connection.socket.terminate()
    }
    // The first attempt of the second connection has no reply in time, and the second is refused: there is one already.
    if (count++ === 0) return asked.fulfil(agree)
    connection.send("error", { id: frame.id }, (body) => body.uint(7, 2))
    asked.promise.then((agree) => agree())
  })
  const client = await connect(server.url, { requestTimeout: 50 })
  const subscription = await client.subscribe("a", { timeout: 60_000 })
  assert.equal((await subscription.nextEvent()).type, "interrupted")
  assert.equal((await subscription.nextEvent()).type, "resumed")
  await client.close()
  server.stop()
})

/** The bug: the error came in a callback of the WebSocket, and ended the program. */
test("a token that is too long says so, and one that is too long later is asked for again", async () => {
  const server = await peer((frame, connection, number) => {
    if (frame.kind === "request" && number === 1) connection.socket.terminate()
  })
  await assert.rejects(connect(server.url, { credentials: "x".repeat(3_000) }), (error) => error instanceof ConnectError && /token of 3000 bytes is longer than 1024/.test(error.message))
  let asked = 0
  const client = await connect(server.url, { credentials: () => (++asked === 2 ? "x".repeat(3_000) : "short") })
  assert.equal((await client.nextEvent()).type, "opened")
  await assert.rejects(client.request("end this connection"), { kind: "closed" })
  assert.match((await until(client, "reconnecting")).cause, /cut/)
  assert.match((await until(client, "reconnecting")).cause, /token of 3000 bytes is longer than 1024/)
  await until(client, "opened")
  assert.equal(asked, 3)
  await client.close()
  server.stop()
})

/** The bug: 2 KiB were the limit of every first frame, and tokens of login servers are longer. */
test("a connection that is encrypted carries a token of 8 KiB, and says so", async () => {
  const { promise: said, fulfil } = later()
  const server = await peer((frame) => {
    if (frame.kind === "hello") fulfil(frame.payload)
  })
  class Encrypted extends WebSocket {
    constructor(url, protocol) {
      super(url.replace("wss:", "ws:"), protocol)
    }
  }
  const url = server.url.replace("ws:", "wss:")
  const token = "x".repeat(8_192)
  const client = await connect(url, { credentials: token, WebSocket: Encrypted })
  const hello = await said
  assert.equal(hello.readUInt32LE(6) & 16, 16, "the feature of long credentials")
  assert.equal(hello.readUInt16LE(14), 8_192)
  assert.ok(hello.includes(token))
  await client.close()
  await assert.rejects(connect(url, { credentials: `${token}x`, WebSocket: Encrypted }), /token of 8193 bytes is longer than 8192/)
  server.stop()
})

test("a token that expired while there was no connection is refused, and a new one is asked for", async () => {
  const directory = mkdtempSync(join(tmpdir(), "tidewire-"))
  const file = join(directory, "tokens")
  const long = token(file, "ann", "--valid-for", "1h")
  const short = token(file, "ann", "--valid-for", "1s")
  const expired = new Promise((resolve) => setTimeout(resolve, 1_100))
  const first = await serve("--app", "pubsub", "--bind", "ws://127.0.0.1:0/", "--auth-tokens", file)
  let asked = 0
  const credentials = async () => {
    if (++asked !== 2) return long
    await expired
    return short
  }
  const client = await connect(first.url, { credentials })
  const topic = await client.subscribe("news")
  await first.kill()
  const second = await serve("--app", "pubsub", "--bind", `ws://127.0.0.1:${new URL(first.url).port}/`, "--auth-tokens", file)
  await until(topic, "resumed")
  assert.equal(asked, 3)
  assert.equal((await client.nextEvent()).type, "opened")
  const causes = []
  for (let event; (event = await client.nextEvent()).type !== "opened"; ) if (event.type === "reconnecting") causes.push(event.cause)
  assert.equal(causes.filter((it) => /credentials/.test(it)).length, 1, causes.join("; "))
  client.publish("news", "again")
  assert.equal(text((await until(topic, "message")).payload), "again")
  await client.close()
  await second.stop()
  rmSync(directory, { recursive: true })
})

test("a renewal that fails is tried again before the token expires", async () => {
  const renewed = later()
  let hellos = 0
  const server = await peer((frame) => {
    if (frame.kind === "hello" && ++hellos === 2) renewed.fulfil(text(frame.payload))
  }, { expiresInMs: 4_000 })
  let asked = 0
  const client = await connect(server.url, {
    credentials: () => {
      if (++asked === 2) throw new Error("the vault is shut")
      return asked === 1 ? "first" : "third"
    },
  })
  assert.match(await renewed.promise, /third/)
  assert.equal(client.metrics.connections, 1)
  await client.close()
  server.stop()
})

test("back pressure: a server that does not read", async () => {
  const offered = []
  const received = []
  const ready = later()
  let accepted
  const server = await peer((frame, connection) => {
    if (frame.kind === "hello") {
      accepted = connection.socket
      connection.welcome()
      accepted.pause()
      ready.fulfil()
      return true
    }
    if (frame.kind === "publish") received.push(text(frame.payload))
    if (frame.kind === "request") connection.send("reply", { id: frame.id })
  })
  const client = await connect(server.url, { bufferedBytesMax: 100_000 })
  await ready.promise
  const filler = "x".repeat(4_000)
  const fill = () => {
    for (;;) {
      const message = `${offered.length} ${filler}`
      client.publish("n", message)
      offered.push(message)
    }
  }
  // The network takes some megabytes first, so the queue is filled until it does not drain by itself.
  for (let before = -1; before !== offered.length; ) {
    before = offered.length
    assert.throws(fill, { kind: "queue_full" })
    assert.ok(client.bufferedAmount > 100_000 && client.bufferedAmount < 110_000, `${client.bufferedAmount}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  assert.equal(received.length, 0)
  const drained = client.drained()
  accepted.resume()
  await drained
  assert.ok(client.bufferedAmount <= 50_000)
  await client.flush()
  assert.deepEqual(received, offered, "what was taken is delivered, in order")
  await client.close()
  server.stop()
})

test("a silent server is pinged, and given up if it does not answer within ten seconds", async (t) => {
  let pings = 0
  let isLively = true
  const server = await peer((frame, connection) => {
    if (frame.kind !== "ping") return
    pings++
    if (isLively) connection.send("pong")
  }, { heartbeatMs: 1_000 })
  // The test is the clock, so that a slow machine is not a silent server.
  t.mock.timers.enable({ apis: ["setTimeout"] })
  const until = async (isSo) => {
    while (!isSo()) await new Promise(setImmediate)
  }
  const client = await connect(server.url, { reconnect: false })
  for (let round = 1; round <= 3; round++) {
    const before = client.metrics.bytesReceived
    t.mock.timers.tick(1_000)
    await until(() => pings === round && client.metrics.bytesReceived > before)
    t.mock.timers.tick(10_000)
    assert.ok(client.isOpen, "it answered")
  }
  isLively = false
  t.mock.timers.tick(1_000)
  await until(() => pings === 4)
  t.mock.timers.tick(9_999)
  assert.ok(client.isOpen, "it may still answer")
  t.mock.timers.tick(1)
  assert.equal((await client.nextEvent()).type, "opened")
  assert.deepEqual((await client.nextEvent()).reason, { name: "idle_timeout", text: "" })
  server.stop()
})

test("after a go-away, answers are still taken, and new work waits for the next connection", async () => {
  const asked = later()
  const server = await peer((frame, connection, number) => {
    if (frame.kind !== "request") return
    const reply = () => connection.send("reply", { id: frame.id }, (body) => body.put(`from ${number}`))
    if (number === 2) return reply()
    connection.send("go-away", {}, (body) => body.uint(1, 2).put("bye"))
    asked.fulfil(reply)
  })
  const client = await connect(server.url)
  const early = client.request("early")
  const reply = await asked.promise
  while (client.isOpen) await new Promise((resolve) => setTimeout(resolve, 1))
  const late = client.request("late", { idempotent: true })
  await assert.rejects(client.request("refused"), { kind: "not_connected" })
  reply()
  assert.equal(text(await early), "from 1")
  assert.equal(text(await late), "from 2")
  assert.deepEqual((await until(client, "closed")).reason, { name: "go_away", code: 1, text: "bye" })
  await client.close()
  server.stop()
})

test("what no server may send ends the connection, and the server hears why", async () => {
  const ends = {
    "a text message came": (connection) => connection.socket.send("hello"),
    "unexpected kind 14": (connection) => connection.send("say", { channel: 1 }),
    "too large": (connection) => connection.socket.send(Uint8Array.of(255, 255, 255, 127)),
    "unknown kind": (connection) => connection.socket.send(Uint8Array.of(4, 0, 0, 0, 99)),
  }
  for (const [why, misbehave] of Object.entries(ends)) {
    const told = later()
    const server = await peer((frame, connection) => {
      if (frame.kind === "request") misbehave(connection)
      if (frame.kind === "go-away") told.fulfil([frame.payload.readUInt16LE(), text(frame.payload.subarray(2))])
    })
    const client = await connect(server.url, { reconnect: false })
    await assert.rejects(client.request("x"), { kind: "closed" })
    assert.deepEqual((await until(client, "closed")).reason, { name: "decode", text: why })
    assert.deepEqual(await told.promise, [why === "too large" ? 5 : 4, why])
    server.stop()
  }
})

/** The bug: texts of errors counted nothing, so a server could fill the memory with them. */
test("a queue counts the texts of errors", async () => {
  const { eventQueue } = await source("queue.ts")
  const { report: push, reading: events } = eventQueue({ eventBytesMax: 10_000 })
  for (let number = 0; number < 100; number++) push({ type: "error", error: new Error("x".repeat(1_000)) })
  const lost = await events.nextEvent()
  assert.equal(lost.type, "lost")
  push({ type: "ended" })
  let left = 0
  for await (const event of events) left += event.type === "error"
  assert.equal(left + lost.count, 100)
  assert.ok(left > 0 && left * 2_000 <= 10_000, `${left}`)
})

test("a queue keeps its order while it is read, and gives each event to one reader", async () => {
  const { eventQueue } = await source("queue.ts")
  const { report: push, reading: events } = eventQueue({ eventsMax: 10 })
  const waiting = [events.nextEvent(), events.nextEvent()]
  const seen = []
  let next = 0
  for (let round = 0; round < 50; round++) {
    for (let count = 0; count < (round % 4) + 1; count++) push({ type: "message", number: next++ })
    if (round % 3 === 1) seen.push(await events.nextEvent())
  }
  push({ type: "ended" })
  push({ type: "message", number: -1 })
  for await (const event of events) seen.push(event)
  assert.deepEqual((await Promise.all(waiting)).map((it) => it.number), [0, 1])
  // Each number is there, or counted as lost in front of the next one.
  let expected = 2
  for (const event of seen) {
    if (event.type === "message") assert.equal(event.number, expected++)
    else expected += event.count
  }
  assert.equal(expected, next)
  assert.ok(seen.some((it) => it.type === "lost"))
  assert.deepEqual(await events.nextEvent(), { type: "ended" })
})

test("each pause before a reconnect is twice the one before, less a random part of up to a half", async () => {
  const server = await peer(() => {})
  const backoff = { first: 1, max: 64 }
  const client = await connect(server.url, { reconnect: backoff })
  server.stop()
  const shares = new Set()
  for (let attempt = 0; attempt < 20; attempt++) {
    const { delay } = await until(client, "reconnecting")
    const share = delay / Math.min(backoff.first * 2 ** attempt, backoff.max)
    assert.ok(share >= 0.5 && share <= 1, `attempt ${attempt}: ${delay} ms`)
    shares.add(share)
  }
  assert.ok(shares.size > 10, `clients come back spread over time: ${[...shares]}`)
  await client.close()
})

/** The bug: `flush ok`, `flush ok`, although ten publications had gone down with the connection before. */
test("a flush on the next connection tells what was lost with the last one, once", async () => {
  const lost = later()
  let taken = 0
  const server = await peer((frame, connection, number) => {
    if (frame.kind === "request") connection.send("reply", { id: frame.id })
    if (frame.kind === "join") connection.send("reply", { channel: 3, id: frame.id }, (body) => body.uint(1, 4).uint(1, 4))
    if (number === 1 && ["publish", "say", "one-way"].includes(frame.kind) && ++taken === 5) {
      connection.socket.terminate()
      lost.fulfil()
    }
  })
  const client = await connect(server.url)
  const room = await client.join("lobby", "ann")
  client.publish("t", "confirmed")
  await client.flush()
  client.publish("t", "1")
  client.publish("t", "2")
  room.say("3")
  client.trySend("4")
  await lost.promise
  await until(room, "resumed")
  await assert.rejects(client.flush(), { kind: "may_be_lost", message: /up to 4 messages may be lost/ })
  await client.flush()
  await client.close()
  server.stop()
})

test("a loss that a pending flush has told is not told again, and no flush is repeated on another connection", async () => {
  const server = await peer((frame, connection, number) => {
    if (frame.kind !== "request") return
    if (number === 1) connection.socket.terminate()
    else connection.send("reply", { id: frame.id })
  })
  const client = await connect(server.url)
  client.publish("t", "1")
  await assert.rejects(client.flush({ idempotent: true }), { kind: "closed" })
  await until(client, "closed")
  await until(client, "opened")
  await client.flush()
  await client.close()
  server.stop()
})

/** The bug: a flush was answered like any other after a publication that was refused. */
test("a flush tells that a message before it was refused", async () => {
  const server = await peer((frame, connection) => {
    if (frame.kind === "publish") connection.send("error", {}, (body) => body.uint(12, 2).put("no"))
    if (frame.kind === "request") connection.send("reply", { id: frame.id })
  })
  const client = await connect(server.url)
  client.publish("secret", "1")
  await assert.rejects(client.flush(), { kind: "refused", code: 12, message: /a message before was refused: no/ })
  await client.flush()
  await client.close()
  server.stop()
})

/** A clock that a test moves. The timers of `node:test` forget some when others are cleared late. */
function clockOf(t) {
  let now = 0
  const timers = new Set()
  t.mock.method(Date, "now", () => now)
  t.mock.method(globalThis, "setTimeout", (then, ms) => {
    const timer = { then, at: now + ms, ref: () => timer, unref: () => timer }
    timers.add(timer)
    return timer
  })
  t.mock.method(globalThis, "clearTimeout", (timer) => timers.delete(timer))
  return {
    /** Time passes, and no timer fires. */
    sleep: (ms) => (now += ms),
    tick(ms) {
      now += ms
      for (const timer of [...timers].filter(({ at }) => at <= now)) if (timers.delete(timer)) timer.then()
    },
  }
}

/** The bug: a dead connection was noticed after 57 s, whatever the browser said meanwhile. */
for (const cause of ["online", "visibilitychange", "timeout", "sleep"]) {
  test(`a connection that fell silent ends soon after this: ${cause}`, async (t) => {
    let pings = 0
    let isDead = false
    const server = await peer((frame, connection) => {
      if (frame.kind === "ping") pings++
      if (frame.kind === "ping" && !isDead) connection.send("pong")
      if (frame.kind === "one-way") connection.send("one-way")
    }, { heartbeatMs: 20_000 })
    const page = new EventTarget()
    const [listen, forget] = ["addEventListener", "removeEventListener"].map((name) => page[name].bind(page))
    Object.assign(globalThis, { addEventListener: listen, removeEventListener: forget, document: Object.assign(page, { hidden: false }) })
    t.after(() => ["addEventListener", "removeEventListener", "document"].forEach((name) => delete globalThis[name]))
    const clock = clockOf(t)
    const turn = async (isSo) => {
      while (!isSo()) await new Promise(setImmediate)
    }
    const client = await connect(server.url, { reconnect: false })
    const doubt = async () => {
      if (cause === "timeout") {
        client.request("x", { timeout: 1_000 }).catch(() => {})
        clock.tick(1_000)
      } else if (cause === "sleep") {
        // A message from before the device slept says nothing. All timers are late when it wakes up.
        const before = client.metrics.bytesReceived
        client.trySend("hello")
        await turn(() => client.metrics.bytesReceived > before)
        clock.sleep(3_600_000)
        clock.tick(20_000)
      } else page.dispatchEvent(new Event(cause))
    }
    await doubt()
    await turn(() => pings === 1)
    const pong = client.metrics.bytesReceived
    await turn(() => client.metrics.bytesReceived > pong)
    clock.tick(10_000)
    assert.ok(client.isOpen, "it answered")
    isDead = true
    await doubt()
    await turn(() => pings === 2)
    clock.tick(9_000)
    assert.ok(client.isOpen, "it may still answer")
    clock.tick(1_000)
    assert.deepEqual((await until(client, "closed")).reason, { name: "idle_timeout", text: "" })
    server.stop()
  })
}
