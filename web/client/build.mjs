// Builds dist/: the client as one module, and its types. Fails if the module is larger than its limit.
// Builds the chat page of `tidewire serve --web`, too, which is committed; with --check it only compares that.
import { execFileSync } from "node:child_process"
import { createHash } from "node:crypto"
import { readFileSync, statSync, writeFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { build } from "esbuild"

const BYTES_MAX = 14 * 1024
/** Members of objects that only this module sees: they get short names. The tests run what is built. */
const INTERNAL = [
  "alias", "answer", "ask", "attach", "backlog", "behind", "cancel", "doubt", "emit", "end", "epoch", "fail", "features", "filled", "finish", "flags",
  "forget", "frame", "goAway", "handle", "hello", "here", "interrupt", "isWaiting", "lastText", "limit", "load", "open", "over", "pause", "place", "put",
  "quit", "reading", "remove", "repeat", "repeats", "reply", "report", "rest", "resume", "skip", "take", "title", "uint", "welcomed", "what", "word",
]
const here = (path) => fileURLToPath(new URL(path, import.meta.url))

await build({
  entryPoints: [here("src/index.ts")],
  outfile: here("dist/tidewire.js"),
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  mangleProps: new RegExp(`^(${INTERNAL.join("|")})$`),
})
execFileSync(process.execPath, [here("node_modules/typescript/bin/tsc"), "--project", here(".")], { stdio: "inherit" })

const { size } = statSync(here("dist/tidewire.js"))
console.log(`dist/tidewire.js: ${size} bytes of at most ${BYTES_MAX}`)
if (size > BYTES_MAX) {
  console.error(`error: the module is larger than ${BYTES_MAX} bytes`)
  process.exit(1)
}

/** The page is one file, and its policy allows only its own script and style, by their hashes. */
async function chat() {
  const options = { bundle: true, minify: true, charset: "utf8", write: false, legalComments: "none" }
  const [script, style] = await Promise.all(
    [{ entryPoints: [here("../chat/page.ts")], format: "esm", target: "es2022" }, { entryPoints: [here("../chat/page.css")] }].map(async (it) => {
      const { outputFiles } = await build({ ...options, ...it })
      return outputFiles[0].text.trim()
    }),
  )
  // Neither may end its element early.
  if (/<\/|<!--/.test(script + style)) throw new Error("the script or the style has a tag")
  const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`
  const html = readFileSync(here("../chat/page.html"), "utf8")
    .replace(/>\s+</g, "><")
    .replace("/*STYLE*/", () => style)
    .replace("/*SCRIPT*/", () => script)
  const policy = `default-src 'none'; script-src ${hash(script)}; style-src ${hash(style)}; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\n`
  return { "chat.html": html, "chat.csp": policy }
}

for (const [name, content] of Object.entries(await chat())) {
  const path = here(`../../crates/tidewire-cli/src/serve/web/${name}`)
  if (!process.argv.includes("--check")) {
    writeFileSync(path, content)
    console.log(`${name}: ${Buffer.byteLength(content)} bytes`)
  } else if (readFileSync(path, "utf8") !== content) {
    console.error(`error: ${path} is not what the build makes: run \`npm run build\` and commit it`)
    process.exit(1)
  }
}
