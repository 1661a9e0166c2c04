// Starts Chromium for the tests, and serves them the built client from a page of their own origin.
import { createReadStream } from "node:fs"
import { createServer } from "node:http"
import { once } from "node:events"
import { fileURLToPath } from "node:url"
import { chromium } from "playwright-core"

export function launch() {
  return chromium.launch({
    executablePath: process.env.TIDEWIRE_CHROMIUM ?? "/usr/bin/chromium",
    args: ["--host-resolver-rules=MAP pages.example 127.0.0.1", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  })
}

/** Serves an empty page and the client. Returns the origin. */
export async function servePage() {
  const client = fileURLToPath(new URL("../../dist/tidewire.js", import.meta.url))
  const server = createServer((request, response) => {
    const isClient = request.url === "/tidewire.js"
    response.setHeader("Content-Type", isClient ? "text/javascript" : "text/html")
    if (isClient) createReadStream(client).pipe(response)
    else response.end("<!doctype html><title>tests</title>")
  })
  server.listen(0, "127.0.0.1")
  await once(server, "listening")
  return { origin: `http://127.0.0.1:${server.address().port}`, close: () => server.close() }
}
