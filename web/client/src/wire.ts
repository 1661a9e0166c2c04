/**
 * TW1 on the wire: reads and writes frames, without I/O. `docs/protocol.md` of the repository is the specification, and its
 * examples are the tests of this file.
 *
 * Everything that a peer sends is bounded: a frame above the limit of the handshake is refused as soon as its length is known.
 */

import { refuse } from "./errors.js"

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
  Position,
  Placement,
}

export const enum Flag {
  /** A deliver frame that only this receiver got. */
  Private = 1,
  /** The payload begins with the name of a method, a topic or an author. */
  Named = 2,
  /** A go-away with the address of another server. */
  Moved = 1,
  /** A position or an offset is in the frame. */
  Positioned = 4,
}

/** Sets of kinds: bit k is kind k. */
export const enum Kinds {
  WithId = (1 << Kind.Request) | (1 << Kind.Reply) | (1 << Kind.Error) | (1 << Kind.Cancel) | (1 << Kind.Subscribe) |
    (1 << Kind.Unsubscribe) | (1 << Kind.Deliver) | (1 << Kind.Join) | (1 << Kind.Leave),
  MayBeNamed = (1 << Kind.Request) | (1 << Kind.OneWay) | (1 << Kind.Publish) | (1 << Kind.Deliver),
  /** Kinds of frames that may answer the hello. */
  BeforeWelcome = (1 << Kind.Welcome) | (1 << Kind.Error) | (1 << Kind.GoAway),
  /** Kinds of frames that a server may send later. */
  AfterWelcome = BeforeWelcome | (1 << Kind.Request) | (1 << Kind.Reply) | (1 << Kind.Cancel) | (1 << Kind.OneWay) |
    (1 << Kind.Deliver) | (1 << Kind.Presence) | (1 << Kind.Gap) | (1 << Kind.Ping) | (1 << Kind.Pong) |
    (1 << Kind.Position) | (1 << Kind.Placement),
}

/** Bytes to send. Text becomes UTF-8. */
export type Payload = string | Uint8Array | ArrayBuffer

type Bytes = Uint8Array<ArrayBuffer>

/** One frame that was received. The methods read the fields of its body, one after the other, and throw if it is too short. */
export interface Frame {
  what: Kind
  flags: number
  alias: number
  id: number
  title: string
  /** An unsigned integer of this many bytes. It is exact up to 2^53. */
  uint(size: number): number
  /** The epoch of a position. */
  epoch(): bigint
  /** A length of one byte, and so many bytes of UTF-8. */
  word(): string
  /** The text to the end. */
  lastText(): string
  /** The bytes that are not read yet, without a copy. */
  rest(): Bytes
}

/** Throws an error: the received bytes are no valid frames. @internal */
export function broken(why: string): never {
  throw Error(why)
}

const bytesFor = (size: number) => new Uint8Array(size)

/**
 * Returns a function that makes frames of a stream of bytes, however it is cut, and passes each to `take`. It throws if the bytes
 * are no frames. All frames are the same object, and their bytes stay as they are.
 */
export function decoder(frameBytesMax: number, take: (frame: Frame) => void): (chunk: Bytes) => void {
  /** The bytes to read: the held part of a cut frame, then the new message. */
  let bytes: Bytes
  /** The beginning of the present frame, the next byte to read, and its end. */
  let start = 0
  let at = 0
  let end = 0
  /** The beginning of a frame that is cut, and how many bytes of it are there. */
  let partial: Bytes
  let held = 0

  const bytesOf = (size: number) => {
    at += size
    if (at > end) broken("broken body")
    return bytes.subarray(at - size, at)
  }
  const uint = (size: number) => bytesOf(size).reduceRight((value, byte) => value * 256 + byte, 0)
  const frame: Frame = {
    what: 0 as Kind,
    flags: 0,
    alias: 0,
    id: 0,
    title: "",
    uint,
    epoch: () => BigInt(uint(4)) + (BigInt(uint(4)) << 32n),
    word: () => decoded(bytesOf(uint(1))),
    lastText: () => decoded(bytesOf(end - at)),
    rest: () => bytes.subarray(at, end),
  }
  const u32 = (at: number) => (bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24)) >>> 0

  /** Reads the frame at `start` if it is whole. Throws as soon as it is known that it is broken. */
  const read = () => {
    const there = bytes.length - start
    if (there < 4) return false
    const size = u32(start) + 4
    end = start + size
    if (size > frameBytesMax) broken("too large")
    // Beyond the received bytes this is undefined: both comparisons are false, and there is no id.
    const kind = bytes[start + 4]!
    if (kind < Kind.Hello || kind > Kind.Placement) broken("unknown kind")
    const hasId = (Kinds.WithId >> kind) & 1
    at = start + 8 + hasId * 4
    if (at > end) broken("too short")
    if (there < size) return false
    frame.what = kind
    frame.flags = bytes[start + 5]!
    frame.alias = bytes[start + 6]! | (bytes[start + 7]! << 8)
    frame.id = hasId && u32(start + 8)
    frame.title = ""
    if (kind === Kind.Publish || (frame.flags & Flag.Named && (Kinds.MayBeNamed >> kind) & 1)) {
      const first = at + 1
      at = first + (at < end ? bytes[at]! : 0)
      if (at === first || at > end) broken("broken name")
      frame.title = nameOf(bytes.subarray(first, at))
    }
    return true
  }

  return (chunk) => {
    bytes = chunk
    if (held) {
      const needed = held + chunk.length
      if (needed > partial.length) {
        // The buffer has room for the whole frame, so that its bytes are copied once.
        const grown = bytesFor(Math.max(needed, end))
        grown.set(partial.subarray(0, held))
        partial = grown
      }
      partial.set(chunk, held)
      bytes = partial.subarray(0, needed)
    }
    for (start = 0; read(); start = end) take(frame)
    // The rest is copied only when more of it comes, into a new buffer: frames that were taken keep their bytes.
    if (start || !held) partial = bytes.subarray(start)
    held = bytes.length - start
    end -= start
  }
}

/** A cache of decoded names, by their last bytes, so that the topic of each message is not decoded again. */
const names: [bytes: Bytes, name: string][] = []

function nameOf(bytes: Bytes): string {
  let at = bytes.length
  const slot = (at + bytes[at - 1]! + 16 * bytes[at - 2]!) & 255
  const known = names[slot]?.[0]
  if (known?.length === at) while (at && bytes[at - 1] === known[at - 1]) at--
  // The cached name differs.
  if (at) names[slot] = [bytes.slice(), decoded(bytes)]
  return names[slot]![1]
}

/** Writes the fields of a body, one after the other. */
export interface Writer {
  /** An unsigned integer of this many bytes. */
  uint(value: number, size: number): Writer
  /** A length of one byte, and the text. */
  word(text: string): Writer
  /** The name of a method or topic, and the flag that there is one. */
  title(name: string): Writer
  /** The position that a join or subscription begins behind, and the flag that there is one. A server without positions gets none. */
  behind(epoch: bigint, offset: number): Writer
  put(payload: Payload): Writer
}

/** Writes the body of a frame. */
export type Body = (out: Writer) => void

/** Collects frames until they are sent as one message. */
export function outbox() {
  let bytes = bytesFor(1024)
  /** The end of the last whole frame, and that of the present one. */
  let length = 0
  let at = 0

  const reserve = (size: number) => {
    if (at + size <= bytes.length) return
    const grown = bytesFor(2 * (at + size))
    grown.set(bytes)
    bytes = grown
  }
  const out: Writer = {
    uint(value, size) {
      reserve(size)
      // An element of the array keeps only the lowest byte of an integer, without a fraction.
      for (; size--; value /= 256) bytes[at++] = value
      return out
    },
    word(text) {
      const start = at
      const size = out.uint(0, 1).put(text) && at - start - 1
      check("name", size, 255)
      bytes[start] = size
      return out
    },
    title(name) {
      bytes[length + 5] = Flag.Named
      return out.word(name)
    },
    behind(epoch, offset) {
      if (!(self.features & Feature.Positions)) return out
      bytes[length + 5] = Flag.Positioned
      return out.uint(Number(epoch & 0xffffffffn), 4).uint(Number(epoch >> 32n), 4).uint(offset, 8)
    },
    put(payload) {
      if (typeof payload === "string") {
        // Each code unit has at most three bytes.
        reserve(payload.length * 3)
        at += encoder.encodeInto(payload, bytes.subarray(at)).written
      } else {
        const part = payload instanceof Uint8Array ? payload : new Uint8Array(payload)
        reserve(part.length)
        bytes.set(part, at)
        at += part.length
      }
      return out
    },
  }

  const self = {
    /** The limit of the first frame, until the handshake agrees on another one. */
    limit: Tw1.HelloBytesMax as number,
    /** Features of the connection: those that both sides have. */
    features: 0,

    get filled() {
      return length
    },

    /** Appends one frame. If it is too large, or a name does not fit, it throws and appends nothing. */
    frame(kind: Kind, channel = 0, id = 0, body?: Body): void {
      at = length + 4
      // The flags are 0, unless the body has a name.
      out.uint(kind, 2).uint(channel, 2)
      if ((Kinds.WithId >> kind) & 1) out.uint(id, 4)
      body?.(out)
      const end = at
      const size = end - length
      check("frame", size, self.limit)
      at = length
      out.uint(size - 4, 4)
      length = end
    },

    /** The collected bytes, which are then forgotten. */
    take(): Bytes {
      const all = bytes.slice(0, length)
      length = 0
      // The memory of one long frame is not kept.
      if (bytes.length > 1 << 16) bytes = bytesFor(1024)
      return all
    },
  }
  return self
}

function check(part: string, size: number, max: number): void {
  if (size > max) refuse("encode", `a ${part} of ${size} bytes is longer than ${max}`)
}

/** Writes the body of the first frame of a client. */
export function writeHello(out: Writer, features: number, credentials: string, agent: string, frameBytesMax: number): void {
  const token = encoder.encode(credentials)
  check("token", token.length, features & Feature.LongCredentials ? Tw1.LongCredentialsBytesMax : Tw1.CredentialsBytesMax)
  out.uint(Tw1.Magic, 4).uint(Tw1.Version, 2).uint(features, 4).uint(frameBytesMax, 4).uint(token.length, 2).put(token).word(agent)
}

/** Reads the answer of a server to a hello. Without the feature `Renewal` it has no expiry, and 0 is returned. */
export function readWelcome(
  frame: Frame,
): [features: number, frameBytesMax: number, heartbeatMs: number, agent: string, expiresInMs: number] {
  const version = frame.uint(2)
  const features = frame.uint(4)
  const frameBytesMax = frame.uint(4)
  if (version !== Tw1.Version || frameBytesMax < Tw1.FrameBytesMin) broken("broken welcome")
  const heartbeatMs = frame.uint(4)
  // The number of the session at the server.
  frame.uint(8)
  return [features, frameBytesMax, heartbeatMs, frame.word(), features & Feature.Renewal && frame.uint(8)]
}

/** Features of the protocol. A connection uses a feature if both sides have it. */
export const enum Feature {
  /** Credentials are renewed. */
  Renewal = 1,
  /** A go-away may have the address of another server. */
  Moved = 2,
  /** Rooms and topics may have a history, whose messages have positions. */
  Positions = 4,
  /** A handler of the server may put the client into rooms and subscriptions. */
  Placement = 8,
  /** An encrypted connection: the credentials may be long, as tokens of login servers are. */
  LongCredentials = 16,
}

const enum Tw1 {
  Magic = 0x00315754,
  Version = 1,
  HelloBytesMax = 9_216,
  CredentialsBytesMax = 1_024,
  LongCredentialsBytesMax = 8_192,
  FrameBytesMin = 512,
}

/** Text must be UTF-8, and keeps its byte order mark. */
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true })
const decoded = (bytes: Bytes) => utf8.decode(bytes)
const encoder = new TextEncoder()
