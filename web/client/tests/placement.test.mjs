// Rooms and subscriptions that a handler of the server gives a client. The bug: their messages were discarded in silence.
import assert from "node:assert/strict"
import { test } from "node:test"
import WebSocket from "ws"
import { Client } from "../dist/tidewire.js"
import { peer } from "./peer.mjs"
import { until } from "./server.mjs"

const text = (bytes) => new TextDecoder().decode(bytes)
const FEATURES = 1 | 8

/** Puts a client into room 3 and subscription 5, and says something there. */
function place(connection) {
  connection.send("placement", { channel: 3 }, (body) => body.uint(0, 1).word("match.7").word("ann").uint(9, 4).uint(2, 4))
  connection.send("presence", { channel: 3 }, (body) => body.uint(0, 1).uint(8, 4).word("bob"))
  connection.send("deliver", { channel: 3, id: 8 }, (body) => body.put("go"))
  connection.send("placement", { channel: 5 }, (body) => body.uint(1, 1).word("score.*"))
  connection.send("deliver", { channel: 5, flags: 2 }, (body) => body.word("score.red").put("1"))
}

test("a client learns of the rooms and subscriptions that a handler gives it, and hears them", async () => {
  const said = []
  const server = await peer(
    (frame, connection) => {
      if (frame.kind === "request") place(connection)
      if (frame.kind === "say") said.push([frame.channel, text(frame.payload)])
      if (frame.kind === "leave") connection.send("placement", { channel: 5 }, (body) => body.uint(2, 1))
      if (["request", "leave"].includes(frame.kind)) connection.send("reply", { id: frame.id })
    },
    { features: FEATURES },
  )
  const client = await Client.connect(server.url, { WebSocket, reconnect: false })
  await client.request("play")
  const { room } = await until(client, "joined")
  assert.deepEqual([room.name, room.as, room.member], ["match.7", "ann", 9])
  const { subscription } = await until(client, "subscribed")
  assert.equal(subscription.pattern, "score.*")
  const heard = await until(room, "message")
  assert.deepEqual([heard.name, text(heard.payload)], ["bob", "go"])
  assert.deepEqual([...room.members], [[8, "bob"]])
  const score = await until(subscription, "message")
  assert.deepEqual([score.topic, text(score.payload)], ["score.red", "1"])
  assert.equal(client.metrics.messagesReceived, 2)

  room.say("hello")
  await room.leave()
  assert.deepEqual(said, [[3, "hello"]])
  assert.equal((await until(subscription, "removed")).type, "removed")
  assert.equal((await subscription.nextEvent()).type, "ended")
  await client.close()
  server.stop()
})

test("what a handler gave a client ends with the connection, and the handler decides again", async () => {
  const subscribed = []
  const server = await peer(
    (frame, connection, number) => {
      if (frame.kind === "join" || frame.kind === "subscribe") subscribed.push(frame.kind)
      if (frame.kind !== "hello") return false
      connection.welcome()
      place(connection)
      if (number === 1) connection.socket.close()
      return true
    },
    { features: FEATURES },
  )
  const client = await Client.connect(server.url, { WebSocket, reconnect: { first: 10, max: 50 } })
  const first = (await until(client, "joined")).room
  const next = (await until(client, "joined")).room
  await until(first, "interrupted")
  await until(first, "ended")
  assert.notEqual(first, next)
  await until(next, "message")
  assert.deepEqual(subscribed, [], "the client asks for none of them")
  await client.close()
  server.stop()
})
