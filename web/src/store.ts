// The one state of the page. What a bookmark should bring back stands in the address; back and forward go through it.
import { useEffect, useState } from "preact/hooks";

export const VIEWS = ["river", "functions", "function", "tree", "flame", "timeline", "threads", "summary", "compare", "live", "calls"] as const;
export type View = (typeof VIEWS)[number];

export const DATA = ["total", "self", "calls", "total-time", "self-time", "mean", "threads", "none"] as const;
export type Datum = (typeof DATA)[number];

export interface State {
  view: View;
  /** The selected function. */
  sel: number | null;
  /** Filter by name: a regular expression. */
  q: string;
  /** Filter by time in percent; null: as many functions as can be read. */
  cut: number | null;
  /** Whether functions that only pass time on are left out. */
  brief: boolean;
  /** The virtual root. */
  root: number | null;
  /** The chosen threads; none: all. */
  threads: number[];
  /** What is weighed: time (or calls, where nothing was timed), "calls", "wall", or a metric of the profile. */
  metric: string;
  /** As the options --focus, --ignore, --hide, --show-from and --granularity of the commands. */
  focus: string;
  ignore: string;
  hide: string;
  from: string;
  per: string;
  width: string;
  /** Which way the river flows: 1 down, 0 to the right; null: as suits the window. */
  down: number | null;
  left: Datum;
  right: Datum;
  names: number;
  closed: number[];
  open: number[];
  /** Boxes by heat, or by change since the other profile. */
  change: boolean;
  sort: string;
  columns: string;
  /** The flame: "" from the start, "inverted", or "sandwich" of the selected function. */
  shape: string;
  /** The context that the flame is zoomed to. */
  at: number | null;
  frozen: boolean;
  /** Recorded calls: the chosen one, which are listed and in what order, and the time that is looked at. */
  call: number | null;
  list: string;
  where: string;
  only: boolean;
  order: string;
  t0: number | null;
  t1: number | null;
  /** The part of the time that every view shows, and the one that the time line is zoomed to. */
  s0: number | null;
  s1: number | null;
  z0: number | null;
  z1: number | null;
}

const START: State = {
  view: "river",
  sel: null,
  q: "",
  cut: null,
  brief: true,
  root: null,
  threads: [],
  metric: "",
  focus: "",
  ignore: "",
  hide: "",
  from: "",
  per: "",
  width: "linear",
  down: null,
  left: "self",
  right: "total",
  names: 28,
  closed: [],
  open: [],
  change: false,
  sort: "-self",
  columns: "",
  shape: "",
  at: null,
  frozen: false,
  call: null,
  list: "",
  where: "",
  only: false,
  order: "at",
  t0: null,
  t1: null,
  s0: null,
  s1: null,
  z0: null,
  z1: null,
};

function parse(hash: string): State {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const state: any = { ...START };
  if ((VIEWS as readonly string[]).includes(path)) state.view = path;
  for (const [key, text] of new URLSearchParams(query ?? "")) {
    const usual = (START as any)[key];
    if (key === "view" || !(key in START)) continue;
    const number = Number(text);
    if (Array.isArray(usual)) state[key] = text.split(",").map(Number).filter(Number.isInteger);
    else if (typeof usual === "boolean") state[key] = text === "1";
    else if (typeof usual === "number" || usual === null) {
      if (Number.isFinite(number) && number >= 0) state[key] = number;
    } else if (key === "left" || key === "right") {
      if ((DATA as readonly string[]).includes(text)) state[key] = text;
    } else state[key] = text.slice(0, 500);
  }
  return state;
}

function address(state: State): string {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    const usual = (START as any)[key];
    if (key === "view" || value === usual || value === null) continue;
    if (Array.isArray(value)) {
      if (value.length) query.set(key, value.join(","));
    } else query.set(key, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
  }
  const text = query.toString().replace(/%2C/g, ",");
  return `#/${state.view}${text && "?" + text}`;
}

let state = parse(location.hash);
const listeners = new Set<() => void>();

export function current(): State {
  return state;
}

/** Changes the state. Small steps, as those of a slider that moves, replace the address instead of adding to the history. */
export function set(patch: Partial<State>, small = false): void {
  const next = { ...state, ...patch };
  const now = address(next);
  state = next;
  if (now !== location.hash) {
    if (small) history.replaceState(null, "", now);
    else history.pushState(null, "", now);
  }
  notify();
}

export function notify(): void {
  for (const listener of [...listeners]) listener();
}

export function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useStore(): State {
  const [, again] = useState({});
  useEffect(() => subscribe(() => again({})), []);
  return state;
}

addEventListener("popstate", () => {
  state = parse(location.hash);
  notify();
});

/** The link to another state: what an anchor needs to work with the middle button as well. */
export function link(patch: Partial<State>): string {
  return address({ ...state, ...patch });
}
