// A server that does what a test says, frame by frame, and the codec to write it with.
import { once } from "node:events"
import { build } from "esbuild"
import { WebSocketServer } from "ws"
import { root } from "./server.mjs"

/** Loads a source file of the client, whose parts the built module does not show. */
export async function source(name) {
  const [{ text }] = (await build({ entryPoints: [`${root}web/client/src/${name}`], bundle: true, format: "esm", write: false })).outputFiles
  return import(`data:text/javascript,${encodeURIComponent(text)}`)
}

const { decoder, outbox } = await source("wire.ts")
export const KINDS = ["", "hello", "welcome", "request", "reply", "error", "cancel", "one-way", "subscribe", "unsubscribe", "publish", "deliver", "join", "leave", "say", "presence", "gap", "ping", "pong", "go-away", "position", "placement"]

/** A promise that a test fulfils. */
export function later() {
  let fulfil
  const promise = new Promise((resolve) => (fulfil = resolve))
  return { promise, fulfil }
}

/**
 * Starts a server. It calls `take(frame, connection, number)` for each frame; `number` counts connections from 1. A hello has a welcome
 * already, if `take` does not return true.
 */
export async function peer(take, { features = 1, heartbeatMs = 0, expiresInMs = 0 } = {}) {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" })
  await once(server, "listening")
  let connections = 0
  server.on("connection", (socket) => {
    const number = ++connections
    const connection = {
      socket,
      send(kind, { channel = 0, id = 0, flags = 0 } = {}, body) {
        const out = outbox()
        out.limit = 1 << 20
        out.frame(KINDS.indexOf(kind), channel, id, body)
        const bytes = out.take()
        bytes[5] |= flags
        socket.send(bytes)
      },
      welcome: () => connection.send("welcome", {}, (body) => body.uint(1, 2).uint(features, 4).uint(1 << 20, 4).uint(heartbeatMs, 4).uint(number, 8).word("test").uint(expiresInMs, 8)),
    }
    const decode = decoder(1 << 20, ({ what: kind, flags, alias: channel, id, title: name, rest }) => {
      const frame = { kind: KINDS[kind], flags, channel, id, name, payload: Buffer.from(rest()) }
      if (!take(frame, connection, number) && frame.kind === "hello") connection.welcome()
    })
    socket.on("message", (data) => decode(new Uint8Array(data)))
  })
  return {
    url: `ws://127.0.0.1:${server.address().port}/`,
    stop() {
      for (const socket of server.clients) socket.terminate()
      server.close()
    },
  }
}
