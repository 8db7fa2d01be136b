// A browser for the tests: Debian's own, without a window. What the page says to the console, and whom it asks, is kept.
import { chromium } from "playwright-core";
import { readFileSync } from "node:fs";

export const config = JSON.parse(readFileSync(process.env.THALWEG_PAGE, "utf8"));

export async function launch() {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
}

/** A page that remembers its errors and every address it asked. */
export async function open(browser, address, hash = "", options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  page.errors = [];
  page.requests = [];
  page.on("console", (message) => message.type() === "error" && page.errors.push(message.text()));
  page.on("pageerror", (error) => page.errors.push(error.message));
  page.on("request", (request) => page.requests.push(request.url()));
  await page.goto(address + hash);
  await page.waitForSelector("nav a[aria-current]");
  return page;
}

export const riverReady = (page) => page.waitForSelector(".detail canvas[data-boxes]:not([data-boxes='0'])");

/** The boxes of the river, as a screen reader is told of them. */
export function boxes(page) {
  return page.$$eval(".detail ul button", (buttons) =>
    buttons.map((b) => ({
      f: Number(b.dataset.f),
      self: Number(b.dataset.self),
      total: Number(b.dataset.total),
      state: b.dataset.state,
      x: Number(b.dataset.x),
      y: Number(b.dataset.y),
      text: b.textContent,
    })),
  );
}

/** Waits until the river is another one. */
export async function changed(page, act) {
  const river = () => page.$eval(".detail ul", (list) => list.textContent + list.innerHTML.length);
  const before = await river();
  await act();
  await page.waitForFunction((before) => {
    const list = document.querySelector(".detail ul");
    return list && list.textContent + list.innerHTML.length !== before && !document.querySelector(".detail.late");
  }, before);
}

export async function response(page, query) {
  return page.evaluate(async (query) => {
    const token = document.querySelector('meta[name="thalweg-token"]').content;
    const response = await fetch(`api/${query}`, { headers: { "x-thalweg-token": token } });
    return response.json();
  }, query);
}

/** The cells of the rows in sight, by column. */
export function rows(page) {
  return page.$$eval(".tr", (rows) =>
    rows
      .map((row) => ({ index: Number(row.getAttribute("aria-rowindex")), ...Object.fromEntries([...row.children].map((cell) => [cell.dataset.column, cell.textContent.trim()])) }))
      .sort((a, b) => a.index - b.index),
  );
}

export const hash = (page) => page.evaluate(() => location.hash);

/** Waits until the river stands still, however slow the machine is. */
export async function settled(page) {
  const view = () => page.$eval(".detail canvas", (c) => [c.dataset.x, c.dataset.y, c.dataset.zoom, c.dataset.frames].join());
  let last = "";
  for (let n = 0, same = 0; n < 100 && same < 3; n++) {
    const now = await view();
    same = now === last ? same + 1 : 0;
    last = now;
    await page.waitForTimeout(60);
  }
}
