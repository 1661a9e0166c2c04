// The library ws on Node. In `fanout` the server publishes by itself; in `echo` it sends messages back.
//
// It implements the contract of the benchmark (bench/harness/src/contract.rs). ../README.md explains the settings.

import { createRequire } from "node:module";

import { listen, main, publish, say } from "../javascript/contract.js";

// `bench/peers/setup` installs the library beside the other tools.
const require = createRequire(import.meta.url);
const { WebSocketServer } = require("ws");
const { version } = require("ws/package.json");

const offers = [
  { suite: "fanout", transports: ["ws"], mode: "", driver: "websocket" },
  { suite: "echo", transports: ["ws"], mode: "each", driver: "bare" },
];

const OPTIONS = { binary: true, compress: false };

function serve(work) {
  const server = new WebSocketServer({ host: "127.0.0.1", port: 0, perMessageDeflate: false });
  let subscribers = 0;
  server.on("connection", (socket) => {
    // A connection that breaks ends by itself.
    socket.on("error", () => {});
    if (work.suite !== "fanout") {
      socket.on("message", (message) => socket.send(message, OPTIONS));
      return;
    }
    subscribers += 1;
    if (subscribers === work.subscribers) {
      publish(work, process.hrtime.bigint, (payload) => {
        // The payload is used again, and a socket may keep what it cannot send at once.
        const message = Buffer.from(payload);
        for (const client of server.clients) client.send(message, OPTIONS);
      });
    }
  });
  server.on("listening", () => {
    say({ ready: `ws://127.0.0.1:${server.address().port}` });
    listen(
      () => say({}),
      () => process.exit(0),
    );
  });
}

await main({ name: "ws", version, offers }, serve);
