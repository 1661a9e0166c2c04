// Builds dist/: the client as one module, and its types. Fails if the module is larger than its limit.
import { execFileSync } from "node:child_process"
import { statSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { build } from "esbuild"

const BYTES_MAX = 20.5 * 1024
const here = (path) => fileURLToPath(new URL(path, import.meta.url))

await build({
  entryPoints: [here("src/index.ts")],
  outfile: here("dist/tidewire.js"),
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  // Members that end with an underscore are internal.
  mangleProps: /[^_]_$/,
})
execFileSync(process.execPath, [here("node_modules/typescript/bin/tsc"), "--project", here(".")], { stdio: "inherit" })

const { size } = statSync(here("dist/tidewire.js"))
console.log(`dist/tidewire.js: ${size} bytes of at most ${BYTES_MAX}`)
if (size > BYTES_MAX) {
  console.error(`error: the module is larger than ${BYTES_MAX} bytes`)
  process.exit(1)
}
