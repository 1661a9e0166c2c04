// The client against real servers, in Node.
import assert from "node:assert/strict"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { test } from "node:test"
import WebSocket from "ws"
import { Client, ConnectError, ErrorCode, RequestError } from "../dist/tidewire.js"
import { serve, token, until } from "./server.mjs"

const text = (bytes) => new TextDecoder().decode(bytes)
const connect = (url, options = {}) => Client.connect(url, { WebSocket, ...options })
const refused = (kind, code) => (error) => error instanceof RequestError && error.kind === kind && error.code === code

test("requests: reply, refusal, deadline, cancel, and many at once", async () => {
  const server = await serve("--app", "rpc", "--bind", "ws://127.0.0.1:0/rpc")
  const client = await connect(server.url)
  assert.equal(text(await client.request("2 40", { method: "add" })), "42")
  await assert.rejects(client.request("", { method: "nothing" }), refused("refused", ErrorCode.MethodNotFound))
  await assert.rejects(client.request("60000", { method: "sleep", timeout: 20 }), refused("timed_out"))
  const cancel = new AbortController()
  const slow = client.request("60000", { method: "sleep", signal: cancel.signal })
  cancel.abort(new Error("enough"))
  await assert.rejects(slow, /enough/)
  await assert.rejects(client.request("", { method: "echo", signal: AbortSignal.abort() }), { name: "AbortError" })
  await assert.rejects(client.request("x".repeat(1 << 20), { method: "echo" }), refused("encode"))
  const numbers = [...Array(1_000).keys()]
  const replies = await Promise.all(numbers.map((n) => client.request(`${n} 1`, { method: "add" })))
  assert.deepEqual(replies.map((it) => +text(it)), numbers.map((n) => n + 1))
  const large = await client.request("y".repeat(900_000), { method: "echo" })
  assert.equal(large.length, 900_000)
  await client.close()
  await assert.rejects(client.request("1 1", { method: "add" }), refused("shutdown"))
  assert.equal((await client.nextEvent()).type, "opened")
  assert.deepEqual(await client.nextEvent(), { type: "closed", reason: { name: "closed", text: "" } })
  assert.deepEqual(await client.nextEvent(), { type: "ended" })
  assert.deepEqual(await client.nextEvent(), { type: "ended" })
  await server.stop()
})

test("a window that is full refuses, and queues that are full refuse until they have drained", async () => {
  const server = await serve("--app", "rpc", "--bind", "ws://127.0.0.1:0/")
  const client = await connect(server.url, { pendingMax: 3, bufferedBytesMax: 50_000 })
  const sleeping = [1, 2, 3].map(() => client.request("60000", { method: "sleep" }).catch((error) => error))
  await assert.rejects(client.request("1 1", { method: "add" }), refused("window_full"))
  let sent = 0
  assert.throws(() => {
    for (; sent < 1_000; sent++) client.trySend("x".repeat(1_000), "echo")
  }, refused("queue_full"))
  assert.ok(sent >= 49 && sent < 60, `${sent}`)
  await client.drained()
  client.trySend("x", "echo")
  await client.close(4_000, "done")
  for (const error of await Promise.all(sleeping)) assert.ok(refused("closed")(error), String(error))
  await server.stop()
})

test("a connection that cannot be made says why", async () => {
  const server = await serve("--app", "rpc", "--bind", "ws://127.0.0.1:0/rpc")
  await assert.rejects(connect(server.url.replace("/rpc", "/other")), (error) => error instanceof ConnectError && error.reason.name === "cut")
  await server.stop()
  await assert.rejects(connect(server.url), ConnectError)
  await assert.rejects(connect("ftp://127.0.0.1:1/"), ConnectError)
  await assert.rejects(connect("nowhere"), TypeError)
  for (const scheme of ["ws", "http"]) await assert.rejects(connect(`${scheme}://192.0.2.1/`, { credentials: "secret" }), /without encryption/)
  await assert.rejects(connect("ws://127.0.0.1:1/", { credentials: () => Promise.reject(new Error("no vault")) }), /no vault/)
})

test("topics: patterns, gaps of nothing, unsubscribing, and joining twice", async () => {
  const server = await serve("--app", "pubsub", "--bind", "ws://127.0.0.1:0/")
  const client = await connect(server.url)
  const oil = await client.subscribe("price.oil")
  const all = await client.subscribe("price.>", { policy: "conflate_by_topic" })
  await assert.rejects(client.subscribe("price.oil"), refused("refused", ErrorCode.AlreadyJoined))
  await assert.rejects(client.subscribe("a..b"), refused("refused", ErrorCode.NameInvalid))
  await assert.rejects(client.subscribe("x", { policy: "block" }), refused("refused", ErrorCode.Unsupported))
  client.publish("price.oil", "71")
  client.publish("price.gas.eu", "30")
  await client.flush()
  const message = await oil.nextEvent()
  assert.deepEqual([message.topic, text(message.payload)], ["price.oil", "71"])
  assert.deepEqual([(await all.nextEvent()).topic, (await all.nextEvent()).topic], ["price.oil", "price.gas.eu"])
  await oil.unsubscribe()
  assert.deepEqual(await oil.nextEvent(), { type: "ended" })
  const again = await client.subscribe("price.oil", { signal: new AbortController().signal })
  // A subscription that is given up is undone when the server agrees.
  const gaveUp = new AbortController()
  const abandoned = client.subscribe("news", { signal: gaveUp.signal })
  gaveUp.abort()
  await assert.rejects(abandoned, { name: "AbortError" })
  await client.flush()
  await client.flush()
  await client.subscribe("news")
  client.publish("bad..topic", "x")
  assert.equal((await until(client, "error")).error.code, ErrorCode.NameInvalid)
  assert.throws(() => client.publish("", "x"), refused("encode"))
  await client.close()
  assert.deepEqual((await until(again, "ended")).type, "ended")
  await server.stop()
})

test("a queue group: one of its members gets each message", async () => {
  const server = await serve("--app", "pubsub", "--bind", "ws://127.0.0.1:0/")
  const [one, two] = [await connect(server.url), await connect(server.url)]
  const seen = []
  const onEvent = (event) => event.type === "message" && seen.push(`${event.topic} ${text(event.payload)}`)
  for (const client of [one, two]) await client.subscribe("job.a", { group: "workers", onEvent })
  await assert.rejects(one.subscribe("job.a", { group: "workers" }), refused("refused", ErrorCode.AlreadyJoined))
  await assert.rejects(one.subscribe("job.a", { group: "a b" }), refused("refused", ErrorCode.NameInvalid))
  await assert.rejects(one.subscribe("job.a workers"), SyntaxError)
  const jobs = Array.from({ length: 100 }, (_, number) => `job.a ${number}`)
  for (const job of jobs) one.publish("job.a", job.slice(6))
  // Each member gets its messages before the reply.
  await one.flush()
  await two.flush()
  assert.deepEqual(seen.sort(), jobs.sort())
  await Promise.all([one, two].map((it) => it.close()))
  await server.stop()
})

test("rooms: say, whisper, list, presence, leave, and names that are refused", async () => {
  const server = await serve("--app", "chat", "--bind", "ws://127.0.0.1:0/chat")
  const [ann, bob] = [await connect(server.url), await connect(server.url)]
  const here = await ann.join("lobby", "ann")
  await assert.rejects(bob.join("lobby", "ann"), refused("refused", ErrorCode.NameTaken))
  await assert.rejects(bob.join("lobby", "<b>"), refused("refused", ErrorCode.NameInvalid))
  const there = await bob.join("lobby", "bob")
  assert.deepEqual(await until(here, "presence"), { type: "presence", event: "joined", member: there.member, name: "bob" })
  assert.deepEqual(await until(there, "presence"), { type: "presence", event: "here", member: here.member, name: "ann" })
  here.say("hello")
  await here.whisper("bob", "psst")
  await assert.rejects(here.whisper("eve", "?"), refused("refused", ErrorCode.NotFound))
  const said = [await there.nextEvent(), await there.nextEvent()].map((it) => [it.name, text(it.payload), it.isPrivate])
  assert.deepEqual(said.sort(), [["ann", "hello", false], ["ann", "psst", true]])
  assert.deepEqual((await here.list()).map((it) => it.name).sort(), ["ann", "bob"])
  assert.deepEqual([...here.members.values()], ["bob"])
  await there.leave()
  assert.throws(() => there.say("gone"), refused("shutdown"))
  assert.equal((await until(here, "presence")).event, "left")
  assert.equal(here.members.size, 0)
  await Promise.all([ann.close(), bob.close()])
  await server.stop()
})

/** Checks the numbers of a subscription. A loss is told in front of the next message, with its size. */
const counted = () => {
  const seen = { delivered: 0, lost: 0, last: -1 }
  let lostSinceLast = 0
  const take = (event) => {
    if (event.type === "gap") lostSinceLast += event.lost
    if (event.type === "lost") lostSinceLast += event.count
    if (event.type !== "message") return
    const number = parseInt(text(event.payload))
    assert.equal(number, seen.last + 1 + lostSinceLast, "in order, none twice, and each loss told in its place")
    seen.last = number
    seen.delivered++
    seen.lost += lostSinceLast
    lostSinceLast = 0
  }
  return { seen, take }
}

test("100,000 messages one by one: all are delivered, and a reader that does not read is told what it lost", async () => {
  // The server waits for slow readers, so it loses nothing.
  const server = await serve("--app", "pubsub", "--slow-subscriber", "block", "--bind", "ws://127.0.0.1:0/")
  const offered = 100_000
  const [publisher, reader, other] = await Promise.all([1, 2, 3].map(() => connect(server.url)))
  const [all, unread] = [counted(), counted()]
  await reader.subscribe("n", { onEvent: all.take })
  const slow = await other.subscribe("n", { eventsMax: 1_000 })
  for (let number = 0; number < offered; number++) {
    if (number % 1_000 === 0) await publisher.drained()
    publisher.publish("n", String(number))
  }
  while (all.seen.last < offered - 1) await new Promise((resolve) => setTimeout(resolve, 5))
  while (other.metrics.messagesReceived + other.metrics.messagesLost < offered) await new Promise((resolve) => setTimeout(resolve, 5))
  assert.deepEqual(all.seen, { delivered: offered, lost: 0, last: offered - 1 })
  while (unread.seen.last < offered - 1) unread.take(await slow.nextEvent())
  const { delivered, lost } = unread.seen
  assert.equal(delivered + lost, offered)
  assert.ok(delivered > 0 && delivered <= 1_000, `nobody read, so the queue stayed bounded: ${delivered}`)
  assert.deepEqual([other.metrics.messagesReceived, other.metrics.messagesLost], [offered, 0], "the server lost nothing")
  await Promise.all([publisher, reader, other].map((it) => it.close()))
  await server.stop()
})

test("a reader that the server passes over is told of each gap in its place, with its size", async () => {
  const server = await serve("--app", "pubsub", "--slow-subscriber", "drop_oldest", "--lag-messages-max", "100", "--bind", "ws://127.0.0.1:0/")
  let socket
  class Pausable extends WebSocket {
    constructor(...given) {
      super(...given)
      socket = this
    }
  }
  const [publisher, reader] = [await connect(server.url), await connect(server.url, { WebSocket: Pausable })]
  const { seen, take } = counted()
  const subscription = await reader.subscribe("n")
  const filler = "x".repeat(1_000)
  let offered = 0
  // The buffers of the network take an unknown number of messages before the server drops any.
  for (let count = 5_000; seen.lost === 0; count *= 2) {
    socket.pause()
    for (const end = offered + count; offered < end; offered++) {
      if (offered % 500 === 0) await publisher.drained()
      publisher.publish("n", `${offered} ${filler}`)
    }
    await publisher.flush()
    socket.resume()
    while (seen.last < offered - 1) take(await subscription.nextEvent())
  }
  assert.equal(seen.delivered + seen.lost, offered)
  assert.deepEqual([reader.metrics.messagesReceived, reader.metrics.messagesLost], [seen.delivered, seen.lost])
  await Promise.all([publisher.close(), reader.close()])
  await server.stop()
})

test("a server that restarts: subscriptions and rooms go on, idempotent requests are repeated", async () => {
  const first = await serve("--app", "chat", "--bind", "ws://127.0.0.1:0/chat")
  const { port } = new URL(first.url)
  const backoff = { reconnect: { first: 20, max: 100 } }
  const [ann, bob] = [await connect(first.url, backoff), await connect(first.url, backoff)]
  const [here, there] = [await ann.join("lobby", "ann"), await bob.join("lobby", "bob")]
  await first.kill()
  const cut = await until(here, "interrupted")
  assert.equal(cut.reason.name, "cut")
  assert.throws(() => here.say("?"), refused("not_connected"))
  await assert.rejects(ann.request("x"), refused("not_connected"))
  assert.ok((await until(ann, "reconnecting")).delay <= 100)
  const second = await serve("--app", "chat", "--bind", `ws://127.0.0.1:${port}/chat`)
  await Promise.all([until(here, "resumed"), until(there, "resumed")])
  here.say("back")
  assert.equal(text((await until(there, "message")).payload), "back")
  // A server that drains says so, and its clients come back to the next one.
  const drained = second.stop()
  assert.deepEqual((await until(here, "interrupted")).reason.name, "go_away")
  await drained
  const third = await serve("--app", "chat", "--bind", `ws://127.0.0.1:${port}/chat`)
  await until(here, "resumed")
  await Promise.all([ann.close(), bob.close()])
  await third.stop()
})

test("an idempotent request is sent again after a restart", async () => {
  const first = await serve("--app", "rpc", "--bind", "ws://127.0.0.1:0/")
  const { port } = new URL(first.url)
  const client = await connect(first.url, { reconnect: { first: 20, max: 100 } })
  const once = client.request("60000", { method: "sleep" })
  const twice = client.request("20", { method: "sleep", idempotent: true })
  const waiting = once.catch((error) => error)
  await first.kill()
  assert.ok(refused("closed")(await waiting))
  const second = await serve("--app", "rpc", "--bind", `ws://127.0.0.1:${port}/`)
  await twice
  await client.close()
  await second.stop()
})

test("a token that expires is renewed without a new connection, and one that is not renewed ends it", async () => {
  const directory = mkdtempSync(join(tmpdir(), "tidewire-"))
  const file = join(directory, "tokens")
  const shorts = ["3s", "15s", "60s"].map((time) => token(file, "ann", "--valid-for", time))
  const long = token(file, "ann", "--valid-for", "1h")
  const server = await serve("--app", "pubsub", "--bind", "ws://127.0.0.1:0/", "--auth-tokens", file)
  let asked, ann, eve
  // On a busy machine the first token may expire before both have connected.
  for (const short of shorts) {
    asked = 0
    ann = await connect(server.url, { credentials: () => (asked++ === 0 ? short : long) }).catch(() => null)
    eve = ann && (await connect(server.url, { credentials: short }).catch(() => null))
    if (eve) break
    await ann?.close()
  }
  const topic = await ann.subscribe("news")
  const { left } = await until(eve, "credentials_expire")
  assert.ok(left > 0 && left < 60_000, `${left}`)
  const end = await until(eve, "closed")
  assert.deepEqual([end.reason.name, end.reason.code], ["go_away", 8])
  // Now the first token has expired, and Ann's session goes on.
  assert.equal(asked, 2)
  ann.publish("news", "still here")
  assert.equal(text((await topic.nextEvent()).payload), "still here")
  assert.equal(ann.metrics.connections, 1)
  await assert.rejects(connect(server.url, { credentials: "wrong" }), (error) => error.reason.code === 8)
  await Promise.all([ann.close(), eve.close()])
  await server.stop()
  rmSync(directory, { recursive: true })
})
