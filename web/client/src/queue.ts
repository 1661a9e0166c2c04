/** The events of a client, a subscription or a room: a bounded queue that many may read, or a callback. */

/** A queue drops its oldest event when it is full, and says here how many. */
export interface Lost {
  type: "lost"
  /** The number of events that were dropped here. A dropped gap counts as the messages that it stood for. */
  count: number
}

/** No event follows. */
export interface Ended {
  type: "ended"
}

/** The last event. @internal */
export const ENDED: Ended = { type: "ended" }

/** Bounds of a queue. An event counts its payload and 128 bytes more. */
export interface QueueBounds {
  /** Default 65,536. */
  eventsMax: number
  /** Default 8 MiB. */
  eventBytesMax: number
}

interface AnyEvent {
  type: string
  payload?: Uint8Array
  error?: { message: string }
  lost?: number
  missing?: number | null
}

/** A queue of events for those who read it. */
export interface Events<E> {
  /** The next event. After the end it is `ended`, every time. Each event goes to one reader. */
  nextEvent(): Promise<E>
  /** The events until the end. Leaving the loop ends nothing. */
  [Symbol.asyncIterator](): AsyncGenerator<E, void, undefined>
}

export type Push<E> = (event: E) => void

export interface EventQueue<E> {
  report: Push<E>
  reading: Events<E>
}

export function eventQueue<E extends AnyEvent>(
  { eventsMax = 65_536, eventBytesMax = 8 << 20, onEvent }: Partial<QueueBounds> & { onEvent?: (event: E) => void },
): EventQueue<E> {
  /** New events go into `newer`. When `older` is empty, `newer` is reversed and becomes `older`, whose last event is taken. */
  let newer: E[] = []
  let older: E[] = []
  let bytes = 0
  /** The number of events that were dropped in front of the oldest event. */
  let lost = 0
  let hasEnded = false
  const readers: ((event: E) => void)[] = []

  const length = () => newer.length + older.length
  const take = () => {
    if (!older.length) [older, newer] = [newer.reverse(), older]
    const event = older.pop()!
    bytes -= sizeOf(event)
    return event
  }

  return {
    report(event) {
      if (hasEnded) return
      hasEnded = event.type === "ended"
      if (onEvent) {
        try {
          onEvent(event)
        } catch (error) {
          // The error is the application's, and must not end the connection.
          queueMicrotask(() => {
            throw error
          })
        }
      } else if (readers[0]) {
        for (const read of readers.splice(0, hasEnded ? readers.length : 1)) read(event)
      } else {
        // A view would keep the whole message of the network alive.
        if (event.payload) event.payload = event.payload.slice()
        newer.push(event)
        bytes += sizeOf(event)
        while (length() > 1 && (length() > eventsMax || bytes > eventBytesMax)) lost += missingOf(take())
      }
    },

    reading: {
      async nextEvent() {
        if (lost) {
          const count = lost
          lost = 0
          return { type: "lost", count } as any
        }
        if (length()) return take()
        return hasEnded ? (ENDED as any) : new Promise((resolve) => readers.push(resolve))
      },

      async *[Symbol.asyncIterator]() {
        for (let event; (event = await this.nextEvent()).type !== "ended"; ) yield event
      },
    },
  }
}

/** The number of messages that a reader misses when this event is dropped. */
const missingOf = ({ lost, missing }: AnyEvent) => lost ?? missing ?? 1

const sizeOf = (event: AnyEvent) => (event.payload?.length ?? 0) + 2 * (event.error?.message.length ?? 0) + 128
