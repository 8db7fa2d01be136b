// The forms of the responses; see crates/cli/src/page for what they mean. Times are nanoseconds.
export interface Meta {
  version: string;
  origin: string;
  command: string;
  timed: boolean;
  wall: boolean;
  attached: boolean;
  duration: number;
  calls: number;
  /** There may have been more. */
  at_least?: boolean;
  time: number;
  /** How far off it may be. */
  error?: number;
  threads: number;
  processes: number;
  functions: number;
  contexts: number;
  notes: string[];
  before: string | null;
  live: { pid: number; reading: number; ended: boolean } | null;
  sources: boolean;
  /** When threads ran is known. */
  timeline: boolean;
  recorded: Recorded | null;
  /** What was measured beside calls and time; `bytes` or `count`. */
  metrics: { name: string; unit: string }[];
}

/** Single calls that rules have chosen. */
export interface Recorded {
  calls: number;
  chosen: number;
  requests: boolean;
  dropped: number;
  rules: { text: string; kept: number }[];
  names: string[];
}

export interface CallRow {
  id: number;
  function: number;
  name: string;
  thread: string;
  pid: number;
  tid: number;
  request: number;
  rule: number | null;
  at: number;
  total: number;
  self: number;
  waiting: number;
  end: string;
  within: number;
  values: string;
}

export interface CallPage {
  whole: number;
  count: number;
  from: number;
  roots: boolean;
  rows: CallRow[];
}

/** How long calls took; the upper edge of a bucket is not in it. */
export interface Durations {
  calls: number;
  shortest_ns: number;
  median_ns: number;
  p90_ns: number;
  p99_ns: number;
  longest_ns: number;
  buckets: { from_ns: number; to_ns: number; calls: number }[];
}

/** When threads ran and what they waited for, in runs of pieces that are alike. */
export interface Timeline {
  begin: number;
  end: number;
  t0: number;
  t1: number;
  /** Processor time that a sample stands for. */
  period: number;
  lanes: { thread: number; pid: number; tid: number; name: string; start: number; end: number; on: number; waiting: number }[];
  left_out: number;
  lane: number[];
  at: number[];
  length: number[];
  /** Sixteenths of the run on a processor. */
  on: number[];
  /** -1: not known. */
  function: number[];
  /** -1: nothing that is known. */
  wait: number[];
  waits: string[];
  marks: { at: number; text: string }[];
  /** The functions that are told of, with their modules. */
  names: [number, string, string][];
}

/** What a live process did, reading by reading. */
export interface Load {
  at: number[];
  calls: number[];
  processors: number[];
  waiting: number[];
}

export interface CallLine {
  begin: number;
  end: number;
  t0: number;
  t1: number;
  threads: { pid: number; tid: number; name: string }[];
  lane: number[];
  at: number[];
  length: number[];
  id: number[];
  count: number[];
  /** How many were left otherwise than by a return. */
  odd: number[];
  left_out: number;
}

export interface CallTree {
  at: number;
  calls: number;
  rows: (Omit<CallRow, "within" | "values"> & { parent: number | null; level: number; module: string; values: { name: string; entry: boolean; value: unknown }[] })[];
}

export interface Functions {
  modules: string[];
  waits_measured: boolean;
  time: number;
  calls_in_all: number;
  function: number[];
  name: string[];
  module: number[];
  /** Source files, and of each function the place of its own there, or -1. */
  files: string[];
  file: number[];
  calls: number[];
  /** 1 where there may have been more calls. */
  at_least?: number[];
  /** Where not all are native: "native", "go", "python", "java". */
  language?: string[];
  self: number[];
  total: number[];
  /** How far off self and total may be. */
  self_error?: number[];
  total_error?: number[];
  min: number[];
  max: number[];
  waiting: number[];
  threads: number[];
  contexts: number[];
  recursion: number[];
  unwound: number[];
  /** What each did itself, by metric. */
  metrics?: Record<string, number[]>;
  /** What the probes did, where they were or can be switched: `timed 1 in 64, 98% est.` */
  state?: string[];
  /** Samples that found each while its calls were not counted. */
  samples?: number[];
  rate_calls?: number[];
  rate_self?: number[];
}

export interface SwitchedFunction {
  function: number;
  name: string;
  module: string;
  state: string;
}

export interface ArcRow {
  function: number | null;
  unknown?: boolean;
  calls: number;
  at_least?: boolean;
  self: number;
  total: number;
}

export interface OneFunction {
  function: number;
  name: string;
  module: string;
  path: string;
  address: number;
  file: string | null;
  line: number;
  calls: number;
  at_least: boolean;
  self: number;
  total: number;
  self_error: number;
  total_error: number;
  min: number;
  max: number;
  waiting: number;
  recursion: number;
  unwound: number;
  contexts: number;
  folded_calls: number;
  samples: number;
  on_stack_at_attach: boolean;
  parents: ArcRow[];
  children: ArcRow[];
  not_in_callees: number;
  metrics: Record<string, number>;
  threads: { thread: number; made_by: number | null; pid: number; tid: number; name: string; calls: number; self: number; total: number; contexts: number }[];
}

export interface SiteRow {
  caller: number | null;
  callee: number;
  name: string;
  file: string | null;
  line: number;
  indirect: boolean;
  tail: boolean;
  calls: number;
  total: number;
}

export interface Source {
  file: string;
  first: number;
  line: number;
  lines: string[] | null;
  /** Why there are no lines. */
  reason: string | null;
}

export interface Box {
  f: number;
  label: string;
  x: number;
  y: number;
  w: number;
  h: number;
  calls: number;
  self: number;
  total: number;
  hidden: number;
  /** How far off self and total may be, and whether there may have been more calls. */
  self_error?: number;
  total_error?: number;
  least?: boolean;
  waiting: number;
  rec: number;
  threads: number;
  maker: number | null;
  state: "" | "closed" | "some" | "all";
  more: number;
}

export interface Arc {
  from: number;
  to: number;
  calls: number;
  time: number;
  width: number;
  least?: boolean;
  kind: 0 | 1 | 2 | 3;
  hidden: boolean;
  at: number[];
}

export interface River {
  whole: number;
  timed: boolean;
  waits_measured: boolean;
  cutoff: number;
  opening: number;
  steps: number[];
  hidden_functions: number;
  passing_functions: number;
  hidden_edges: number;
  width: number;
  height: number;
  down: boolean;
  /** Functions that stand in the box of the start. */
  folded: number[];
  boxes: Box[];
  arcs: Arc[];
}

export interface TreeRows {
  whole: number;
  contexts: number;
  id: number[];
  parent: number[];
  level: number[];
  function: number[];
  weight: number[];
  calls: number[];
  at_least?: number[];
  self: number[];
  total: number[];
  wall: number[];
  recursion: number[];
  children: number[];
  /** The bits below. */
  flags: number[];
}

/** Calls for which the tree had no room. */
export const FOLDED = 2;
/** Times from samples; calls were counted for a part of the time, or not at all. */
export const SAMPLED = 8;

export interface ThreadRow {
  thread: number;
  made_by: number | null;
  made_in: number | null;
  level: number;
  pid: number;
  tid: number;
  name: string;
  program: string;
  start: number;
  end: number;
  calls: number;
  self: number;
  waiting: number;
  contexts: number;
  others: number;
  /** What its functions did, by metric. */
  metrics?: Record<string, number>;
}

export interface Threads {
  duration: number;
  at_least?: boolean;
  waits_measured: boolean;
  threads: ThreadRow[];
}

/** As the terminal's reports name them: without a unit where a metric is in the place of time. */
export interface SelfTotal {
  self_ns?: number;
  self?: number;
  total_ns?: number;
  total?: number;
}

export interface Summary {
  processes: number;
  threads: number;
  threads_by_level: number[];
  calls: number;
  calls_at_least?: boolean;
  time_ns?: number;
  whole?: number;
  waiting_ns?: number;
  duration_ns: number;
  functions_seen: number;
  functions_patched: number;
  functions_total: number;
  skipped: number;
  contexts: number;
  deepest: number;
  folded_calls: number;
  nodes: number;
  edges: number;
  made: number;
  recursion: { name: string; levels: number } | null;
  hottest: (SelfTotal & { function: number; name: string; calls: number; calls_at_least?: boolean; threads: number })[];
  hottest_edges: (SelfTotal & { caller: string; callee: string; calls: number; calls_at_least?: boolean })[];
  cycles: { calls: number; calls_at_least?: boolean; functions: string[] }[];
  modules: (SelfTotal & { name: string; functions_seen: number; calls: number; calls_at_least?: boolean })[];
  waits: { name: string; time_ns: number }[];
  notes: string[];
}

export interface Changes {
  calls: [number, number];
  self: [number, number];
  rows: { function: number | null; name: string; module: string; calls: [number, number]; self: [number, number]; total: [number, number]; self_error: number; total_error: number; calls_changed: boolean; self_changed: boolean; total_changed: boolean; calls_at_least?: [boolean, boolean] }[];
}
