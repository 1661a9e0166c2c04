/** Subscriptions and rooms, which outlive a connection. Each has an alias, its channel, on the present connection. */

import { later } from "./calls.js"
import type { CloseReason } from "./errors.js"
import { Code, RequestError, refuse } from "./errors.js"
import { ENDED } from "./queue.js"
import type { Ended, EventQueue, Events, Lost, Push } from "./queue.js"
import { Body, Flag, Frame, Kind, Payload, Writer, broken } from "./wire.js"

/** How a client serves a channel. */
export interface Host {
  ask<T>(kind: Kind, channel: number, body?: Body, options?: CallOptions, finish?: (frame: Frame) => T): Promise<T>
  emit(kind: Kind, channel: number, body: Body): void
  /** Passes the frames of its alias to the channel. */
  attach(channel: Channel): void
  /** Passes no more frames to the channel, which has ended. */
  forget(channel: Channel): void
  /** Whether there is no connection that takes new work, but another one follows. */
  isWaiting(): boolean
  /** The pause before an attempt to join again. */
  pause(attempt: number): number
}

export interface CallOptions {
  /** Longest time to the reply, in milliseconds. */
  timeout?: number
  /** Gives the call up. The server gets a cancel, or undoes the effect. */
  signal?: AbortSignal
}

/** A message of a topic or room that keeps a history has a position: epoch and offset, with a colon between them. */
export interface BeginOptions extends CallOptions {
  /** Begins behind this position, that of the last message that the page has. `recovered` says whether messages are missing. */
  since?: string
  /**
   * Begins with this number of the newest messages. Default: all that the server keeps. With a wildcard these are the newest ones of each
   * topic with a history, and they come again after a reconnect.
   */
  last?: number
}

/** Events of subscriptions and rooms alike. */
export type ChannelEvent =
  /** The server dropped messages before the next one, because this client was slow. */
  | { type: "gap"; lost: number }
  /** The connection ended. Messages are lost from now on until `resumed`, unless there is a history. */
  | { type: "interrupted"; reason: CloseReason }
  /** It goes on, on a new connection. */
  | { type: "resumed" }
  /**
   * There is a history. The missed messages follow, except this number; it is null if the server does not know it. A pattern with a
   * wildcard has no positions, so that the number is never known, and only what `last` asks for follows.
   */
  | { type: "recovered"; missing: number | null }
  /** The server refused something that was sent here. */
  | { type: "error"; error: RequestError }
  /** The server refused to go on. It has ended. */
  | { type: "refused"; error: RequestError }
  /** The server took this client out. It has ended. */
  | { type: "removed" }
  | Lost
  | Ended

export type TopicEvent = { type: "message"; topic: string; payload: Uint8Array; position?: string | undefined } | ChannelEvent

export type RoomEvent =
  | { type: "message"; member: number; name: string; payload: Uint8Array; isPrivate: boolean; position?: string | undefined }
  /** A member is here, joined or left. */
  | { type: "presence"; event: "here" | "joined" | "left"; member: number; name: string }
  | ChannelEvent

/** A subscription to one pattern. It survives reconnects, unless the server made it. */
export interface Subscription extends Events<TopicEvent> {
  readonly pattern: string
  /** Ends the subscription. */
  unsubscribe(): Promise<void>
}

/** A room that this client is in. It is joined again after a reconnect, unless the server put the client there. */
export interface Room extends Events<RoomEvent> {
  readonly name: string
  /** The name of this member. */
  readonly as: string
  /** The number of this member. */
  readonly member: number
  /** The other members, by their numbers. */
  readonly members: ReadonlyMap<number, string>
  /** Says something to all other members. There is no reply. Throws a `RequestError` if it is not sent. */
  say(payload: Payload): void
  /** Sends a message to one member. */
  whisper(to: string, payload: Payload, options?: CallOptions): Promise<void>
  /** Lists the members, this one included. */
  list(options?: CallOptions): Promise<{ member: number; name: string }[]>
  /** Leaves the room. */
  leave(): Promise<void>
}

/** The part that subscriptions and rooms share. */
export interface Channel {
  /** The alias on the present connection; 0 if there is none. */
  alias: number
  /** The alias. Throws if there is none. */
  here(): number
  report: Push<any>
  handle(frame: Frame): void
  /** The server dropped messages. */
  skip(lost: number): void
  /** Sends the subscription or join to the server. */
  open(options?: BeginOptions): Promise<void>
  /** Begins, because the server decided so. It is for this connection only. */
  place(frame: Frame): void
  /** The server took this client out. */
  remove(): void
  /** Goes on, on a new connection. */
  resume(): void
  /** The connection has ended. */
  interrupt(reason: CloseReason): void
  /** No event follows. */
  end(): void
  /** Ends the channel here and at the server. */
  quit(): Promise<void>
}

/** A channel that the server opens for a frame of `kind`. The kind that closes it has the next number. */
function channel(
  host: Host,
  push: Push<any>,
  kind: Kind.Subscribe | Kind.Join,
  body: Body,
  handle: (frame: Frame, position?: string) => void,
  joined?: (frame: Frame) => void,
): Channel {
  let isOver = false
  let attempts = 0
  /** The position of the last message. Without a history it is 0:0, and no server can tell what is missing since then. */
  let epoch = 0n
  let offset = 0
  /** The number of newest messages to ask for again, of a pattern with a wildcard. */
  let newest: number | undefined
  const moveTo = (frame: Frame) => {
    epoch = frame.epoch()
    offset = frame.uint(8)
  }
  const recovered = (missing: number) => push({ type: "recovered", missing: missing < 2 ** 53 ? missing : null })
  /** Writes the position to begin at: the last one, unless the channel is new. */
  const begin = (out: Writer, options?: BeginOptions) => {
    if (!options) return newest != null ? out.behind(NEWEST, newest) : out.behind(epoch, offset)
    const { since, last } = options
    newest = last
    if (last != null) return out.behind(NEWEST, last)
    if (!since) return out
    const [from, to] = since.split(":")
    return out.behind(BigInt(from!), Number(to))
  }
  const giveBack = (alias: number) => host.ask<void>(kind + 1, alias)
  const self: Channel = {
    alias: 0,
    here() {
      if (!self.alias) refuse(isOver ? "shutdown" : "not_connected", "not in the room: there is no connection")
      return self.alias
    },
    report: push,
    handle(frame) {
      let position
      if (frame.what === Kind.Position) {
        const former = epoch
        moveTo(frame)
        if (former && former !== epoch) recovered(Infinity)
      } else if (frame.what === Kind.Deliver && frame.flags & Flag.Positioned) {
        offset = frame.uint(8)
        // A pattern with a wildcard has no epoch.
        if (epoch) position = `${epoch}:${offset}`
      }
      handle(frame, position)
    },
    skip(lost) {
      // A gap of a room counts presences, which have no offset.
      if (kind === Kind.Subscribe) offset += lost
      push({ type: "gap", lost })
    },
    open: (options) =>
      host.ask(kind, 0, (out) => body(begin(out, options)), options, (frame) => {
        // The server agreed after the end.
        if (isOver) return void giveBack(frame.alias).catch(() => {})
        joined?.(frame)
        let isAsked, missing
        // Without a history there is nothing to ask for.
        if (!(frame.flags & Flag.Positioned)) newest = undefined
        else {
          moveTo(frame)
          if (epoch) newest = undefined
          isAsked = frame.uint(1)
          missing = frame.uint(8)
        }
        self.alias = frame.alias
        host.attach(self)
        if (!options) push({ type: "resumed" })
        if (isAsked) recovered(missing!)
        // Others than the newest messages of each topic may be missing.
        else if (!options && newest != null) recovered(Infinity)
        attempts = 0
      }),
    place(frame) {
      joined?.(frame)
      self.alias = frame.alias
      self.resume = self.end
      host.attach(self)
    },
    remove() {
      push({ type: "removed" })
      self.end()
    },
    resume: () =>
      void self.open().catch((error: RequestError) => {
        // The next connection resumes it.
        if (isOver || host.isWaiting()) return
        // The server may not have noticed the end of the last connection, so that the name is still taken.
        const isFinal = error.kind === "refused" && error.code !== Code.NameTaken && error.code !== Code.AlreadyJoined
        if (isFinal || ++attempts > Max.Attempts) {
          push({ type: "refused", error })
          self.end()
        } else {
          later(() => isOver || self.alias || self.resume(), host.pause(attempts))
        }
      }),
    interrupt(reason) {
      if (self.alias) push({ type: "interrupted", reason })
      self.alias = 0
    },
    end() {
      isOver = true
      host.forget(self)
      self.alias = 0
      push(ENDED)
    },
    async quit() {
      const { alias } = self
      self.end()
      if (alias) await giveBack(alias)
    },
  }
  return self
}

export function subscription(
  host: Host,
  { report: push, reading: events }: EventQueue<TopicEvent>,
  pattern: string,
  group: string | undefined,
  policy: number,
): [Channel, Subscription] {
  // On the wire a space is between the pattern and the group.
  if (pattern.includes(" ")) throw new SyntaxError("a pattern must not contain a space")
  const self = channel(
    host,
    push,
    Kind.Subscribe,
    (out) => out.uint(policy, 1).put(group == null ? pattern : `${pattern} ${group}`),
    ({ what, title, rest }, position) =>
      what === Kind.Deliver && push({ type: "message", topic: title || pattern, payload: rest(), position }),
  )
  return [self, { ...events, pattern, unsubscribe: self.quit }]
}

export function room(host: Host, { report: push, reading: events }: EventQueue<RoomEvent>, name: string, as: string): [Channel, Room] {
  const members = new Map<number, string>()
  const joined = (frame: Frame) => {
    room.member = frame.uint(4)
    // The number of members.
    frame.uint(4)
    members.clear()
  }
  const handle = (frame: Frame, position?: string) => {
    const { what, id: member, flags } = frame
    if (what === Kind.Deliver) {
      const name = frame.title || members.get(member) || ""
      push({ type: "message", member, name, payload: frame.rest(), isPrivate: (flags & Flag.Private) > 0, position })
    } else if (what === Kind.Presence) {
      presence(PRESENCES[frame.uint(1)], frame.uint(4), frame.word())
    }
  }
  const presence = (event: (typeof PRESENCES)[number] | undefined, member: number, name: string) => {
    if (!event) broken("broken body")
    if (event !== "left") {
      if (members.size < Max.Members) members.set(member, name)
    } else if (member === room.member) {
      return self.remove()
    } else {
      members.delete(member)
    }
    push({ type: "presence", event, member, name })
  }
  const self = channel(host, push, Kind.Join, (out) => out.word(name).word(as), handle, joined)
  const room = {
    ...events,
    name,
    as,
    member: 0,
    members,
    say: (payload: Payload) => host.emit(Kind.Say, self.here(), (out) => out.put(payload)),
    whisper: async (to: string, payload: Payload, options?: CallOptions) =>
      host.ask<void>(Kind.Request, self.here(), (out) => out.uint(2, 1).word(to).put(payload), options),
    list: async (options?: CallOptions) =>
      host.ask(Kind.Request, self.here(), (out) => out.uint(1, 1), options, (frame) => {
        const members = []
        while (frame.rest().length) members.push({ member: frame.uint(4), name: frame.word() })
        return members
      }),
    leave: self.quit,
  }
  return [self, room]
}

/** The epoch that asks for the newest messages. */
const NEWEST = 2n ** 64n - 1n

const PRESENCES = ["here", "joined", "left"] as const

const enum Max {
  /** Members of one room that are remembered. A server has fewer. */
  Members = 1 << 16,
  /** Attempts to join again while the name is taken: with their pauses they last longer than the idle timeout of a server. */
  Attempts = 30,
}
