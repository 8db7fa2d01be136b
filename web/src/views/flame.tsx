// Contexts as an icicle: as wide as they weigh, what they call below them. Click zooms.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Changes, FOLDED, type TreeRows } from "../responses";
import { figure, finder, isFile, isWeighed, labelOf, meta, moduleOf, nameOf, part, query, useResponse, weightOf } from "../api";
import { changed, css, isDark, mix, onTheme, palette, RGB } from "../canvas/colours";
import { By } from "../by";
import { Choose, Failure, Toggle, Waiting } from "../controls";
import { atLeast, count, percent, short } from "../format";
import { Inspector } from "../inspector";
import { set, State, useStore } from "../store";
import { changeShares, compareQuery } from "./compare";
import { treeQuery } from "./tree";

const ROW = 19;

interface Frames {
  data: TreeRows;
  /** From the left, as a share of the whole. */
  x: Float64Array;
  w: Float64Array;
  level: Int32Array;
  row: Map<number, number>;
  depth: number;
}

function place(data: TreeRows): Frames {
  const n = data.id.length;
  const [x, w, level] = [new Float64Array(n), new Float64Array(n), new Int32Array(n)];
  const next = new Float64Array(n + 1);
  let depth = 0;
  const row = new Map<number, number>();
  let whole = 0;
  for (let i = 0; i < n; i++) if (data.parent[i] < 0) whole += data.weight[i];
  for (let i = 0; i < n; i++) {
    const parent = data.parent[i];
    const slot = parent < 0 ? n : parent;
    const share = data.weight[i] / Math.max(1, whole);
    x[i] = parent < 0 ? next[n] : x[parent] + next[slot];
    // Calls that were running when the data was read may weigh more than their caller has room for.
    w[i] = parent < 0 ? share : Math.max(0, Math.min(share, x[parent] + w[parent] - x[i]));
    next[slot] += w[i];
    level[i] = parent < 0 ? 0 : level[parent] + 1;
    depth = Math.max(depth, level[i] + 1);
    row.set(data.id[i], i);
  }
  return { data, x, w, level, row, depth };
}

/** "": from the start; "inverted": who keeps the time; "sandwich": what stands above and below the selected function. */
export function Flame() {
  const state = useStore();
  const sandwich = state.shape === "sandwich";
  return (
    <div class="split">
      <div class={sandwich && state.sel !== null ? "main halves" : "main"}>
        {sandwich ? (
          state.sel === null ? (
            <>
              <Shapes />
              <p class="empty">Select a function, here or in any other view: its callers stand above it then, its callees below.</p>
            </>
          ) : (
            <>
              <Icicle key="callers" shape="callers" up tools />
              <Icicle key="callees" shape="callees" />
            </>
          )
        ) : (
          <Icicle key={state.shape} shape={state.shape} tools />
        )}
      </div>
      <aside class="side">
        <Inspector />
      </aside>
    </div>
  );
}

function Shapes() {
  const state = useStore();
  return (
    <Choose
      label="Shape"
      value={state.shape}
      options={[
        ["", "from the start"],
        ["inverted", "inverted: who keeps it"],
        ["sandwich", "around the selected"],
      ]}
      change={(shape) => set({ shape, at: null })}
    />
  );
}

function shapedQuery(state: State, shape: string, more = {}): string {
  if (!shape) return treeQuery(state);
  return query("tree", { ...part(state), metric: weightOf(state), shape, f: shape === "inverted" ? null : state.sel, ...more });
}

function Icicle({ shape, up = false, tools = false }: { shape: string; up?: boolean; tools?: boolean }) {
  const state = useStore();
  // Contexts have numbers in the address only where they are those of the tree.
  const [local, setLocal] = useState<number | null>(null);
  const zoom = shape ? local : state.at;
  const zoomTo = (at: number | null) => (shape ? setLocal(at) : set({ at }));
  // A server is asked again for what is below the context that is zoomed to: lighter ones then have room.
  const deep = zoom !== null && !isFile ? query("tree", { ...part(state), metric: weightOf(state), shape, f: shape && shape !== "inverted" ? state.sel : null, limit: 12000, at: zoom }) : null;
  const all = useResponse<TreeRows>(shapedQuery(state, shape));
  const zoomed = useResponse<TreeRows>(deep);
  const whole = useMemo(() => all.data && place(all.data), [all.data]);
  const inner = useMemo(() => (deep && zoomed.data && !zoomed.late ? place(zoomed.data) : null), [zoomed.data, zoomed.late, deep]);
  const changes = useResponse<Changes>(meta.before !== null && state.change ? compareQuery(state) : null).data;
  const shares = useMemo(() => changes && changeShares(changes), [changes]);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [cursor, setCursor] = useState<number | null>(null);
  const [hint, setHint] = useState<{ x: number; y: number; i: number; frames: Frames } | null>(null);
  const [top, setTop] = useState(0);
  const match = useMemo(() => finder(state.q), [state.q]);
  const focus = zoom === null || !whole ? -1 : (whole.row.get(zoom) ?? -1);

  // Above the focus the way to it, at full width; below it either its own rows, or those of the whole.
  const way = useMemo(() => {
    const way: number[] = [];
    for (let i = focus; whole && i >= 0; i = whole.data.parent[i]) way.unshift(i);
    return way;
  }, [whole, focus]);
  const target = useRef({ x: 0, w: 1 });
  const view = useRef({ x: 0, w: 1 });
  const wish = focus >= 0 && whole && !inner ? { x: whole.x[focus], w: Math.max(whole.w[focus], 1e-12) } : { x: 0, w: 1 };
  const frames = inner ?? whole;
  const base = inner ? way.length - 1 : 0;

  const draw = useRef<() => void>(() => {});
  draw.current = () => {
    const element = canvas.current;
    if (!element || !frames || !element.clientWidth) return;
    const ratio = devicePixelRatio || 1;
    const [W, H] = [element.clientWidth, element.clientHeight];
    if (element.width !== Math.round(W * ratio) || element.height !== Math.round(H * ratio)) [element.width, element.height] = [Math.round(W * ratio), Math.round(H * ratio)];
    const ctx = element.getContext("2d")!;
    const p = palette();
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = p.paper;
    ctx.fillRect(0, 0, W, H);
    ctx.font = `11.5px ${p.font}`;
    ctx.textBaseline = "middle";
    const one = (i: number, f: Frames, left: number, width: number, level: number, faint: boolean) => {
      const y = up ? H - (level + 1) * ROW + top : level * ROW - top;
      if (y < -ROW || y > H || left > W || left + width < 0) return;
      const fn = f.data.function[i];
      const [l, r] = [Math.max(0, left), Math.min(W, left + width)];
      const found = match ? match(fn) : true;
      const colour = shares ? changed(p, shares.get(fn) ?? 0) : frameColour(fn, (f.data.flags[i] & FOLDED) !== 0 ? p.wait : null);
      ctx.globalAlpha = faint ? 0.55 : found ? 1 : 0.28;
      ctx.fillStyle = css(colour);
      ctx.fillRect(l, y, Math.max(0.5, r - l - (width > 2 ? 0.8 : 0)), ROW - 1);
      if (r - l > 26) {
        ctx.fillStyle = isDark(colour) ? "#fff" : "#15202b";
        const room = Math.floor((r - l - 8) / 6.1);
        const name = labelOf(fn);
        ctx.fillText(name.length > room ? name.slice(0, Math.max(1, room - 1)) + "…" : name, l + 4, y + ROW / 2, r - l - 6);
      }
      if ((state.sel === fn && !faint) || cursor === f.data.id[i]) {
        ctx.globalAlpha = 1;
        ctx.lineWidth = cursor === f.data.id[i] ? 2 : 1.2;
        ctx.strokeStyle = cursor === f.data.id[i] ? p.accent : p.ink;
        ctx.strokeRect(l + 0.5, y + 0.5, Math.max(1, r - l - 2), ROW - 2);
      }
      ctx.globalAlpha = 1;
    };
    const { x, w } = view.current;
    if (inner) way.slice(0, -1).forEach((i, level) => one(i, whole!, 0, W, level, true));
    for (let i = 0; i < frames.data.id.length; i++) {
      const left = ((frames.x[i] - x) / w) * W;
      const width = (frames.w[i] / w) * W;
      if (width < 0.3) continue;
      const above = !inner && focus >= 0 && frames.level[i] < frames.level[focus] && way.includes(i);
      one(i, frames, left, width, frames.level[i] + base, above);
    }
  };
  // Zooming is animated unless someone prefers that nothing moves.
  useEffect(() => {
    target.current = wish;
    if (inner || matchMedia("(prefers-reduced-motion: reduce)").matches) {
      view.current = wish;
      draw.current();
      return;
    }
    const from = { ...view.current };
    const began = performance.now();
    let handle = 0;
    const step = (now: number) => {
      const t = Math.min(1, (now - began) / 220);
      const s = t * t * (3 - 2 * t);
      view.current = { x: from.x + (wish.x - from.x) * s, w: from.w + (wish.w - from.w) * s };
      draw.current();
      if (t < 1) handle = requestAnimationFrame(step);
    };
    handle = requestAnimationFrame(step);
    return () => cancelAnimationFrame(handle);
  }, [wish.x, wish.w, inner]);
  useLayoutEffect(() => draw.current());
  useEffect(() => {
    const watch = new ResizeObserver(() => draw.current());
    watch.observe(canvas.current!);
    const stop = onTheme(() => draw.current());
    return () => {
      watch.disconnect();
      stop();
    };
  }, []);

  const hit = (px: number, py: number): { i: number; frames: Frames } | null => {
    if (!frames) return null;
    const level = Math.floor(((up ? canvas.current!.clientHeight - py : py) + top) / ROW);
    if (inner && level < way.length - 1) return { i: way[level], frames: whole! };
    const at = view.current.x + (px / canvas.current!.clientWidth) * view.current.w;
    for (let i = 0; i < frames.data.id.length; i++)
      if (frames.level[i] + base === level && at >= frames.x[i] && at < frames.x[i] + frames.w[i]) return { i, frames };
    return null;
  };
  const point = (event: MouseEvent) => {
    const rect = canvas.current!.getBoundingClientRect();
    return [event.clientX - rect.left, event.clientY - rect.top] as const;
  };
  const depth = (frames?.depth ?? 0) + base;
  const limit = Math.max(0, depth * ROW - (canvas.current?.clientHeight ?? 600) + ROW);
  const choose = (found: { i: number; frames: Frames }) => {
    const id = found.frames.data.id[found.i];
    setCursor(id);
    // Around the selected function another one is zoomed to, and not selected.
    if (shape === "callers" || shape === "callees") return zoomTo(id === zoom ? parentOf(id) : id);
    zoomTo(found.frames.data.parent[found.i] < 0 && !inner && !shape ? null : id === zoom ? parentOf(id) : id);
    set({ sel: found.frames.data.function[found.i] });
  };
  const parentOf = (id: number): number | null => {
    const i = whole?.row.get(id);
    const parent = i === undefined ? -1 : whole!.data.parent[i];
    return parent < 0 ? null : whole!.data.id[parent];
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (!frames || event.ctrlKey || event.metaKey || event.altKey) return;
    const { data } = frames;
    const i = cursor === null ? -1 : (frames.row.get(cursor) ?? -1);
    const move = (to: number) => {
      if (to < 0 || to >= data.id.length) return;
      setCursor(data.id[to]);
      setHint(null);
      if (shape !== "callers" && shape !== "callees") set({ sel: data.function[to] }, true);
      const y = (frames.level[to] + base) * ROW;
      const H = canvas.current!.clientHeight;
      if (y < top) setTop(y);
      else if (y + ROW > top + H) setTop(y + ROW - H);
    };
    const sibling = (by: number) => {
      for (let j = i + by; j >= 0 && j < data.id.length; j += by) if (frames.level[j] === frames.level[i]) return move(j);
    };
    switch (up && event.key === "ArrowDown" ? "ArrowUp" : up && event.key === "ArrowUp" ? "ArrowDown" : event.key) {
      case "ArrowDown":
        i < 0 ? move(0) : data.parent[i + 1] === i && move(i + 1);
        break;
      case "ArrowUp":
        if (i >= 0) move(data.parent[i]);
        break;
      case "ArrowLeft":
        if (i >= 0) sibling(-1);
        break;
      case "ArrowRight":
        if (i >= 0) sibling(1);
        break;
      case "Enter":
        if (i >= 0) zoomTo(cursor);
        break;
      case "Backspace":
      case "-":
        if (zoom !== null) zoomTo(parentOf(zoom));
        break;
      case "0":
        zoomTo(null);
        break;
      default:
        return;
    }
    event.preventDefault();
    event.stopPropagation();
  };

  const found = useMemo(() => {
    if (!match || !whole) return null;
    // What is below a match is part of it.
    const { data } = whole;
    const inside = new Uint8Array(data.id.length);
    let weight = 0;
    for (let i = 0; i < data.id.length; i++) {
      const above = data.parent[i] >= 0 && inside[data.parent[i]];
      const own = match(data.function[i]);
      if (own && !above) weight += data.weight[i];
      inside[i] = above || own ? 1 : 0;
    }
    return weight / Math.max(1, data.whole);
  }, [match, whole]);

  const metric = (n: number) => (state.metric === "calls" || !isWeighed() ? `${short(n)} calls` : figure(n));
  return (
    <>
      {tools && (
        <div class="tools" role="toolbar" aria-label="Flame">
          <Shapes />
          <By every query={(metric) => shapedQuery({ ...state, metric }, shape)} patch={{ at: null }} change={() => setLocal(null)} />
          <button onClick={() => zoomTo(zoom === null ? null : parentOf(zoom))} disabled={zoom === null}>
            Zoom out
          </button>
          <button onClick={() => zoomTo(null)} disabled={zoom === null}>
            Whole
          </button>
          {meta.before !== null && <Toggle label="Change" hint="Colour by what changed since the other profile" on={state.change} change={(change) => set({ change })} />}
          {found !== null && <span data-found>{percent(found)} matches</span>}
          {all.data && <span class="muted">{all.data.id.length < all.data.contexts ? `the ${count(all.data.id.length)} heaviest of ${count(all.data.contexts)} contexts` : `${count(all.data.contexts)} contexts`}</span>}
        </div>
      )}
        {all.error && <Failure text={all.error} />}
        <div class="flame">
          {!all.data && !all.error && <Waiting />}
          <canvas
            ref={canvas}
            tabIndex={0}
            role="application"
            aria-label={`${up ? "Callers of the selected function" : shape === "callees" ? "Callees of the selected function" : shape ? "Inverted flame graph: functions, and who called them" : "Flame graph of contexts"}. Arrow keys move between them, Enter zooms, Backspace zooms out, 0 shows all.`}
            aria-describedby={`flame-selected${shape}`}
            data-depth={depth}
            data-frames={frames?.data.id.length ?? 0}
            onKeyDown={onKeyDown}
            onWheel={(event) => {
              setHint(null);
              setTop(Math.max(0, Math.min(limit, top + event.deltaY)));
            }}
            onPointerMove={(event) => {
              const at = point(event);
              const under = hit(...at);
              setHint(under && { x: at[0], y: at[1], ...under });
            }}
            onPointerLeave={() => setHint(null)}
            onClick={(event) => {
              const under = hit(...point(event));
              if (under) choose(under);
            }}
          />
          {all.data && all.data.id.length === 0 && <p class="empty over">There are no contexts.</p>}
          {hint && <FlameHint {...hint} metric={metric} whole={Math.max(1, hint.frames.data.whole)} />}
          <p id={`flame-selected${shape}`} class="sr-only" aria-live="polite">
            {cursor !== null && frames?.row.has(cursor) ? describe(frames, frames.row.get(cursor)!, metric) : ""}
          </p>
        </div>
    </>
  );
}

function describe(frames: Frames, i: number, metric: (n: number) => string): string {
  return `${nameOf(frames.data.function[i])}, ${metric(frames.data.weight[i])}, ${percent(frames.data.weight[i] / Math.max(1, frames.data.whole))}, level ${frames.data.level[i]}`;
}

function FlameHint({ x, y, i, frames, metric, whole }: { x: number; y: number; i: number; frames: Frames; metric: (n: number) => string; whole: number }) {
  const { data } = frames;
  const left = x > 520 ? { right: `calc(100% - ${x - 14}px)` } : { left: `${x + 14}px` };
  return (
    <div class="hint" style={{ ...left, top: `${y + 14}px` }} aria-hidden="true">
      <b>{labelOf(data.function[i])}</b>
      <span class="muted">{moduleOf(data.function[i])}</span>
      <span>
        {metric(data.weight[i])} · {percent(data.weight[i] / whole)}
      </span>
      <span>
        {atLeast(count(data.calls[i]), data.at_least?.[i])} calls{isWeighed() && ` · self ${figure(data.self[i])}`}
      </span>
    </div>
  );
}

/** Functions of one module have one hue; the shade tells neighbours apart. */
function frameColour(f: number, folded: RGB | null): RGB {
  if (folded) return folded;
  const hues: RGB[] = [
    [240, 169, 92],
    [122, 183, 214],
    [150, 199, 140],
    [222, 150, 160],
    [186, 168, 216],
    [214, 190, 112],
    [128, 196, 184],
    [206, 160, 128],
  ];
  const hash = (text: string) => {
    let h = 0;
    for (let i = 0; i < text.length; i++) h = (h * 31 + text.charCodeAt(i)) | 0;
    return h >>> 0;
  };
  return mix(hues[hash(moduleOf(f)) % hues.length], [255, 246, 232], (hash(nameOf(f)) % 7) * 0.08);
}
