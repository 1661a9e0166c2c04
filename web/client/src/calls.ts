/** Calls: requests, joins and all else that has a reply. */

import { CloseReason, Code, RequestError, describe } from "./errors.js"
import type { ClientOptions, RequestOptions } from "./options.js"
import { Body, Frame, Kind } from "./wire.js"

/** How calls reach the server. */
export interface Link {
  /** Whether there is no connection that takes new work, but another one follows. */
  isWaiting(): boolean
  /** Throws a `RequestError` if it cannot. */
  send(kind: Kind, channel: number, body?: Body, id?: number): void
  /** Takes a request back that was sent. */
  cancel(channel: number, id: number): void
}

export interface Calls {
  ask<T>(kind: Kind, channel: number, body?: Body, options?: RequestOptions, finish?: (frame: Frame) => T): Promise<T>
  /** Takes a reply, or an error that has an id. */
  answer(frame: Frame): void
  /** The number of calls that wait for their replies on the present connection. */
  size(): number
  /** The connection has ended. Fails what cannot be repeated on another one. */
  interrupt(reason: CloseReason): void
  /** Sends what may be repeated, on a new connection. */
  repeat(): void
}

interface Call {
  id: number
  idempotent: boolean | undefined
  send(): void
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
  const keep = (call: Call) => call.idempotent && link.isWaiting() && waiting.size < pendingMax && waiting.add(call)

  const submit = (call: Call) => {
    if (keep(call)) return
    try {
      if (pending.size >= pendingMax) throw new RequestError("window_full", "not sent: too many requests wait for their replies")
      do lastId = (lastId % 0xffffffff) + 1
      while (pending.has(lastId))
      call.id = lastId
      call.send()
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
            clearTimeout(timer)
            signal?.removeEventListener("abort", abort)
            then(value)
          }
        const call: Call = {
          id: 0,
          idempotent,
          send: () => link.send(kind, channel, body, call.id),
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
        const expire = () => abandon(new RequestError("timed_out", "no reply within the deadline"))
        const timer = setTimeout(expire, Math.min(timeout, TIMER_MS_MAX))
        signal?.addEventListener("abort", abort)
        submit(call)
      }),

    answer(frame) {
      const call = pending.get(frame.id)
      // The answer to a request that was given up.
      if (!call) return
      pending.delete(frame.id)
      const error = frame.kind === Kind.Error && refusal(frame)
      try {
        if (!error) call.reply(frame)
        else if (error.code !== Code.Draining || !keep(call)) call.fail(error)
      } catch {
        call.fail(new RequestError("malformed_reply", "the reply is malformed"))
      }
    },

    size: () => pending.size,

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

/** The error that a frame says. */
export function refusal(frame: Frame): RequestError {
  const code = frame.uint(2)
  return new RequestError("refused", frame.lastText() || `refused with code ${code}`, code)
}

/** Timers of browsers hold no longer time. */
export const TIMER_MS_MAX = 2 ** 31 - 1
