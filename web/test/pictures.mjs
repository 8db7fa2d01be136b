// Takes the pictures of docs/images: node web/test/pictures.mjs THALWEG [VIEW...]. Records sqlite, CPython and a server of requests, and watches a Lua that runs on.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const [thalwegPath, ...wanted] = process.argv.slice(2);
const thalweg = resolve(thalwegPath);
const images = join(dirname(fileURLToPath(import.meta.url)), "../../docs/images");
const scratch = mkdtempSync(join(tmpdir(), "thalweg-"));
const WORK = `
import json, re, sys, threading, time
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
data = [{"id": i, "tags": [str(i)] * 5} for i in range(200)]
def work(rounds):
    for _ in range(rounds):
        json.loads(json.dumps(data)); time.sleep(0.01)
pool = [threading.Thread(target=work, args=(3,), name="worker") for _ in range(3)]
for t in pool: t.start()
work(int(sys.argv[1])); re.findall(r"(a+)+b|[0-9]+", "aaaa 12 " * 300); fib(16)
for t in pool: t.join()
`;

const QUERIES = `
create table t(id integer primary key, name text, v real);
with recursive c(i) as (select 1 union all select i+1 from c where i<6000) insert into t select i, 'name'||(i*7919%1000), i*0.37 from c;
create index tn on t(name);
select name, count(*), sum(v), avg(v) from t group by name order by 3 desc limit 20;
select a.id, b.v from t a join t b on a.name=b.name where a.id%50=0 order by b.v limit 40;
update t set v=v*1.1 where name like '%5%';
select json_group_array(name) from (select distinct name from t order by name);
`;

function serve(args) {
  const child = spawn(thalweg, ["serve", ...args, "--no-open"], { cwd: scratch, stdio: ["ignore", "pipe", "inherit"] });
  return new Promise((give) => child.stdout.once("data", (text) => give({ child, address: String(text).trim() })));
}

writeFileSync(join(scratch, "work.py"), WORK);
const record = (out, rounds) => execFileSync(thalweg, ["record", "-q", "-o", out, "--", "/usr/bin/python3.11", "work.py", rounds], { cwd: scratch });
record("before.thalweg", "3");
record("python.thalweg", "6");
writeFileSync(join(scratch, "queries.sql"), QUERIES);
execFileSync(thalweg, ["record", "-q", "-o", "sqlite.thalweg", "--", "sqlite3", ":memory:", ".read queries.sql"], { cwd: scratch, stdio: "ignore" });
execFileSync(thalweg, ["record", "-q", "--metric", "alloc", "-o", "alloc.thalweg", "--", "sqlite3", ":memory:", ".read queries.sql"], { cwd: scratch, stdio: "ignore" });
execFileSync("g++", ["-g", "-O1", "-pthread", "-o", "requests", resolve(images, "../../tests/targets/requests.cpp")], { cwd: scratch });
execFileSync(thalweg, ["record", "-q", "-o", "calls.thalweg", "--rule", "query: n >= 0; record sql, n, ret", "--root", "^handle_request$", "--", "./requests", "600"], { cwd: scratch });
const calls = await serve(["calls.thalweg"]);
const alloc = await serve(["alloc.thalweg"]);
const sqlite = await serve(["sqlite.thalweg"]);
const file = await serve(["python.thalweg", "--before", "before.thalweg"]);
const lua = spawn("lua5.4", ["-e", "local function f(n) if n < 2 then return n end return f(n-1) + f(n-2) end while true do local t = {} for i = 1, 300 do t[i] = tostring(f(7)) end table.sort(t) end"]);
const live = await serve(["-p", String(lua.pid)]);
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });

async function picture(name, address, hash, { dark = false, wait = 900, act } = {}) {
  if (wanted.length && !wanted.includes(name)) return;
  const page = await browser.newPage({ viewport: { width: 1280, height: 720 }, colorScheme: dark ? "dark" : "light" });
  await page.goto(address + hash);
  await page.waitForSelector("nav a[aria-current]");
  await page.waitForTimeout(wait);
  await act?.(page);
  await page.screenshot({ path: join(images, `page-${name}.png`) });
  await page.close();
}

const flat = JSON.parse(execFileSync(thalweg, ["report", "python.thalweg", "--flat", "--json"], { cwd: scratch, maxBuffer: 1 << 28 })).functions;
const named = (name) => (flat.find((f) => f.name === name) ?? flat[0]).function;
const eval_ = named("_PyEval_EvalFrameDefault");
await picture("river", sqlite.address, "#/river");
await picture("selected", file.address, `#/river?sel=${eval_}`, { dark: true });
await picture("functions", file.address, `#/functions?sel=${eval_}`);
await picture("function", file.address, `#/function?sel=${eval_}`);
await picture("tree", file.address, `#/tree`, { act: async (page) => { await page.click(".tbody"); await page.keyboard.press("Home"); await page.waitForTimeout(300); } });
await picture("flame", file.address, `#/flame?sel=${eval_}`, { dark: true });
await picture("timeline", file.address, "#/timeline");
await picture("threads", file.address, "#/threads");
await picture("summary", file.address, "#/summary", { dark: true });
await picture("compare", file.address, "#/compare");
await picture("metric", alloc.address, "#/flame?metric=alloc.bytes");
const recorded = execFileSync(thalweg, ["calls", "calls.thalweg", "--json"], { cwd: scratch, maxBuffer: 1 << 28, encoding: "utf8" }).trim().split("\n").map((line) => JSON.parse(line));
const thrown = recorded.find((call) => call.rule && call.end === "unwound" && call.entry.n > 100);
await picture("calls", calls.address, `#/calls?list=chosen&call=${thrown.id}`);
execFileSync(thalweg, ["switch", String(lua.pid), "--off", "^luaL_", "--time-some", "^lua_t"], { stdio: "ignore" });
await picture("live", live.address, "#/live", { wait: 9000, act: async (page) => { await page.fill(".search input", "lua"); await page.click(".tr"); await page.waitForTimeout(1500); } });

await browser.close();
for (const { child } of [sqlite, alloc, calls, file, live]) {
  child.kill("SIGINT");
  await new Promise((ended) => child.once("exit", ended));
}
lua.kill();
rmSync(scratch, { recursive: true });
