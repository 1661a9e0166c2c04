/** The options, the events and the counters of a client. */

import type { BeginOptions, CallOptions, Room, RoomEvent, Subscription, TopicEvent } from "./channel.js"
import type { CloseReason, RequestError } from "./errors.js"
import type { Ended, Lost, QueueBounds } from "./queue.js"

/** The pauses between attempts to connect, in milliseconds: each is twice as long as the one before, less a random part of up to a half. */
export interface Backoff {
  /** Default 200. */
  first: number
  /** Default 5,000. */
  max: number
}

/** A token, or a function that gets one. It is called for each connection, and before the present token expires. */
export type Credentials = string | (() => string | Promise<string>)

export interface ClientOptions extends Partial<QueueBounds> {
  credentials?: Credentials
  /** Sends credentials over `ws://` to other machines, too. Anybody on the way can read them, so use it only in a closed network. */
  allowPlaintextCredentials?: boolean
  /** Default: on, with the defaults of `Backoff`. The first attempt is never repeated. */
  reconnect?: Partial<Backoff> | false
  /**
   * Connects to the address that a server names when it shuts down, if its scheme, `ws` or `wss`, is the same. If it cannot connect there, it
   * returns to its own URL. Default: off.
   */
  followMoves?: boolean
  /** How long a request waits for its reply, in milliseconds. Default 10,000. */
  requestTimeout?: number
  /** Default 5,000. */
  handshakeTimeout?: number
  /** How long `close` waits for the server. Default 5,000. */
  closeTimeout?: number
  /** How many requests may wait for their replies. Default 4,096. */
  pendingMax?: number
  /** Messages are refused as long as more bytes than this wait for the network. Default 1 MiB. */
  bufferedBytesMax?: number
  /** The longest frame, in bytes. Default 1 MiB. */
  frameBytesMax?: number
  /** Gets each event at once, instead of the queue. */
  onEvent?: (event: Event) => void
  agent?: string
  /** The class of WebSocket. Default: that of the browser. In Node before 22: the one of the package `ws`. */
  WebSocket?: unknown
}

/** Something that happened to a client. */
export type Event =
  | { type: "opened"; agent: string }
  /** A one-way message of the server. */
  | { type: "message"; channel: number; name: string; payload: Uint8Array }
  | { type: "closed"; reason: CloseReason }
  /** The next attempt follows after a pause, in milliseconds. */
  | { type: "reconnecting"; delay: number; cause: string }
  /** The credentials expire in `left` milliseconds. If `credentials` is a function, it is asked for newer ones now. */
  | { type: "credentials_expire"; left: number }
  /** The server has put this client into a room, until the connection ends. */
  | { type: "joined"; room: Room }
  /** The server has subscribed this client to a pattern, until the connection ends. */
  | { type: "subscribed"; subscription: Subscription }
  /** The server refused a message that has no reply, such as a `publish`. */
  | { type: "error"; error: RequestError }
  | Lost
  | Ended

export interface RequestOptions extends CallOptions {
  /** The name of a method. */
  method?: string
  channel?: number
  /** The request may be processed twice: it is sent again after a reconnect, until its deadline. */
  idempotent?: boolean
}

export interface SubscribeOptions extends BeginOptions, Partial<QueueBounds> {
  /** A queue group: of the subscriptions with one pattern and group, one gets each message. */
  group?: string
  /** The policy of the server if this client reads too slowly. Default: the server chooses. */
  policy?: "disconnect" | "drop_oldest" | "drop_newest" | "conflate" | "block" | "conflate_by_topic"
  /** Gets each event at once, instead of the queue. */
  onEvent?: (event: TopicEvent) => void
}

export interface JoinOptions extends BeginOptions, Partial<QueueBounds> {
  /** Gets each event at once, instead of the queue. */
  onEvent?: (event: RoomEvent) => void
}

/** The counters of a client. */
export interface Metrics {
  connections: number
  bytesReceived: number
  messagesReceived: number
  /** Messages that the server dropped, as it said in gaps. */
  messagesLost: number
}
