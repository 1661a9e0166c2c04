/** One connection: the WebSocket, the handshake of TW1 over it, and its heartbeat. */

import { cancelTimer, later } from "./calls.js"
import { Away, CloseReason, because } from "./errors.js"
import type { ClientOptions, Metrics } from "./options.js"
import { Body, Feature, Flag, Frame, Kind, Kinds, broken, decoder, outbox, readWelcome, writeHello } from "./wire.js"

/** The part of a WebSocket that the client uses: that of a browser, or of the package `ws`. */
export interface WebSocketLike {
  binaryType: string
  readonly readyState: number
  readonly bufferedAmount: number
  onopen: ((event: any) => void) | null
  onmessage: ((event: any) => void) | null
  onclose: ((event: any) => void) | null
  onerror: ((event: any) => void) | null
  send(bytes: Uint8Array<ArrayBuffer>): void
  close(code?: number, reason?: string): void
}

/** The events of a connection. */
export interface ConnectionHandler {
  /** The handshake is over, or credentials were renewed. */
  welcomed(agent: string, expiresInMs: number): void
  frame(frame: Frame): void
  /** The server takes no new work. It may name another one. */
  goAway(address: string): void
  /** Called once, at the end. */
  over(reason: CloseReason): void
}

export interface Connection {
  /** The bytes that wait for the network. */
  backlog(): number
  /** Sends a hello: the first one, or one with newer credentials. */
  hello(credentials: string): void
  /** Adds a frame to the message that is sent when the present task is done. */
  emit(kind: Kind, channel?: number, id?: number, body?: Body): void
  goAway(code: number, text: string): void
  /** Asks whether the server is still there. The connection ends unless it answers soon. */
  doubt(): void
  /** Ends in order: everything that was sent is delivered first. */
  finish(): void
}

export function openConnection(
  url: string,
  credentials: string,
  options: ClientOptions,
  metrics: Metrics,
  handler: ConnectionHandler,
): Connection {
  const offered =
    Feature.Renewal |
    Feature.Positions |
    Feature.Placement |
    (options.followMoves ? Feature.Moved : 0) |
    (/^wss:/i.test(url) ? Feature.LongCredentials : 0)
  const { agent = "tidewire-js/0.1", frameBytesMax = 1 << 20, handshakeTimeout = 5_000, closeTimeout = 5_000 } = options
  const out = outbox()
  let socket: WebSocketLike | undefined
  let isOpen = false
  let isOver = false
  /** The reason of the end, once it is known. */
  let reason: CloseReason | undefined
  let timer: ReturnType<typeof setTimeout>
  let heartbeat = 0
  /** Something came since the timer was set. */
  let isHeard = false
  /** The number of pings since the last sign of life. */
  let asked = 0

  const flush = () => {
    if (out.filled && socket?.readyState === 1) socket.send(out.take())
  }
  const send: Connection["emit"] = (...frame) => {
    if (!out.filled) queueMicrotask(flush)
    out.frame(...frame)
  }
  const hello = (token: string) => send(Kind.Hello, 0, 0, (body) => writeHello(body, offered, token, agent, frameBytesMax))
  const goAway = (code: number, text: string) => send(Kind.GoAway, 0, 0, (body) => body.uint(code, 2).put(text))

  const end = (why: CloseReason) => {
    if (isOver) return
    isOver = true
    cancelTimer(timer)
    handler.over(reason ?? why)
  }
  /** Begins the end. The server has some time to close, or none. */
  const close = (why: CloseReason, isNow = true) => {
    reason ??= why
    flush()
    socket!.close(1000)
    cancelTimer(timer)
    if (isNow) end(why)
    else timer = later(() => end(why), closeTimeout)
  }
  /**
   * Pings after an interval of silence, and ends if no answer comes. A timer that comes much too late proves that the device slept or the page
   * was hidden: what was heard may be older than that, and an answer may lie unread, so it asks again, once. No timer fires early.
   */
  const watch = (ms: number) => {
    isHeard = false
    const due = Date.now() + ms
    timer = later(() => {
      const isLate = Date.now() - due > LATE_MS
      if (isHeard) asked = 0
      else if (asked > (isLate ? 1 : 0)) return close(because("idle_timeout"))
      if (!isHeard || isLate) ask()
      else if (heartbeat) watch(heartbeat)
    }, ms)
  }
  const ask = () => {
    asked++
    send(Kind.Ping)
    watch(ANSWER_MS)
  }
  const decode = decoder(frameBytesMax, (frame) => {
    // A callback may have closed the connection in the middle of a message.
    if (isOver) return
    const kind = frame.what
    if (!(((isOpen ? Kinds.AfterWelcome : Kinds.BeforeWelcome) >> kind) & 1)) broken(`unexpected kind ${kind}`)
    if (kind === Kind.Welcome) {
      const [features, limit, heartbeatMs, agent, expiresInMs] = readWelcome(frame)
      out.features = features & offered
      out.limit = Math.min(limit, frameBytesMax)
      if (!isOpen) {
        isOpen = true
        cancelTimer(timer)
        if ((heartbeat = heartbeatMs)) watch(heartbeat)
      }
      handler.welcomed(agent, expiresInMs)
    } else if (kind === Kind.GoAway) {
      const code = frame.uint(2)
      const address = frame.flags & Flag.Moved ? frame.word() : ""
      reason = { name: "go_away", code, text: frame.lastText() }
      if (isOpen) handler.goAway(address)
      else close(reason)
    } else if (!isOpen) {
      close({ name: "refused", code: frame.uint(2), text: frame.lastText() })
    } else if (kind === Kind.Ping) {
      const payload = frame.rest()
      send(Kind.Pong, 0, 0, (body) => body.put(payload))
    } else if (kind !== Kind.Pong) {
      handler.frame(frame)
    }
  })

  // The hello is sent as soon as there is a connection.
  hello(credentials)
  const made: WebSocketLike = (socket = new ((options.WebSocket ?? WebSocket) as any)(url, "tw1"))
  timer = later(() => close(because("handshake_timeout")), handshakeTimeout)
  made.binaryType = "arraybuffer"
  made.onopen = flush
  made.onmessage = ({ data }) => {
    isHeard = true
    try {
      if (typeof data === "string") broken("a text message came")
      metrics.bytesReceived += data.byteLength
      decode(new Uint8Array(data))
    } catch (error) {
      const { message } = error as Error
      goAway(message === "too large" ? Away.LimitReached : Away.ProtocolError, message)
      close(because("decode", message))
    }
  }
  made.onclose = ({ code, reason, wasClean }) => {
    // A page is not told why a handshake failed.
    const text = reason || (wasClean || isOpen ? `close code ${code}` : "no server at this address, or this page may not connect")
    end({ name: wasClean ? "peer_closed" : "cut", code, text })
  }
  // The close event follows, and has the same information.
  made.onerror = () => {}

  return {
    backlog: () => made.bufferedAmount + out.filled,
    hello,
    emit: send,
    goAway,
    doubt() {
      if (!isOpen || isOver || reason || asked) return
      cancelTimer(timer)
      ask()
    },
    finish: () => close(because("closed"), false),
  }
}

/** How long a server may take to answer a ping. It is a slow network's round trip, several times. */
const ANSWER_MS = 10_000

/** From this delay on, a timer does not come late because the page was busy. */
const LATE_MS = 5_000
