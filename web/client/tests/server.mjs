// Starts servers of the binary for the tests, and stops them.
import { spawn, execFileSync } from "node:child_process"
import { once } from "node:events"
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
