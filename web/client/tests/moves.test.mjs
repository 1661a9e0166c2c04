// The address in a go-away: what a client follows, what it does not, and its way back.
import assert from "node:assert/strict"
import { test } from "node:test"
import WebSocket from "ws"
import { Client } from "../dist/tidewire.js"
import { peer } from "./peer.mjs"
import { serve, until } from "./server.mjs"

const connect = (url, options = {}) => Client.connect(url, { WebSocket, reconnect: { first: 10, max: 50 }, ...options })
const MOVED = 1
const moved = (connection, address) => {
  connection.send("go-away", { flags: MOVED }, (body) => body.uint(1, 2).word(address).put("bye"))
  connection.socket.close()
}

test("a client follows a go-away, and returns to its own server if the other one does not answer", async () => {
  const offered = []
  const home = await peer((frame, connection, number) => {
    if (frame.kind === "hello") offered.push(frame.payload.readUInt32LE(6))
    if (frame.kind === "subscribe") {
      connection.send("reply", { channel: 3, id: frame.id })
      if (number === 1) moved(connection, other.url)
      else connection.send("deliver", { channel: 3 }, (body) => body.put("home again"))
    }
  }, { features: 15 })
  const other = await peer((frame, connection) => {
    if (frame.kind !== "subscribe") return
    connection.send("reply", { channel: 4, id: frame.id })
    connection.send("deliver", { channel: 4 }, (body) => body.put("over there"))
  }, { features: 15 })
  const client = await connect(home.url, { followMoves: true })
  const topic = await client.subscribe("a")
  assert.deepEqual((await until(client, "closed")).reason, { name: "go_away", code: 1, text: "bye" })
  assert.equal(String(Buffer.from((await until(topic, "message")).payload)), "over there")
  other.stop()
  assert.equal(String(Buffer.from((await until(topic, "message")).payload)), "home again")
  // Renewal, moved and positions.
  assert.deepEqual(offered, [15, 15])
  await client.close()
  home.stop()
})

test("a server that drains to another one: rooms and subscriptions go on there", async () => {
  const second = await serve("--app", "pubsub", "--history", ">", "--bind", "ws://127.0.0.1:0/")
  const first = await serve("--app", "pubsub", "--history", ">", "--bind", "ws://127.0.0.1:0/", "--drain-to", second.url)
  const client = await connect(first.url, { followMoves: true })
  const topic = await client.subscribe("a")
  client.publish("a", "before")
  assert.equal(String(Buffer.from((await until(topic, "message")).payload)), "before")
  await first.stop()
  await until(topic, "resumed")
  // The histories of two servers have nothing in common.
  assert.deepEqual(await topic.nextEvent(), { type: "recovered", missing: null })
  client.publish("a", "after")
  assert.equal(String(Buffer.from((await until(topic, "message")).payload)), "after")
  await client.close()
  await second.stop()
})

test("a client that was not told to follow, and an address that is not allowed: it comes back", async () => {
  const other = await peer(() => assert.fail("nobody comes here"))
  const secure = other.url.replace("ws:", "wss:")
  const cases = [
    [other.url, {}, 13],
    [secure, { followMoves: true }, 15],
    [other.url.replace("ws:", "tcp:"), { followMoves: true }, 15],
    ["nowhere", { followMoves: true }, 15],
    ["", { followMoves: true }, 15],
    // Credentials go to no other machine without TLS. The address is of a net for examples.
    ["ws://192.0.2.1:1/", { followMoves: true, credentials: "secret" }, 15],
  ]
  for (const [address, options, features] of cases) {
    const offered = []
    const home = await peer((frame, connection, number) => {
      if (frame.kind !== "hello") return
      offered.push(frame.payload.readUInt32LE(6))
      connection.welcome()
      if (number === 1) moved(connection, address)
      return true
    }, { features })
    const client = await connect(home.url, options)
    await until(client, "opened")
    assert.equal((await until(client, "closed")).reason.text, "bye")
    for (let event; (event = await client.nextEvent()).type !== "opened"; ) assert.match(event.cause ?? "", /shuts down/, address)
    assert.deepEqual(offered, [features, features], address)
    await client.close()
    home.stop()
  }
  other.stop()
})
