// Recorded calls and metrics, on a file and live, against what `thalweg calls --json` and `report --by` say.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { after, before, test } from "node:test";
import { response, config, hash, launch, open, riverReady, rows } from "./browser.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const thalweg = (...arguments_) => execFileSync(config.thalweg, arguments_, { encoding: "utf8", maxBuffer: 1 << 28 });
const lines = (...more) => thalweg("calls", config.file, "--json", ...more).trim().split("\n").filter(Boolean).map((line) => JSON.parse(line));
const counted = (page, text) => page.waitForFunction((text) => document.querySelector("[data-count]")?.textContent.startsWith(text), text);
const filled = (page) => page.waitForFunction(() => [...document.querySelectorAll("[aria-label='Recorded calls'] .tr [data-column=name]")].some((cell) => cell.textContent !== "…"));

test("requests and chosen calls are listed with the figures of the report", async () => {
  const page = await open(browser, config.calls, "#/calls");
  const all = lines();
  const roots = all.filter((call) => call.parent === null);
  const chosen = all.filter((call) => call.rule !== null);
  await counted(page, `${roots.length} requests`);
  const sent = (await response(page, "calls")).rows;
  for (const row of sent.slice(0, 50)) {
    const call = roots.find((one) => one.id === row.id);
    assert.deepEqual([row.name, row.total, row.waiting, row.end, row.tid, row.request], [call.function, call.total_ns, call.waiting_ns, call.end, call.tid, call.request]);
  }
  await page.selectOption("select[aria-label=List]", "chosen");
  await counted(page, `${chosen.length} chosen calls`);
  await page.click(".thead button:has-text('Total')");
  await filled(page);
  await page.waitForFunction((name) => document.querySelector("[aria-label='Recorded calls'] .tr [data-column=name]").textContent.startsWith(name), "query");
  const longest = Math.max(...chosen.map((call) => call.total_ns));
  assert.equal((await response(page, "calls?list=chosen&sort=-total")).rows[0].total, longest);
  assert.match(await hash(page), /order=-total/);
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test("conditions are those of --where, and what is none is said", async () => {
  const page = await open(browser, config.calls, "#/calls?list=chosen");
  await page.waitForSelector(".where input");
  for (const where of ["n > 150", "end == unwound", "duration > 150us and n >= 10", "sql =~ 'id = 1[0-9]$'"]) {
    await page.fill(".where input", where);
    await page.press(".where input", "Enter");
    const wanted = lines("--where", where).filter((call) => call.rule !== null).length;
    assert.ok(wanted > 0, where);
    await counted(page, `${wanted} of `);
  }
  await page.fill(".where input", "nonsense");
  await page.press(".where input", "Enter");
  await page.waitForFunction(() => /is no condition/.test(document.querySelector(".failure")?.textContent ?? ""));
  page.errors.splice(0);
  await page.goBack();
  await page.waitForFunction(() => document.querySelector(".where input").value.startsWith("sql"));
  await page.fill(".search input", "^work$");
  await counted(page, "0 of ");
  await page.context().close();
});

test("the histogram has every chosen call once, and a bar chooses those in it", async () => {
  const page = await open(browser, config.calls, "#/calls?list=chosen");
  await page.waitForSelector(".durations button");
  const bars = await page.$$eval(".durations li button", (all) => all.map((bar) => Number(bar.dataset.calls)));
  const chosen = lines().filter((call) => call.rule !== null && call.exit_unix_ns !== null);
  assert.equal(bars.reduce((a, b) => a + b), chosen.length);
  const most = bars.indexOf(Math.max(...bars));
  await page.click(`.durations li:nth-child(${most + 1}) button`);
  await counted(page, bars[most] < chosen.length ? `${bars[most]} of ` : `${bars[most]} chosen`);
  assert.match(decodeURIComponent(await hash(page)).replaceAll("+", " "), /where=duration >= .* and duration < /);
  // Those in it are told apart more finely.
  await page.click(".durations button[data-all]");
  await counted(page, `${chosen.length} chosen`);
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test("the tree of a call has its callers, what it called, values and exception", async () => {
  const page = await open(browser, config.calls, "#/calls?list=chosen");
  const all = lines();
  const call = all.find((one) => one.end === "unwound" && one.rule !== null);
  await page.fill(".where input", `end == unwound and n == ${call.entry.n}`);
  await page.press(".where input", "Enter");
  await filled(page);
  await page.click("[aria-label='Recorded calls'] .tr");
  await page.waitForSelector("table.values");
  const values = await page.$$eval("table.values tr", (rows) => Object.fromEntries(rows.map((row) => [row.querySelector("th").textContent, row.querySelector("code").textContent])));
  assert.equal(values.n, String(call.entry.n));
  assert.equal(values.sql, JSON.stringify(call.entry.sql));
  assert.match(values.exception, /std::runtime_error/);
  assert.equal(values["exception.message"], JSON.stringify(call.entry.sql));
  const chain = await page.$$eval("[aria-label='Tree of the call'] .tr", (rows) => rows.map((row) => [Number(row.getAttribute("aria-level")), row.querySelector("[data-column=name]").textContent.replace(/^[▾▸]/, "").split(" ")[0]]));
  assert.deepEqual(chain, [[1, "handle_request"], [2, "work"], [3, "query"]]);
  // The address brings it back; the function is selected in the other views.
  const address = await hash(page);
  await page.goto("about:blank");
  await page.goto(config.calls + address);
  await page.waitForSelector("table.values");
  await page.click("nav a:text-matches('^Function\\\\d')");
  await page.waitForFunction(() => document.querySelector(".function h2")?.textContent.startsWith("query"));
  await page.click("button:text-is('Recorded calls')");
  await page.waitForFunction(() => location.hash.includes("only=1"));
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test("the time line has every call, can be zoomed, and chooses", async () => {
  const page = await open(browser, config.calls, "#/calls");
  await page.waitForSelector(".callline canvas:not([data-spans='0'])");
  const line = await response(page, "callline?px=1000");
  const { count } = await response(page, "calls");
  assert.equal(line.count.reduce((sum, n) => sum + n, 0), count);
  assert.equal(line.threads.length, 2);
  const span = () => page.$eval(".callline canvas", (c) => Number(c.dataset.t1) - Number(c.dataset.t0));
  const whole = await span();
  await page.focus(".callline canvas");
  await page.keyboard.press("+");
  await page.waitForFunction((whole) => { const c = document.querySelector(".callline canvas"); return Number(c.dataset.t1) - Number(c.dataset.t0) < whole * 0.7; }, whole);
  await page.keyboard.press("ArrowDown");
  await page.waitForFunction(() => /call=\d+/.test(location.hash));
  await page.keyboard.press("0");
  await page.waitForFunction(() => !location.hash.includes("t0="));
  assert.equal(await span(), whole);
  await page.context().close();
});

test("a hundred thousand calls are scrolled through: few rows exist, and those in sight are there", async () => {
  const page = await open(browser, config.many, "#/calls?list=chosen");
  await filled(page);
  const { count } = await response(page, "calls?list=chosen");
  assert.ok(count >= 100_000, `${count} calls`);
  await page.evaluate(async () => {
    const body = document.querySelector("[aria-label='Recorded calls'] .tbody");
    for (let n = 0; n < 60; n++) {
      body.scrollTop += body.scrollHeight / 70;
      await new Promise((next) => requestAnimationFrame(next));
    }
  });
  assert.ok((await page.$$(".tr")).length < 120);
  await page.press("[aria-label='Recorded calls'] .tbody", "End");
  await page.waitForFunction((last) => [...document.querySelectorAll("[aria-label='Recorded calls'] .tr")].some((row) => Number(row.getAttribute("aria-rowindex")) === last && !row.textContent.includes("…")), count + 1);
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test("a process that runs shows its calls as they come", async () => {
  const page = await open(browser, config.live, "#/calls?list=chosen");
  await filled(page);
  const shown = () => page.$eval("[data-count]", (element) => Number(element.textContent.replace(/\D/g, "")));
  const first = await shown();
  assert.ok(first > 0);
  await page.waitForFunction((first) => Number(document.querySelector("[data-count]").textContent.replace(/\D/g, "")) > first, first);
  await page.context().close();
});

// A figure as the page shows it, to three digits that matter, without its error: times have one, and stand there until a metric's
// figures have come.
const UNITS = { "": 1, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, ns: 1, "µs": 1e3, ms: 1e6, s: 1e9 };
function figure(text) {
  const [number, unit = ""] = text.split(" \u00b1 ")[0].split(" ");
  assert.ok(unit in UNITS, text);
  return Number(number.replaceAll(",", "")) * UNITS[unit];
}

test("the table shows of each metric what the report says", async () => {
  const { file, address } = config.measured;
  const page = await open(browser, address, "#/functions");
  for (const metric of ["alloc.bytes", "alloc.calls", "free.bytes", "live.objects", "syscall.calls", "syscall.time"]) {
    const reported = JSON.parse(thalweg("report", file, "--flat", "--json", "--by", metric)).functions;
    const most = reported.reduce((one, other) => (other.total > one.total ? other : one));
    assert.ok(most.total > 0, metric);
    await page.selectOption("select[aria-label=By]", metric);
    const near = (text, value) => Math.abs(figure(text) - value) <= value * 0.006;
    const table = async () => {
      const shown = (await rows(page)).filter((row) => row.total);
      return shown.map((row) => [row, reported.filter((one) => one.name === row.name)]).filter(([, known]) => known.length === 1);
    };
    const wrong = async () => (await table()).filter(([row, [known]]) => !near(row.self, known.self) || !near(row.total, known.total));
    for (let n = 0; n < 50 && (await wrong()).length > 0; n++) await page.waitForTimeout(100);
    assert.deepEqual((await wrong()).map(([row, [known]]) => [metric, row, known.self, known.total]), []);
    assert.ok((await table()).length > 5, metric);
    assert.ok((await table()).some(([row]) => figure(row.total) > 0), metric);
  }
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test("summary and threads show of each metric what the reports say", async () => {
  const { file, address } = config.measured;
  const page = await open(browser, address, "#/summary");
  const near = (text, value) => Math.abs(figure(text) - value) <= value * 0.006;
  await page.waitForSelector("section[aria-label=Waiting]");
  for (const metric of ["alloc.bytes", "syscall.calls", "syscall.time"]) {
    const reported = JSON.parse(thalweg("summary", file, "-n", "12", "--json", "--by", metric));
    await page.selectOption("select[aria-label=By]", metric);
    await page.waitForFunction((name) => document.querySelector(".tiles").textContent.includes(name), `${metric} of all threads`);
    const shown = () => page.$$eval("section[aria-label='Hottest functions'] .line", (lines) => lines.map((line) => [Number(line.dataset.f), line.querySelectorAll(".calls")[1]?.textContent ?? ""]));
    const right = async () => {
      const lines = await shown();
      return lines.length === reported.hottest.length && lines.every(([f, text], i) => f === reported.hottest[i].function && near(text, reported.hottest[i].self));
    };
    for (let n = 0; n < 50 && !(await right()); n++) await page.waitForTimeout(100);
    assert.ok(await right(), `${metric}: ${JSON.stringify(await shown())}`);
    assert.ok(reported.whole > 0 && near(await page.$eval(".tiles .value", (value) => value.textContent), reported.whole), metric);
    assert.equal(await page.$("section[aria-label=Waiting]"), null);
    await page.click("nav a:has-text('Threads')");
    await page.waitForSelector("[data-column=metric]");
    const threads = JSON.parse(thalweg("threads", file, "--json", "--by", metric)).threads;
    const table = await rows(page);
    assert.equal(table.length, threads.length);
    for (const row of table) {
      const thread = threads.find((one) => row.name.includes(` ${one.tid}`));
      assert.ok(near(row.metric, thread.self), `${metric}: ${JSON.stringify([row, thread])}`);
    }
    assert.ok(table.some((row) => row.share === "100 %"), metric);
    await page.click("nav a:has-text('Summary')");
    await page.waitForSelector(".tiles");
  }
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test("the comparison by a metric is that of the diff report", async () => {
  const { file, address, before } = config.measured;
  const page = await open(browser, address, "#/compare");
  await page.waitForSelector(".tr");
  await page.selectOption("select[aria-label=By]", "alloc.bytes");
  await page.waitForFunction(() => /B$/.test(document.querySelector("[data-column=after]")?.textContent ?? ""));
  const diff = JSON.parse(thalweg("diff", before, file, "--all", "--json", "--by", "alloc.bytes")).rows;
  const table = await response(page, "compare?metric=alloc.bytes");
  const known = new Map(diff.map((row) => [row.module + " " + row.name, row]));
  assert.equal(table.rows.length, known.size);
  for (const row of table.rows) {
    const other = known.get(row.module + " " + row.name);
    assert.deepEqual([row.self, row.total], [[other.self.before, other.self.after], [other.total.before, other.total.after]], row.name);
  }
  const change = (row) => Math.abs(row.self[1] - row.self[0]);
  const most = table.rows.reduce((one, other) => (change(other) > change(one) ? other : one));
  assert.ok(change(most) > 0);
  const first = (await rows(page))[0];
  assert.equal(first.name, most.name);
  assert.ok(Math.abs(figure(first.after) - most.self[1]) <= most.self[1] * 0.006, first.after);
  // The other profile has no system calls.
  await page.selectOption("select[aria-label=By]", "syscall.calls");
  await page.waitForFunction(() => /nothing to compare/.test(document.querySelector(".failure")?.textContent ?? ""));
  await page.context().close();
});

test("every metric of the profile is in tables, trees, flame and river", async () => {
  const page = await open(browser, config.calls, "#/functions");
  const { metrics } = await response(page, "meta");
  assert.ok(metrics.length > 3);
  const offered = await page.$$eval("select[aria-label=By] option", (options) => options.map((option) => option.value));
  assert.deepEqual(offered.slice(1), metrics.map((metric) => metric.name));
  await page.selectOption("select[aria-label=By]", "alloc.bytes");
  const reported = JSON.parse(thalweg("report", config.file, "--flat", "--json", "--by", "alloc.bytes")).functions;
  const sent = await response(page, "functions?metric=alloc.bytes");
  sent.function.forEach((f, i) => {
    const row = reported.find((one) => one.function === f);
    assert.deepEqual([sent.self[i], sent.total[i]], [row.self, row.total], row.name);
  });
  await page.waitForFunction(() => /iB$/.test(document.querySelector("[data-column=total]").textContent));
  const handle = (await rows(page)).find((row) => row.name === "handle_request");
  assert.match(handle.total, / [KM]iB$/);
  await page.click("nav a:has-text('Flame')");
  await page.waitForSelector(".flame canvas:not([data-frames='0'])");
  assert.equal((await response(page, "tree?metric=alloc.bytes")).whole, sent.time);
  await page.click("nav a:has-text('River')");
  await riverReady(page);
  assert.equal(await page.$eval("select[aria-label=By]", (select) => select.value), "alloc.bytes");
  assert.equal((await response(page, "river?metric=alloc.bytes")).whole, sent.time);
  await page.click("nav a:has-text('Tree')");
  await page.waitForFunction(() => /iB$|^\d+ B$/.test(document.querySelector("[data-column=total]")?.textContent ?? ""));
  assert.deepEqual(page.errors, []);
  await page.context().close();
});

test("the page in one file has them too", async () => {
  const page = await open(browser, `file://${config.html}`, "#/calls");
  await filled(page);
  assert.equal(await page.$(".where"), null);
  await page.click("[aria-label='Recorded calls'] .tr");
  await page.waitForSelector(".call h2");
  await page.click("nav a:has-text('Functions')");
  await page.selectOption("select[aria-label=By]", "alloc.bytes");
  await page.waitForFunction(() => /iB$/.test(document.querySelector("[data-column=total]").textContent));
  await page.click("nav a:has-text('Summary')");
  await page.waitForFunction(() => /^alloc.bytes of all threads.*iB/.test(document.querySelector(".tiles")?.textContent ?? ""));
  await page.click("nav a:has-text('Threads')");
  await page.waitForFunction(() => /B$/.test(document.querySelector("[data-column=metric]")?.textContent ?? ""));
  assert.deepEqual(page.requests.filter((url) => !url.startsWith("file:")), []);
  assert.deepEqual(page.errors, []);
  await page.context().close();
});
