// Histories: positions, recovery after a reconnect, and what is told when messages are missing.
import assert from "node:assert/strict"
import { test } from "node:test"
import WebSocket from "ws"
import { Client } from "../dist/tidewire.js"
import { later, peer, source } from "./peer.mjs"
import { relay, serve, until } from "./server.mjs"

const text = (bytes) => new TextDecoder().decode(bytes)
const connect = (url, options = {}) => Client.connect(url, { WebSocket, reconnect: { first: 10, max: 50 }, ...options })
const POSITIONED = 4
/** The features of a server with renewal and positions. */
const features = 5
const position = (body, epoch, offset) => body.uint(epoch, 8).uint(offset, 8)
const recovery = (body, epoch, offset, outcome, missing) => position(body, epoch, offset).uint(outcome, 1).uint(missing, 8)

/** The bug: the client did not know positions, and a server with a history refused its `join` and `subscribe`. */
test("a room with a history: a new member gets it, with its authors", async () => {
  const server = await serve("--app", "chat", "--history", ">", "--bind", "ws://127.0.0.1:0/")
  const [ann, bob] = [await connect(server.url), await connect(server.url)]
  const here = await ann.join("lobby", "ann")
  here.say("one")
  here.say("two")
  await here.list()
  await here.leave()
  const there = await bob.join("lobby", "bob")
  const messages = [await until(there, "message"), await until(there, "message")]
  assert.deepEqual(messages.map((it) => [it.name, text(it.payload), it.isPrivate]), [["ann", "one", false], ["ann", "two", false]])
  const offsets = messages.map((it) => it.position.split(":")[1])
  assert.deepEqual(offsets, ["1", "2"])
  // The live ones come behind it. A private message has no position.
  const carol = await connect(server.url)
  const late = await carol.join("lobby", "carol", { last: 1 })
  assert.equal(text((await until(late, "message")).payload), "two")
  late.say("three")
  await late.whisper("bob", "psst")
  const live = [await until(there, "message"), await until(there, "message")].map((it) => [text(it.payload), it.isPrivate, it.position?.split(":")[1]])
  assert.deepEqual(live.sort(), [["psst", true, undefined], ["three", false, "3"]])
  await Promise.all([ann, bob, carol].map((it) => it.close()))
  await server.stop()
})

test("a topic with a history: since a position, the last ones, and a wildcard without positions", async () => {
  const server = await serve("--app", "pubsub", "--history", ">,messages=5", "--bind", "ws://127.0.0.1:0/")
  const client = await connect(server.url)
  for (let number = 1; number <= 8; number++) client.publish("n", String(number))
  await client.flush()
  const take = async (options, count) => {
    const subscription = await client.subscribe("n", options)
    const events = []
    while (events.length < count) events.push(await subscription.nextEvent())
    await subscription.unsubscribe()
    return events.map((it) => (it.type === "message" ? +text(it.payload) : it.missing)).concat(events)
  }
  const [first] = (await take({}, 5)).slice(5)
  assert.deepEqual((await take({}, 5)).slice(0, 5), [4, 5, 6, 7, 8])
  assert.deepEqual((await take({ last: 2 }, 2)).slice(0, 2), [7, 8])
  assert.deepEqual((await take({ since: first.position }, 5)).slice(0, 5), [0, 5, 6, 7, 8])
  const epoch = first.position.split(":")[0]
  assert.deepEqual((await take({ since: `${epoch}:1` }, 6)).slice(0, 6), [2, 4, 5, 6, 7, 8])
  assert.deepEqual((await take({ since: "77:1" }, 6)).slice(0, 6), [null, 4, 5, 6, 7, 8])
  await assert.rejects(client.subscribe("n", { since: "yesterday" }), SyntaxError)
  const all = await client.subscribe(">")
  client.publish("n", "9")
  const live = await all.nextEvent()
  assert.deepEqual([live.topic, text(live.payload), live.position], ["n", "9", undefined])
  await all.unsubscribe()
  client.publish("m", "1")
  await client.flush()
  const gate = await relay(server.url)
  const reader = await connect(gate.url)
  const newest = await reader.subscribe(">", { last: 1 })
  const values = async () => {
    const two = [await until(newest, "message"), await until(newest, "message")]
    return two.map((it) => [it.topic, text(it.payload)])
  }
  assert.deepEqual(await values(), [["m", "1"], ["n", "9"]])
  // After a reconnect they come again, and others may be missing.
  gate.cut()
  assert.equal((await until(newest, "recovered")).missing, null)
  assert.deepEqual(await values(), [["m", "1"], ["n", "9"]])
  await Promise.all([reader, client].map((it) => it.close()))
  gate.stop()
  await server.stop()
})

test("after a reconnect the position is sent, and the outcome comes behind `resumed`", async () => {
  const outcomes = [[1, 0], [2, 3], [2, 2 ** 64]]
  const asked = []
  const server = await peer((frame, connection, number) => {
    if (frame.kind !== "subscribe") return
    asked.push([frame.flags, number === 1 ? 0 : frame.payload.readBigUInt64LE(), number === 1 ? 0 : frame.payload.readBigUInt64LE(8)])
    const [outcome, missing] = outcomes[number - 2] ?? [0, 0]
    connection.send("reply", { channel: 3, id: frame.id, flags: POSITIONED }, (body) => {
      // An epoch that no number holds: 2^53 + 1 in its two halves.
      body.uint(1, 4).uint(1 << 21, 4).uint(10 * number, 8).uint(outcome, 1)
      if (missing === 2 ** 64) body.uint(0xffffffff, 4).uint(0xffffffff, 4)
      else body.uint(missing, 8)
    })
    connection.send("deliver", { channel: 3, flags: POSITIONED }, (body) => body.uint(10 * number + 1, 8).put("x"))
    connection.send("gap", { channel: 3 }, (body) => body.uint(2, 8))
    if (number <= outcomes.length) connection.socket.terminate()
  }, { features })
  const client = await connect(server.url)
  const topic = await client.subscribe("a")
  const epoch = (1n << 53n) + 1n
  for (let number = 1; number <= 4; number++) {
    if (number > 1) {
      assert.equal((await topic.nextEvent()).type, "interrupted")
      assert.equal((await topic.nextEvent()).type, "resumed")
      assert.deepEqual(await topic.nextEvent(), { type: "recovered", missing: [0, 3, null][number - 2] })
    }
    assert.equal((await topic.nextEvent()).position, `${epoch}:${10 * number + 1}`)
    assert.deepEqual(await topic.nextEvent(), { type: "gap", lost: 2 })
  }
  // A gap counts as many offsets.
  assert.deepEqual(asked, [[0, 0, 0], [POSITIONED, epoch, 13n], [POSITIONED, epoch, 23n], [POSITIONED, epoch, 33n]])
  await client.close()
  server.stop()
})

/** A position that counted them would be too far ahead, so that messages would be lost in silence. */
test("a gap of a room counts presences, so the position stays where it was", async () => {
  const asked = later()
  const server = await peer((frame, connection, number) => {
    if (frame.kind !== "join") return
    if (number === 2) asked.fulfil([frame.flags, frame.payload.readBigUInt64LE(), frame.payload.readBigUInt64LE(8)])
    connection.send("reply", { channel: 3, id: frame.id, flags: POSITIONED }, (body) => recovery(body.uint(9, 4).uint(1, 4), 7, 4, 0, 0))
    connection.send("gap", { channel: 3 }, (body) => body.uint(2, 8))
    if (number === 1) connection.socket.terminate()
  }, { features })
  const client = await connect(server.url)
  const room = await client.join("lobby", "ann")
  assert.deepEqual(await room.nextEvent(), { type: "gap", lost: 2 })
  assert.deepEqual(await asked.promise, [POSITIONED, 7n, 4n])
  await client.close()
  server.stop()
})

test("another epoch in the middle of a connection is told, and a corrected offset is not", async () => {
  const server = await peer((frame, connection) => {
    if (frame.kind !== "join") return
    connection.send("reply", { channel: 3, id: frame.id, flags: POSITIONED }, (body) => recovery(body.uint(9, 4).uint(1, 4), 7, 0, 0, 0))
    for (const [epoch, offset] of [[7, 4], [8, 0]]) {
      connection.send("position", { channel: 3 }, (body) => position(body, epoch, offset))
      connection.send("deliver", { channel: 3, id: 2, flags: POSITIONED }, (body) => body.title("bob").uint(offset + 1, 8).put("x"))
    }
  }, { features })
  const client = await connect(server.url)
  const room = await client.join("lobby", "ann")
  assert.equal(room.member, 9)
  const [first, told, second] = [await room.nextEvent(), await room.nextEvent(), await room.nextEvent()]
  assert.deepEqual([first.position, told, second.position], ["7:5", { type: "recovered", missing: null }, "8:1"])
  assert.deepEqual([second.name, text(second.payload)], ["bob", "x"])
  await client.close()
  server.stop()
})

test("a server without positions gets none, and a reply that is too short is malformed", async () => {
  const seen = []
  const server = await peer((frame, connection, number) => {
    if (frame.kind !== "subscribe") return
    seen.push([frame.flags, text(frame.payload.subarray(1))])
    if (text(frame.payload).endsWith("b")) return connection.send("reply", { channel: 4, id: frame.id, flags: POSITIONED }, (body) => body.uint(1, 8))
    connection.send("reply", { channel: 3, id: frame.id })
    if (number === 1) connection.socket.terminate()
  })
  const client = await connect(server.url)
  const topic = await client.subscribe("a", { since: "7:1" })
  await until(topic, "resumed")
  assert.deepEqual(seen, [[0, "a"], [0, "a"]])
  await assert.rejects(client.subscribe("b"), { kind: "malformed_reply" })
  await client.close()
  server.stop()
})

/** Counts the numbers of one room or topic: each comes once and in order, or is told as missing. */
function ledger() {
  const seen = { delivered: 0, missing: 0, last: -1, cuts: 0, isUnknown: false }
  seen.take = (event) => {
    if (event.type === "interrupted") seen.cuts++
    if (event.type === "gap") seen.missing += event.lost
    if (event.type === "recovered" && event.missing === null) seen.isUnknown = true
    if (event.type === "recovered") seen.missing += event.missing ?? 0
    if (event.type !== "message") return
    const number = +text(event.payload)
    assert.ok(number > seen.last, `${number} comes behind ${seen.last}`)
    seen.last = number
    seen.delivered++
    assert.equal(seen.delivered + seen.missing, number + 1, "all before it is delivered, or told as missing")
  }
  return seen
}

/** Sends 10,000 messages, and cuts the connections of the readers again and again. */
async function sendAndCut(offered, send, gate, ledgers) {
  let cuts = 0
  for (let number = 0; number < offered; number++) {
    if (number % 100 === 0) await send.settled()
    send.one(String(number))
    if (number % 500 === 250) {
      // The next cut waits for the connections of the one before.
      while (ledgers.some((it) => it.cuts < cuts || !it.isThere())) await new Promise((resolve) => setTimeout(resolve, 1))
      gate.cut()
      cuts++
    }
  }
  while (ledgers.some((it) => it.last < offered - 1)) await new Promise((resolve) => setTimeout(resolve, 5))
  return cuts
}

for (const messages of [20_000, 50]) {
  test(`10,000 messages, connections cut, a history of ${messages}: each comes once, or is told as missing`, async (t) => {
    const offered = 10_000
    const history = `>,messages=${messages},bytes=10000000`
    const chat = await serve("--app", "chat", "--history", history, "--bind", "ws://127.0.0.1:0/")
    const topics = await serve("--app", "pubsub", "--history", history, "--bind", "ws://127.0.0.1:0/")
    for (const [server, app] of [[chat, "chat"], [topics, "pubsub"]]) {
      const gate = await relay(server.url)
      const [writer, ...readers] = [await connect(server.url), await connect(gate.url), await connect(gate.url)]
      const ledgers = readers.map(ledger)
      for (const [index, seen] of ledgers.entries()) {
        let isThere = true
        seen.isThere = () => isThere
        const onEvent = (event) => {
          if (event.type === "interrupted") isThere = false
          if (event.type === "resumed") isThere = true
          seen.take(event)
        }
        if (app === "chat") await readers[index].join("lobby", `reader${index}`, { onEvent })
        else await readers[index].subscribe("n", { onEvent })
      }
      const room = app === "chat" && (await writer.join("lobby", "writer"))
      const send = room ? { one: (it) => room.say(it), settled: () => room.list() } : { one: (it) => writer.publish("n", it), settled: () => writer.flush() }
      const cuts = await sendAndCut(offered, send, gate, ledgers)
      for (const seen of ledgers) {
        assert.equal(seen.delivered + seen.missing, offered)
        assert.ok(seen.cuts >= cuts - 1 && cuts === 20, `${seen.cuts} of ${cuts}`)
        assert.equal(seen.isUnknown, false)
        t.diagnostic(`${app}: ${seen.cuts} cuts, ${seen.delivered} delivered, ${seen.missing} told as missing`)
        if (messages > offered) assert.equal(seen.missing, 0)
      }
      await Promise.all([writer, ...readers].map((it) => it.close()))
      gate.stop()
    }
    await Promise.all([chat.stop(), topics.stop()])
  })
}

test("a server that restarts has another epoch, and the client is told", async () => {
  const first = await serve("--app", "pubsub", "--history", ">", "--bind", "ws://127.0.0.1:0/")
  const client = await connect(first.url)
  const [topic, all] = [await client.subscribe("a"), await client.subscribe(">")]
  client.publish("a", "before")
  await client.flush()
  await first.kill()
  const second = await serve("--app", "pubsub", "--history", ">", "--bind", `ws://127.0.0.1:${new URL(first.url).port}/`)
  for (const subscription of [topic, all]) {
    await until(subscription, "resumed")
    assert.deepEqual(await subscription.nextEvent(), { type: "recovered", missing: null })
  }
  client.publish("a", "after")
  assert.equal(text((await until(topic, "message")).payload), "after")
  await client.close()
  await second.stop()
})

/** The bug: a queue that is full must not drop the notice that messages are missing. */
test("a queue that drops the outcome of a recovery counts what it said", async () => {
  const { eventQueue } = await source("queue.ts")
  const { report: push, reading: events } = eventQueue({ eventsMax: 1 })
  for (const missing of [0, 5, null]) push({ type: "recovered", missing })
  push({ type: "message" })
  assert.deepEqual(await events.nextEvent(), { type: "lost", count: 6 })
})
