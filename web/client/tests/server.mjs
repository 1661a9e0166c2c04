// Starts servers of the binary for the tests, and stops them.
import { spawn, execFileSync } from "node:child_process"
import { once } from "node:events"
import { connect as dial, createServer } from "node:net"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"

export const root = fileURLToPath(new URL("../../../", import.meta.url))
export const binary = process.env.TIDEWIRE_BIN ?? `${process.env.CARGO_TARGET_DIR ?? `${root}target`}/debug/tidewire`

const running = new Set()
// A test that fails leaves its servers behind.
process.on("exit", () => running.forEach((child) => child.kill("SIGKILL")))

/** Starts `tidewire serve` with these arguments. Returns it when it listens. */
export async function serve(...args) {
  const child = spawn(binary, ["serve", "--json", "--exit-with-stdin", ...args], { stdio: ["pipe", "pipe", "inherit"], env: { ...process.env, RUST_LOG: "warn" } })
  running.add(child)
  child.once("exit", () => running.delete(child))
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const ready = await lines.next()
  if (ready.done) throw new Error(`${binary} serve ${args.join(" ")} ended before it was ready`)
  const url = JSON.parse(ready.value).addresses[0]
  const exited = once(child, "exit")
  return {
    url,
    /** Drains, and returns the counters of the end. */
    async stop() {
      child.stdin.end()
      let last = ""
      for await (const line of { [Symbol.asyncIterator]: () => lines }) last = line
      await exited
      return JSON.parse(last)
    },
    async kill() {
      child.kill("SIGKILL")
      await exited
    },
  }
}

/** Stands between clients and a server, and cuts all connections when a test says so. While `isDown`, there are no new ones. */
export async function relay(url) {
  const { port } = new URL(url)
  const pairs = new Set()
  const server = createServer((near) => {
    if (self.isDown) return near.destroy()
    const far = dial(port, "127.0.0.1")
    const pair = [near, far]
    pairs.add(pair)
    near.pipe(far).pipe(near)
    const end = () => {
      pairs.delete(pair)
      for (const side of pair) side.destroy()
    }
    for (const side of pair) side.on("error", end).on("close", end)
  })
  server.listen(0, "127.0.0.1")
  await once(server, "listening")
  const cut = () => {
    for (const pair of [...pairs]) for (const side of pair) side.destroy()
  }
  const self = {
    isDown: false,
    url: url.replace(`:${port}`, `:${server.address().port}`),
    cut,
    stop() {
      server.close()
      cut()
    },
  }
  return self
}

/** Makes a token, and returns it. */
export function token(file, name, ...args) {
  return execFileSync(binary, ["token", "new", name, "--file", file, ...args], { encoding: "utf8" }).trim()
}

/** Waits for an event of this type. */
export async function until(source, type) {
  for (;;) {
    const event = await source.nextEvent()
    if (event.type === type) return event
    if (event.type === "ended") throw new Error(`no event ${type} came before the end`)
  }
}
