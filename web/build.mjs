// Builds the page into the crate that embeds it: `node build.mjs [DIRECTORY]`. The same sources give the same bytes.
import { build } from "esbuild";
import { copyFile, mkdir } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2] ?? join(here, "../crates/cli/src/page/built"));
await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: [
    { in: "src/main.tsx", out: "page" },
    { in: "src/page.css", out: "page" },
  ],
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  logLevel: "warning",
});
await copyFile(join(here, "src/icon.svg"), join(out, "icon.svg"));
