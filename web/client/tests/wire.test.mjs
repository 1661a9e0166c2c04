// The examples of docs/protocol.md, which the Rust codec is tested with, too; and bytes that are no frames.
import assert from "node:assert/strict"
import { readFileSync } from "node:fs"
import { test } from "node:test"
import { build } from "esbuild"
import { root } from "./server.mjs"

const [{ text }] = (await build({ entryPoints: [`${root}web/client/src/wire.ts`], bundle: true, format: "esm", write: false })).outputFiles
const { Decoder, Writer, WireError, readWelcome, writeHello } = await import(`data:text/javascript,${encodeURIComponent(text)}`)

const page = readFileSync(`${root}docs/protocol.md`, "utf8")
const KINDS = ["", "hello", "welcome", "request", "reply", "error", "cancel", "one-way", "subscribe", "unsubscribe", "publish", "deliver", "join", "leave", "say", "presence", "gap", "ping", "pong", "go-away"]

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
const copy = ({ kind, flags, channel, id, name, ...frame }, payload) => ({ kind: KINDS[kind], flags, channel, id, name, payload: [...payload] })

function decode(bytes, cuts) {
  const decoder = new Decoder(65_536)
  const frames = []
  const take = (frame) => frames.push(copy(frame, frame.payload()))
  let start = 0
  for (const cut of [...cuts, bytes.length]) {
    decoder.push(bytes.slice(start, cut), take)
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
    const out = new Writer()
    out.frame(KINDS.indexOf(frame.kind), frame.channel, frame.id, (body) => (frame.name ? body.text(frame.name) : body).payload(Uint8Array.from(frame.payload)), frame.flags)
    assert.deepEqual(out.takeAll(), bytes, says)
  }
  const all = Uint8Array.from(examples.flatMap((it) => [...it.bytes]))
  assert.deepEqual(decode(all, []).map((it) => it.kind), examples.map((it) => it.kind))
  assert.deepEqual(decode(all, [...all.keys()].slice(1)), decode(all, []), "byte by byte")
})

test("the hello and the welcome are those of the page", () => {
  const out = new Writer()
  writeHello(out, "token", "demo/1", 1 << 20)
  const hello = examples.find((it) => it.says.includes('"token" and renewal')).bytes
  assert.deepEqual(out.takeAll(), hello)
  const [plain, renewed] = examples.filter((it) => it.kind === "welcome").map(({ bytes }) => {
    let welcome
    new Decoder(65_536).push(bytes, (frame) => (welcome = readWelcome(frame)))
    return welcome
  })
  assert.deepEqual(plain, { frameBytesMax: 65_536, heartbeatMs: 10_000, session: 7, agent: "tidewire/0.1", expiresInMs: 0 })
  assert.deepEqual(renewed, { ...plain, expiresInMs: 3_600_000 })
})

test("frames that end a connection are refused as soon as the page says", () => {
  assert.ok(faults.length >= 7)
  for (const { fault, bytes } of faults) {
    assert.throws(() => decode(bytes, []), (error) => error instanceof WireError && error.message === fault, fault)
    assert.throws(() => decode(bytes, [...bytes.keys()].slice(1)), WireError, `${fault}, byte by byte`)
    // One byte less is not known to be broken.
    assert.deepEqual(decode(bytes.slice(0, -1), []), [], fault)
  }
})

test("random bytes never hold more memory than a frame, and only end by a wire error", () => {
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
      new Decoder(65_536).push(source, (frame) => frame.kind === 2 && readWelcome(frame))
    } catch (error) {
      assert.ok(error instanceof WireError, String(error))
    }
  }
  assert.ok(decoded > 500, `${decoded}`)
})

test("a frame that is too large or a name that is too long is not appended", () => {
  const out = new Writer()
  out.frameBytesMax = 64
  out.frame(17, 0, 0, () => {})
  assert.throws(() => out.frame(14, 3, 0, (body) => body.payload("x".repeat(100))), WireError)
  assert.throws(() => out.frame(10, 0, 0, (body) => body.text("x".repeat(256)), 2), WireError)
  assert.throws(() => writeHello(out, "x".repeat(1_025), "a", 1 << 20), WireError)
  assert.equal(out.takeAll().length, 8)
})
