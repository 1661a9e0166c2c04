// Measures what one tab of Chromium receives: a publisher in Node sends numbered messages of 32 bytes at growing rates. The tab has four
// subscriptions that match each of them, so that it receives four times as many; it checks all, and says how long its frames took,
// and how old every 64th message was when it came.
//
//   TIDEWIRE_BIN=../../target/release/tidewire node bench/tab.mjs [SECONDS]
import WebSocket from "ws"
import { Client } from "../dist/tidewire.js"
import { launch, servePage } from "../tests/browser/chromium.mjs"
import { serve } from "../tests/server.mjs"

const seconds = Number(process.argv[2] ?? 5)
const rates = [50, 100, 200, 400, 600, 800, 1_000, 1_200, 1_600, 2_400].map((it) => it * 1_000)
const TICK_MS = 10
const PATTERNS = ["a.n", "a.*", "a.>", ">"]

const browser = await launch()
const pages = await servePage()
const server = await serve("--app", "pubsub", "--slow-subscriber", "drop_oldest", "--bind", "ws://127.0.0.1:0/", "--ws-origin", "*")
const publisher = await Client.connect(server.url, { WebSocket, bufferedBytesMax: 64 << 20 })
const page = await browser.newPage()
await page.goto(pages.origin)
await page.evaluate(async ({ url, patterns }) => {
  const { Client } = await import("/tidewire.js")
  globalThis.reader = await Client.connect(url)
  globalThis.seen = {}
  globalThis.reset = () => (seen = { count: 0, lost: 0, next: [0, 0, 0, 0], wrong: 0, frames: [], lags: [] })
  reset()
  const onEvent = (index) => (event) => {
    if (event.type === "gap") seen.lost += event.lost
    if (event.type !== "message") return
    const { payload } = event
    const number = payload[0] | (payload[1] << 8) | (payload[2] << 16) | (payload[3] << 24)
    if (number < seen.next[index]) seen.wrong++
    seen.next[index] = number + 1
    seen.count++
    if (number % 64 === 0) seen.lags.push(Date.now() - new DataView(payload.buffer, payload.byteOffset).getFloat64(8, true))
  }
  for (const [index, pattern] of patterns.entries()) await reader.subscribe(pattern, { onEvent: onEvent(index) })
  let last = performance.now()
  const tick = (now) => {
    seen.frames.push(now - last)
    last = now
    requestAnimationFrame(tick)
  }
  requestAnimationFrame(tick)
}, { url: server.url, patterns: PATTERNS })

console.log("| offered/s | received/s | told as lost | frames | over 50 ms | longest frame | age p50 | age p99 | oldest | publisher kept its rate |")
console.log("|---|---|---|---|---|---|---|---|---|---|")
let number = 0
const payload = new Uint8Array(32)
const fields = new DataView(payload.buffer)
for (const rate of rates) {
  await page.evaluate(() => reset())
  const start = performance.now()
  let sent = 0
  while (performance.now() - start < seconds * 1_000) {
    const due = ((performance.now() - start) / 1_000) * (rate / PATTERNS.length)
    // No more than two ticks at once, so that a late publisher does not send in bursts.
    const goal = Math.min(due, sent + (rate / PATTERNS.length) * ((TICK_MS * 2) / 1_000))
    for (; sent < goal; sent++) {
      fields.setUint32(0, number++, true)
      fields.setFloat64(8, Date.now(), true)
      publisher.publish("a.n", payload)
    }
    await new Promise((resolve) => setTimeout(resolve, TICK_MS / 2))
    await publisher.drained()
  }
  await publisher.flush()
  const took = (performance.now() - start) / 1_000
  // A loss is told in front of the next message, so all is known when the last one is there.
  const seen = await page.evaluate(async (behind) => {
    while (seen.next.some((it) => it !== behind)) await new Promise((resolve) => setTimeout(resolve, 10))
    return seen
  }, number)
  if (seen.wrong || seen.count + seen.lost !== sent * PATTERNS.length) {
    console.error(`error: ${sent * PATTERNS.length} offered, ${seen.count} received, ${seen.lost} told as lost, ${seen.wrong} out of order`)
    process.exit(1)
  }
  const long = seen.frames.filter((it) => it > 50).length
  const ages = seen.lags.sort((one, other) => one - other)
  const age = (share) => `${ages[Math.ceil(ages.length * share) - 1]} ms`
  const kept = Math.round(((sent * PATTERNS.length) / took / rate) * 100)
  console.log(`| ${rate} | ${Math.round(seen.count / took)} | ${seen.lost} | ${seen.frames.length} | ${long} | ${Math.max(...seen.frames).toFixed(0)} ms | ${age(0.5)} | ${age(0.99)} | ${age(1)} | ${kept} % |`)
}
await publisher.close()
await browser.close()
pages.close()
await server.stop()
process.exit(0)
