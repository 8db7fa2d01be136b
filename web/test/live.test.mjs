// A process while it runs: figures grow, freeze, checkpoint, detach.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { config, launch, open, riverReady } from "./browser.mjs";

let browser;
let page;
before(async () => {
  browser = await launch();
  page = await open(browser, config.live, "#/live");
});
after(() => browser.close());

const calls = async () => Number((await page.textContent(".tile .value")).replace(/,/g, ""));
const grown = (than) => page.waitForFunction((than) => Number(document.querySelector(".tile .value").textContent.replace(/,/g, "")) > than, than);

test("figures grow, with rates, in every view", async () => {
  const first = await calls();
  await grown(first);
  await page.waitForFunction(() => !document.querySelector(".tile .note").textContent.startsWith("0 "));
  await page.waitForSelector(".now .line");
  await page.click("nav a:has-text('River')");
  await riverReady(page);
  await page.click("nav a:has-text('Functions')");
  await page.waitForSelector(".thead button:has-text('Calls/s')");
  await page.click("nav a:has-text('Live')");
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
