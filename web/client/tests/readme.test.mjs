// Runs the examples of the README against the servers that it names, and compares what they print with their comments.
import assert from "node:assert/strict"
import { mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { test } from "node:test"
import { format } from "node:util"
import WebSocket from "ws"
import * as module from "../dist/tidewire.js"
import { root, serve, token } from "./server.mjs"

globalThis.WebSocket ??= WebSocket
const AsyncFunction = (async () => {}).constructor
const page = readFileSync(`${root}web/client/README.md`, "utf8")
const blocks = (text, language) => [...text.matchAll(new RegExp("```" + language + "\\n(.*?)```", "gs"))].map((it) => it[1])

const sections = page.split("\n## ").slice(1).filter((it) => blocks(it, "js").length > 0)
assert.equal(sections.length, 4)

for (const section of sections) {
  test(`the examples of the README: ${section.split("\n")[0]}`, async () => {
    const directory = mkdtempSync(join(tmpdir(), "tidewire-"))
    const file = join(directory, "tokens")
    const [, app] = /--app (\w+)/.exec(blocks(section, "console").join(""))
    const hasTokens = section.includes("--auth-tokens")
    const secret = hasTokens ? token(file, "ann", "--valid-for", "1h") : ""
    const server = await serve("--app", app, "--bind", "ws://127.0.0.1:0/", ...(hasTokens ? ["--auth-tokens", file] : []))
    const printed = []
    const say = (...values) => printed.push(format(...values))
    const source = blocks(section, "js").join("")
    const code = source.replace(/^import .*$/m, "").replaceAll("ws://127.0.0.1:8080/", server.url)
    const names = { ...module, fetchToken: () => secret, console: { log: say, warn: say } }
    await new AsyncFunction(...Object.keys(names), code)(...Object.values(names))
    const expected = [...source.matchAll(/console\.log\(.*\) \/\/ (.*)$/gm)].map((it) => it[1])
    assert.deepEqual(printed, expected)
    await server.stop()
    rmSync(directory, { recursive: true })
  })
}

test("the README has an example of each call of the reference", () => {
  const reference = readFileSync(`${root}docs/browser.md`, "utf8")
  const table = reference.slice(reference.indexOf("| to | call |"), reference.indexOf("Errors are `ConnectError`"))
  // The third column has the calls of Rust.
  const own = table.split("\n").map((row) => row.split(" | ")[1] ?? "").join("\n")
  const calls = new Set([...own.matchAll(/\.(\w+)\(/g)].map((it) => it[1]))
  const examples = blocks(page, "js").join("")
  const missing = [...calls].filter((call) => /^[a-z]+([A-Z][a-z]+)*$/.test(call) && !examples.includes(`.${call}(`))
  assert.deepEqual(missing, [])
  assert.ok(calls.size > 12)
})
