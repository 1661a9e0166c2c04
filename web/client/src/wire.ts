/**
 * TW1 on the wire: reads and writes frames, without I/O. `docs/protocol.md` of the repository is the specification, and its
 * examples are the tests of this file.
 *
 * Everything that a peer sends is bounded: a frame by the limit of the handshake, before it is waited for, and the buffer of a
 * partial frame grows only with the bytes that came.
 */

/** The kind of a frame: its purpose. */
export const enum Kind {
  Hello = 1,
  Welcome,
  Request,
  Reply,
  Error,
  Cancel,
  OneWay,
  Subscribe,
  Unsubscribe,
  Publish,
  Deliver,
  Join,
  Leave,
  Say,
  Presence,
  Gap,
  Ping,
  Pong,
  GoAway,
}

/** A deliver frame that only this receiver got. */
export const FLAG_PRIVATE = 1
/** The payload begins with the name of a method, a topic or an author. */
export const FLAG_NAMED = 2
/** The feature of the handshake by which credentials are renewed. */
export const FEATURE_RENEWAL = 1

export const FRAME_BYTES_MAX = 1 << 20
const FRAME_BYTES_MIN = 512
const HELLO_BYTES_MAX = 2048
const CREDENTIALS_BYTES_MAX = 1024

/** Bit sets of kinds. */
const ofKinds = (...kinds: Kind[]) => kinds.reduce((set, kind) => set | (1 << kind), 0)
const WITH_ID = ofKinds(
  Kind.Request, Kind.Reply, Kind.Error, Kind.Cancel, Kind.Subscribe, Kind.Unsubscribe, Kind.Deliver, Kind.Join, Kind.Leave,
)
const MAY_BE_NAMED = ofKinds(Kind.Request, Kind.OneWay, Kind.Publish, Kind.Deliver)

/** Bytes to send. Text becomes UTF-8. */
export type Payload = string | Uint8Array | ArrayBuffer

/** Bytes that are no frame, or a frame that cannot be expressed. */
export class WireError extends Error {}

/** One frame that was received. The decoder uses the same object for all frames, and the bytes stay as they are. */
export class Frame {
  kind = 0 as Kind
  flags = 0
  channel = 0
  id = 0
  name = ""
  bytes = EMPTY
  start = 0
  end = 0

  /** The payload behind the name, without a copy. */
  payload(): Uint8Array<ArrayBuffer> {
    return this.bytes.subarray(this.start, this.end)
  }

  body(): Reader {
    return new Reader(this.bytes, this.start, this.end)
  }
}

/** Makes frames of a stream of bytes, however it is cut. */
export class Decoder {
  frameBytesMax: number
  #frame = new Frame()
  #names = new Names()
  /** The beginning of a frame that is not whole. */
  #partial = EMPTY
  #held = 0

  constructor(frameBytesMax: number) {
    this.frameBytesMax = frameBytesMax
  }

  /** Passes each whole frame to `take`. It throws if the bytes are no frames. */
  push(chunk: Uint8Array<ArrayBuffer>, take: (frame: Frame) => void): void {
    let at = this.#held > 0 ? this.#complete(chunk, take) : 0
    if (this.#held > 0) return
    for (;;) {
      const size = this.#size(chunk, at, chunk.length)
      if (!size || at + size > chunk.length) break
      take(this.#read(chunk, at, at + size))
      at += size
    }
    this.#held = chunk.length - at
    if (this.#held > 0) this.#partial = chunk.slice(at)
  }

  /** Adds bytes to the partial frame. Returns how many it used. */
  #complete(chunk: Uint8Array<ArrayBuffer>, take: (frame: Frame) => void): number {
    let at = 0
    for (;;) {
      const size = this.#size(this.#partial, 0, this.#held)
      if (size && this.#held >= size) {
        const whole = this.#partial
        this.#partial = EMPTY
        this.#held = 0
        take(this.#read(whole, 0, size))
        return at
      }
      if (at === chunk.length) return at
      // No frame is shorter than the header of 8 bytes.
      const wanted = size || 8
      const part = chunk.subarray(at, at + wanted - this.#held)
      const needed = this.#held + part.length
      if (this.#partial.length < needed) {
        const grown = new Uint8Array(Math.min(Math.max(needed, 2 * this.#held, 256), this.frameBytesMax))
        grown.set(this.#partial.subarray(0, this.#held))
        this.#partial = grown
      }
      this.#partial.set(part, this.#held)
      this.#held = needed
      at += part.length
    }
  }

  /** The size of the frame at `at`, or 0 if its length is not there. Throws as soon as it is known that the frame is broken. */
  #size(bytes: Uint8Array, at: number, end: number): number {
    if (end - at < 4) return 0
    const length = (bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24)) >>> 0
    if (length + 4 > this.frameBytesMax) throw new WireError("too large")
    if (length < 4) throw new WireError("too short")
    if (end - at > 4) {
      const kind = bytes[at + 4]!
      if (kind < Kind.Hello || kind > Kind.GoAway) throw new WireError("unknown kind")
      if (length < 8 && (WITH_ID >> kind) & 1) throw new WireError("too short")
    }
    return length + 4
  }

  #read(bytes: Uint8Array<ArrayBuffer>, at: number, end: number): Frame {
    const frame = this.#frame
    frame.bytes = bytes
    frame.kind = bytes[at + 4]!
    frame.flags = bytes[at + 5]!
    frame.channel = bytes[at + 6]! | (bytes[at + 7]! << 8)
    frame.end = end
    frame.start = at + 8
    frame.id = 0
    if ((WITH_ID >> frame.kind) & 1) {
      frame.id = (bytes[at + 8]! | (bytes[at + 9]! << 8) | (bytes[at + 10]! << 16) | (bytes[at + 11]! << 24)) >>> 0
      frame.start = at + 12
    }
    frame.name = ""
    const mayBeNamed = (MAY_BE_NAMED >> frame.kind) & 1
    if (frame.kind === Kind.Publish || (mayBeNamed && frame.flags & FLAG_NAMED)) {
      const start = frame.start + 1
      const last = start + (frame.start < end ? bytes[frame.start]! : 0)
      if (last === start || last > end) throw new WireError("broken name")
      frame.name = this.#names.get(bytes, start, last)
      frame.start = last
    }
    return frame
  }
}

/** Names that came before, so that the topic of each message is not decoded again. Their number is bounded. */
class Names {
  #slots: ({ bytes: Uint8Array; text: string } | undefined)[] = new Array(256)

  get(bytes: Uint8Array, start: number, end: number): string {
    let hash = end - start
    for (let at = start; at < end; at++) hash = (Math.imul(hash, 31) + bytes[at]!) | 0
    const slot = (hash ^ (hash >>> 8)) & 255
    const known = this.#slots[slot]
    if (known && known.bytes.length === end - start) {
      let at = 0
      while (at < known.bytes.length && known.bytes[at] === bytes[start + at]) at++
      if (at === known.bytes.length) return known.text
    }
    const text = decodeText(bytes.subarray(start, end), "broken name")
    this.#slots[slot] = { bytes: bytes.slice(start, end), text }
    return text
  }
}

/** Reads the fields of a body. Each method throws if the body is too short. */
export class Reader {
  #at: number
  #bytes: Uint8Array<ArrayBuffer>
  #end: number

  constructor(bytes: Uint8Array<ArrayBuffer>, start: number, end: number) {
    this.#bytes = bytes
    this.#at = start
    this.#end = end
  }

  /** An unsigned integer of up to 6 bytes. */
  uint(bytes: number): number {
    const field = this.take(bytes)
    let value = 0
    for (let index = bytes - 1; index >= 0; index--) value = value * 256 + field[index]!
    return value
  }

  /** An integer of 8 bytes as a number, exact up to 2^53. */
  u64(): number {
    const low = this.uint(4)
    return low + this.uint(4) * 2 ** 32
  }

  take(bytes: number): Uint8Array<ArrayBuffer> {
    if (this.#at + bytes > this.#end) throw new WireError("broken body")
    this.#at += bytes
    return this.#bytes.subarray(this.#at - bytes, this.#at)
  }

  /** A length of one byte, and so many bytes of UTF-8. */
  text(): string {
    return decodeText(this.take(this.uint(1)), "broken body")
  }

  /** The text to the end. */
  lastText(): string {
    return decodeText(this.take(this.#end - this.#at), "broken body")
  }

  isAtEnd(): boolean {
    return this.#at === this.#end
  }

  /** Checks that nothing follows: bodies have one spelling. */
  finish(): void {
    if (!this.isAtEnd()) throw new WireError("broken body")
  }
}

/** Collects frames until they are sent as one message. */
export class Writer {
  #bytes = new Uint8Array(1024)
  length = 0
  frameBytesMax = FRAME_BYTES_MAX

  /** Appends one frame. If it is too large, or a name does not fit, it throws and appends nothing. */
  frame(kind: Kind, channel: number, id: number, body: (out: Writer) => void, flags = 0): void {
    const start = this.length
    try {
      this.uint(0, 4).uint(kind, 1).uint(flags, 1).uint(channel, 2)
      if ((WITH_ID >> kind) & 1) this.uint(id, 4)
      body(this)
      const size = this.length - start
      if (size > this.frameBytesMax) throw new WireError(`a frame of ${size} bytes is longer than ${this.frameBytesMax}`)
      new DataView(this.#bytes.buffer).setUint32(start, size - 4, true)
    } catch (error) {
      this.length = start
      throw error
    }
  }

  uint(value: number, bytes: number): this {
    this.#reserve(bytes)
    for (let index = 0; index < bytes; index++) {
      this.#bytes[this.length++] = value % 256
      value = Math.floor(value / 256)
    }
    return this
  }

  payload(payload: Payload): this {
    if (typeof payload === "string") {
      // Each code unit has at most three bytes.
      this.#reserve(payload.length * 3)
      this.length += encoder.encodeInto(payload, this.#bytes.subarray(this.length)).written
      return this
    }
    const bytes = payload instanceof Uint8Array ? payload : new Uint8Array(payload)
    this.#reserve(bytes.length)
    this.#bytes.set(bytes, this.length)
    this.length += bytes.length
    return this
  }

  /** A length of one byte, and the text. */
  text(text: string): this {
    const at = this.length
    const bytes = this.uint(0, 1).payload(text).length - at - 1
    if (bytes > 255) throw new WireError(`a name of ${bytes} bytes is longer than 255`)
    this.#bytes[at] = bytes
    return this
  }

  /** The collected bytes, which are then forgotten. */
  takeAll(): Uint8Array<ArrayBuffer> {
    const all = this.#bytes.slice(0, this.length)
    this.length = 0
    // The memory of one long frame is not kept.
    if (this.#bytes.length > 1 << 16) this.#bytes = new Uint8Array(1024)
    return all
  }

  #reserve(bytes: number): void {
    const needed = this.length + bytes
    if (needed <= this.#bytes.length) return
    const grown = new Uint8Array(Math.max(needed, 2 * this.#bytes.length))
    grown.set(this.#bytes.subarray(0, this.length))
    this.#bytes = grown
  }
}

/** Writes the first frame of a client. */
export function writeHello(out: Writer, credentials: string, agent: string, frameBytesMax: number): void {
  out.frame(Kind.Hello, 0, 0, (body) => {
    body.uint(0x00315754, 4).uint(1, 2).uint(FEATURE_RENEWAL, 4).uint(frameBytesMax, 4).uint(0, 2)
    const at = body.length
    const bytes = body.payload(credentials).length - at
    if (bytes > CREDENTIALS_BYTES_MAX) throw new WireError("the credentials are longer than 1,024 bytes")
    // The length is known only now.
    body.length = at - 2
    body.uint(bytes, 2).payload(credentials).text(agent)
    if (body.length > HELLO_BYTES_MAX) throw new WireError("the agent is too long")
  })
}

/** The answer of a server to a hello. */
export interface Welcome {
  frameBytesMax: number
  heartbeatMs: number
  /** The number of the session at the server. */
  session: number
  agent: string
  /** The time until the credentials expire; 0 if they do not. */
  expiresInMs: number
}

export function readWelcome(frame: Frame): Welcome {
  const body = frame.body()
  if (body.uint(2) !== 1) throw new WireError("another version of TW1")
  const features = body.uint(4)
  const frameBytesMax = body.uint(4)
  if (frameBytesMax < FRAME_BYTES_MIN) throw new WireError("a frame limit below 512 bytes")
  const heartbeatMs = body.uint(4)
  const session = body.u64()
  const agent = body.text()
  const expiresInMs = features & FEATURE_RENEWAL ? body.u64() : 0
  body.finish()
  return { frameBytesMax, heartbeatMs, session, agent, expiresInMs }
}

function decodeText(bytes: Uint8Array, fault: string): string {
  try {
    return decoder.decode(bytes)
  } catch {
    throw new WireError(fault)
  }
}

const EMPTY = new Uint8Array(0)
const encoder = new TextEncoder()
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true })
