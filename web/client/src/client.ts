/** The client: requests, publishing, and what must survive a reconnect. */

import { CallOptions, Channel, Host, Room, Subscription } from "./channel.js"
import { Connection, ConnectionSettings, WebSocketClass } from "./connection.js"
import { CloseReason, ConnectError, ErrorCode, GoAwayCode, RequestError, describe, isFinal } from "./errors.js"
import type { Backoff, ClientOptions, Credentials, Event, JoinOptions, Metrics, RequestOptions, SubscribeOptions } from "./options.js"
import { EventQueue } from "./queue.js"
import { FLAG_NAMED, FRAME_BYTES_MAX, Frame, Kind, Payload, Welcome, WireError, Writer } from "./wire.js"

/** A call that waits for its reply. */
interface Pending {
  kind: Kind
  channel: number
  /** Sends it under a new id. */
  write: (id: number) => void
  isIdempotent: boolean
  id: number
  reply: (frame: Frame) => void
  fail: (error: unknown) => void
}

/** A connection to a server. See `Client.connect`. */
export class Client {
  #url: string
  #options: Required<Omit<ClientOptions, "credentials" | "reconnect" | "onEvent" | "WebSocket">>
  #settings: ConnectionSettings
  #credentials: Credentials
  #backoff: Backoff | undefined
  #connection: Connection | undefined
  /** New work may be sent. */
  #isOpen = false
  #isOver = false
  #openedAt = 0
  #attempts = 0
  #refusals = 0
  #retryTimer: ReturnType<typeof setTimeout> | undefined
  #renewalTimer: ReturnType<typeof setTimeout> | undefined
  #nextId = 1
  #pending = new Map<number, Pending>()
  /** Idempotent requests between two connections. */
  #waiting = new Set<Pending>()
  /** Joins and subscriptions that were given up: if the server agrees later, they are undone. */
  #undone = new Map<number, Kind>()
  #channels = new Set<Channel>()
  #byAlias = new Map<number, Channel>()
  #events: EventQueue<Event>
  #host: Host
  #whenEnded: (() => void)[] = []
  #dialed: { resolve: () => void; reject: (error: ConnectError) => void } | undefined
  readonly #metrics: Metrics = { connections: 0, bytesReceived: 0, messagesReceived: 0, messagesLost: 0 }

  private constructor(url: string, options: ClientOptions) {
    this.#url = url
    const { credentials = "", reconnect = {}, onEvent, WebSocket: given, ...rest } = options
    this.#options = { ...DEFAULTS, ...rest }
    this.#credentials = credentials
    this.#backoff = reconnect ? { first: 200, max: 5_000, ...reconnect } : undefined
    const webSocket = (given ?? (globalThis as any).WebSocket) as WebSocketClass
    if (!webSocket) throw new TypeError("there is no WebSocket here: pass the class of the package `ws` as option `WebSocket`")
    this.#settings = { ...this.#options, webSocket }
    this.#events = new EventQueue(this.#options, onEvent)
    this.#host = {
      ask: (kind, channel, body, finish, call = {}) => this.#ask(kind, channel, body, finish, call),
      send: (kind, channel, body, flags) => this.#send(kind, channel, body, flags),
      attach: (alias, channel) => this.#byAlias.set(alias, channel),
      forget: (channel) => {
        this.#channels.delete(channel)
        if (this.#byAlias.get(channel.alias) === channel) this.#byAlias.delete(channel.alias)
      },
      pause: (attempt) => delay(this.#backoff ?? { first: 200, max: 5_000 }, attempt),
    }
  }

  /**
   * Connects to `ws://HOST:PORT/PATH` or `wss://HOST:PORT/PATH`.
   * It rejects with a `ConnectError` that says why it could not.
   */
  static async connect(url: string, options: ClientOptions = {}): Promise<Client> {
    const { protocol, hostname } = new URL(url)
    if (protocol !== "ws:" && protocol !== "wss:") throw new TypeError(`the address must begin with ws:// or wss://: ${url}`)
    const isLocal = /^(localhost|127(\.\d+){3}|\[::1\])$/.test(hostname)
    if (options.credentials && protocol === "ws:" && !isLocal && !options.allowPlaintextCredentials) {
      throw new TypeError("credentials are not sent to another machine without encryption: use wss://")
    }
    const client = new Client(url, options)
    await new Promise<void>((resolve, reject) => {
      client.#dialed = { resolve, reject }
      void client.#dial()
    })
    return client
  }

  /** Makes a request. It rejects with a `RequestError`, or with the reason of the `signal`. */
  request(payload: Payload, options: RequestOptions = {}): Promise<Uint8Array> {
    const { method = "", channel = 0 } = options
    const body = (out: Writer) => (method ? out.text(method) : out).payload(payload)
    return this.#ask(Kind.Request, channel, body, (frame) => frame.payload(), options, method ? FLAG_NAMED : 0)
  }

  /** Sends a one-way message, to a method if it has a name. Throws a `RequestError` if it is not sent. */
  trySend(payload: Payload, method = ""): void {
    this.#send(Kind.OneWay, 0, (out) => (method ? out.text(method) : out).payload(payload), method ? FLAG_NAMED : 0)
  }

  /** Publishes to all subscribers whose pattern matches. Throws a `RequestError` if it is not sent. */
  publish(topic: string, payload: Payload): void {
    if (!topic) throw new RequestError("encode", "the topic is empty")
    this.#send(Kind.Publish, 0, (out) => out.text(topic).payload(payload), FLAG_NAMED)
  }

  /** Waits until the server has passed on everything that was published before. */
  async flush(options: CallOptions = {}): Promise<void> {
    await this.request("", options)
  }

  /** Waits until half of `bufferedBytesMax` is free again, or there is no connection. */
  async drained(): Promise<void> {
    while (this.#isOpen && this.bufferedAmount > this.#options.bufferedBytesMax / 2) {
      await new Promise((resolve) => setTimeout(resolve, 4))
    }
  }

  /** The bytes that wait for the network. */
  get bufferedAmount(): number {
    return this.#connection?.bufferedAmount ?? 0
  }

  /** Whether there is a connection that takes new work. */
  get isOpen(): boolean {
    return this.#isOpen
  }

  get metrics(): Metrics {
    const present = this.#connection?.bytesReceived ?? 0
    return { ...this.#metrics, bytesReceived: this.#metrics.bytesReceived + present }
  }

  /** Subscribes to a pattern such as `price.oil`, `price.*` or `price.>`. */
  async subscribe(pattern: string, options: SubscribeOptions = {}): Promise<Subscription> {
    const queue = new EventQueue<any>({ ...this.#options, ...options }, options.onEvent)
    const policy = options.policy ? POLICIES.indexOf(options.policy) + 1 : 0
    const subscription = new Subscription(this.#host, queue, pattern, policy)
    return this.#begin(subscription, options)
  }

  /** Enters a room under a name. */
  async join(room: string, name: string, options: JoinOptions = {}): Promise<Room> {
    const queue = new EventQueue<any>({ ...this.#options, ...options }, options.onEvent)
    return this.#begin(new Room(this.#host, queue, room, name), options)
  }

  /** The next event of the client. After the end it is `ended`, every time. */
  nextEvent(): Promise<Event> {
    return this.#events.next()
  }

  /** The events until the end. */
  events(): AsyncGenerator<Event, void, undefined> {
    return this.#events[Symbol.asyncIterator]()
  }

  /** Sends what waits, and ends the client. With a code and a text the server hears why. */
  close(code?: number, text = ""): Promise<void> {
    const connection = this.#connection
    if (this.#isOver) return Promise.resolve()
    const done = new Promise<void>((resolve) => this.#whenEnded.push(resolve))
    this.#isOpen = false
    this.#backoff = undefined
    clearTimeout(this.#retryTimer)
    if (!connection) {
      this.#end({ name: "closed", text: "" })
    } else {
      if (code !== undefined && connection.isOpen) connection.goAway(code, text)
      connection.close({ name: "closed", text: "" })
    }
    return done
  }

  async #begin<T extends Channel>(channel: T, options: CallOptions): Promise<T> {
    this.#channels.add(channel)
    try {
      await channel.open(options)
      return channel
    } catch (error) {
      channel.end()
      throw error
    }
  }

  #check(): Connection {
    const connection = this.#connection
    if (this.#isOver) throw new RequestError("shutdown", "the client has ended")
    if (!this.#isOpen || !connection) throw new RequestError("not_connected", "not sent: there is no connection to the server")
    if (connection.bufferedAmount > this.#options.bufferedBytesMax) {
      throw new RequestError("queue_full", "not sent: too many bytes wait for the network; wait for `drained()`")
    }
    return connection
  }

  #send(kind: Kind, channel: number, body: (out: Writer) => void, flags = 0): void {
    encoding(() => this.#check().send(kind, channel, 0, body, flags))
  }

  #ask<T>(kind: Kind, channel: number, body: (out: Writer) => void, finish: (frame: Frame) => T, options: RequestOptions, flags = 0): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const { timeout = this.#options.requestTimeout, signal, idempotent = false } = options
      const abandon = (error: unknown) => {
        this.#abandon(pending)
        pending.fail(error)
      }
      const timer = setTimeout(() => abandon(new RequestError("timed_out", "no reply within the deadline")), Math.min(timeout, TIMER_MS_MAX))
      const abort = () => abandon(signal?.reason)
      const settled = () => {
        clearTimeout(timer)
        signal?.removeEventListener("abort", abort)
      }
      const pending: Pending = {
        kind,
        channel,
        id: 0,
        isIdempotent: idempotent,
        write: (id) => encoding(() => this.#check().send(kind, channel, id, body, flags)),
        reply: (frame) => {
          settled()
          resolve(finish(frame))
        },
        fail: (error) => {
          settled()
          reject(error)
        },
      }
      if (signal?.aborted) return pending.fail(signal.reason)
      signal?.addEventListener("abort", abort)
      this.#submit(pending)
    })
  }

  #submit(pending: Pending): void {
    if (pending.isIdempotent && !this.#isOpen && this.#backoff && this.#waiting.size < this.#options.pendingMax) {
      this.#waiting.add(pending)
      return
    }
    if (this.#pending.size + this.#undone.size >= this.#options.pendingMax) {
      return pending.fail(new RequestError("window_full", "too many requests wait for their replies; try again after a reply"))
    }
    const isUsed = (id: number) => this.#pending.has(id) || this.#undone.has(id)
    while (isUsed(this.#nextId)) this.#advanceId()
    const id = this.#nextId
    try {
      pending.write(id)
    } catch (error) {
      return pending.fail(error)
    }
    this.#advanceId()
    pending.id = id
    this.#pending.set(id, pending)
  }

  #advanceId(): void {
    this.#nextId = this.#nextId === 0xffffffff ? 1 : this.#nextId + 1
  }

  /** Gives a call up that has no reply yet. */
  #abandon(pending: Pending): void {
    this.#waiting.delete(pending)
    if (!this.#pending.delete(pending.id)) return
    const { kind, id, channel } = pending
    if (kind === Kind.Join || kind === Kind.Subscribe) {
      this.#undone.set(id, kind)
    } else if (kind === Kind.Request && this.#connection?.isOpen) {
      this.#connection.send(Kind.Cancel, channel, id, () => {})
    }
    this.#endIfDrained()
  }

  /** One attempt to connect. */
  async #dial(): Promise<void> {
    let token: string
    try {
      token = typeof this.#credentials === "string" ? this.#credentials : await this.#credentials()
    } catch (error) {
      return this.#closed({ name: "cut", text: `cannot get the credentials: ${error}` })
    }
    if (this.#isOver) return
    try {
      const connection: Connection = new Connection(this.#url, token, this.#settings, {
        welcomed: (welcome) => this.#welcomed(welcome),
        frame: (frame) => this.#dispatch(frame),
        goAway: () => {
          this.#isOpen = false
          this.#endIfDrained()
        },
        closed: (reason) => {
          this.#metrics.bytesReceived += connection.bytesReceived
          this.#connection = undefined
          this.#closed(reason)
        },
      })
      this.#connection = connection
    } catch (error) {
      this.#closed({ name: "cut", text: String(error) })
    }
  }

  #welcomed(welcome: Welcome): void {
    this.#planRenewal(welcome.expiresInMs)
    // A renewal, perhaps behind a go-away, is no new connection.
    if (this.#openedAt) return
    this.#isOpen = true
    this.#openedAt = Date.now()
    this.#refusals = 0
    this.#metrics.connections++
    this.#events.push({ type: "opened", agent: welcome.agent })
    this.#dialed?.resolve()
    this.#dialed = undefined
    for (const channel of this.#channels) channel.resume()
    for (const pending of this.#waiting) {
      this.#waiting.delete(pending)
      this.#submit(pending)
    }
  }

  /** Asks for newer credentials when a third of the time is left. */
  #planRenewal(leftMs: number): void {
    clearTimeout(this.#renewalTimer)
    if (!leftMs) return
    const expiresAt = Date.now() + leftMs
    const waitMs = Math.min((leftMs * 2) / 3, TIMER_MS_MAX)
    const renew = async () => {
      const left = expiresAt - Date.now()
      if (left > leftMs / 2) return this.#planRenewal(left)
      this.#events.push({ type: "credentials_expire", left })
      const connection = this.#connection
      if (typeof this.#credentials === "string") return
      try {
        const token = await this.#credentials()
        if (connection === this.#connection && this.#isOpen) connection?.hello(token)
      } catch {
        // Another attempt follows when half of the rest has passed.
        if (connection === this.#connection && left > 1_000) this.#renewalTimer = setTimeout(renew, left / 2)
      }
    }
    this.#renewalTimer = setTimeout(renew, waitMs)
  }

  #dispatch(frame: Frame): void {
    switch (frame.kind) {
      case Kind.Reply:
      case Kind.Error:
        if (frame.id) return this.#answer(frame)
        break
      case Kind.Deliver:
        this.#metrics.messagesReceived++
        break
      case Kind.Gap:
        this.#metrics.messagesLost += frame.body().u64()
        break
      case Kind.Request: {
        const { channel, id } = frame
        return this.#connection?.send(Kind.Error, channel, id, (out) => out.uint(ErrorCode.Unsupported, 2))
      }
      case Kind.OneWay:
        return this.#events.push({ type: "message", channel: frame.channel, name: frame.name, payload: frame.payload() })
    }
    const channel = this.#byAlias.get(frame.channel)
    if (channel) return channel.handle(frame)
    if (frame.kind === Kind.Error) this.#events.push({ type: "error", error: refusal(frame) })
    // Frames of a room or subscription that was left may still be on their way.
  }

  #answer(frame: Frame): void {
    const undone = this.#undone.get(frame.id)
    if (undone !== undefined) {
      this.#undone.delete(frame.id)
      if (frame.kind === Kind.Reply) this.#undo(undone, frame.channel)
      return
    }
    const pending = this.#pending.get(frame.id)
    // The answer to a request that was given up.
    if (!pending) return
    this.#pending.delete(frame.id)
    if (frame.kind === Kind.Error) {
      const error = refusal(frame)
      if (error.code === ErrorCode.Draining && pending.isIdempotent && this.#backoff) this.#waiting.add(pending)
      else pending.fail(error)
    } else {
      try {
        pending.reply(frame)
      } catch {
        pending.fail(new RequestError("malformed_reply", "the reply does not have the form that this request expects"))
      }
    }
    this.#endIfDrained()
  }

  #undo(kind: Kind, alias: number): void {
    if (!this.#isOpen) return
    const opposite = kind === Kind.Join ? Kind.Leave : Kind.Unsubscribe
    this.#ask(opposite, alias, () => {}, () => {}, {}).catch(() => {})
  }

  /** After a go-away: ends the connection when it has its answers. */
  #endIfDrained(): void {
    const connection = this.#connection
    if (connection?.isOpen && !this.#isOpen && this.#pending.size === 0) connection.close({ name: "closed", text: "" })
  }

  /** A connection, or an attempt, has ended. */
  #closed(reason: CloseReason): void {
    const wasOpen = this.#byAlias
    this.#isOpen = false
    this.#byAlias = new Map()
    this.#undone.clear()
    clearTimeout(this.#renewalTimer)
    if (this.#isOver) return
    if (this.#dialed) {
      this.#dialed.reject(new ConnectError(reason))
      this.#dialed = undefined
      this.#backoff = undefined
    }
    const willRetry = this.#backoff !== undefined && !isFinal(reason)
    for (const pending of [...this.#pending.values()]) {
      if (willRetry && pending.isIdempotent) this.#waiting.add(pending)
      else pending.fail(new RequestError("closed", `the connection ended before the reply: ${describe(reason)}`))
    }
    this.#pending.clear()
    for (const channel of new Set(wasOpen.values())) channel.interrupt(reason)
    if (!willRetry) return this.#end(reason)
    this.#retry(reason)
  }

  #retry(reason: CloseReason): void {
    const backoff = this.#backoff!
    if (this.#openedAt) {
      this.#events.push({ type: "closed", reason })
      // A server that accepts and closes at once is not asked faster and faster.
      if (Date.now() - this.#openedAt > backoff.max) this.#attempts = 0
      this.#openedAt = 0
    }
    const isRefused = reason.name === "go_away" && reason.code === GoAwayCode.Unauthenticated
    // Few clients behind one address must not use up the failures that a server allows it.
    const pause = isRefused ? delay({ first: 1_000, max: 60_000 }, 2 * this.#refusals++) : delay(backoff, this.#attempts++)
    this.#events.push({ type: "reconnecting", delay: pause, cause: describe(reason) })
    // A callback may have closed the client.
    if (!this.#isOver) this.#retryTimer = setTimeout(() => void this.#dial(), pause)
  }

  #end(reason: CloseReason): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#events.push({ type: "closed", reason })
    for (const pending of this.#waiting) pending.fail(new RequestError("shutdown", describe(reason)))
    this.#waiting.clear()
    for (const channel of [...this.#channels]) channel.end()
    this.#events.push({ type: "ended" })
    for (const resolve of this.#whenEnded.splice(0)) resolve()
  }
}

/** The pause before an attempt, counted from 0, in milliseconds. A random part spreads the clients of a server that comes back. */
function delay({ first, max }: Backoff, attempt: number): number {
  return Math.min(first * 2 ** Math.min(attempt, 20), max) * (0.5 + 0.5 * Math.random())
}

function refusal(frame: Frame): RequestError {
  const body = frame.body()
  const code = body.uint(2)
  return new RequestError("refused", body.lastText() || `refused with code ${code}`, code)
}

/** Converts the error of a frame that cannot be expressed into one of the call. */
function encoding(write: () => void): void {
  try {
    write()
  } catch (error) {
    throw error instanceof WireError ? new RequestError("encode", error.message) : error
  }
}

const DEFAULTS = {
  allowPlaintextCredentials: false,
  requestTimeout: 10_000,
  handshakeTimeout: 5_000,
  closeTimeout: 5_000,
  pendingMax: 4_096,
  bufferedBytesMax: 1 << 20,
  frameBytesMax: FRAME_BYTES_MAX,
  eventsMax: 65_536,
  eventBytesMax: 8 << 20,
  agent: "tidewire-js/0.1",
}

const POLICIES = ["disconnect", "drop_oldest", "drop_newest", "conflate", "block", "conflate_by_topic"]

/** Timers of browsers hold no longer time. */
const TIMER_MS_MAX = 2 ** 31 - 1
