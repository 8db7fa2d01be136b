// The time line: a lane for each thread, with when it was on a processor, in what, and what it waited for; the calls that rules have
// recorded and checkpoints on the same axis. A range that is selected here is all that other views show.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { CallLine, Timeline as Data } from "../responses";
import { finder, isFile, labelOf, learnNames, meta, moduleOf, nameOf, part, query, useResponse } from "../api";
import { css, isDark, mix, onTheme, Palette, palette, rgb, RGB } from "../canvas/colours";
import { Failure, Toggle } from "../controls";
import { count, counted, cut, percent, time } from "../format";
import { Inspector } from "../inspector";
import { set, useStore } from "../store";
import { LoadChart } from "./load";

const LEAST_LANE = 34;
const MOST_LANE = 64;
const CALLS = 7;
const AXIS = 22;
const NAMES = 150;
const EDGE = 8;
/** What a live view shows of the end. */
const WINDOW = 30e9;
const STEPS = 16;
/// How a thread is called that could run and was not seen to.
const READY = "ready, no processor";

interface Hint {
  x: number;
  y: number;
  i: number;
  lane: number;
  at: number;
}

export function TimelineView() {
  const state = useStore();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [hint, setHint] = useState<Hint | null>(null);
  const [mark, setMark] = useState<[number, number] | null>(null);
  const [follow, setFollow] = useState(true);
  const [at, setAt] = useState<[number, number]>([0, 0]);
  const drag = useRef<{ x: number; t: number; pan: boolean; t0: number; t1: number } | null>(null);
  const zoomed = state.z0 !== null && state.z1 !== null;
  const px = isFile || !width ? null : Math.max(200, Math.ceil((width - NAMES) / 200) * 100);
  // While it scrolls the window is at the end of what is known; the page knows that as the recording's length.
  const scrolls = !!meta.live && !meta.live.ended && follow && !zoomed;
  const from = zoomed ? state.z0 : scrolls ? Math.max(0, Math.round(meta.duration - WINDOW)) : null;
  const to = zoomed ? state.z1 : null;
  const ready = isFile || width > 0;
  const { data, error, late } = useResponse<Data>(ready ? query("timeline", { threads: isFile ? null : part(state).threads, px, t0: isFile ? null : from, t1: isFile ? null : to }) : null);
  const calls = useResponse<CallLine>(ready && meta.recorded && !isFile ? query("callline", { px, t0: from, t1: to, list: "chosen" }) : null).data;
  const [t0, t1] = data ? [data.t0, Math.max(data.t0 + 1, data.t1)] : [0, 1];
  const x = (t: number) => NAMES + ((t - t0) / (t1 - t0)) * (width - NAMES - EDGE);
  const t = (x: number) => t0 + ((x - NAMES) / Math.max(1, width - NAMES - EDGE)) * (t1 - t0);
  const lanes = data?.lanes ?? [];
  if (data) learnNames(data.names);
  const LANE = Math.round(Math.max(LEAST_LANE, Math.min(MOST_LANE, (innerHeight * 0.55 - AXIS) / Math.max(1, lanes.length))));
  const height = AXIS + Math.max(1, lanes.length) * LANE + 4;
  const span = mark ?? (state.s0 !== null && state.s1 !== null ? ([state.s0, state.s1] as [number, number]) : null);
  const match = finder(state.q);

  const draw = useRef<() => void>(() => {});
  draw.current = () => {
    const element = canvas.current;
    if (!element || !width || !data) return;
    const ratio = devicePixelRatio || 1;
    [element.width, element.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    const ctx = element.getContext("2d")!;
    const p = palette();
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, width, height);
    ctx.font = `11px ${p.font}`;
    ctx.textBaseline = "middle";
    drawLives(ctx, p);
    drawRuns(ctx, p);
    drawCalls(ctx, p);
    drawAxis(ctx, p);
    drawNames(ctx, p);
    drawSpan(ctx, p);
  };
  const top = (lane: number) => AXIS + lane * LANE;
  /** The height of what is on a processor all the time. */
  const full = LANE - 8 - (calls ? CALLS : 0);

  function drawLives(ctx: CanvasRenderingContext2D, p: Palette) {
    lanes.forEach((lane, i) => {
      ctx.fillStyle = p.line;
      ctx.globalAlpha = 0.28;
      const [left, right] = [Math.max(NAMES, x(lane.start)), Math.min(width - EDGE, x(Math.max(lane.end, lane.start)))];
      if (right > left) ctx.fillRect(left, top(i) + 4 + full - 1, right - left, 1);
      ctx.globalAlpha = 1;
    });
  }

  function drawRuns(ctx: CanvasRenderingContext2D, p: Palette) {
    const d = data!;
    // Neighbours that have the same function are named together.
    let name: { f: number; lane: number; left: number; right: number } | null = null;
    const flush = () => {
      if (name && name.right - name.left > 34 && name.f >= 0) {
        const room = Math.floor((name.right - name.left - 8) / 6);
        ctx.fillStyle = isDark(colourOf(p, name.f)) ? "#ffffff" : "#111111";
        if (room > 4) ctx.fillText(cut(labelOf(name.f), room), name.left + 4, top(name.lane) + 4 + full / 2);
      }
      name = null;
    };
    for (let i = 0; i < d.at.length; i++) {
      const left = Math.max(NAMES, x(d.at[i]));
      const right = Math.min(width - EDGE, x(d.at[i] + d.length[i]));
      if (right <= left) continue;
      const y = top(d.lane[i]) + 4;
      const room = Math.max(0.8, right - left);
      if (d.wait[i] >= 0) {
        const ready = d.waits[d.wait[i]] === READY;
        ctx.fillStyle = ready ? css(p.warm, 0.3) : css(p.wait, 0.32);
        ctx.fillRect(left, y, room, full);
        ctx.fillStyle = ready ? css(p.warm) : css(p.wait, 0.9);
        ctx.fillRect(left, y + full - 3, room, 3);
      }
      const on = d.on[i] / STEPS;
      if (on > 0) {
        const f = d.function[i];
        const high = Math.max(2, on * full);
        ctx.globalAlpha = match && !(f >= 0 && match(f)) ? 0.22 : 1;
        ctx.fillStyle = css(colourOf(p, f));
        ctx.fillRect(left, y + full - high, room, high);
        ctx.globalAlpha = 1;
        if (state.sel !== null && f === state.sel) {
          ctx.fillStyle = p.ink;
          ctx.fillRect(left, y + full, room, 2);
        }
        const tall = high > 13;
        if (name && tall && name.f === f && name.lane === d.lane[i] && left - name.right < 1.5) name.right = right;
        else {
          flush();
          if (tall) name = { f, lane: d.lane[i], left, right };
        }
      } else flush();
    }
    flush();
    // What fits of the reason of a wait.
    ctx.fillStyle = p.ink;
    for (let i = 0; i < d.at.length; i++) {
      if (d.wait[i] < 0 || d.on[i] > 0) continue;
      const left = Math.max(NAMES, x(d.at[i]));
      const right = Math.min(width - EDGE, x(d.at[i] + d.length[i]));
      const text = d.waits[d.wait[i]];
      if (right - left > text.length * 6 + 10) ctx.fillText(text, left + 5, top(d.lane[i]) + 4 + full / 2 - 1);
    }
  }

  function drawCalls(ctx: CanvasRenderingContext2D, p: Palette) {
    if (!calls) return;
    const places = new Map(lanes.map((lane, i) => [`${lane.pid} ${lane.tid}`, i]));
    const own = calls.threads.map((thread) => places.get(`${thread.pid} ${thread.tid}`));
    const wide = rgb(p.accent);
    for (let i = 0; i < calls.at.length; i++) {
      const lane = own[calls.lane[i]];
      if (lane === undefined) continue;
      const left = Math.max(NAMES, x(calls.at[i]));
      const right = Math.min(width - EDGE, x(calls.at[i] + calls.length[i]));
      if (right < NAMES || left > width - EDGE) continue;
      ctx.fillStyle = calls.odd[i] ? p.bad : css(mix(p.shallow, wide, 0.4 + Math.min(0.6, Math.log2(calls.count[i]) / 6)));
      ctx.fillRect(left, top(lane) + LANE - CALLS - 2, Math.max(1.2, right - left - 0.4), CALLS - 2);
    }
  }

  function drawAxis(ctx: CanvasRenderingContext2D, p: Palette) {
    for (const [at, text] of ticks(t0, t1)) {
      ctx.fillStyle = p.line;
      ctx.globalAlpha = 0.4;
      ctx.fillRect(x(at), AXIS - 5, 1, height);
      ctx.globalAlpha = 1;
      ctx.fillStyle = p.muted;
      if (x(at) + 56 < width) ctx.fillText(text, x(at) + 4, AXIS / 2);
    }
    for (const one of data!.marks) {
      ctx.fillStyle = p.accent;
      ctx.globalAlpha = 0.25;
      ctx.fillRect(x(one.at), 2, 1, height);
      ctx.globalAlpha = 1;
      ctx.beginPath();
      ctx.moveTo(x(one.at) - 5, 2);
      ctx.lineTo(x(one.at) + 6, 2);
      ctx.lineTo(x(one.at) + 0.5, 9);
      ctx.fill();
    }
  }

  function drawNames(ctx: CanvasRenderingContext2D, p: Palette) {
    ctx.fillStyle = p.paper;
    ctx.fillRect(0, 0, NAMES - 4, height);
    lanes.forEach((lane, i) => {
      const y = top(i);
      ctx.fillStyle = p.line;
      ctx.globalAlpha = 0.5;
      ctx.fillRect(0, y + LANE - 0.5, width, 0.5);
      ctx.globalAlpha = 1;
      ctx.fillStyle = p.ink;
      ctx.fillText(cut(lane.name || "thread", 15), 12, y + 12);
      ctx.fillStyle = p.muted;
      ctx.fillText(`${lane.tid}  ${percent(lane.on / (t1 - t0))}`, 12, y + 25);
    });
  }

  function drawSpan(ctx: CanvasRenderingContext2D, p: Palette) {
    if (!span) return;
    const [left, right] = [Math.max(NAMES, x(span[0])), Math.min(width - EDGE, x(span[1]))];
    ctx.fillStyle = p.paper;
    ctx.globalAlpha = 0.62;
    ctx.fillRect(NAMES, AXIS, Math.max(0, left - NAMES), height);
    ctx.fillRect(right, AXIS, Math.max(0, width - EDGE - right), height);
    ctx.globalAlpha = 1;
    ctx.fillStyle = p.accent;
    ctx.fillRect(left - 1, 0, 2, height);
    ctx.fillRect(right - 1, 0, 2, height);
  }

  useLayoutEffect(() => draw.current());
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const watch = new ResizeObserver(() => setWidth(element.clientWidth));
    watch.observe(element);
    const stop = onTheme(() => draw.current());
    return () => {
      watch.disconnect();
      stop();
    };
  }, []);

  const show = (from: number, to: number) => {
    if (!data || isFile) return;
    const length = Math.max(1000, Math.min(data.end, to - from));
    const start = Math.round(Math.max(0, Math.min(data.end - length, from)));
    const all = length >= data.end * 0.999;
    set(all ? { z0: null, z1: null } : { z0: start, z1: Math.round(start + length) }, true);
  };
  const zoom = (by: number, around = (t0 + t1) / 2) => show(around - (around - t0) * by, around + (t1 - around) * by);
  const choose = (one: number, other: number) => {
    if (isFile || !data) return;
    const [s0, s1] = [Math.max(0, Math.round(Math.min(one, other))), Math.min(data.end, Math.round(Math.max(one, other)))];
    if (s1 > s0) set({ s0, s1, at: null, closed: [], open: [], metric: "" });
  };
  const drop = () => set({ s0: null, s1: null, at: null });
  const point = (event: MouseEvent) => {
    const rect = canvas.current!.getBoundingClientRect();
    return [event.clientX - rect.left, event.clientY - rect.top] as const;
  };
  const hit = (px: number, py: number): Hint | null => {
    if (!data || px < NAMES || py < AXIS) return null;
    const lane = Math.floor((py - AXIS) / LANE);
    if (!lanes[lane]) return null;
    const moment = t(px);
    let found = -1;
    for (let i = 0; i < data.at.length; i++) if (data.lane[i] === lane && data.at[i] <= moment && moment < data.at[i] + data.length[i]) found = i;
    return { x: px, y: py, i: found, lane, at: moment };
  };
  const markAt = (px: number, py: number) => (py < AXIS ? data?.marks.find((one) => Math.abs(x(one.at) - px) < 7) : undefined);
  const describe = (one: Hint): string => {
    if (!data) return "";
    const { i, lane } = one;
    const whose = `${lanes[lane].name || "thread"} ${lanes[lane].tid}, ${(one.at / 1e9).toFixed(4)} s: `;
    if (i < 0) return whose + "not on a processor, and not found asleep";
    const on = data.on[i] / STEPS;
    const f = data.function[i];
    const ran = on > 0 ? `${on >= 1 ? "on a processor" : `${percent(on)} on a processor`}${f >= 0 ? ` in ${labelOf(f)}` : ""}` : "";
    const wait = data.wait[i] >= 0 ? (data.waits[data.wait[i]] === READY ? READY : `waits in ${data.waits[data.wait[i]]}`) : "";
    return whose + [ran, wait].filter(Boolean).join(", ");
  };
  // The keys' own place: a lane and a moment.
  const onKeyDown = (event: KeyboardEvent) => {
    if (!data || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = (t1 - t0) / 60;
    const [lane, moment] = [Math.min(at[0], lanes.length - 1), Math.min(t1, Math.max(t0, at[1]))];
    const go = (lane: number, moment: number) => {
      const next: [number, number] = [Math.max(0, Math.min(lanes.length - 1, lane)), Math.max(t0, Math.min(t1 - 1, moment))];
      if (event.shiftKey && next[1] !== moment0) choose(anchor.current ?? moment0, next[1]);
      if (!event.shiftKey) anchor.current = null;
      else anchor.current ??= moment0;
      setAt(next);
      setHint(hit(x(next[1]), top(next[0]) + 6));
    };
    const moment0 = moment;
    const keys: Record<string, () => void> = {
      ArrowLeft: () => go(lane, moment - step),
      ArrowRight: () => go(lane, moment + step),
      ArrowUp: () => go(lane - 1, moment),
      ArrowDown: () => go(lane + 1, moment),
      PageUp: () => show(t0 - (t1 - t0) / 3, t1 - (t1 - t0) / 3),
      PageDown: () => show(t0 + (t1 - t0) / 3, t1 + (t1 - t0) / 3),
      "+": () => zoom(0.6, moment),
      "-": () => zoom(1.6, moment),
      "0": () => set({ z0: null, z1: null }, true),
      Enter: () => {
        const one = hit(x(moment), top(lane) + 6);
        if (one && one.i >= 0 && data.function[one.i] >= 0) set({ sel: data.function[one.i] });
      },
      Backspace: drop,
      z: () => span && show(span[0], span[1]),
    };
    if (!keys[event.key]) return;
    keys[event.key]();
    event.preventDefault();
    event.stopPropagation();
  };
  const anchor = useRef<number | null>(null);

  if (!meta.timeline)
    return (
      <div class="blank">
        <p>When threads ran is not known of this profile: it was recorded without samples, or by an earlier version.</p>
        <pre>thalweg record -- COMMAND</pre>
      </div>
    );
  return (
    <div class="split">
      <div class="main timeline">
        <div class="tools" role="toolbar" aria-label="Timeline">
          <span class="muted" data-count>
            {data ? `${counted(lanes.length, "thread", "threads")}${data.left_out ? `, ${count(data.left_out)} that did less left out` : ""} · ${time(t1 - t0)}` : ""}
          </span>
          <button onClick={() => zoom(0.5)} disabled={isFile} aria-label="Zoom in">
            +
          </button>
          <button onClick={() => zoom(2)} disabled={isFile || !zoomed} aria-label="Zoom out">
            −
          </button>
          <button onClick={() => set({ z0: null, z1: null }, true)} disabled={!zoomed}>
            Whole time
          </button>
          <button onClick={() => span && show(span[0], span[1])} disabled={!span || isFile}>
            Zoom to the range
          </button>
          {meta.live && <Toggle label="Follow" hint="Show the last half minute, and go on" on={scrolls} change={(on) => (setFollow(on), set({ z0: null, z1: null }, true))} disabled={meta.live.ended} />}
          <span class="scale">
            <i class="swatch ran" /> on a processor, by module <i class="swatch wait" /> asleep <i class="swatch ready" /> ready, no processor
            {meta.recorded && (
              <>
                {" "}
                <i class="swatch called" /> recorded calls
              </>
            )}
          </span>
        </div>
        {meta.live && <LoadChart />}
        {error && <Failure text={error} />}
        <div class={`lanes ${late ? "late" : ""}`}>
          <canvas
            ref={canvas}
            tabIndex={0}
            style={{ height: `${height}px` }}
            role="application"
            aria-label="Time line of the threads. Arrows move, with shift they select a range, plus and minus zoom, 0 shows all, Enter selects the function, Backspace drops the range."
            aria-describedby="moment"
            data-runs={data?.at.length ?? 0}
            data-lanes={lanes.length}
            data-t0={t0}
            data-t1={t1}
            onKeyDown={onKeyDown}
            onBlur={() => setHint(null)}
            onWheel={(event) => {
              if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaY) < Math.abs(event.deltaX)) {
                event.preventDefault();
                const by = (event.deltaX / Math.max(1, width - NAMES)) * (t1 - t0);
                show(t0 + by, t1 + by);
                return;
              }
              if (isFile) return;
              event.preventDefault();
              zoom(event.deltaY > 0 ? 1.25 : 0.8, t(point(event)[0]));
            }}
            onPointerDown={(event) => {
              if (event.button > 1 || isFile) return;
              const [px] = point(event);
              drag.current = { x: event.clientX, t: t(px), pan: event.button === 1 || event.shiftKey, t0, t1 };
              canvas.current!.setPointerCapture(event.pointerId);
            }}
            onPointerMove={(event) => {
              const from = drag.current;
              const [px, py] = point(event);
              if (from && Math.abs(event.clientX - from.x) > 4) {
                if (from.pan) {
                  const by = ((from.x - event.clientX) / Math.max(1, width - NAMES - EDGE)) * (from.t1 - from.t0);
                  show(from.t0 + by, from.t1 + by);
                } else setMark([Math.min(from.t, t(px)), Math.max(from.t, t(px))].map((n) => Math.max(0, n)) as [number, number]);
                setHint(null);
                return;
              }
              setHint(hit(px, py));
              canvas.current!.title = markAt(px, py)?.text ?? "";
            }}
            onPointerUp={(event) => {
              const from = drag.current;
              drag.current = null;
              if (mark) {
                choose(mark[0], mark[1]);
                setMark(null);
                return;
              }
              if (!from || from.pan) return;
              const one = hit(...point(event));
              if (one) setAt([one.lane, one.at]);
              if (one && one.i >= 0 && data!.function[one.i] >= 0) set({ sel: data!.function[one.i] }, true);
            }}
            onPointerLeave={() => !drag.current && setHint(null)}
          />
          {hint && data && (
            <div class="hint" style={{ top: `${Math.min(height - 20, hint.y + 16)}px`, ...(hint.x > width / 2 ? { right: `${width - hint.x + 10}px` } : { left: `${hint.x + 12}px` }) }} aria-hidden="true">
              {describe(hint)}
              {hint.i >= 0 && data.function[hint.i] >= 0 && <span class="muted"> {moduleOf(data.function[hint.i])}</span>}
            </div>
          )}
          {data && <Contents data={data} />}
        </div>
        <p id="moment" class="sr-only" aria-live="polite">
          {hint ? describe(hint) : ""}
        </p>
        <p class="note muted">
          {isFile
            ? "A range is selected, and the time line zoomed, in 'thalweg serve'."
            : span
              ? `${time(span[1] - span[0])} selected: every view shows the samples of that time, which are estimates, and no calls.`
              : "Drag to select a range, which is then all that every view shows; the wheel zooms, shift and drag moves."}
          {data && data.period > 0 && ` A sample stands for ${time(data.period)} on a processor.`}
        </p>
      </div>
      <aside class="side">
        <Inspector />
      </aside>
    </div>
  );
}

/** What there is in the time that is shown: who was on a processor, and what was waited for. */
function Contents({ data }: { data: Data }) {
  const state = useStore();
  const ran = new Map<number, number>();
  const waited = new Map<number, number>();
  const [from, to] = state.s0 !== null && state.s1 !== null ? [state.s0, state.s1] : [data.t0, data.t1];
  for (let i = 0; i < data.at.length; i++) {
    const inside = Math.max(0, Math.min(to, data.at[i] + data.length[i]) - Math.max(from, data.at[i]));
    const on = (inside * data.on[i]) / STEPS;
    if (data.on[i]) ran.set(data.function[i], (ran.get(data.function[i]) ?? 0) + on);
    if (data.wait[i] >= 0) waited.set(data.wait[i], (waited.get(data.wait[i]) ?? 0) + inside - on);
  }
  const most = (of: Map<number, number>) => [...of].filter(([, ns]) => ns > 0).sort((a, b) => b[1] - a[1]).slice(0, 10);
  const all = (of: Map<number, number>) => Math.max(1, [...of.values()].reduce((sum, n) => sum + n, 0));
  const p = palette();
  return (
    <div class="contents">
      <section>
        <h3>
          On a processor, on top <span class="muted">about</span>
        </h3>
        <ul>
          {most(ran).map(([f, ns]) => (
            <li key={f}>
              <i class="swatch" style={{ background: css(colourOf(p, f)) }} />
              {f < 0 ? <span class="muted">not known, or in probes</span> : <button onClick={() => set({ sel: f })}>{nameOf(f)}</button>}
              <span class="muted">{f < 0 ? "" : moduleOf(f)}</span>
              <b>{percent(ns / all(ran))}</b>
            </li>
          ))}
        </ul>
      </section>
      <section>
        <h3>
          Off the processor <span class="muted">all threads, as far as it was seen</span>
        </h3>
        <ul>
          {most(waited).map(([wait, ns]) => (
            <li key={wait}>
              <i class={`swatch ${data.waits[wait] === READY ? "ready" : "wait"}`} />
              <span>{data.waits[wait]}</span>
              <span />
              <b>{time(ns)}</b>
            </li>
          ))}
        </ul>
      </section>
    </div>
  );
}

/** What is chosen of the time, wherever it was chosen. */
export function SpanChip() {
  const { s0, s1 } = useStore();
  if (s0 === null || s1 === null) return null;
  return (
    <button class="chip" onClick={() => set({ s0: null, s1: null, at: null })} title="Back to the whole time. Figures of a part of it are estimates from samples.">
      {(s0 / 1e9).toFixed(3)}–<b>{(s1 / 1e9).toFixed(3)} s</b> by samples <span aria-hidden="true">×</span>
    </button>
  );
}

/** Functions of one module are alike, and those of one program differ by module. */
function colourOf(p: Palette, f: number): RGB {
  if (f < 0) return rgb(p.muted);
  const known = colours.get(f);
  if (known && colours.get(-1) === p.cold) return known;
  if (colours.get(-1) !== p.cold) colours.clear();
  colours.set(-1, p.cold);
  const hash = (text: string) => [...text].reduce((sum, c) => (Math.imul(sum, 31) + c.charCodeAt(0)) >>> 0, 7);
  const hue = (hash(moduleOf(f)) * 137.5) % 360;
  const light = 0.5 + ((hash(nameOf(f)) % 7) - 3) * 0.035;
  const colour = hsl(hue, 0.42, isDark(rgb(p.paper)) ? light - 0.06 : light + 0.04);
  colours.set(f, colour);
  return colour;
}

const colours = new Map<number, RGB>();

function hsl(h: number, s: number, l: number): RGB {
  const a = s * Math.min(l, 1 - l);
  const of = (n: number) => {
    const k = (n + h / 30) % 12;
    return 255 * (l - a * Math.max(-1, Math.min(k - 3, 9 - k, 1)));
  };
  return [of(0), of(8), of(4)];
}

/** About eight round times, with their names. */
export function ticks(t0: number, t1: number): [number, string][] {
  const rough = (t1 - t0) / 8;
  const size = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  const step = size * ([1, 2, 5, 10].find((n) => n * size >= rough) ?? 10);
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / 1e9) - 1e-9)));
  const all: [number, string][] = [];
  for (let t = Math.ceil(t0 / step) * step; t <= t1 && all.length < 24; t += step) all.push([t, `${(t / 1e9).toFixed(digits)} s`]);
  return all;
}
