/** Errors of a client, typed as those of the Rust client, and the reasons why connections end. */

/** The codes by which a server refuses a request. A code that is not here is a refusal as well. */
export const ErrorCode = {
  Unsupported: 1,
  NotFound: 2,
  NameEmpty: 3,
  NameTaken: 4,
  NameInvalid: 5,
  NotJoined: 6,
  AlreadyJoined: 7,
  LimitReached: 8,
  MalformedBody: 9,
  Draining: 10,
  Internal: 11,
  Forbidden: 12,
} as const

/** The codes of a go-away. Those from 4000 to 4999 are of applications. */
export const GoAwayCode = {
  Shutdown: 1,
  IdleTimeout: 2,
  HandshakeTimeout: 3,
  ProtocolError: 4,
  LimitReached: 5,
  SlowSubscriber: 6,
  Removed: 7,
  Unauthenticated: 8,
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

/** Whether a client must not connect again after this reason. */
export function isFinal(reason: CloseReason): boolean {
  const code = reason.code ?? 0
  return reason.name === "go_away" && (code === GoAwayCode.Removed || (code >= 4500 && code <= 4999))
}

/** The reason for people. */
export function describe(reason: CloseReason): string {
  const of = { ...MEANINGS, go_away: GO_AWAYS[reason.code ?? 0] ?? `the server went away with code ${reason.code}` }
  return reason.text ? `${of[reason.name]}: ${visible(reason.text)}` : of[reason.name]
}

/** The client could not connect. */
export class ConnectError extends Error {
  override readonly name = "ConnectError"
  readonly reason: CloseReason

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
   * - `not_connected`, `window_full`, `queue_full`, `encode`: it was not sent;
   * - `malformed_reply`; `shutdown`: the client has ended.
   */
  readonly kind:
    | "refused" | "timed_out" | "closed" | "not_connected" | "window_full" | "queue_full" | "encode" | "malformed_reply" | "shutdown"
  readonly code?: number

  constructor(kind: RequestError["kind"], text: string, code?: number) {
    super(text)
    this.kind = kind
    if (code !== undefined) this.code = code
  }
}

/** The text with `?` for each character that could command a terminal, or change the order of others. */
export function visible(text: string): string {
  return text.replace(/(?!\t)[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, "?")
}

const MEANINGS = {
  peer_closed: "the server closed the connection",
  cut: "the connection was cut",
  idle_timeout: "the server fell silent",
  handshake_timeout: "the server did not answer in time",
  decode: "the server broke the protocol",
  refused: "the server refused the connection",
  closed: "this client closed the connection",
}

const GO_AWAYS: Record<number, string> = {
  1: "the server is shutting down",
  2: "the server heard nothing for too long",
  3: "the handshake did not finish in time",
  4: "the server found the protocol violated",
  5: "a limit of the server was passed",
  6: "this client reads too slowly",
  7: "the server removed this session for good",
  8: "the credentials are missing, wrong, expired or revoked",
}
