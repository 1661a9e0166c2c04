/** The client of Tidewire for browsers and Node. `docs/browser.md` of the repository has examples. */

export type { BeginOptions, CallOptions, ChannelEvent, Room, RoomEvent, Subscription, TopicEvent } from "./channel.js"
export type {
  Backoff, ClientOptions, Credentials, Event, JoinOptions, Metrics, RequestOptions, SubscribeOptions,
} from "./options.js"
export { Client } from "./client.js"
export type { CloseReason } from "./errors.js"
export { ConnectError, ErrorCode, GoAwayCode, RequestError, describe, isFinal, visible } from "./errors.js"
export type { Ended, Events, Lost, QueueBounds } from "./queue.js"
export type { Payload } from "./wire.js"
