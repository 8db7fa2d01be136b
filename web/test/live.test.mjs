// A process while it runs: figures grow, probes are switched, freeze, checkpoint, detach.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { execFileSync } from "node:child_process";
import { config, launch, open, riverReady, rows } from "./browser.mjs";

let browser;
let page;
before(async () => {
  browser = await launch();
  page = await open(browser, config.live, "#/live");
});
after(() => browser.close());

const calls = async () => Number((await page.textContent(".tile .value")).replace(/\D/g, ""));
const grown = (than) => page.waitForFunction((than) => Number(document.querySelector(".tile .value").textContent.replace(/\D/g, "")) > than, than);

test("figures grow, with rates, in every view", async () => {
  const first = await calls();
  await grown(first);
  await page.waitForFunction(() => !document.querySelector(".tile .note").textContent.startsWith("0 "));
  await page.waitForFunction(() => [...document.querySelectorAll("[data-column=rate]")].some((cell) => cell.textContent !== "0"));
  await page.click("nav a:has-text('River')");
  await riverReady(page);
  await page.click("nav a:has-text('Functions')");
  await page.waitForSelector(".thead button:has-text('Calls/s')");
  await page.click("nav a:has-text('Live')");
});

const reported = () => JSON.parse(execFileSync(config.thalweg, ["report", "-p", String(config.pid), "--flat", "--json"], { maxBuffer: 1 << 28 })).functions;
const callsOf = (name) => reported().find((row) => row.name === name)?.calls ?? 0;
const rowOf = async (name) => (await rows(page)).find((row) => row.name === name);
const shown = async (name) => Number((await rowOf(name)).calls.replace(/\D/g, ""));
const inState = (name, state) =>
  page.waitForFunction(
    ([name, state]) => [...document.querySelectorAll(".tr")].some((row) => row.querySelector("[data-column=name]").textContent === name && row.querySelector("[data-column=state]").textContent.startsWith(state)),
    [name, state],
  );

/** The two that are called most often and can be switched. */
async function busy() {
  await page.click(".thead button:has-text('Calls/s')");
  await page.waitForFunction(() => document.querySelector("[data-column=rate] ~ [data-column=state]"));
  const names = (await rows(page)).map((row) => row.name);
  const off = (name) => JSON.parse(execFileSync(config.thalweg, ["switch", String(config.pid), "--off", `^${name}$`, "--json"])).functions.length === 1;
  const found = names.filter((name) => /^\w+$/.test(name)).filter(off).slice(0, 2);
  execFileSync(config.thalweg, ["switch", String(config.pid), "--time", "."]);
  return found;
}

test("a function that is switched off is counted no more while others are, until it is switched on", async () => {
  const [one, other] = await busy();
  await page.fill(".search input", `^(${one}|${other})$`);
  await inState(one, "timed");
  await page.click(`.tr:has(.name:text-is('${one}'))`);
  await page.click(".inspector .states button:text-is('Off')");
  await page.waitForFunction(() => /1 function switched, with a stop/.test(document.querySelector(".inspector [data-switched]").textContent));
  await inState(one, "off");
  const [still, before] = [callsOf(one), callsOf(other)];
  await page.waitForTimeout(1500);
  assert.equal(callsOf(one), still);
  assert.ok(callsOf(other) > before);
  await page.waitForFunction(() => document.querySelector(".inspector .states button[aria-pressed=true]").dataset.state === "off");
  const then = await shown(other);
  await page.waitForTimeout(1500);
  assert.equal(await shown(one), still);
  assert.ok((await shown(other)) > then);
  // By the keyboard, from the list.
  await page.focus(".tbody");
  await page.keyboard.press("c");
  await inState(one, "counted");
  await page.keyboard.press("t");
  await inState(one, "timed");
  assert.ok(callsOf(one) > still);
});

test("all functions of a name are switched at once, and what cannot be is said", async () => {
  await page.fill(".search input", "lua");
  const group = page.getByRole("group", { name: "Probes of all that match lua" });
  await group.getByRole("button", { name: /^1 in 64/ }).click();
  await page.waitForFunction(() => /functions? switched/.test(document.querySelector(".switch [data-switched]").textContent));
  const matching = reported().filter((row) => /lua/i.test(row.name));
  assert.ok(matching.length > 3);
  await inState((await rows(page))[0].name, "timed 1 in 64");
  await page.fill(".search input", "(?=lua)");
  await group.or(page.getByRole("group", { name: /all that match/ })).getByRole("button", { name: /^Off/ }).click();
  await page.waitForFunction(() => /bad pattern/.test(document.querySelector(".switch [data-switched].bad")?.textContent ?? ""));
  // From a function's own view.
  const name = matching.find((row) => row.calls > 0).name;
  await page.fill(".search input", `^${name}$`);
  await page.click(`.tr:has(.name:text-is('${name}'))`);
  await page.click("nav a:text-matches('^Function\\\\d')");
  await page.click(".function .states button:text-is('Timed')");
  await page.waitForFunction(() => document.querySelector(".function .probes").dataset.state === "timed");
  await page.fill(".search input", "");
  await page.click("nav a:has-text('Live')");
  // The browser's own word for what was refused.
  assert.equal(page.errors.splice(0).filter((text) => /409/.test(text)).length, 1);
  execFileSync(config.thalweg, ["switch", String(config.pid), "--time", "."]);
});

test("a frozen picture stays while the process goes on", async () => {
  await page.click("button:text-is('Freeze')");
  await page.waitForTimeout(1500);
  const frozen = await calls();
  await page.waitForTimeout(2500);
  assert.equal(await calls(), frozen);
  await page.click("button:text-is('Frozen')");
  await grown(frozen);
});

test("a checkpoint is saved, and detaching restores the process", async () => {
  await page.click("button:text-is('Checkpoint')");
  await page.waitForFunction(() => /saved as process-\d+-1.thalweg/.test(document.querySelector("[data-said]").textContent));
  await page.click("button:text-is('Detach…')");
  await page.click("button.danger");
  await page.waitForFunction(() => /what it was/.test(document.querySelector("[data-said]").textContent));
  await page.waitForFunction(() => document.querySelector(".pulse").textContent === "ended");
  assert.deepEqual(page.errors, []);
});
