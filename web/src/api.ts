// Queries and their responses: from the server, or from the responses that came with the page.
import { useEffect, useRef, useState } from "preact/hooks";
import { inUnit, matcher, time } from "./format";
import { current, notify, State } from "./store";
import type { Functions, Meta, SwitchedFunction } from "./responses";

const held = document.getElementById("responses");
const token = document.querySelector<HTMLMetaElement>('meta[name="thalweg-token"]')?.content ?? "";

/** The page is a file: it has the responses that it has. */
export const isFile = held !== null;

let responses: Record<string, unknown> = {};
let kept = new Map<string, Promise<any>>();
/** Counts readings of a live process. */
export let reading = 0;

type Parameters = Record<string, string | number | null | undefined>;

/** One spelling per query: usual values left out, the others sorted by name. */
export function query(what: string, parameters: Parameters = {}): string {
  const given = Object.entries(parameters)
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, value]) => `${name}=${encodeURIComponent(String(value)).replace(/%2C/g, ",")}`);
  return given.length ? `${what}?${given.join("&")}` : what;
}

/** The parameters that every view has in common. */
export function part(state: State): Parameters {
  const { root, threads, focus, ignore, hide, from, per, s0, s1 } = state;
  const span = s0 !== null && s1 !== null ? `${s0}-${s1}` : null;
  return { root, threads: threads.join(","), focus, ignore, hide, from, per, span };
}

/** The metric that is in the place of time, if any. */
export function metricOf(state: State): { name: string; unit: string } | null {
  return meta?.metrics.find((metric) => metric.name === state.metric) ?? null;
}

/** What contexts and rivers are weighed by, as it stands in a query. */
export function weightOf(state: State): string | null {
  return state.metric === "calls" || state.metric === "wall" ? state.metric : (metricOf(state)?.name ?? null);
}

/** The same for views that show time or a metric in its place. */
export function weighedPart(state: State): Parameters {
  return { ...part(state), metric: metricOf(state)?.name };
}

/** Whether there is something beside calls: time, or a metric. */
export function isWeighed(): boolean {
  return meta.timed || metricOf(current()) !== null;
}

/** A figure of the kind that is looked at: a time, or what the metric counts. */
export function figure(n: number): string {
  const metric = metricOf(current());
  return metric ? inUnit(n, metric.unit) : time(n);
}

export function unitOf(metric: string): string {
  return meta.metrics.find((one) => one.name === metric)?.unit ?? "count";
}

/** "time", or the metric's name. */
export function figureName(): string {
  return metricOf(current())?.name ?? "time";
}

export async function open(): Promise<void> {
  if (!held) return;
  const packed = Uint8Array.from(atob(held.textContent ?? ""), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  responses = JSON.parse(await new Response(stream).text());
  held.remove();
}

/** Whether it can be loaded. */
export function isAvailable(text: string): boolean {
  return !isFile || text in responses;
}

export function ask(text: string): Promise<any> {
  const known = kept.get(text);
  if (known) return known;
  const response = isFile ? Promise.resolve().then(() => fromFile(text)) : fromServer(text);
  response.catch(() => kept.delete(text));
  if (kept.size > 300) kept = new Map([...kept].slice(-150));
  kept.set(text, response);
  return response;
}

function fromFile(text: string): unknown {
  if (text in responses) return responses[text];
  throw new Error("This file does not hold that: open the profile with 'thalweg serve'.");
}

async function fromServer(text: string): Promise<unknown> {
  const response = await fetch(`api/${text}`, { headers: { "x-thalweg-token": token } }).catch(() => null);
  if (!response) throw new Error("The server does not respond: 'thalweg serve' has ended.");
  if (!response.ok) throw new Error((await response.text()) || response.statusText);
  return response.json();
}

/** Has the server do something to the live process; gives what it says. */
export async function act(what: string): Promise<string> {
  const response = await fetch(`api/do/${what}`, { method: "POST", headers: { "x-thalweg-token": token } });
  const text = await response.text();
  if (!response.ok) throw new Error(text);
  return text;
}

export interface Loaded<T> {
  data: T | null;
  error: string | null;
  /** The data is for an earlier query; the response to this one is on its way. */
  late: boolean;
}

/** The response to a query; until it comes, the one to the query before. */
export function useResponse<T>(text: string | null): Loaded<T> {
  const [loaded, put] = useState<{ text: string | null; data: T | null; error: string | null }>({
    text: null,
    data: null,
    error: null,
  });
  const wanted = useRef<string | null>(null);
  const key = text === null ? null : `${reading} ${text}`;
  useEffect(() => {
    wanted.current = key;
    if (text === null) return;
    ask(text).then(
      (data) => wanted.current === key && put({ text: key, data, error: null }),
      (error) => wanted.current === key && put((old) => ({ text: key, data: isFile ? old.data : null, error: error.message })),
    );
  }, [key]);
  return { data: loaded.data, error: loaded.text === key ? loaded.error : null, late: loaded.text !== key };
}

/** All functions of the part that is looked at. */
export function useFunctions(): Loaded<Functions> {
  const loaded = useResponse<Functions>(query("functions", weighedPart(current())));
  // Files and modules that stand for their functions are functions that nobody has heard of yet; so are those that only samples have seen.
  const { per, s0 } = current();
  const unheard = loaded.data !== null && (per !== "" || s0 !== null) && loaded.data.function.some((f) => names[f] === undefined);
  if (loaded.data && (per || unheard)) learn(loaded.data);
  useEffect(() => {
    if (unheard) notify();
  }, [unheard]);
  return loaded;
}

/** What shares are shares of: the time of the part that is looked at. */
export function useWhole(): number {
  return Math.max(1, useFunctions().data?.time ?? 1);
}

// What every view needs, asked once per reading.
export let meta: Meta;
let names: string[] = [];
let modules: string[] = [];
let files: string[] = [];
let languages: string[] = [];
let byName = new Map<string, number>();

function learn(functions: Functions): void {
  const weight = new Map<string, number>();
  functions.function.forEach((f, i) => {
    names[f] = functions.name[i];
    modules[f] = functions.modules[functions.module[i]];
    files[f] = functions.file[i] < 0 ? "" : functions.files[functions.file[i]];
    languages[f] = functions.language?.[i] ?? "native";
    const known = weight.get(functions.name[i]);
    if (known === undefined || functions.total[i] > known) {
      weight.set(functions.name[i], functions.total[i]);
      byName.set(functions.name[i], f);
    }
  });
}

/** Names that a response brings with it. */
export function learnNames(of: [number, string, string][]): void {
  for (const [f, name, module] of of) {
    names[f] ??= name;
    modules[f] ??= module;
  }
}

async function learnAll(): Promise<void> {
  learn(await ask("functions"));
  if (!meta.live) return;
  // Those that were switched before their first call.
  for (const one of (await ask("switched")) as SwitchedFunction[]) {
    names[one.function] ??= one.name;
    modules[one.function] ??= one.module;
  }
}

export async function load(): Promise<void> {
  await open();
  // Neither waits for the other.
  const functions = ask("functions");
  functions.catch(() => {});
  meta = await ask("meta");
  await learnAll();
  if (meta.live) watch();
}

function watch(): void {
  const look = async () => {
    try {
      if (current().frozen) return;
      kept.delete("meta");
      const now: Meta = await ask("meta");
      if (now.live!.reading === meta.live!.reading) return;
      meta = now;
      kept = new Map([["meta", Promise.resolve(now)]]);
      reading = now.live!.reading;
      await learnAll();
      notify();
    } finally {
      if (!meta.live!.ended) setTimeout(look, 1000);
    }
  };
  setTimeout(look, 1000);
}

export function nameOf(f: number): string {
  return names[f] ?? `function ${f}`;
}

/** Many functions of Python have these names: where they are tells them apart. */
const ANONYMOUS = /^<(module|lambda|listcomp|setcomp|dictcomp|genexpr)>$/;

/** What a function is called where no module stands beside it. */
export function labelOf(f: number): string {
  const name = nameOf(f);
  return ANONYMOUS.test(name) && modules[f] ? `${name} ${modules[f]}` : name;
}

export function languageOf(f: number): string {
  return languages[f] ?? "native";
}

/** Those that functions of this profile are in, if there are several. */
export function languagesShown(): string[] {
  const all = [...new Set(languages.filter(Boolean))].sort();
  return all.length > 1 ? all : [];
}

/** Functions whose name, module, file or language (`language:java`) the pattern means. */
export function finder(pattern: string): ((f: number) => boolean) | null {
  const match = matcher(pattern);
  if (!match) return null;
  const known = new Map<number, boolean>();
  return (f) => {
    let found = known.get(f);
    if (found === undefined) {
      found = match(nameOf(f)) || match(modules[f] ?? "") || match(files[f] ?? "") || match(`language:${languageOf(f)}`);
      known.set(f, found);
    }
    return found;
  };
}

export function moduleOf(f: number): string {
  return modules[f] ?? "";
}

/** Of several functions of a name, the one that took most time. */
export function functionNamed(name: string): number | null {
  return byName.get(name) ?? null;
}
