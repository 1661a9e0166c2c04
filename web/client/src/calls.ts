/** Calls: requests, joins and all else that has a reply. */

import { CloseReason, Code, RequestError, describe, refuse } from "./errors.js"
import type { ClientOptions, RequestOptions } from "./options.js"
import { Body, Frame, Kind } from "./wire.js"

/** How calls reach the server. */
export interface Link {
  /** Whether there is no connection that takes new work, but another one follows. */
  isWaiting(): boolean
  /** Throws a `RequestError` if it cannot. */
  emit(kind: Kind, channel: number, body?: Body, id?: number): void
  /** Cancels a request that was sent. */
  cancel(channel: number, id: number): void
  /** A reply did not come in time. */
  doubt(): void
}

export interface Calls {
  ask<T>(kind: Kind, channel: number, body?: Body, options?: RequestOptions, finish?: (frame: Frame) => T): Promise<T>
  /** Takes a reply, or an error that has an id. */
  answer(frame: Frame): void
  /** The number of calls that wait for their replies on the present connection. */
  load(): number
  /** The connection has ended. Fails what cannot be repeated on another one. */
  interrupt(reason: CloseReason): void
  /** Sends what may be repeated, on a new connection. */
  repeat(): void
}

interface Call {
  id: number
  repeats: boolean | undefined
  emit(): void
  reply(frame: Frame): void
  fail(error: unknown): void
}

export function callTable({ requestTimeout = 10_000, pendingMax = 4_096 }: ClientOptions, link: Link): Calls {
  /** The calls that wait for a reply, by their ids. */
  const pending = new Map<number, Call>()
  /** Idempotent requests between two connections. */
  const waiting = new Set<Call>()
  let lastId = 0

  /** Keeps a call for the next connection, if it may wait. */
  const keep = (call: Call) => call.repeats && link.isWaiting() && waiting.size < pendingMax && waiting.add(call)

  const submit = (call: Call) => {
    if (keep(call)) return
    try {
      if (pending.size >= pendingMax) refuse("window_full", "not sent: too many requests wait")
      do lastId = (lastId % 0xffffffff) + 1
      while (pending.has(lastId))
      call.id = lastId
      call.emit()
      pending.set(call.id, call)
    } catch (error) {
      call.fail(error)
    }
  }

  return {
    ask: (kind, channel, body, { timeout = requestTimeout, signal, idempotent } = {}, finish) =>
      new Promise((resolve, reject) => {
        signal?.throwIfAborted()
        const settle =
          <V>(then: (value: V) => void) =>
          (value: V) => {
            cancelTimer(timer)
            signal?.removeEventListener("abort", abort)
            then(value)
          }
        const call: Call = {
          id: 0,
          repeats: idempotent,
          emit: () => link.emit(kind, channel, body, call.id),
          reply: settle((frame) => resolve(finish?.(frame) as any)),
          fail: settle(reject),
        }
        const abandon = (error: unknown) => {
          call.fail(error)
          waiting.delete(call)
          // The reply to a join or subscription is still taken: its channel gives it back.
          if (kind === Kind.Request && pending.delete(call.id)) link.cancel(channel, call.id)
        }
        const abort = () => abandon(signal!.reason)
        const expire = () => {
          link.doubt()
          abandon(new RequestError("timed_out", "no reply in time"))
        }
        const timer = later(expire, Math.min(timeout, TIMER_MS_MAX))
        signal?.addEventListener("abort", abort)
        submit(call)
      }),

    answer(frame) {
      const call = pending.get(frame.id)
      // The answer to a request that was given up.
      if (!call) return
      pending.delete(frame.id)
      const error = frame.what === Kind.Error && refusal(frame)
      try {
        if (!error) call.reply(frame)
        else if (error.code !== Code.Draining || !keep(call)) call.fail(error)
      } catch {
        call.fail(new RequestError("malformed_reply", "the reply is malformed"))
      }
    },

    load: () => pending.size,

    interrupt(reason) {
      const calls = [...pending.values(), ...waiting]
      pending.clear()
      waiting.clear()
      const text = `the connection ended before the reply: ${describe(reason)}`
      for (const call of calls) keep(call) || call.fail(new RequestError("closed", text))
    },

    repeat() {
      for (const call of waiting) {
        waiting.delete(call)
        submit(call)
      }
    },
  }
}

/** The error of an error frame. */
export function refusal(frame: Frame): RequestError {
  const code = frame.uint(2)
  return new RequestError("refused", frame.lastText() || `refused with code ${code}`, code)
}

/** Short names for global functions. Minified code cannot shorten their names itself. */
export const later = (then: () => void, ms: number) => setTimeout(then, ms)
export const cancelTimer = (timer: ReturnType<typeof setTimeout> | undefined) => clearTimeout(timer)

/** The longest time of a timer in browsers. */
export const TIMER_MS_MAX = 2 ** 31 - 1
