// The common parts of all rivals in JavaScript: the lines of the contract, and a publisher at a rate.

import { createInterface } from "node:readline";

// Milliseconds between two looks of a publisher at the clock.
const TICK_MS = 1;

// Milliseconds of the rate that a late publisher makes up for in one turn.
const TURN_MS = 10;

export function say(line) {
  process.stdout.write(JSON.stringify(line) + "\n");
}

export function fail(message) {
  process.stderr.write(`error: ${message}\n`);
  process.exit(1);
}

// Calls `onLine` for each line from the benchmark, and `onEnd` at the end of input.
export function listen(onLine, onEnd) {
  createInterface({ input: process.stdin }).on("line", onLine).on("close", onEnd);
}

// Runs the command that the benchmark asks for.
export async function main(description, serve, drive) {
  const [command, ...rest] = process.argv.slice(2);
  try {
    if (command === "describe") say(description);
    else if (command === "serve" && rest.length === 1) serve(JSON.parse(rest[0]));
    else if (command === "drive" && drive && rest.length === 2) await drive(rest[0], JSON.parse(rest[1]));
    else fail("usage: describe | serve WORK | drive ADDRESS WORK");
  } catch (error) {
    fail(error.message);
  }
}

// Publishes at the work's rate; `now` is CLOCK_MONOTONIC in nanoseconds, which subscribers in other processes read too. A message has its number, counted from 0, the time at which it was due, and bytes 0x5a. A late
// publisher catches up in turns, between which the event loop reads from the benchmark and writes to subscribers. A publisher
// that caught up at once would take longer each time, and would never answer again at a rate that it cannot keep.
export function publish(work, now, send) {
  const payload = new Uint8Array(work.message_bytes).fill(0x5a);
  const view = new DataView(payload.buffer);
  const begunNs = now();
  const isPaced = work.rate_per_sec > 0;
  const turnMessages = isPaced ? Math.max(1, Math.ceil((work.rate_per_sec * TURN_MS) / 1000)) : 64;
  let sent = 0;
  const turn = () => {
    const elapsedSecs = Number(now() - begunNs) / 1e9;
    const due = isPaced ? Math.floor(elapsedSecs * work.rate_per_sec) : Infinity;
    const until = Math.min(due, sent + turnMessages);
    for (; sent < until; sent++) {
      view.setBigUint64(0, BigInt(sent), true);
      const dueNs = isPaced ? begunNs + BigInt(Math.floor(((sent + 1) * 1e9) / work.rate_per_sec)) : now();
      view.setBigInt64(8, dueNs, true);
      send(payload);
    }
    if (sent < due) setImmediate(turn);
    else setTimeout(turn, TICK_MS);
  };
  turn();
}
