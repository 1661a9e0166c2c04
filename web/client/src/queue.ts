/** The events of a client, a subscription or a room: a bounded queue that many may read, or a callback. */

/** A queue drops its oldest event when it is full, and says here how many. */
export interface Lost {
  type: "lost"
  /** The number of events that were dropped here, and of the messages that dropped gaps counted. */
  count: number
}

/** No event follows. */
export interface Ended {
  type: "ended"
}

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
  count?: number
}

/** See the file. `E` includes `Lost` and `Ended`. */
export class EventQueue<E extends AnyEvent> {
  #bounds: QueueBounds
  #callback: ((event: E) => void) | undefined
  /** The events, of which those before `#first` are taken. */
  #events: E[] = []
  #first = 0
  #bytes = 0
  /** The number of events that were dropped in front of the oldest event. */
  #lost = 0
  #hasEnded = false
  #waiters: ((event: E) => void)[] = []

  constructor(bounds: QueueBounds, callback?: (event: E) => void) {
    this.#bounds = bounds
    this.#callback = callback
  }

  push(event: E): void {
    if (this.#hasEnded) return
    this.#hasEnded = event.type === "ended"
    if (this.#callback) return this.#call(this.#callback, event)
    const waiter = this.#waiters.shift()
    if (waiter) {
      waiter(event)
      if (this.#hasEnded) for (const other of this.#waiters.splice(0)) other(event)
      return
    }
    if (event.payload) {
      // A view would keep the whole message of the network alive.
      event.payload = event.payload.slice()
    }
    this.#events.push(event)
    this.#bytes += sizeOf(event)
    const { eventsMax, eventBytesMax } = this.#bounds
    while (this.length > 1 && (this.length > eventsMax || this.#bytes > eventBytesMax)) {
      const dropped = this.#take()
      this.#lost += dropped.lost ?? 1
    }
  }

  get length(): number {
    return this.#events.length - this.#first
  }

  /** The next event. After the end it is the end, every time. */
  next(): Promise<E> {
    const event = this.tryNext()
    return event ? Promise.resolve(event) : new Promise((resolve) => this.#waiters.push(resolve))
  }

  /** The next event, if there is one. */
  tryNext(): E | undefined {
    if (this.#lost > 0) {
      const count = this.#lost
      this.#lost = 0
      return { type: "lost", count } as unknown as E
    }
    if (this.length > 0) return this.#take()
    return this.#hasEnded ? ({ type: "ended" } as unknown as E) : undefined
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<E, void, undefined> {
    for (;;) {
      const event = this.tryNext() ?? (await this.next())
      if (event.type === "ended") return
      yield event
    }
  }

  #take(): E {
    const event = this.#events[this.#first]!
    this.#events[this.#first++] = undefined as unknown as E
    this.#bytes -= sizeOf(event)
    if (this.#first > 1024 && this.#first * 2 > this.#events.length) {
      this.#events = this.#events.slice(this.#first)
      this.#first = 0
    }
    return event
  }

  #call(callback: (event: E) => void, event: E): void {
    try {
      callback(event)
    } catch (error) {
      // The error is the application's, and must not end the connection.
      queueMicrotask(() => {
        throw error
      })
    }
  }
}

const sizeOf = (event: AnyEvent) => (event.payload?.length ?? 0) + 2 * (event.error?.message.length ?? 0) + 128
