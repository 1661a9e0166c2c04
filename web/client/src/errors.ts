/** Errors of a client, typed as those of the Rust client, and the reasons why connections end. */

/** The codes that this client acts on. The build replaces them by their numbers. @internal */
export const enum Code {
  Unsupported = 1,
  NameTaken = 4,
  AlreadyJoined = 7,
  Draining = 10,
}

/** The codes of a go-away that this client acts on. @internal */
export const enum Away {
  ProtocolError = 4,
  LimitReached = 5,
  Removed = 7,
  Unauthenticated = 8,
}

/** The codes by which a server refuses a request. A code that is not here is a refusal as well. */
export const ErrorCode = {
  Unsupported: Code.Unsupported as 1,
  NotFound: 2,
  NameEmpty: 3,
  NameTaken: Code.NameTaken as 4,
  NameInvalid: 5,
  NotJoined: 6,
  AlreadyJoined: Code.AlreadyJoined as 7,
  LimitReached: 8,
  MalformedBody: 9,
  Draining: Code.Draining as 10,
  Internal: 11,
  Forbidden: 12,
  MethodNotFound: 13,
} as const

/** The codes of a go-away. Those from 4000 to 4999 are of applications. */
export const GoAwayCode = {
  Shutdown: 1,
  IdleTimeout: 2,
  HandshakeTimeout: 3,
  ProtocolError: Away.ProtocolError as 4,
  LimitReached: Away.LimitReached as 5,
  SlowSubscriber: 6,
  Removed: Away.Removed as 7,
  Unauthenticated: Away.Unauthenticated as 8,
} as const

/** Why a connection ended. */
export interface CloseReason {
  /**
   * - `go_away`: the server said why, by code and text;
   * - `peer_closed`: the server closed in order;
   * - `cut`: the connection was cut, or could not be made; `code` is the close code of WebSocket;
   * - `idle_timeout`: the server fell silent; `handshake_timeout`: it did not answer the hello in time;
   * - `decode`: it broke the protocol; `refused`: it refused the hello with the error `code`;
   * - `closed`: this client closed it.
   */
  name: "go_away" | "peer_closed" | "cut" | "idle_timeout" | "handshake_timeout" | "decode" | "refused" | "closed"
  code?: number
  /** Foreign text for people, or the cause. Pass it through `visible` before a terminal shows it. */
  text: string
}

/** A reason without a code. @internal */
export const because = (name: CloseReason["name"], text = ""): CloseReason => ({ name, text })

/** Whether a client must not connect again after this reason. */
export function isFinal({ name, code = 0 }: CloseReason): boolean {
  return name === "go_away" && (code === Away.Removed || (code >= 4500 && code <= 4999))
}

/** The reason as a text for people. */
export function describe({ name, code = 0, text }: CloseReason): string {
  const meaning = name === "go_away" ? `went away: ${GO_AWAYS[code] ?? code}` : MEANINGS[name]
  // `cut` and `closed` are not acts of the server.
  return (name[0] === "c" ? "" : "the server ") + meaning + (text && `: ${visible(text)}`)
}

/** The client could not connect. */
export class ConnectError extends Error {
  override readonly name = "ConnectError"
  declare readonly reason: CloseReason

  constructor(reason: CloseReason) {
    super(describe(reason))
    this.reason = reason
  }
}

/** A request has no reply, or a message was not sent. */
export class RequestError extends Error {
  override readonly name = "RequestError"
  /**
   * - `refused`: by the server, with an error `code`;
   * - `timed_out`, `closed`: there is no reply; the server may have processed the request;
   * - `may_be_lost`: a flush confirms nothing, because messages before it may be lost with their connection;
   * - `not_connected`, `window_full`, `queue_full`, `encode`: it was not sent;
   * - `malformed_reply`; `shutdown`: the client has ended.
   */
  declare readonly kind:
    | "refused" | "timed_out" | "closed" | "may_be_lost" | "not_connected" | "window_full" | "queue_full" | "encode" | "malformed_reply" | "shutdown"
  declare readonly code: number | undefined

  constructor(kind: RequestError["kind"], text: string, code?: number) {
    super(text)
    this.kind = kind
    this.code = code
  }
}

/** Throws the error for a message that was not sent. @internal */
export function refuse(kind: RequestError["kind"], text: string): never {
  throw new RequestError(kind, text)
}

/** The text with `?` for each character that could command a terminal, or change the order of others. */
export function visible(text: string): string {
  return text.replace(/(?!\t)[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, "?")
}

const MEANINGS = {
  peer_closed: "closed the connection",
  cut: "the connection was cut",
  idle_timeout: "fell silent",
  handshake_timeout: "did not answer",
  decode: "broke the protocol",
  refused: "refused the connection",
  closed: "this client closed the connection",
}

/** The meanings of the codes of a go-away. */
const GO_AWAYS = [
  ,
  "it shuts down",
  "it heard nothing",
  "the handshake took too long",
  "protocol error",
  "limit reached",
  "this client reads too slowly",
  "removed for good",
  "credentials refused",
]
