/** Subscriptions and rooms, which outlive a connection. Each has an alias, its channel, on the present connection. */

import type { CloseReason } from "./errors.js"
import { ErrorCode, RequestError } from "./errors.js"
import { Ended, EventQueue, Lost } from "./queue.js"
import { FLAG_PRIVATE, Frame, Kind, Payload, WireError, Writer } from "./wire.js"

/** How a client serves a channel. */
export interface Host {
  ask<T>(kind: Kind, channel: number, body: (out: Writer) => void, finish: (frame: Frame) => T, options?: CallOptions): Promise<T>
  send(kind: Kind, channel: number, body: (out: Writer) => void, flags?: number): void
  /** Passes the frames of this alias to the channel. */
  attach(alias: number, channel: Channel): void
  forget(channel: Channel): void
  /** The pause before an attempt to join again. */
  pause(attempt: number): number
}

export interface CallOptions {
  /** Longest time to the reply, in milliseconds. */
  timeout?: number
  /** Gives the call up. The server gets a cancel, or undoes the effect. */
  signal?: AbortSignal
}

/** Events of subscriptions and rooms alike. */
export type ChannelEvent =
  /** The server dropped messages before the next one, because this client was slow. */
  | { type: "gap"; lost: number }
  /** The connection ended. Messages are lost from now on until `resumed`. */
  | { type: "interrupted"; reason: CloseReason }
  /** It goes on, on a new connection. */
  | { type: "resumed" }
  /** The server refused to go on. It has ended. */
  | { type: "refused"; error: RequestError }
  | Lost
  | Ended

export type TopicEvent = { type: "message"; topic: string; payload: Uint8Array } | ChannelEvent

export type RoomEvent =
  | { type: "message"; member: number; name: string; payload: Uint8Array; isPrivate: boolean }
  /** A member is here, joined or left. */
  | { type: "presence"; event: "here" | "joined" | "left"; member: number; name: string }
  /** The server took this member out of the room. It has ended. */
  | { type: "removed" }
  /** The server refused something that was said. */
  | { type: "error"; error: RequestError }
  | ChannelEvent

/** The part that subscriptions and rooms share. */
export abstract class Channel<E extends { type: string } = any> {
  /** The alias on the present connection; 0 if there is none. */
  alias = 0
  protected host: Host
  protected queue: EventQueue<E | ChannelEvent>
  #isOver = false
  #attempts = 0

  constructor(host: Host, queue: EventQueue<any>) {
    this.host = host
    this.queue = queue
  }

  /** The next event. After the end it is `ended`, every time. Each event goes to one reader. */
  nextEvent(): Promise<E> {
    return this.queue.next() as Promise<E>
  }

  /** The events until the end. Leaving the loop ends nothing. */
  [Symbol.asyncIterator](): AsyncGenerator<E, void, undefined> {
    return this.queue[Symbol.asyncIterator]() as AsyncGenerator<E, void, undefined>
  }

  /** Asks the server for it, on a new connection. @internal */
  abstract open(options?: CallOptions): Promise<void>

  /** @internal */
  abstract handle(frame: Frame): void

  /** @internal */
  interrupt(reason: CloseReason): void {
    if (this.alias) this.queue.push({ type: "interrupted", reason })
    this.alias = 0
  }

  /** Goes on after a reconnect. @internal */
  resume(): void {
    this.open().then(
      () => (this.#attempts = 0),
      (error: RequestError) => {
        if (this.#isOver || error.kind === "closed" || error.kind === "not_connected" || error.code === ErrorCode.Draining) return
        const isLocal = error.kind === "timed_out" || error.kind === "window_full" || error.kind === "queue_full"
        const isTemporary = isLocal || error.code === ErrorCode.NameTaken || error.code === ErrorCode.AlreadyJoined
        if (!isTemporary || ++this.#attempts > RESUME_ATTEMPTS_MAX) {
          this.queue.push({ type: "refused", error })
          return this.end()
        }
        // The server may not have noticed the end of the last connection, so that the name is still taken.
        setTimeout(() => this.#isOver || this.alias || this.resume(), this.host.pause(this.#attempts))
      },
    )
  }

  /** No event follows. @internal */
  end(): void {
    this.#isOver = true
    this.host.forget(this)
    this.alias = 0
    this.queue.push({ type: "ended" })
  }

  /** Takes back what the server agreed to after the end. */
  protected undo(kind: Kind, alias: number): void {
    this.host.ask(kind, alias, () => {}, () => {}).catch(() => {})
  }

  protected get isOver(): boolean {
    return this.#isOver
  }
}

/** A subscription to one pattern. It survives reconnects. */
export class Subscription extends Channel<TopicEvent> {
  readonly pattern: string
  #policy: number

  /** @internal */
  constructor(host: Host, queue: EventQueue<any>, pattern: string, policy: number) {
    super(host, queue)
    this.pattern = pattern
    this.#policy = policy
  }

  /** @internal */
  open(options?: CallOptions): Promise<void> {
    const body = (out: Writer) => out.uint(this.#policy, 1).payload(this.pattern)
    return this.host.ask(Kind.Subscribe, 0, body, (frame) => {
      if (this.isOver) return this.undo(Kind.Unsubscribe, frame.channel)
      this.alias = frame.channel
      this.host.attach(frame.channel, this)
      if (!options) this.queue.push({ type: "resumed" })
    }, options)
  }

  /** @internal */
  handle(frame: Frame): void {
    if (frame.kind === Kind.Deliver) {
      this.queue.push({ type: "message", topic: frame.name || this.pattern, payload: frame.payload() })
    } else if (frame.kind === Kind.Gap) {
      this.queue.push({ type: "gap", lost: frame.body().u64() })
    }
  }

  /** Ends the subscription. */
  async unsubscribe(): Promise<void> {
    const alias = this.alias
    this.end()
    if (alias) await this.host.ask(Kind.Unsubscribe, alias, () => {}, () => {})
  }
}

/** A room that this client is in. It is joined again after a reconnect. */
export class Room extends Channel<RoomEvent> {
  readonly name: string
  /** The name of this member. */
  readonly as: string
  /** The number of this member. */
  member = 0
  /** The other members, by their numbers. */
  readonly members = new Map<number, string>()

  /** @internal */
  constructor(host: Host, queue: EventQueue<any>, name: string, as: string) {
    super(host, queue)
    this.name = name
    this.as = as
  }

  /** @internal */
  open(options?: CallOptions): Promise<void> {
    return this.host.ask(Kind.Join, 0, (out) => out.text(this.name).text(this.as), (frame) => {
      if (this.isOver) return this.undo(Kind.Leave, frame.channel)
      this.alias = frame.channel
      this.member = frame.body().uint(4)
      this.members.clear()
      this.host.attach(frame.channel, this)
      if (!options) this.queue.push({ type: "resumed" })
    }, options)
  }

  /** @internal */
  handle(frame: Frame): void {
    switch (frame.kind) {
      case Kind.Deliver: {
        const { id: member, flags } = frame
        const name = frame.name || this.members.get(member) || ""
        const isPrivate = (flags & FLAG_PRIVATE) !== 0
        return this.queue.push({ type: "message", member, name, payload: frame.payload(), isPrivate })
      }
      case Kind.Gap:
        return this.queue.push({ type: "gap", lost: frame.body().u64() })
      case Kind.Presence:
        return this.#handlePresence(frame)
      case Kind.Error: {
        const body = frame.body()
        const error = new RequestError("refused", "", body.uint(2))
        error.message = body.lastText()
        return this.queue.push({ type: "error", error })
      }
    }
  }

  #handlePresence(frame: Frame): void {
    const body = frame.body()
    const event = (["here", "joined", "left"] as const)[body.uint(1)]
    const member = body.uint(4)
    const name = body.text()
    body.finish()
    if (!event) throw new WireError("broken body")
    if (member === this.member && event === "left") {
      this.queue.push({ type: "removed" })
      return this.end()
    }
    if (event === "left") this.members.delete(member)
    else if (this.members.size < MEMBERS_MAX) this.members.set(member, name)
    this.queue.push({ type: "presence", event, member, name })
  }

  /** Says something to all other members. There is no reply. Throws a `RequestError` if it is not sent. */
  say(payload: Payload): void {
    this.host.send(Kind.Say, this.#here(), (out) => out.payload(payload))
  }

  /** Sends a message to one member. */
  async whisper(to: string, payload: Payload, options: CallOptions = {}): Promise<void> {
    await this.host.ask(Kind.Request, this.#here(), (out) => out.uint(2, 1).text(to).payload(payload), () => {}, options)
  }

  /** Lists the members, this one included. */
  list(options: CallOptions = {}): Promise<{ member: number; name: string }[]> {
    return this.host.ask(Kind.Request, this.#here(), (out) => out.uint(1, 1), (frame) => {
      const body = frame.body()
      const members = []
      while (!body.isAtEnd()) members.push({ member: body.uint(4), name: body.text() })
      return members
    }, options)
  }

  /** Leaves the room. */
  async leave(): Promise<void> {
    const alias = this.alias
    this.end()
    if (alias) await this.host.ask(Kind.Leave, alias, () => {}, () => {})
  }

  #here(): number {
    if (!this.alias) throw new RequestError(this.isOver ? "shutdown" : "not_connected", "not in the room: there is no connection to the server")
    return this.alias
  }
}

/** Members of one room that are remembered. A server has fewer. */
const MEMBERS_MAX = 1 << 16

/** Attempts to join again while the name is taken: with their pauses they last longer than the idle timeout of a server. */
const RESUME_ATTEMPTS_MAX = 30
