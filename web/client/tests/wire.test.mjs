// The examples of docs/protocol.md, which the Rust codec is tested with, too; and bytes that are no frames.
import assert from "node:assert/strict"
import { readFileSync } from "node:fs"
import { test } from "node:test"
import { KINDS, source } from "./peer.mjs"
import { root } from "./server.mjs"

const { decoder, outbox, readWelcome, writeHello } = await source("wire.ts")

const page = readFileSync(`${root}docs/protocol.md`, "utf8")

function table(header) {
  const lines = page.split("\n")
  const start = lines.indexOf(header)
  assert.notEqual(start, -1, `the page has a table ${header}`)
  const rows = []
  for (let at = start + 2; lines[at].startsWith("|"); at++) rows.push(lines[at].slice(1, -1).split("|").map((cell) => cell.trim()))
  return rows
}

const bytesOf = (cell) => Uint8Array.from(cell.replaceAll("`", "").split(" "), (byte) => parseInt(byte, 16))
const examples = table("| kind | what it says | frame |").map(([kind, says, hex]) => ({ kind, says, bytes: bytesOf(hex) }))
const faults = table("| fault | bytes that suffice |").map(([fault, hex]) => ({ fault, bytes: bytesOf(hex) }))

/** A copy of what a frame says, because the decoder uses one object for all. */
const copy = ({ what: kind, flags, alias: channel, id, title: name }, payload) => ({ kind: KINDS[kind], flags, channel, id, name, payload: [...payload] })

function decode(bytes, cuts) {
  const frames = []
  const push = decoder(65_536, (frame) => frames.push(copy(frame, frame.rest())))
  let start = 0
  for (const cut of [...cuts, bytes.length]) {
    push(bytes.slice(start, cut))
    start = cut
  }
  return frames
}

test("every example of the protocol is decoded, however it is cut, and encoded again", () => {
  assert.ok(examples.length > 30)
  assert.deepEqual(new Set(examples.map((it) => it.kind)), new Set(KINDS.slice(1)), "each kind has an example")
  for (const { kind, says, bytes } of examples) {
    const [frame, ...more] = decode(bytes, [])
    assert.equal(frame.kind, kind, says)
    assert.equal(more.length, 0)
    for (let cut = 1; cut < bytes.length; cut++) assert.deepEqual(decode(bytes, [cut]), [frame], says)
    // Only servers send private messages.
    if (frame.flags & 1) continue
    const out = outbox()
    out.frame(KINDS.indexOf(frame.kind), frame.channel, frame.id, (body) => (frame.name ? body.title(frame.name) : body).put(Uint8Array.from(frame.payload)))
    const encoded = out.take()
    // A position is a part of the payload here.
    encoded[5] |= frame.flags & 4
    assert.deepEqual(encoded, bytes, says)
  }
  const all = Uint8Array.from(examples.flatMap((it) => [...it.bytes]))
  assert.deepEqual(decode(all, []).map((it) => it.kind), examples.map((it) => it.kind))
  assert.deepEqual(decode(all, [...all.keys()].slice(1)), decode(all, []), "byte by byte")
})

test("the hello and the welcome are those of the page", () => {
  const out = outbox()
  out.frame(1, 0, 0, (body) => writeHello(body, 1, "token", "demo/1", 1 << 20))
  const hello = examples.find((it) => it.says.includes('"token" and renewal')).bytes
  assert.deepEqual(out.take(), hello)
  const [plain, renewed] = examples.filter((it) => it.kind === "welcome").map(({ bytes }) => {
    let welcome
    decoder(65_536, (frame) => (welcome = readWelcome(frame)))(bytes)
    return welcome
  })
  assert.deepEqual(plain, [0, 65_536, 10_000, "tidewire/0.1", 0])
  assert.deepEqual(renewed, [1, 65_536, 10_000, "tidewire/0.1", 3_600_000])
})

test("a join or subscription begins behind a position, if the server has them", () => {
  const out = outbox()
  const all = (features) => {
    out.features = features
    out.frame(12, 0, 1, (body) => body.behind(7n, 300).word("lobby").word("ada"))
    out.frame(8, 0, 11, (body) => body.behind(2n ** 64n - 1n, 10).uint(0, 1).put("temp"))
    return out.take()
  }
  const bytes = (...says) => Uint8Array.from(says.flatMap((it) => [...examples.find((example) => example.says.includes(it)).bytes]))
  assert.deepEqual(all(4), bytes('as "ada", since epoch 7', "the newest 10 messages"))
  assert.deepEqual(decode(all(1), []).map((it) => it.flags), [0, 0])
  decoder(65_536, (frame) => assert.deepEqual([frame.epoch(), frame.uint(8)], [8n, 0]))(bytes("follows epoch 8"))
})

test("frames that end a connection are refused as soon as the page says", () => {
  assert.ok(faults.length >= 7)
  for (const { fault, bytes } of faults) {
    assert.throws(() => decode(bytes, []), { message: fault }, fault)
    assert.throws(() => decode(bytes, [...bytes.keys()].slice(1)), { message: fault }, `${fault}, byte by byte`)
    // One byte less is not known to be broken.
    assert.deepEqual(decode(bytes.slice(0, -1), []), [], fault)
  }
})

test("random bytes only end by an error of the codec", () => {
  let seed = 42
  const random = () => (seed = (Math.imul(seed, 1_103_515_245) + 12_345) >>> 0) / 2 ** 32
  let decoded = 0
  for (let round = 0; round < 3_000; round++) {
    const source = Uint8Array.from(examples[Math.floor(random() * examples.length)].bytes)
    const flips = Math.floor(random() * 4)
    for (let flip = 0; flip < flips; flip++) source[Math.floor(random() * source.length)] = Math.floor(random() * 256)
    try {
      const frames = decode(source, random() < 0.5 ? [] : [Math.floor(random() * source.length)])
      decoded += frames.length
      decoder(65_536, (frame) => frame.what === 2 && readWelcome(frame))(source)
    } catch (error) {
      const isText = error.code === "ERR_ENCODING_INVALID_ENCODED_DATA"
      assert.ok(isText || ["too large", "too short", "unknown kind", "broken name", "broken body", "broken welcome"].includes(error.message), String(error))
    }
  }
  assert.ok(decoded > 500, `${decoded}`)
})

test("a frame that is too large or a name that is too long is not appended", () => {
  const out = outbox()
  const isRefused = { kind: "encode" }
  assert.throws(() => out.frame(1, 0, 0, (body) => writeHello(body, 1, "x".repeat(2_048), "a", 1 << 20)), isRefused, "before the handshake")
  out.limit = 64
  out.frame(17)
  assert.throws(() => out.frame(14, 3, 0, (body) => body.put("x".repeat(100))), isRefused)
  assert.throws(() => out.frame(10, 0, 0, (body) => body.title("x".repeat(256))), isRefused)
  assert.equal(out.filled, 8)
  out.frame(14, 3, 0, (body) => body.put("y"))
  assert.deepEqual(decode(out.take(), []).map((it) => [it.kind, it.flags]), [["ping", 0], ["say", 0]])
})

test("a frame in many parts is copied once, and frames that were taken stay as they are", () => {
  const taken = []
  const push = decoder(1 << 20, (frame) => taken.push(frame.rest()))
  const out = outbox()
  out.limit = 1 << 20
  const sizes = [3, 200_000, 1, 70_000, 0, 5]
  for (const [index, size] of sizes.entries()) out.frame(14, 1, 0, (body) => body.put(new Uint8Array(size).fill(index + 1)))
  const bytes = out.take()
  for (let at = 0; at < bytes.length; at += 1_021) push(bytes.slice(at, at + 1_021))
  assert.deepEqual(taken.map((it) => it.length), sizes)
  for (const [index, payload] of taken.entries()) assert.ok(payload.every((byte) => byte === index + 1), `frame ${index}`)
})
