// The page: what it is about, the views, and the keys that work everywhere.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, finder, isFile, isWeighed, labelOf, load, meta, query, useFunctions, weighedPart } from "./api";
import { atLeast, count, isPattern, plusMinus, time } from "./format";
import { go } from "./inspector";
import { Refine, RefineChips } from "./refine";
import { current, link, set, useStore, View } from "./store";
import { Calls } from "./views/calls";
import { Compare } from "./views/compare";
import { Flame } from "./views/flame";
import { Function } from "./views/function";
import { Functions } from "./views/functions";
import { Live } from "./views/live";
import { River, riverQuery } from "./views/river";
import { Summary } from "./views/summary";
import { Threads } from "./views/threads";
import { SpanChip, TimelineView } from "./views/timeline";
import { Tree } from "./views/tree";

const TABS: [View, string, () => preact.JSX.Element][] = [
  ["river", "River", River],
  ["functions", "Functions", Functions],
  ["function", "Function", Function],
  ["tree", "Tree", Tree],
  ["flame", "Flame", Flame],
  ["timeline", "Timeline", TimelineView],
  ["threads", "Threads", Threads],
  ["summary", "Summary", Summary],
  ["compare", "Compare", Compare],
  ["live", "Live", Live],
  ["calls", "Calls", Calls],
];

function Page() {
  const state = useStore();
  const search = useRef<HTMLInputElement>(null);
  const [help, setHelp] = useState(false);
  const tabs = TABS.filter(([view]) => (view !== "live" || meta.live) && (view !== "compare" || meta.before !== null) && (view !== "calls" || meta.recorded) && (view !== "timeline" || meta.timeline));
  const View = (TABS.find(([view]) => view === state.view) ?? TABS[0])[2];

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const target = event.target as HTMLElement;
      if (event.key === "Escape") {
        if (help) setHelp(false);
        else if (target === search.current) {
          set({ q: "" }, true);
          search.current?.blur();
        } else if (state.sel !== null) set({ sel: null });
        else if (state.root !== null) set({ root: null });
        return;
      }
      if (target.matches("input:not([type=checkbox]):not([type=range]), select, textarea")) return;
      const number = Number(event.key);
      if (event.key === "/") search.current?.focus();
      else if (event.key === "?") setHelp(!help);
      else if (number >= 1 && number <= tabs.length) set({ view: tabs[number - 1][0] });
      else if (event.key === " " && meta.live && !target.matches("button, input, a")) set({ frozen: !state.frozen }, true);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });

  return (
    <>
      <header class="top">
        <h1>
          <svg viewBox="0 0 32 32" aria-hidden="true">
            <path d="M3 9c8 0 8 7 14 7s5-5 12-5M3 23c8 0 9-7 14-7" />
          </svg>
          thalweg
        </h1>
        <p class="about" title={meta.command}>
          <b>{meta.command || meta.origin}</b>
          <span>
            {meta.timed ? `${time(meta.time)}${plusMinus(meta.error, time)} in ${time(meta.duration)} · ` : ""}
            {atLeast(count(meta.calls), meta.at_least)} calls
          </span>
          {meta.live && <span class={`pulse ${state.frozen || meta.live.ended ? "off" : ""}`}>{meta.live.ended ? "ended" : state.frozen ? "frozen" : "live"}</span>}
        </p>
        <Chips />
        <Refine />
        <div class="search">
          <input ref={search} type="search" placeholder="Find (/)" title="Function, module or file" aria-label="Find by function, module or file, a regular expression" value={state.q} onInput={(event) => set({ q: event.currentTarget.value }, true)} aria-invalid={!isPattern(state.q)} onKeyDown={(event) => event.key === "Enter" && step(state.q, event.shiftKey ? -1 : 1)} spellcheck={false} />
          <Matches />
        </div>
        <button class="help-button" aria-label="Keys" aria-expanded={help} onClick={() => setHelp(!help)}>
          ?
        </button>
      </header>
      <nav aria-label="Views">
        {tabs.map(([view, title], i) => (
          <a key={view} href={link({ view })} aria-current={state.view === view ? "page" : undefined} onClick={(event) => go(event, () => set({ view }))}>
            {title}
            <kbd>{i + 1}</kbd>
          </a>
        ))}
      </nav>
      <main aria-label={state.view}>
        <View key={state.view} />
      </main>
      {help && <Help close={() => setHelp(false)} />}
    </>
  );
}

/** What narrows every view. */
function Chips() {
  const state = useStore();
  const { threads, root } = state;
  return (
    <div class="chips">
      {root !== null && (
        <button class="chip" onClick={() => set({ root: null })} title="Leave the virtual root">
          root <b>{labelOf(root)}</b> <span aria-hidden="true">×</span>
        </button>
      )}
      {threads.length > 0 && (
        <button class="chip" onClick={() => set({ threads: [] })} title="Back to all threads">
          {threads.length === 1 ? `thread ${threads[0]}` : `${count(threads.length)} threads`} <span aria-hidden="true">×</span>
        </button>
      )}
      <SpanChip />
      <RefineChips />
    </div>
  );
}

function Matches() {
  const state = useStore();
  const { data } = useFunctions();
  const match = finder(state.q);
  if (!match || !data) return null;
  if (!isPattern(state.q))
    return (
      <span class="matches bad" role="status">
        invalid pattern
      </span>
    );
  return (
    <span class="matches">
      <span role="status">{count(data.function.filter(match).length)}</span>
      <button aria-label="Previous match" title="Previous match (shift Enter)" onClick={() => step(state.q, -1)}>
        ‹
      </button>
      <button aria-label="Next match" title="Next match (Enter)" onClick={() => step(state.q, 1)}>
        ›
      </button>
    </span>
  );
}

/** To the next match, the heaviest first. */
function step(q: string, by: number): void {
  const match = finder(q);
  if (!match) return;
  void ask(query("functions", weighedPart(current()))).then((data) => {
    const weight = isWeighed() ? data.total : data.calls;
    const order: number[] = data.function.map((_: number, i: number) => i).filter((i: number) => match(data.function[i]));
    order.sort((a, b) => weight[b] - weight[a]);
    if (!order.length) return;
    const at = order.findIndex((i) => data.function[i] === current().sel);
    const next = at < 0 ? (by > 0 ? 0 : order.length - 1) : (at + by + order.length) % order.length;
    set({ sel: data.function[order[next]] });
  });
}

const KEYS: [string, string][] = [
  ["1 – 9", "go to a view"],
  ["/", "find functions; Enter goes to the next match, shift Enter back, Esc drops it"],
  ["Esc", "unselect, then leave the root"],
  ["River: arrows", "along the heaviest call, to neighbours"],
  ["River: shift + arrows, drag", "pan"],
  ["River: + − 0, wheel", "zoom, show all"],
  ["River: Home", "centre the selected function"],
  ["River: c, e", "collapse, expand"],
  ["River: r", "make it the root, or leave it"],
  ["River: [ ]", "filter less, more"],
  ["River: d", "flow down or to the right"],
  ["Enter", "open the selected function"],
  ["Tables: arrows, PgUp, PgDn, Home, End", "move"],
  ["Functions: l", "locate in the river"],
  ["Tree: → ← x z", "open, close, open the heaviest path, zoom the flame to it"],
  ["Flame: arrows, Enter, Backspace, 0", "move, zoom in, zoom out, whole"],
  ["Timeline: arrows, shift + arrows", "move, select a range"],
  ["Timeline: + − 0, z, Backspace", "zoom, to the range, drop the range"],
  ["Threads: space", "choose"],
  ["Calls: time line: ↑ ↓, ← →, + − 0", "choose a call, move, zoom, show all"],
  ["Live: space", "freeze"],
  ["Live: t, s, c, o", "probes of the selected function: timed, timed 1 in 64, counted, off"],
];

function Help({ close }: { close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} onClose={close} aria-label="Keys" onClick={(event) => event.target === dialog.current && close()}>
      <h2>Keys</h2>
      <dl>
        {KEYS.map(([keys, what]) => (
          <div>
            <dt>{keys}</dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <p class="muted">thalweg {meta.version}</p>
      <button onClick={close}>Close</button>
    </dialog>
  );
}

// The secret has done its work; it need not stay in the history.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);
const root = document.getElementById("page")!;
// What the first view needs is asked for together with what every view does.
if (current().view === "river" && !current().metric && !isFile) void ask(riverQuery(current())).catch(() => {});
load().then(
  () => render(<Page />, root),
  (error) => render(<p class="failure">{error.message}</p>, root),
);
