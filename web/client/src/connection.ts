/** One connection: the WebSocket, the handshake of TW1 over it, and its heartbeat. */

import type { CloseReason } from "./errors.js"
import { GoAwayCode } from "./errors.js"
import { Decoder, Frame, Kind, Payload, Welcome, WireError, Writer, readWelcome, writeHello } from "./wire.js"

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

export type WebSocketClass = new (url: string, protocols: string | string[]) => WebSocketLike

export interface ConnectionSettings {
  webSocket: WebSocketClass
  agent: string
  frameBytesMax: number
  handshakeTimeout: number
  closeTimeout: number
}

/** The events of a connection. */
export interface ConnectionHandler {
  /** The handshake is over, or credentials were renewed. */
  welcomed(welcome: Welcome): void
  frame(frame: Frame): void
  /** The server takes no new work. */
  goAway(): void
  /** Called once, at the end. */
  closed(reason: CloseReason): void
}

export class Connection {
  readonly out = new Writer()
  isOpen = false
  bytesReceived = 0
  #socket: WebSocketLike
  #settings: ConnectionSettings
  #handler: ConnectionHandler
  #decoder: Decoder
  #timer: ReturnType<typeof setTimeout>
  #isFlushPlanned = false
  #hasHeard = true
  #hasPinged = false
  /** Why it will end, once that is known. */
  #reason: CloseReason | undefined
  #hasEnded = false

  constructor(url: string, credentials: string, settings: ConnectionSettings, handler: ConnectionHandler) {
    this.#settings = settings
    this.#handler = handler
    this.#decoder = new Decoder(settings.frameBytesMax)
    const socket = (this.#socket = new settings.webSocket(url, "tw1"))
    socket.binaryType = "arraybuffer"
    socket.onopen = () => {
      try {
        this.hello(credentials)
      } catch (error) {
        return this.fail({ name: "cut", text: (error as Error).message })
      }
      this.flush()
    }
    socket.onmessage = (event) => this.#receive(event.data)
    socket.onclose = (event) => {
      const isInOrder = event.code === 1000 || event.code === 1001 || event.code === 1005
      // A page is not told why a handshake failed.
      const text = event.reason || (isInOrder ? "" : this.isOpen ? `close code ${event.code}` : "no WebSocket of this server at this address, or this page may not connect")
      this.#end({ name: isInOrder ? "peer_closed" : "cut", code: event.code, text })
    }
    // The close event follows, and says as much.
    socket.onerror = () => {}
    this.#timer = setTimeout(() => this.fail({ name: "handshake_timeout", text: "" }), settings.handshakeTimeout)
  }

  /** The bytes that wait for the network. */
  get bufferedAmount(): number {
    return this.#socket.bufferedAmount + this.out.length
  }

  /** Sends a hello: the first one, or one with newer credentials. */
  hello(credentials: string): void {
    writeHello(this.out, credentials, this.#settings.agent, this.#settings.frameBytesMax)
    this.plan()
  }

  /** Adds a frame to the message that is sent when the present task is done. */
  send(kind: Kind, channel: number, id: number, body: (out: Writer) => void, flags = 0): void {
    this.out.frame(kind, channel, id, body, flags)
    this.plan()
  }

  /** Has what was collected sent soon, so that all frames of a task share one message. */
  plan(): void {
    if (this.#isFlushPlanned) return
    this.#isFlushPlanned = true
    queueMicrotask(() => this.flush())
  }

  flush(): void {
    this.#isFlushPlanned = false
    if (this.out.length > 0 && this.#socket.readyState === 1) this.#socket.send(this.out.takeAll())
  }

  /** Ends in order: what was sent is delivered first. */
  close(reason: CloseReason): void {
    if (this.#hasEnded) return
    this.#reason ??= reason
    this.flush()
    this.#socket.close(1000)
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.#end(reason), this.#settings.closeTimeout)
  }

  /** Ends now, because it cannot go on. */
  fail(reason: CloseReason): void {
    if (this.#hasEnded) return
    this.flush()
    this.#reason ??= reason
    this.#socket.close()
    this.#end(reason)
  }

  goAway(code: number, text: Payload): void {
    this.send(Kind.GoAway, 0, 0, (out) => out.uint(code, 2).payload(text))
  }

  #end(reason: CloseReason): void {
    if (this.#hasEnded) return
    this.#hasEnded = true
    this.isOpen = false
    clearTimeout(this.#timer)
    const socket = this.#socket
    socket.onopen = socket.onmessage = socket.onclose = null
    this.#handler.closed(this.#reason ?? reason)
  }

  #receive(data: unknown): void {
    this.#hasHeard = true
    if (!(data instanceof ArrayBuffer)) return this.#broken("a text message came")
    this.bytesReceived += data.byteLength
    try {
      this.#decoder.push(new Uint8Array(data), this.#take)
    } catch (error) {
      if (!(error instanceof WireError)) throw error
      this.#broken(error.message)
    }
  }

  #broken(text: string): void {
    const code = text === "too large" ? GoAwayCode.LimitReached : GoAwayCode.ProtocolError
    this.goAway(code, text)
    this.fail({ name: "decode", text })
  }

  #take = (frame: Frame): void => {
    // A callback may have closed the connection in the middle of a message.
    if (this.#hasEnded) return
    switch (frame.kind) {
      case Kind.Welcome:
        return this.#welcome(readWelcome(frame))
      case Kind.GoAway: {
        const body = frame.body()
        this.#reason = { name: "go_away", code: body.uint(2), text: body.lastText() }
        return this.isOpen ? this.#handler.goAway() : this.fail(this.#reason)
      }
      case Kind.Error:
        if (this.isOpen) break
        {
          const body = frame.body()
          return this.fail({ name: "refused", code: body.uint(2), text: body.lastText() })
        }
      case Kind.Ping: {
        const payload = frame.payload()
        return this.send(Kind.Pong, 0, 0, (out) => out.payload(payload))
      }
      case Kind.Pong:
        return
      case Kind.Hello:
      case Kind.Subscribe:
      case Kind.Unsubscribe:
      case Kind.Publish:
      case Kind.Join:
      case Kind.Leave:
      case Kind.Say:
        throw new WireError(`a server sends no frame of kind ${frame.kind}`)
    }
    if (!this.isOpen) throw new WireError("a frame came before the welcome")
    this.#handler.frame(frame)
  }

  #welcome(welcome: Welcome): void {
    this.out.frameBytesMax = Math.min(welcome.frameBytesMax, this.#settings.frameBytesMax)
    if (!this.isOpen) {
      this.isOpen = true
      clearTimeout(this.#timer)
      if (welcome.heartbeatMs > 0) this.#beat(welcome.heartbeatMs)
    }
    this.#handler.welcomed(welcome)
  }

  /** Pings a silent server, and ends after a second interval of silence. Browsers delay timers, but never so that one fires early. */
  #beat(intervalMs: number): void {
    this.#timer = setTimeout(() => {
      if (!this.#hasHeard && this.#hasPinged) return this.fail({ name: "idle_timeout", text: "" })
      this.#hasPinged = !this.#hasHeard
      this.#hasHeard = false
      if (this.#hasPinged) this.send(Kind.Ping, 0, 0, () => {})
      this.#beat(intervalMs)
    }, intervalMs)
  }
}
