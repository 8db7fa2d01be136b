// How smooth the page is: node web/test/bench.mjs THALWEG. Prints a table; judge it on a machine that does nothing else.
//
// A made-up program of 10,000 functions that call each other along 50,000 arcs, once with as many contexts as that takes and once with a
// million, goes through `thalweg import`.
import { execFileSync, spawn } from "node:child_process";
import { createWriteStream, mkdtempSync, rmSync } from "node:fs";
import { once } from "node:events";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { chromium } from "playwright-core";

const thalweg = resolve(process.argv[2]);
const scratch = mkdtempSync(join(tmpdir(), "thalweg-"));
const FUNCTIONS = 10_000;
const ARCS = 50_000;

let seed = 5;
/** The same numbers each time. */
const random = () => {
  seed = (seed + 0x6d2b79f5) | 0;
  let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
};

/** Folded stacks in which each arc is taken, and then others until there are so many contexts. */
async function folded(file, contexts) {
  const callees = Array.from({ length: FUNCTIONS }, () => []);
  const made = new Set();
  const add = (a, b) => !made.has(a * FUNCTIONS + b) && (made.add(a * FUNCTIONS + b), callees[a].push(b));
  const parent = [-1];
  for (let i = 1; i < FUNCTIONS; i++) {
    parent[i] = Math.max(0, i - 1 - Math.floor(random() * 800));
    add(parent[i], i);
  }
  while (made.size < ARCS) {
    const a = Math.floor(random() * (FUNCTIONS - 1));
    add(a, Math.min(FUNCTIONS - 1, a + 1 - Math.floor(Math.log(1 - random()) * 600)));
  }
  const out = createWriteStream(file);
  const known = new Set();
  const line = (path, weight) => {
    let key = 0;
    for (const f of path) known.add((key = (key * 31 + f + 1) % 9007199254740881));
    out.write(path.map((f) => `function_${f}`).join(";") + ` ${weight}\n`);
  };
  for (const arc of made) {
    const path = [];
    for (let f = Math.floor(arc / FUNCTIONS); f >= 0; f = parent[f]) path.unshift(f);
    line([...path, arc % FUNCTIONS], 1 + Math.floor(random() * 2000));
  }
  while (known.size < contexts) {
    const path = [0];
    while (path.length < 40 && callees[path.at(-1)].length) path.push(callees[path.at(-1)][Math.floor(random() * callees[path.at(-1)].length)]);
    line(path, 1 + Math.floor(random() * 200));
  }
  out.end();
  await once(out, "finish");
}

async function serve(name, contexts) {
  const stacks = join(scratch, name);
  await folded(stacks, contexts);
  execFileSync(thalweg, ["import", "--format", "folded", stacks, "-o", `${stacks}.thalweg`], { stdio: "ignore" });
  const child = spawn(thalweg, ["serve", `${stacks}.thalweg`, "--no-open"], { stdio: ["ignore", "pipe", "inherit"] });
  const [text] = await once(child.stdout, "data");
  return { child, address: String(text).trim() };
}

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const ready = "canvas[data-boxes]:not([data-boxes='0'])";

async function first(address, hash) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  const began = performance.now();
  await page.goto(address + hash);
  await page.waitForSelector(ready, { timeout: 120_000 });
  return { page, ms: performance.now() - began };
}

/** Frames a second, and how long one frame in twenty took at least, while the pointer drags and the wheel turns. */
function smoothness(page) {
  return page.evaluate(async () => {
    const canvas = document.querySelector(".detail canvas");
    canvas.setPointerCapture = () => {};
    const run = async (step) => {
      const times = [];
      let last = performance.now();
      for (let i = 0; i < 180; i++) {
        await new Promise((next) => requestAnimationFrame(next));
        const now = performance.now();
        times.push(now - last);
        last = now;
        step(i);
      }
      times.sort((a, b) => a - b);
      const sum = times.reduce((a, b) => a + b);
      return `${((1000 * times.length) / sum).toFixed(0)} fps, 95 % within ${times[Math.floor(times.length * 0.95)].toFixed(0)} ms`;
    };
    const { left, top } = canvas.getBoundingClientRect();
    const at = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type, { clientX: left + x, clientY: top + y, pointerId: 1, bubbles: true }));
    at("pointerdown", 500, 400);
    const pan = await run((i) => at("pointermove", 500 - (i % 90) * 4, 400 - (i % 60) * 4));
    at("pointerup", 400, 300);
    const zoom = await run((i) => canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: i % 120 < 60 ? 40 : -40, clientX: left + 400, clientY: top + 300, cancelable: true })));
    return { pan, zoom };
  });
}

async function filterChange(page) {
  const times = [];
  for (const key of ["ArrowRight", "ArrowRight", "ArrowLeft", "ArrowRight", "ArrowRight"]) {
    const before = await page.getAttribute(".detail canvas", "data-cutoff");
    times.push(
      await page.evaluate(
        ([before, by]) =>
          new Promise((give) => {
            const began = performance.now();
            const range = document.querySelector("input[type=range]");
            range.value = String(Number(range.value) + by);
            range.dispatchEvent(new Event("input", { bubbles: true }));
            const look = () => (document.querySelector(".detail canvas").dataset.cutoff !== before ? give(performance.now() - began) : requestAnimationFrame(look));
            look();
          }),
        [before, key === "ArrowRight" ? 1 : -1],
      ),
    );
  }
  times.sort((a, b) => a - b);
  return `${times[2].toFixed(0)} ms (median of five)`;
}

const big = await serve("arcs", 0);
const million = await serve("million", 1_000_000);
const everything = await first(big.address, "#/river?cut=0&brief=0");
const shown = await everything.page.$eval(".detail canvas", (c) => `${c.dataset.boxes} boxes, ${c.dataset.arcs} arcs`);
await everything.page.waitForTimeout(2500);
const { pan, zoom } = await smoothness(everything.page);
const usual = await first(big.address, "#/river");
const view = await first(million.address, "#/river");
console.log(`everything at once (${shown}), laid out and shown: ${everything.ms.toFixed(0)} ms`);
console.log(`panning it: ${pan}`);
console.log(`zooming it: ${zoom}`);
console.log(`another filter, 10,000 functions: ${await filterChange(usual.page)}`);
console.log(`first view, a million contexts: ${view.ms.toFixed(0)} ms`);
console.log(`another filter, a million contexts: ${await filterChange(view.page)}`);
await browser.close();
for (const { child } of [big, million]) child.kill("SIGINT");
rmSync(scratch, { recursive: true });
