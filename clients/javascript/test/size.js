/** What a page loads: the client with its packages, minified and compressed. */

import { gzipSync } from "node:zlib";

import { build } from "esbuild";

const MOST_KILOBYTES = 60;

const { outputFiles } = await build({
  entryPoints: [new URL("../src/index.js", import.meta.url).pathname],
  bundle: true,
  format: "esm",
  minify: true,
  write: false,
  logLevel: "error",
});
const [{ contents }] = outputFiles;
const compressed = gzipSync(contents, { level: 9 }).length / 1000;
console.log(
  `minified ${(contents.length / 1000).toFixed(1)} kB, compressed ${compressed.toFixed(1)} kB`,
);
if (compressed > MOST_KILOBYTES) throw new Error(`more than ${MOST_KILOBYTES} kB`);
