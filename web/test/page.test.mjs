// Each interaction of the page, on recordings of real programs, against what the reports print.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { after, before, test } from "node:test";
import { response, boxes, changed, config, hash, launch, open, riverReady, rows, settled } from "./browser.mjs";

let browser;
let page;
before(async () => {
  browser = await launch();
  page = await open(browser, config.python);
});
after(async () => {
  assert.deepEqual(page.errors, []);
  await browser.close();
});

const thalweg = (...arguments_) => execFileSync(config.thalweg, arguments_, { encoding: "utf8", maxBuffer: 1 << 28 });
const flat = new Map(config.flat.functions.map((f) => [f.function, f]));
const byCum = [...flat.values()].sort((a, b) => b.total_ns - a.total_ns);
const hottest = [...flat.values()].sort((a, b) => b.self_ns - a.self_ns)[0];
const whole = config.summary.time_ns;
const count = (n) => String(n).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
// To the right, unless a test is about the direction: the window's shape decides otherwise.
const go = async (to) => {
  if (to.startsWith("#/river") && !to.includes("down=")) to += `${to.includes("?") ? "&" : "?"}down=0`;
  await page.goto(config.python + to);
  await page.reload();
  await page.waitForSelector("nav a[aria-current]");
  if (to.startsWith("#/river")) await riverReady(page);
};
const functionsOf = (list) => list.filter((box) => box.f >= 0);
const click = (text) => page.click(`.inspector .actions button:text-is("${text}")`);

test("the river opens with about thirty functions, and each has the time that the report says", async () => {
  await go("#/river");
  const shown = functionsOf(await boxes(page));
  assert.ok(shown.length >= 8 && shown.length <= 45, `${shown.length} functions`);
  for (const box of shown) assert.equal(box.total, flat.get(box.f).total_ns, box.text);
  const own = (await boxes(page)).reduce((sum, box) => sum + box.self, 0);
  assert.equal(own, whole, "what is hidden is part of its callers");
});

test("START and the threads that a function made are sources", async () => {
  const sources = (await boxes(page)).filter((box) => box.f < 0);
  assert.ok(sources.some((box) => box.text.startsWith("START")));
  assert.ok(sources.some((box) => /^3 threads made by/.test(box.text)), sources.map((box) => box.text).join());
  assert.equal(sources.reduce((sum, box) => sum + box.total, 0), whole);
});

test("the time filter collapses what is below it, with finer steps near zero", async () => {
  await go("#/river?brief=0&cut=5");
  const at = async (percent) => {
    const shown = functionsOf(await boxes(page)).map((box) => box.f);
    const expected = byCum.filter((f) => f.total_ns >= (whole * percent) / 100).map((f) => f.function);
    assert.deepEqual(shown.sort((a, b) => a - b), expected.sort((a, b) => a - b));
  };
  await at(5);
  const filtered = (percent) => page.waitForSelector(`canvas[data-cutoff="${percent}"]`);
  await page.press("input[type=range]", "ArrowRight");
  await filtered(6);
  await at(6);
  await page.press("input[aria-label='Time filter']", "End");
  await filtered(20);
  await at(20);
  const steps = (await response(page, "river?cut=5")).steps;
  assert.ok(steps[1] - steps[0] < 0.05 && steps.at(-1) === 20);
  await page.fill("input[aria-label='Time filter in percent']", "2.5");
  await page.press("input[aria-label='Time filter in percent']", "Enter");
  await filtered(2.5);
  await at(2.5);
  assert.match(await hash(page), /cut=2.5/);
});

test("arcs are as wide as the chosen rule says", async () => {
  const rules = {
    "": (t) => 10 * t,
    log: (t) => Math.min(9, Math.max(1, Math.log2(1000 * t + 0.0001))),
    none: () => 1,
    "1%25:1,10%25:3,100%25:8": (t) => (t <= 0.01 ? 1 : t <= 0.1 ? 3 : 8),
  };
  for (const [rule, units] of Object.entries(rules)) {
    const river = await response(page, `river?cut=2${rule && "&width=" + rule}`);
    for (const arc of river.arcs.filter((arc) => arc.kind !== 3)) assert.ok(Math.abs(arc.width - Math.max(1, 4 * units(arc.time / river.whole))) < 0.11, `${rule}: ${arc.width}`);
  }
  await go("#/river");
  await page.selectOption("select[aria-label=Width]", "log");
  await page.waitForFunction(() => location.hash.includes("width=log"));
  await page.selectOption("select[aria-label=Width]", "table");
  await page.fill(".table-of-widths", "5%:2,100%:9");
  await page.press(".table-of-widths", "Enter");
  await page.waitForFunction(() => location.hash.includes("width=5"));
  await page.waitForSelector(".detail:not(.late)");
  assert.equal(await page.$(".detail .failure"), null);
});

test("a click selects, lights parents and children, and shows what the arcs report says", async () => {
  await go("#/river");
  const target = functionsOf(await boxes(page)).find((box) => box.x > 60 && box.x < 900 && box.y > 60 && box.y < 600);
  const pixels = () => page.$eval(".detail canvas", (c) => c.toDataURL().length);
  const dark = await pixels();
  await page.locator(".detail canvas").click({ position: { x: target.x, y: target.y } });
  await page.waitForSelector(".inspector h2 a");
  assert.match(await hash(page), new RegExp(`sel=${target.f}\\b`));
  await page.waitForSelector(".inspector .arcs");
  const stanza = config.arcs.stanzas.find((s) => s.function === target.f);
  const links = await page.$$eval(".inspector .arcs li a", (all) => all.map((a) => Number(a.dataset.f)));
  const expected = [...stanza.parents.slice(0, 8), ...stanza.children.slice(0, 8)].filter((arc) => arc.function !== null).map((arc) => arc.function);
  assert.deepEqual(links.sort((a, b) => a - b), expected.sort((a, b) => a - b));
  assert.notEqual(await pixels(), dark);
  await page.keyboard.press("Escape");
  assert.doesNotMatch(await hash(page), /sel=/);
});

test("the selected function keeps its place when the filter changes", async () => {
  await go(`#/river?sel=${byCum[4].function}&brief=0&cut=10`);
  await settled(page);
  const place = async () => (await boxes(page)).find((box) => box.f === byCum[4].function);
  const old = await place();
  await page.press("input[type=range]", "ArrowLeft");
  await page.waitForSelector('canvas[data-cutoff="9"]');
  await settled(page);
  const now = await place();
  assert.ok(Math.abs(now.y - old.y) <= 2 && Math.abs(now.x - old.x) <= 12, `${old.x},${old.y} became ${now.x},${now.y}`);
});

test("the detail pane pans and zooms, and the overview's box moves it", async () => {
  await go("#/river");
  const view = () => page.$eval(".detail canvas", (c) => [c.dataset.x, c.dataset.y, c.dataset.zoom].map(Number));
  const box = await (await page.$(".detail canvas")).boundingBox();
  const start = await view();
  await page.mouse.move(box.x + 400, box.y + 40);
  await page.mouse.down();
  await page.mouse.move(box.x + 300, box.y + 90, { steps: 4 });
  await page.mouse.up();
  await settled(page);
  const panned = await view();
  assert.ok(Math.abs((panned[0] - start[0]) * panned[2] - 100) < 6, `${start} ${panned}`);
  await page.mouse.wheel(0, -400);
  await settled(page);
  assert.ok((await view())[2] > panned[2] * 1.3);
  const overview = await (await page.$(".overview")).boundingBox();
  const before = await view();
  await page.mouse.move(overview.x + overview.width / 2, overview.y + overview.height / 2);
  await page.mouse.down();
  await page.mouse.move(overview.x + overview.width - 30, overview.y + overview.height / 2, { steps: 4 });
  await page.mouse.up();
  await settled(page);
  assert.ok((await view())[0] > before[0]);
  await page.focus(".detail canvas");
  await page.keyboard.press("0");
  await settled(page);
  const river = await response(page, "river");
  const all = await view();
  assert.ok(river.width * all[2] <= box.width + 2 && river.height * all[2] <= box.height + 2, `${river.width} x ${river.height} at ${all[2]}`);
});

test("data left and right of names, the length of names, and the direction are the user's", async () => {
  await go("#/river");
  await page.selectOption("select[aria-label=Left]", "calls");
  await page.selectOption("select[aria-label=Right]", "self-time");
  assert.match(await hash(page), /left=calls.*right=self-time/);
  await page.fill("input[aria-label='Length of names']", "8");
  await page.press("input[aria-label='Length of names']", "Enter");
  await page.waitForFunction(() => location.hash.includes("names=8"));
  const short = await response(page, "river?names=8");
  assert.ok(short.boxes.every((box) => box.f < 0 || [...box.label].length <= 9));
  await page.click("button:text-is('Top down')");
  await page.waitForFunction(() => location.hash.includes("down=1"));
  const down = await response(page, "river?dir=down");
  for (const arc of down.arcs.filter((arc) => arc.kind === 0)) assert.ok(down.boxes[arc.to].y > down.boxes[arc.from].y);
});

test("a subtree goes through its three states", async () => {
  await go("#/river?brief=0&cut=4");
  const some = functionsOf(await boxes(page)).find((box) => box.state === "some" && box.total > box.self);
  await page.evaluate((f) => (location.hash = `#/river?brief=0&cut=4&sel=${f}`), some.f);
  const state = async () => (await boxes(page)).find((box) => box.f === some.f).state;
  await page.waitForSelector(".inspector .actions");
  await page.waitForTimeout(400);
  await changed(page, () => click("Expand"));
  assert.equal(await state(), "all");
  const children = config.arcs.stanzas.find((s) => s.function === some.f).children.map((arc) => arc.function);
  const shown = new Set((await boxes(page)).map((box) => box.f));
  assert.ok(children.every((f) => shown.has(f)), "every callee is shown");
  await changed(page, () => click("Collapse"));
  assert.equal(await state(), "some");
  await changed(page, () => click("Collapse"));
  assert.equal(await state(), "closed");
  const closed = (await boxes(page)).find((box) => box.f === some.f);
  assert.equal(closed.self, closed.total, "all below it is part of it");
  await page.focus(".detail canvas");
  await changed(page, () => page.keyboard.press("e"));
  assert.equal(await state(), "some");
});

test("a virtual root is the whole of every view", async () => {
  const root = byCum.find((f) => f.total_ns < whole * 0.6 && f.children !== 0 && config.arcs.stanzas.find((s) => s.function === f.function).children.length > 2);
  await go(`#/river?sel=${root.function}`);
  await page.waitForSelector(".inspector .actions");
  await changed(page, () => click("Make root"));
  const river = await boxes(page);
  assert.equal(river[0].f, root.function);
  assert.equal(river[0].total, root.total_ns);
  assert.match(river[0].text, /total 100 %/);
  await page.click("nav a:has-text('Functions')");
  await page.waitForSelector(".tr");
  const table = await response(page, `functions?root=${root.function}`);
  assert.equal(table.time, root.total_ns);
  assert.equal(await page.getAttribute("[role=grid]", "aria-rowcount"), String(table.name.length + 1));
  await page.click(".chip");
  assert.doesNotMatch(await hash(page), /root=/);
});

test("centre brings the selected function to the middle", async () => {
  const last = functionsOf(await (await go("#/river"), boxes(page))).sort((a, b) => b.x - a.x)[0];
  await page.evaluate((f) => (location.hash = `#/river?down=0&sel=${f}`), last.f);
  await page.waitForSelector(".inspector .actions");
  await click("Centre");
  await settled(page);
  const [x, y, zoom] = await page.$eval(".detail canvas", (c) => [c.dataset.x, c.dataset.y, c.dataset.zoom].map(Number));
  const box = (await response(page, "river")).boxes.find((b) => b.f === last.f);
  const size = await (await page.$(".detail canvas")).boundingBox();
  assert.ok(Math.abs((box.x + box.w / 2 - x) * zoom - size.width / 2) < 4);
  assert.ok(Math.abs((box.y + box.h / 2 - y) * zoom - size.height / 2) < 4);
});

test("search finds by a regular expression and Enter selects the heaviest", async () => {
  await go("#/river");
  await page.keyboard.press("/");
  await page.keyboard.type("^_?Py.*Call");
  const matches = [...flat.values()].filter((f) => /^_?Py.*Call/.test(f.name));
  await page.waitForSelector(".matches");
  assert.equal(await page.textContent(".matches [role=status]"), count(matches.length));
  const heaviest = matches.sort((a, b) => b.total_ns - a.total_ns);
  const selects = (f) => page.waitForFunction((f) => new URLSearchParams(location.hash.split("?")[1]).get("sel") === String(f), f.function);
  await page.keyboard.press("Enter");
  await selects(heaviest[0]);
  await page.keyboard.press("Enter");
  await selects(heaviest[1]);
  await page.keyboard.press("Shift+Enter");
  await selects(heaviest[0]);
  // A module means its functions; a pattern that is not finished says so.
  const module = heaviest[0].module;
  await page.fill(".search input", module.replace(/\W/g, "\\$&"));
  // A function of Python has its source's whole path, which may have the module's name in it.
  const exported = JSON.parse(thalweg("export", config.file, "--format", "json")).functions;
  const files = new Map(exported.map((f) => [f.id, f.file ?? ""]));
  const within = [...flat.values()].filter((f) => [f.module, f.name, files.get(f.function)].some((text) => text.includes(module)));
  await page.waitForFunction((n) => document.querySelector(".matches [role=status]")?.textContent === n, count(within.length));
  await page.fill(".search input", "Py(");
  await page.waitForFunction(() => document.querySelector(".matches")?.textContent === "invalid pattern");
  await page.fill(".search input", "");
});

test("the river's first view shows what is hottest, in the direction that suits the window", async () => {
  for (const [width, height] of [[1600, 1000], [1000, 700]]) {
    const first = await open(browser, config.python, "#/river", { viewport: { width, height } });
    await riverReady(first);
    await settled(first);
    const shown = await boxes(first);
    const { zoom, w, h } = await first.$eval(".detail canvas", (c) => ({ zoom: Number(c.dataset.zoom), w: c.clientWidth, h: c.clientHeight }));
    assert.ok(zoom >= 0.92, `names can be read at ${zoom}`);
    const inSight = shown.filter((box) => box.x > 0 && box.y > 0 && box.x < w && box.y < h);
    assert.ok(inSight.length * 4 >= shown.length, `${inSight.length} of ${shown.length} at ${width}x${height}`);
    // The keys work at once.
    await first.keyboard.press("ArrowRight");
    await first.keyboard.press("ArrowDown");
    await first.waitForFunction(() => location.hash.includes("sel="));
    assert.deepEqual(first.errors, []);
    await first.context().close();
  }
});

test("what is refined has the figures of the report with the same options, and says its command", async () => {
  const name = hottest.name;
  const pattern = `^${name.replace(/\W/g, "\\$&")}$`;
  for (const [option, key] of [["--focus", "focus"], ["--ignore", "ignore"], ["--hide", "hide"], ["--show-from", "from"]]) {
    await go(`#/functions?${key}=${encodeURIComponent(pattern)}`);
    await page.waitForSelector(".tr");
    const reported = new Map(JSON.parse(thalweg("report", config.file, "--flat", "--json", option, pattern)).functions.map((f) => [f.function, f]));
    const sent = await response(page, `functions?${key}=${encodeURIComponent(pattern)}`);
    assert.equal(sent.function.length, reported.size, option);
    sent.function.forEach((f, i) => assert.deepEqual([sent.calls[i], sent.self[i], sent.total[i]], [reported.get(f).calls, reported.get(f).self_ns, reported.get(f).total_ns], option));
    assert.match(await page.textContent("[data-count]"), new RegExp(`^${count(reported.size)} functions`));
  }
  await page.click(".refine summary");
  await page.click("button:text-is('Copy as command')");
  const command = await page.waitForSelector(".refine .command");
  assert.match(await command.textContent(), /thalweg report --flat --show-from .* \S+\.thalweg$/);
  await page.click("button:text-is('Clear')");
  await page.waitForFunction(() => !location.hash.includes("from="));
  assert.equal(await page.$eval("[data-count]", (e) => e.textContent.split(" ")[0]), count(flat.size));
});

test("the inverted flame begins with who keeps the time, and the sandwich stands around the selected function", async () => {
  const turned = await response(page, "tree?shape=inverted&limit=50000");
  const roots = turned.parent.map((parent, i) => [parent, i]).filter(([parent]) => parent < 0).map(([, i]) => i);
  for (const i of roots.slice(0, 20)) assert.equal(turned.weight[i], flat.get(turned.function[i]).self_ns);
  assert.equal(turned.function[roots[0]], hottest.function);
  await go(`#/flame?sel=${hottest.function}`);
  await page.selectOption("select[aria-label=Shape]", "inverted");
  await page.waitForSelector("canvas[aria-label^='Inverted']:not([data-frames='0'])");
  await page.selectOption("select[aria-label=Shape]", "sandwich");
  await page.waitForSelector("canvas[aria-label^='Callers']:not([data-frames='0'])");
  await page.waitForSelector("canvas[aria-label^='Callees']:not([data-frames='0'])");
  for (const shape of ["callers", "callees"]) {
    const tree = await response(page, `tree?shape=${shape}&f=${hottest.function}`);
    assert.deepEqual([tree.function[0], tree.weight[0]], [hottest.function, hottest.total_ns], shape);
  }
});

test("the keyboard goes along calls", async () => {
  await go("#/river");
  await page.focus(".detail canvas");
  await page.keyboard.press("ArrowRight");
  const first = Number((await hash(page)).match(/sel=(\d+)/)[1]);
  await page.keyboard.press("ArrowRight");
  const second = Number((await hash(page)).match(/sel=(\d+)/)[1]);
  assert.notEqual(first, second);
  await page.keyboard.press("ArrowLeft");
  assert.match(await hash(page), new RegExp(`sel=${first}\\b`));
  assert.match(await page.textContent("#river-selected"), /calls/);
  await page.keyboard.press("Enter");
  assert.match(await hash(page), /^#\/function/);
  await page.keyboard.press("2");
  assert.match(await hash(page), /^#\/functions/);
});

test("the list of functions sorts by any column, is filtered by name, and leads to the river", async () => {
  await go("#/functions");
  await page.waitForSelector(".tr");
  const expect = async (title, value) => {
    await page.click(`.thead button:has-text("${title}")`);
    const best = [...flat.values()].sort((a, b) => value(b) - value(a));
    const wrong = async () => {
      const shown = (await rows(page)).slice(0, 12).map((row) => row.name);
      return shown.filter((name, i) => ![...flat.values()].some((f) => f.name === name && value(f) === value(best[i])));
    };
    for (let n = 0; n < 50 && (await wrong()).length > 0; n++) await page.waitForTimeout(100);
    assert.deepEqual(await wrong(), [], title);
  };
  await expect("Total", (f) => f.total_ns);
  await expect("Calls", (f) => f.calls);
  // Of what was not counted all the time there is none.
  await expect("Per call", (f) => (f.calls && !f.samples ? f.self_ns / f.calls : 0));
  const row = (await rows(page))[0];
  const own = [...flat.values()].find((f) => f.name === row.name);
  assert.equal(row.calls, count(own.calls));
  await page.click(".columns summary");
  await page.click(".choices label:has-text('Deepest recursion')");
  await page.waitForSelector(".thead button:has-text('Rec.')");
  await page.click(".columns summary");
  await page.fill("input[type=search]", "Dict_(Set|Get)");
  await page.waitForFunction(() => document.querySelector("[data-count]").textContent.includes(" of "));
  const matching = [...flat.values()].filter((f) => /Dict_(Set|Get)/.test(f.name)).length;
  assert.equal(await page.textContent("[data-count]"), `${count(matching)} of ${count(flat.size)} functions`);
  await page.click(".tr >> nth=0");
  await page.click("button:text-is('Locate in river')");
  await riverReady(page);
  assert.match(await hash(page), /^#\/river\?.*sel=\d+/);
});

test("one function shows the callers and callees of the arcs report, and each can be gone to", async () => {
  const stanza = config.arcs.stanzas.find((s) => s.function === hottest.function);
  await go(`#/function?sel=${hottest.function}`);
  await page.waitForSelector(".around .line");
  // Of very many only the first are shown at once.
  const more = page.locator(".around button:text-matches('^show [0-9,]+ more$')");
  while ((await more.count()) > 0) await more.first().click();
  const box = (title) => page.$$eval(`section[aria-label=${title}] .line[data-arc]`, (lines) => lines.map((line) => [Number(line.dataset.arc), Number(line.dataset.calls), Number(line.dataset.total)]));
  const expected = (arcs) => arcs.map((arc) => [arc.function ?? NaN, arc.calls, arc.total_ns]);
  assert.deepEqual(await box("Callers"), expected(stanza.parents));
  assert.deepEqual(await box("Callees"), expected(stanza.children));
  const tiles = await page.$$eval(".tile", (tiles) => tiles.map((tile) => tile.textContent));
  assert.ok(tiles.some((text) => text.startsWith(`Calls${count(hottest.calls)}`)), tiles.join());
  const link = stanza.parents.find((arc) => arc.function !== null);
  await page.click(`section[aria-label=Callers] a[data-f="${link.function}"]`);
  await page.waitForFunction((name) => document.querySelector(".function h2")?.textContent === name, flat.get(link.function).name);
  await page.goBack();
  await page.waitForFunction((name) => document.querySelector(".function h2")?.textContent === name, hottest.name);
  await page.goForward();
  await page.waitForFunction((name) => document.querySelector(".function h2")?.textContent === name, flat.get(link.function).name);
});

test("the tree has the level, recursion, calls and times of the tree report", async () => {
  const lua = await open(browser, config.lua, "#/tree");
  await lua.waitForSelector(".tr");
  await lua.click("button:has-text('Open all')");
  await lua.waitForTimeout(200);
  const tree = config.luaTree.threads[0].rows;
  const table = await response(lua, "tree?limit=12000");
  const ids = new Map(tree.map((row) => [row.id, row]));
  for (let i = 0; i < table.id.length; i++) {
    const row = ids.get(table.id[i]);
    assert.deepEqual([table.level[i], table.recursion[i], table.calls[i], table.self[i], table.total[i], table.function[i]], [row.level, row.recursion, row.calls, row.self_ns, row.total_ns, row.function]);
  }
  const shown = await rows(lua);
  assert.equal(shown[0].name.replace(/^[▾▸]\s*/, ""), config.luaTree.threads[0].rows[0].name);
  assert.equal(shown[0].calls, count(tree[0].calls));
  await lua.focus(".tbody");
  await lua.keyboard.press("Home");
  const before = (await rows(lua)).length;
  await lua.keyboard.press("ArrowLeft");
  await lua.waitForFunction((n) => document.querySelectorAll(".tr").length < n, before);
  await lua.keyboard.press("ArrowRight");
  await lua.waitForFunction((n) => document.querySelectorAll(".tr").length >= n, before);
  assert.deepEqual(lua.errors, []);
  await lua.context().close();
});

test("call sites, where they were recorded, add up to the function's calls", async () => {
  const most = [...config.luaFlat.functions].sort((a, b) => b.calls - a.calls)[0];
  const lua = await open(browser, config.lua, `#/function?sel=${most.function}`);
  await lua.waitForSelector("section[aria-label='Called from'] .line");
  const sites = await lua.$$eval("section[aria-label='Called from'] .line", (lines) => lines.map((line) => [line.dataset.site, Number(line.dataset.calls)]));
  assert.equal(sites.reduce((sum, [, calls]) => sum + calls, 0), most.calls);
  assert.ok(sites.some(([name]) => /\+0x/.test(name)));
  await lua.context().close();
});

test("the flame zooms, searches, and goes by calls", async () => {
  await go("#/flame");
  await page.waitForSelector(".flame canvas[data-frames]:not([data-frames='0'])");
  const canvas = page.locator(".flame canvas");
  await canvas.click({ position: { x: 60, y: 19 * 4 + 8 } });
  await page.waitForFunction(() => /at=\d+/.test(location.hash));
  await page.click("button:text-is('Zoom out')");
  await page.click("button:text-is('Whole')", { timeout: 3000 }).catch(() => {});
  await page.waitForFunction(() => !/[?&]at=/.test(location.hash));
  await page.fill("input[type=search]", `^${hottest.name.replace(/\W/g, "\\$&")}$`);
  await page.waitForSelector("[data-found]");
  const found = parseFloat(await page.textContent("[data-found]"));
  assert.ok(found > 0 && found <= 100);
  await page.fill("input[type=search]", "");
  await canvas.focus();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /at=\d+/.test(location.hash));
  assert.match(await page.textContent("#flame-selected"), /level \d/);
  await page.selectOption("select[aria-label=By]", "calls");
  const calls = await response(page, "tree?metric=calls&limit=10");
  assert.equal(calls.whole, config.summary.calls);
});

test("threads show who made whom, and the chosen ones are all that other views show", async () => {
  await go("#/threads");
  await page.waitForSelector(".tr");
  const shown = await rows(page);
  assert.equal(shown.length, config.threads.threads.length);
  const made = config.threads.threads.filter((t) => t.made_by !== null);
  assert.equal(made.length, 3);
  assert.equal(shown.filter((row) => /^0→/.test(row.maker)).length, 3);
  const thread = made[0];
  await page.check(`input[aria-label^="Choose thread ${thread.thread} "]`);
  await page.click("nav a:has-text('Functions')");
  await page.waitForFunction(() => location.hash.startsWith("#/functions"));
  await page.waitForSelector(".tr");
  const table = await response(page, `functions?threads=${thread.thread}`);
  assert.equal(table.calls_in_all, thread.calls);
  assert.equal(table.time, thread.self_ns);
  await page.waitForFunction((n) => document.querySelector("[role=grid]").getAttribute("aria-rowcount") === String(n), table.name.length + 1);
  await page.click("nav a >> text=River");
  await riverReady(page);
  const river = await response(page, `river?threads=${thread.thread}`);
  assert.equal(river.whole, thread.self_ns);
  assert.equal((await boxes(page)).length, river.boxes.length);
  await page.click(".chip:has-text('thread')");
});

test("the summary is that of the summary report", async () => {
  await go("#/summary");
  await page.waitForSelector(".summary .line");
  const links = await page.$$eval("section[aria-label='Hottest functions'] .line", (lines) => lines.map((line) => Number(line.dataset.f)));
  assert.deepEqual(links, config.summary.hottest.map((f) => f.function));
  const text = await page.textContent(".tiles");
  for (const figure of [config.summary.calls, config.summary.functions_seen, config.summary.contexts, config.summary.edges]) assert.ok(text.includes(count(figure)), String(figure));
});

test("the comparison is that of the diff report, and colours the river", async () => {
  await go("#/compare");
  await page.waitForSelector(".tr");
  const table = await response(page, "compare");
  const diff = new Map(config.diff.rows.map((row) => [row.module + " " + row.name, row]));
  assert.equal(table.rows.length, diff.size);
  for (const row of table.rows) {
    const other = diff.get(row.module + " " + row.name);
    assert.deepEqual([row.self, row.calls], [[other.self_ns.before, other.self_ns.after], [other.calls.before, other.calls.after]]);
  }
  // What is within the errors comes last.
  const size = (row) => Math.abs(row.self[1] - row.self[0]) * (row.self_changed ? 1 : 1e-30);
  const most = Math.max(...table.rows.map(size));
  const first = (await rows(page))[0];
  const top = table.rows.filter((row) => size(row) === most).map((row) => row.name);
  assert.ok(top.includes(first.name), first.name);
  await page.click("button:text-is('Show in river')");
  await riverReady(page);
  assert.match(await hash(page), /change=1/);
  await page.waitForSelector(".ramp.change");
});

test("a bookmark brings everything back", async () => {
  const to = `#/river?sel=${hottest.function}&q=Py&cut=2.5&width=log&down=1&left=calls`;
  const copy = await open(browser, config.python, to);
  await riverReady(copy);
  assert.equal(await copy.inputValue("input[type=search]"), "Py");
  assert.equal(await copy.inputValue("input[aria-label='Time filter in percent']"), "2.5");
  assert.equal(await copy.inputValue("select[aria-label=Width]"), "log");
  assert.equal(await copy.inputValue("select[aria-label=Left]"), "calls");
  assert.equal(await copy.getAttribute("button:text-is('Top down')", "aria-pressed"), "true");
  assert.match(await copy.textContent(".inspector h2"), new RegExp(hottest.name.replace(/\W/g, "\\$&")));
  assert.doesNotMatch(await copy.evaluate(() => location.href), /token/, "the secret does not stay in the address");
  await copy.context().close();
});

test("names of functions are text and nothing else", async () => {
  const hostile = await open(browser, config.hostile, "#/river?cut=0&brief=0");
  await riverReady(hostile);
  for (const view of ["functions", "function", "tree", "flame", "threads", "summary", "river"]) {
    await hostile.evaluate((view) => (location.hash = `#/${view}?sel=1`), view);
    await hostile.waitForSelector(`main[aria-label=${view}]`);
    await hostile.waitForTimeout(150);
    assert.equal(await hostile.evaluate(() => window.hacked), undefined, view);
    assert.equal(await hostile.evaluate(() => document.querySelectorAll("img, main script, main svg").length), 0);
  }
  const text = await hostile.textContent(".detail ul");
  assert.ok(text.includes("<script>window.hacked=1</script>"), text);
  assert.deepEqual(hostile.errors, []);
  await hostile.context().close();
});

test("everything has a name for screen readers, and fits a small and a wide screen in both themes", async () => {
  for (const [width, height, colorScheme] of [[1280, 720, "light"], [2560, 1300, "dark"]]) {
    const other = await open(browser, config.python, `#/river?sel=${hottest.function}`, { viewport: { width, height }, colorScheme });
    const paper = await other.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(paper === "rgb(252, 252, 250)", colorScheme === "light");
    for (const view of ["river", "functions", "function", "tree", "flame", "threads", "summary", "compare"]) {
      await other.evaluate(([view, f]) => (location.hash = `#/${view}?sel=${f}`), [view, hottest.function]);
      await other.waitForSelector(`main[aria-label=${view}]`);
      await other.waitForTimeout(150);
      assert.ok(await other.evaluate(() => document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight), `${view} at ${width}`);
      const nameless = await other.evaluate(() =>
        [...document.querySelectorAll("button, input, select, canvas, [role=grid], [role=treegrid], nav, main, a")]
          .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.closest("label")?.textContent.trim() || e.title))
          .map((e) => e.outerHTML.slice(0, 120)),
      );
      assert.deepEqual(nameless, [], view);
    }
    await other.context().close();
  }
});

test("a function that is not native shows its language, and a button leaves those of one", async () => {
  await go("#/functions");
  const marked = () => page.$$eval(".tr .name", (names) => names.map((name) => name.querySelector(".mark")?.dataset.mark ?? ""));
  // What is hottest, and so on the screen, is one run's chance.
  assert.deepEqual((await marked()).filter((mark) => !["", "Py"].includes(mark)), []);
  await page.click('.tools button:text-is("python")');
  await page.waitForSelector('.tools button[aria-pressed="true"]:text-is("python")');
  assert.deepEqual([...new Set(await marked())], ["Py"]);
  assert.ok((await rows(page)).length > 0);
  await page.click('.tools button:text-is("native")');
  await page.waitForSelector('.tools button[aria-pressed="true"]:text-is("native")');
  assert.deepEqual([...new Set(await marked())], [""]);
  assert.ok((await rows(page)).length > 0);
  await page.click('.tools button:text-is("native")');
  await page.waitForSelector('.tools button[aria-pressed="false"]:text-is("native")');
});

test("the source of a Python function is shown", async () => {
  const work = [...flat.values()].find((f) => f.name === "work");
  await go(`#/function?sel=${work.function}`);
  await page.waitForSelector(".source pre .here");
  assert.match(await page.textContent(".source pre .here"), /def work\(rounds\):/);
});

test("the page asks nobody but its server", () => {
  const host = new URL(config.python).host;
  assert.deepEqual([...new Set(page.requests.map((url) => new URL(url).host))], [host]);
});

test("the file needs no server and shows the same", async () => {
  const file = await open(browser, `file://${config.html}`, "#/river");
  await riverReady(file);
  const served = await response(page, "river");
  const shown = await boxes(file);
  assert.deepEqual(shown.map((box) => [box.f, box.self, box.total]), served.boxes.map((box) => [box.f, box.self, box.total]));
  await file.press("input[type=range]", "ArrowRight");
  await file.waitForFunction((cutoff) => Number(document.querySelector(".detail canvas").dataset.cutoff) > cutoff, served.cutoff);
  await file.selectOption("select[aria-label=Width]", "log");
  await file.click("button:text-is('Top down')");
  for (const view of ["functions", "function", "tree", "flame", "threads", "summary"]) {
    await file.evaluate(([view, f]) => (location.hash = `#/${view}?sel=${f}`), [view, hottest.function]);
    await file.waitForSelector(`main[aria-label=${view}]`);
    await file.waitForTimeout(200);
    assert.equal(await file.$(".failure"), null, view);
  }
  assert.deepEqual(file.errors, []);
  assert.deepEqual([...new Set(file.requests.map((url) => new URL(url).protocol))], ["file:"]);
  await file.context().close();
});

test("the timeline has a lane for each thread that ran, and a selected range is all that other views show", async () => {
  await go("#/timeline");
  await page.waitForSelector(".lanes canvas[data-runs]:not([data-runs='0'])");
  const data = await response(page, "timeline");
  assert.ok(data.lanes.length >= 2, `${data.lanes.length} lanes`);
  for (const lane of data.lanes) assert.ok(config.threads.threads.some((thread) => thread.tid === lane.tid), `${lane.tid}`);
  // On a processor no longer than there was time, and what was on top is a function.
  data.at.forEach((at, i) => assert.ok(at >= 0 && at + data.length[i] <= data.end + 1 && data.on[i] <= 16 && data.function[i] < 1e6));
  const canvas = page.locator(".lanes canvas");
  const box = await canvas.boundingBox();
  const at = (t) => box.x + 150 + ((t - data.t0) / (data.t1 - data.t0)) * (box.width - 158);
  const [s0, s1] = [data.end * 0.25, data.end * 0.75];
  await page.mouse.move(at(s0), box.y + 30);
  await page.mouse.down();
  await page.mouse.move(at((s0 + s1) / 2), box.y + 30);
  await page.mouse.move(at(s1), box.y + 30);
  await page.mouse.up();
  await page.waitForSelector(".chips .chip");
  const span = new URLSearchParams((await hash(page)).split("?")[1]);
  const [from, to] = [Number(span.get("s0")), Number(span.get("s1"))];
  assert.ok(Math.abs(from - s0) < data.end * 0.01 && Math.abs(to - s1) < data.end * 0.01, `${from} ${to}`);
  // What the list shows is as many periods as there are samples in the range, and no more than all.
  const whole = await response(page, "functions?span=0-" + (data.end + 1e9));
  const some = await response(page, `functions?span=${from}-${to}`);
  assert.ok(some.time > 0 && some.time <= whole.time, `${some.time} of ${whole.time}`);
  assert.equal(some.time % data.period, 0, "estimates are whole samples");
  const before = await response(page, `functions?span=0-${from - 1}`);
  const after = await response(page, `functions?span=${to + 1}-${data.end + 1e9}`);
  assert.equal(before.time + some.time + after.time, whole.time, "parts of the time add up");
  assert.ok(some.calls.every((n) => n === 0), "calls of a part of the time are not known");
  await page.click("nav a:has-text('Functions')");
  await page.waitForSelector(".tr");
  assert.match(await page.textContent(".chips"), /by samples/);
  for (const view of ["tree", "flame", "river", "function"]) {
    await page.click(`nav a[href^="#/${view}"]`);
    await page.waitForTimeout(300);
    assert.equal(await page.$(".failure"), null, view);
  }
  await page.click(".chips .chip:has-text('by samples')");
  assert.doesNotMatch(await hash(page), /s0=/);
});

test("the timeline is moved and a range selected by keys", async () => {
  await go("#/timeline");
  await page.waitForSelector(".lanes canvas[data-runs]:not([data-runs='0'])");
  await page.focus(".lanes canvas");
  for (let n = 0; n < 4; n++) await page.keyboard.press("ArrowRight");
  await page.waitForFunction(() => document.querySelector("#moment").textContent.includes(" s: "));
  for (let n = 0; n < 6; n++) await page.keyboard.press("Shift+ArrowRight");
  await page.waitForFunction(() => /s0=\d+/.test(location.hash));
  await page.keyboard.press("z");
  await page.waitForFunction(() => /z0=\d+/.test(location.hash));
  await page.keyboard.press("Backspace");
  await page.waitForFunction(() => !/s0=\d+/.test(location.hash));
  await page.keyboard.press("0");
  await page.waitForFunction(() => !/z0=\d+/.test(location.hash));
});
