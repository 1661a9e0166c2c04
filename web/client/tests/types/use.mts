// Uses each public name with its type. It is compiled against the built types, and never run.
import { Client, ConnectError, ErrorCode, GoAwayCode, RequestError, describe, isFinal, visible } from "../../dist/index.js"
import type {
  Backoff, BeginOptions, CallOptions, ChannelEvent, ClientOptions, CloseReason, Credentials, Ended, Event, Events, JoinOptions, Lost, Metrics, Payload,
  QueueBounds, RequestOptions, Room, RoomEvent, SubscribeOptions, Subscription, TopicEvent,
} from "../../dist/index.js"

const credentials: Credentials = async () => "token"
const reconnect: Backoff = { first: 200, max: 5_000 }
const bounds: QueueBounds = { eventsMax: 10, eventBytesMax: 10_000 }
const options: ClientOptions = { ...bounds, credentials, reconnect, followMoves: true, onEvent: (event: Event) => void event.type }
const client: Client = await Client.connect("wss://app.example/", options)

const call: CallOptions = { timeout: 100, signal: AbortSignal.timeout(10) }
const request: RequestOptions = { ...call, method: "add", idempotent: true }
const payloads: Payload[] = ["text", new Uint8Array(1), new ArrayBuffer(1)]
export const reply: Uint8Array = await client.request(payloads[0]!, request)

const subscribe: SubscribeOptions = { ...call, policy: "conflate", onEvent: (event: TopicEvent) => void event.type }
const begin: BeginOptions = { ...call, since: "7:300", last: 10 }
const subscription: Subscription = await client.subscribe("price.>", subscribe)
for await (const event of subscription) if (event.type === "message") void (event.topic.length + event.payload.length + (event.position?.length ?? 0))

const join: JoinOptions = { ...begin, onEvent: (event: RoomEvent) => void event.type }
const room: Room = await client.join("lobby", "ann", join)
export const names: string[] = [...(await room.list()).map((it) => it.name), ...room.members.values()]
// @ts-expect-error the client writes the members
room.members.clear()

const told: (event: ChannelEvent | Lost | Ended) => number = (event) => (event.type === "lost" ? event.count : event.type === "gap" ? event.lost : event.type === "recovered" ? event.missing ?? 1 : 0)
const source: Events<RoomEvent> = room
told((await source.nextEvent()) as ChannelEvent)
export const metrics: Metrics = client.metrics

export const four: 4 = ErrorCode.NameTaken
export const eight: 8 = GoAwayCode.Unauthenticated
export function why(error: unknown): string {
  if (error instanceof RequestError && error.kind === "refused") return visible(error.message)
  if (!(error instanceof ConnectError)) throw error
  const reason: CloseReason = error.reason
  return `${describe(reason)}, ${isFinal(reason)}`
}
await client.close(4_000, "bye")
