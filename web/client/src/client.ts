/** The client: requests, publishing, and what must survive a reconnect. */

import { Link, TIMER_MS_MAX, callTable, cancelTimer, later, refusal } from "./calls.js"
import { BeginOptions, CallOptions, Channel, Host, Room, Subscription, room, subscription } from "./channel.js"
import { Connection, openConnection } from "./connection.js"
import { Away, CloseReason, Code, ConnectError, RequestError, because, describe, isFinal, refuse } from "./errors.js"
import type { Backoff, ClientOptions, Event, JoinOptions, Metrics, RequestOptions, SubscribeOptions } from "./options.js"
import { ENDED, eventQueue } from "./queue.js"
import { Body, Frame, Kind, Payload } from "./wire.js"

/** A client of one server. */
export interface Client {
  /** Makes a request. It rejects with a `RequestError`, or with the reason of the `signal`. */
  request(payload: Payload, options?: RequestOptions): Promise<Uint8Array>
  /** Sends a one-way message, to a method if it has a name. Throws a `RequestError` if it is not sent. */
  trySend(payload: Payload, method?: string): void
  /** Publishes to all subscribers whose pattern matches. Throws a `RequestError` if it is not sent. */
  publish(topic: string, payload: Payload): void
  /**
   * Waits until the server has passed on everything that was sent before, and histories of several servers have stored it. It rejects with
   * a `RequestError`, once, if messages without a reply may be lost with an earlier connection (`may_be_lost`), or if the server has refused
   * one of them (`refused`), or if something may not be stored. Send again what is not confirmed; some of it may come twice.
   */
  flush(options?: CallOptions): Promise<void>
  /** Waits until half of `bufferedBytesMax` is free again, or there is no connection. */
  drained(): Promise<void>
  /** Subscribes to a pattern such as `price.oil`, `price.*` or `price.>`. */
  subscribe(pattern: string, options?: SubscribeOptions): Promise<Subscription>
  /** Enters a room under a name. */
  join(room: string, name: string, options?: JoinOptions): Promise<Room>
  /** The next event of the client. After the end it is `ended`, every time. */
  nextEvent(): Promise<Event>
  /** The events until the end. */
  events(): AsyncGenerator<Event, void, undefined>
  /** Sends everything that waits, and ends the client. A code and a text tell the server why. */
  close(code?: number, text?: string): Promise<void>
  /** The bytes that wait for the network. */
  readonly bufferedAmount: number
  /** Whether there is a connection that takes new work. */
  readonly isOpen: boolean
  readonly metrics: Metrics
}

export const Client = {
  /**
   * Connects to `ws://HOST:PORT/PATH` or `wss://HOST:PORT/PATH`.
   * It rejects with a `ConnectError` that says why it could not.
   */
  async connect(url: string, options: ClientOptions = {}): Promise<Client> {
    checkCredentials(new URL(url), options)
    return new Promise((resolve, reject) => start(url, options, resolve, reject))
  },
}

function checkCredentials({ protocol, hostname }: URL, options: ClientOptions): void {
  const isLocal = /^(localhost|127(\.\d+){3}|\[::1\])$/.test(hostname)
  if (options.credentials && protocol !== "wss:" && !isLocal && !options.allowPlaintextCredentials) {
    throw new TypeError("credentials are not sent without encryption: use wss://")
  }
}

/** Makes a client. Its fields are the variables of this function. It reports once whether the first attempt succeeded. */
function start(url: string, options: ClientOptions, connected: (client: Client) => void, failed: (error: ConnectError) => void): void {
  const { credentials = "", bufferedBytesMax = 1 << 20, onEvent, ...bounds } = options
  const { report: push, reading: events } = eventQueue<Event>(options)
  const isFixed = typeof credentials === "string"
  const metrics: Metrics = { connections: 0, bytesReceived: 0, messagesReceived: 0, messagesLost: 0 }
  const backoff: Backoff = { first: 200, max: 5_000, ...options.reconnect }
  /** The server of the next connection. */
  let target = url
  let willRetry = false
  /** The connection, or the attempt to make one. */
  let connection: Connection | undefined
  /** When the handshake ended; 0 if there is no connection. */
  let openedAt = 0
  /** New work may be sent. */
  let isOpen = false
  let isOver = false
  let attempts = 0
  let retryTimer: ReturnType<typeof setTimeout>
  /** Messages without a reply: those of the present connection, and how many of them a flush has confirmed or waits for. */
  let sent = 0
  let confirmed = 0
  let asked = 0
  /** Messages that may be lost with an earlier connection, and the first refusal of one. No flush has told them. */
  let lost = 0
  let refused: RequestError | undefined
  const channels = new Set<Channel>()
  let byAlias: Channel[] = []
  let finish: () => void
  const finished = new Promise<void>((resolve) => (finish = resolve))

  const emit: Link["emit"] = (kind, channel, body, id) => {
    if (isOver) refuse("shutdown", "the client has ended")
    if (!isOpen) refuse("not_connected", "not sent: there is no connection")
    if (connection!.backlog() > bufferedBytesMax) {
      refuse("queue_full", "not sent: too many bytes wait; wait for `drained()`")
    }
    connection!.emit(kind, channel, id, body)
    if (!id) sent++
  }
  /** After a go-away: ends the connection when it has its answers. */
  const endIfDrained = () => {
    if (openedAt && !isOpen && !calls.load()) connection!.finish()
  }
  const link: Link = {
    isWaiting: () => willRetry && !isOpen,
    emit,
    cancel(channel, id) {
      connection?.emit(Kind.Cancel, channel, id)
      endIfDrained()
    },
    doubt: () => connection?.doubt(),
  }
  const calls = callTable(options, link)
  const host: Host = {
    ...link,
    ...calls,
    attach: (channel) => (byAlias[channel.alias] = channel),
    forget(channel) {
      channels.delete(channel)
      delete byAlias[channel.alias]
    },
    pause: (attempt) => delay(backoff, attempt),
  }

  /** One attempt to connect. */
  const dial = async () => {
    try {
      const token = isFixed ? credentials : await credentials()
      if (!isOver) connection = openConnection(target, token, options, metrics, { welcomed, frame, goAway, over: closed })
    } catch (error) {
      closed(because("cut", String(error)))
    }
  }

  const welcomed = (agent: string, expiresInMs: number) => {
    planRenewal(expiresInMs)
    // A renewal is no new connection. It may come after a go-away.
    if (openedAt) return
    isOpen = true
    willRetry = options.reconnect !== false
    openedAt = Date.now()
    metrics.connections++
    push({ type: "opened", agent })
    connected(client)
    for (const channel of channels) channel.resume()
    calls.repeat()
  }

  const planRenewal = renewal(async (left) => {
    push({ type: "credentials_expire", left })
    if (isFixed) return
    const asked = connection
    const token = await credentials()
    if (asked === connection && isOpen) asked!.hello(token)
  })

  const frame = (frame: Frame) => {
    const { what: kind, id, alias: channel } = frame
    if (id && (kind === Kind.Reply || kind === Kind.Error)) {
      calls.answer(frame)
      return endIfDrained()
    }
    const target = byAlias[channel]
    if (kind === Kind.Deliver) metrics.messagesReceived++
    if (kind === Kind.Request) {
      connection!.emit(Kind.Error, channel, id, (out) => out.uint(Code.Unsupported, 2))
    } else if (kind === Kind.OneWay) {
      push({ type: "message", channel, name: frame.title, payload: frame.rest() })
    } else if (kind === Kind.Gap) {
      const lost = frame.uint(8)
      metrics.messagesLost += lost
      target?.skip(lost)
    } else if (kind === Kind.Error) {
      const error = refusal(frame)
      refused ??= error
      const report = target?.report ?? push
      report({ type: "error", error })
    } else if (kind === Kind.Placement) {
      placed(frame, target)
    } else {
      // Frames of a room or subscription that was left may still be on their way.
      target?.handle(frame)
    }
  }

  /** A handler of the server has put this client into a room or subscription, or taken it out. */
  const placed = (frame: Frame, target?: Channel) => {
    const what = frame.uint(1)
    if (what > 1) return target?.remove()
    const begun = <T>([channel, face]: [Channel, T]) => {
      channels.add(channel)
      channel.place(frame)
      return face
    }
    if (what) push({ type: "subscribed", subscription: begun(subscription(host, eventQueue(bounds), frame.word(), undefined, 0)) })
    else push({ type: "joined", room: begun(room(host, eventQueue(bounds), frame.word(), frame.word())) })
  }

  const goAway = (address: string) => {
    isOpen = false
    try {
      const to = new URL(address)
      checkCredentials(to, options)
      if (options.followMoves && to.protocol === new URL(url).protocol) target = address
    } catch {
      // There is no address, or it is not followed.
    }
    endIfDrained()
  }

  /** A connection, or an attempt, has ended. */
  const closed = (reason: CloseReason) => {
    if (isOver) return
    // The pauses start again only after a connection that lasted. A server that closes at once still gets longer pauses.
    if (openedAt && Date.now() - openedAt > backoff.max) attempts = 0
    const wasOpen = openedAt
    // The server that the last one named does not answer, so the next attempt goes to the own URL.
    if (!wasOpen) target = url
    openedAt = 0
    isOpen = false
    connection = undefined
    byAlias = []
    planRenewal(0)
    // A flush that waits fails, and so tells what was before it.
    lost += sent - Math.max(confirmed, asked)
    sent = confirmed = asked = 0
    refused = undefined
    // Only the first attempt can fail.
    failed(new ConnectError(reason))
    willRetry &&= !isFinal(reason)
    calls.interrupt(reason)
    for (const channel of channels) channel.interrupt(reason)
    if (wasOpen || !willRetry) push({ type: "closed", reason })
    if (!willRetry) {
      isOver = true
      for (const channel of channels) channel.end()
      listen("removeEventListener")
      push(ENDED)
      return finish()
    }
    // A server allows an address a number of failures. A few clients behind one address must not use them up.
    const isRefused = reason.name === "go_away" && reason.code === Away.Unauthenticated
    const pause = delay(isRefused ? BACKOFF_OF_REFUSALS : backoff, attempts++)
    push({ type: "reconnecting", delay: pause, cause: describe(reason) })
    // A callback may have closed the client.
    if (!isOver) retryTimer = later(dial, pause)
  }

  const begin = async <T>([channel, face]: [Channel, T], options: BeginOptions): Promise<T> => {
    channels.add(channel)
    try {
      await channel.open(options)
      return face
    } catch (error) {
      channel.end()
      throw error
    }
  }

  const client: Client = {
    request(payload, options = {}) {
      const { method = "", channel = 0 } = options
      return calls.ask(Kind.Request, channel, named(method, payload), options, (frame) => frame.rest())
    },
    trySend: (payload, method = "") => emit(Kind.OneWay, 0, named(method, payload)),
    publish(topic, payload) {
      if (!topic) refuse("encode", "the topic is empty")
      emit(Kind.Publish, 0, named(topic, payload))
    },
    async flush(options) {
      if (lost) {
        const text = `up to ${lost} messages may be lost: the connection ended since the last confirmation`
        lost = 0
        refuse("may_be_lost", text)
      }
      const before = (asked = sent)
      let error: RequestError | undefined
      try {
        // It is never repeated on another connection, whose answer says nothing about this one.
        await calls.ask<void>(Kind.Request, 0, undefined, { ...options, idempotent: false } as CallOptions, () => {
          confirmed = Math.max(confirmed, before)
          error = refused
          refused = undefined
        })
      } catch (failure) {
        // Without a reply and with the connection there, the next flush tells.
        if ((failure as RequestError).kind !== "closed") asked = 0
        throw failure
      }
      if (error) throw new RequestError("refused", `a message before was refused: ${error.message}`, error.code)
    },
    async drained() {
      while (isOpen && connection!.backlog() > bufferedBytesMax / 2) await new Promise<void>((resolve) => later(resolve, 4))
    },
    subscribe: async (pattern, options = {}) =>
      begin(subscription(host, eventQueue({ ...bounds, ...options }), pattern, options.group, POLICIES.indexOf(options.policy!) + 1), options),
    join: async (name, as, options = {}) => begin(room(host, eventQueue({ ...bounds, ...options }), name, as), options),
    nextEvent: events.nextEvent,
    events: () => events[Symbol.asyncIterator](),
    close(code, text = "") {
      isOpen = willRetry = false
      cancelTimer(retryTimer)
      if (!connection) closed(because("closed"))
      else {
        if (code != null) connection.goAway(code, text)
        connection.finish()
      }
      return finished
    },
    get bufferedAmount() {
      return connection?.backlog() ?? 0
    },
    get isOpen() {
      return isOpen
    },
    get metrics() {
      return { ...metrics }
    },
  }

  /** The network is back, or the page is looked at again. The connection may be dead since long. */
  const wake = () => globalThis.document?.hidden || connection?.doubt()
  const listen = (how: "addEventListener" | "removeEventListener") => {
    // Node has neither.
    globalThis[how]?.("online", wake)
    globalThis.document?.[how]("visibilitychange", wake)
  }
  listen("addEventListener")
  void dial()
}

/**
 * Returns a function that takes the time until the credentials expire. It calls `renew` when a third of this time is left, and again
 * if that fails. A time of 0 stops it.
 */
function renewal(renew: (left: number) => Promise<void>): (left: number) => void {
  let timer: ReturnType<typeof setTimeout> | undefined
  const plan = (left: number) => {
    cancelTimer(timer)
    timer = undefined
    if (!left) return
    const wait = Math.min((left * 2) / 3, TIMER_MS_MAX)
    const planned = (timer = later(async () => {
      left -= wait
      try {
        await renew(left)
      } catch {
        // There may be newer credentials, or another connection.
        if (planned === timer && left > 1_000) plan(left)
      }
    }, wait))
  }
  return plan
}

/** A payload behind the name of its method or topic, if it has one. */
const named = (name: string, payload: Payload): Body => (out) => (name ? out.title(name) : out).put(payload)

/** The pause before an attempt, counted from 0, in milliseconds. A random part spreads the clients of a server that comes back. */
const delay = ({ first, max }: Backoff, attempt: number) => Math.min(first * 2 ** attempt, max) * (0.5 + 0.5 * Math.random())

const BACKOFF_OF_REFUSALS: Backoff = { first: 2_000, max: 60_000 }

const POLICIES = ["disconnect", "drop_oldest", "drop_newest", "conflate", "block", "conflate_by_topic"]
