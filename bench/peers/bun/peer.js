// bun with WebSockets. In `fanout` the server publishes by itself; in `echo` it sends messages back.
//
// It implements the contract of the benchmark (bench/harness/src/contract.rs) in JavaScript: a program in another
// language could start and drive bun, but not be it. ../README.md explains the settings.

import { dlopen, ptr } from "bun:ffi";
import { unlinkSync } from "node:fs";

import { fail, listen, main, publish, say } from "../javascript/contract.js";

const offers = [
  { suite: "fanout", transports: ["tcp", "ipc", "ws"], mode: "", driver: "websocket" },
  { suite: "echo", transports: ["tcp"], mode: "", driver: "own" },
  { suite: "echo", transports: ["ws"], mode: "each", driver: "bare" },
];

// The topic of all publications. The benchmark's subscriber sends nothing: a server subscribes each connection when it opens.
const TOPIC = "t";

// Milliseconds that a driver waits for more replies before it gives up.
const PATIENCE_MS = 3000;

// CLOCK_MONOTONIC, which subscribers in other processes read too; bun's own clocks begin with its process.
function monotonicClock() {
  const libc = dlopen("libc.so.6", { clock_gettime: { args: ["i32", "ptr"], returns: "i32" } });
  const time = new BigInt64Array(2);
  const place = ptr(time);
  return () => {
    libc.symbols.clock_gettime(1, place);
    return time[0] * 1_000_000_000n + time[1];
  };
}

function serve(work) {
  let subscribers = 0;
  const isFanout = work.suite === "fanout";
  const path = `${process.env.TMPDIR ?? "/tmp"}/tidewire-peer-${process.pid}-bun.sock`;
  const isIpc = work.transport === "ipc";
  const place = isIpc ? { unix: path } : { hostname: "127.0.0.1", port: 0 };
  const server = Bun.serve({
    ...place,
    fetch(request, server) {
      return server.upgrade(request) ? undefined : new Response("a WebSocket is wanted", { status: 400 });
    },
    websocket: {
      perMessageDeflate: false,
      // bun drops publications to a subscriber that has more unsent bytes than this.
      backpressureLimit: 1024 * 1024 * 1024,
      closeOnBackpressureLimit: false,
      idleTimeout: 0,
      sendPings: false,
      open(socket) {
        if (!isFanout) return;
        socket.subscribe(TOPIC);
        subscribers += 1;
        if (subscribers === work.subscribers) {
          publish(work, monotonicClock(), (payload) => server.publish(TOPIC, payload, false));
        }
      },
      message(socket, message) {
        socket.send(message);
      },
    },
  });
  say({ ready: isIpc ? `ipc://${path}` : `tcp://127.0.0.1:${server.port}` });
  listen(
    () => say({}),
    () => {
      if (isIpc) unlinkSync(path);
      process.exit(0);
    },
  );
}

// Times in microseconds, in the form of the contract.
function times(latenciesMs) {
  const sorted = Float64Array.from(latenciesMs).sort();
  if (sorted.length === 0) return null;
  const at = (quantile) => sorted[Math.min(sorted.length - 1, Math.ceil(quantile * sorted.length) - 1)] * 1000;
  return {
    samples: sorted.length,
    mean_us: (sorted.reduce((sum, value) => sum + value, 0) / sorted.length) * 1000,
    p50_us: at(0.5),
    p95_us: at(0.95),
    p99_us: at(0.99),
    p999_us: at(0.999),
    max_us: at(1),
  };
}

// Keeps requests in flight on every connection and checks the number of every reply.
async function drive(address, work) {
  const inFlight = Math.max(1, work.in_flight);
  const connections = await Promise.all(Array.from({ length: work.connections }, () => connect(address)));
  const fromMs = performance.now() + work.warm_up_ms;
  const untilMs = fromMs + work.measure_ms;
  const starting = new Promise((resolve) =>
    setTimeout(() => {
      say({ started: true });
      resolve();
    }, work.warm_up_ms),
  );
  const latenciesMs = [];
  let lost = 0;
  const endings = connections.map(
    (socket) =>
      new Promise((resolve) => {
        const payload = new Uint8Array(work.message_bytes).fill(0x5a);
        const view = new DataView(payload.buffer);
        // Replies come in the order of the requests.
        const sentMs = new Float64Array(inFlight);
        let next = 0;
        let expected = 0;
        const send = () => {
          view.setBigUint64(0, BigInt(next), true);
          sentMs[next % inFlight] = performance.now();
          next += 1;
          socket.send(payload);
        };
        const end = () => {
          lost += next - expected;
          resolve();
        };
        socket.onclose = () => fail("a connection ended");
        socket.onmessage = ({ data }) => {
          const nowMs = performance.now();
          const reply = new DataView(data);
          const isRight = data.byteLength === work.message_bytes && reply.getBigUint64(0, true) === BigInt(expected);
          if (!isRight) lost += 1;
          else if (nowMs >= fromMs && nowMs < untilMs) latenciesMs.push(nowMs - sentMs[expected % inFlight]);
          expected += 1;
          if (nowMs < untilMs) send();
          else if (expected === next) end();
        };
        setTimeout(end, untilMs + PATIENCE_MS - performance.now());
        for (let count = 0; count < inFlight; count++) send();
      }),
  );
  await Promise.all([starting, ...endings]);
  const latency = times(latenciesMs);
  say({
    measured: { messages: latenciesMs.length, seconds: work.measure_ms / 1000, verified: true, lost, latency },
  });
  listen(() => {}, () => process.exit(0));
}

function connect(address) {
  return new Promise((resolve) => {
    const socket = new WebSocket(`ws://${address.replace("tcp://", "")}/`, { perMessageDeflate: false });
    socket.binaryType = "arraybuffer";
    socket.onopen = () => resolve(socket);
    socket.onerror = () => fail(`cannot connect to ${address}`);
  });
}

await main({ name: "bun", version: Bun.version, offers }, serve, drive);
