// When the recorded calls ran: one lane per thread; as fine as the screen, whatever their number.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { CallLine } from "../responses";
import { isFile, query, useResponse } from "../api";
import { css, mix, onTheme, palette, rgb } from "../canvas/colours";
import { count, time } from "../format";
import { set, useStore } from "../store";

const LANE = 20;
const AXIS = 18;
const NAMES = 108;

export function TimeLine({ filter }: { filter: Record<string, string | number | null | undefined> }) {
  const state = useStore();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [hint, setHint] = useState<{ x: number; i: number } | null>(null);
  const drag = useRef<{ x: number; t0: number; t1: number; moved: boolean } | null>(null);
  // Widths come in steps, so that a window that is drawn larger asks for few of them.
  const px = isFile || !width ? null : Math.ceil(width / 200) * 200;
  const { data } = useResponse<CallLine>(isFile || width ? query("callline", { ...filter, px, t0: isFile ? null : state.t0, t1: isFile ? null : state.t1 }) : null);
  const [t0, t1] = data ? [state.t0 ?? data.begin, Math.max((state.t0 ?? data.begin) + 1, state.t1 ?? data.end)] : [0, 1];
  const at = (t: number) => NAMES + ((t - t0) / (t1 - t0)) * (width - NAMES - 6);
  const height = AXIS + Math.max(1, data?.threads.length ?? 1) * LANE;

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
    ctx.font = `10.5px ${p.font}`;
    ctx.textBaseline = "middle";
    for (const [x, text] of ticks(t0, t1).map(([t, text]) => [at(t), text] as const)) {
      ctx.fillStyle = p.line;
      ctx.globalAlpha = 0.5;
      ctx.fillRect(x, AXIS - 4, 1, height);
      ctx.globalAlpha = 1;
      ctx.fillStyle = p.muted;
      if (x + 60 < width) ctx.fillText(text, x + 3, AXIS / 2);
    }
    const wide = rgb(p.accent);
    const bad = rgb(p.bad);
    let chosen = -1;
    for (let i = 0; i < data.at.length; i++) {
      const left = Math.max(NAMES, at(data.at[i]));
      const right = Math.min(width, at(data.at[i] + data.length[i]));
      if (right < NAMES || left > width) continue;
      if (data.id[i] === state.call) chosen = i;
      const y = AXIS + data.lane[i] * LANE + 3;
      const room = Math.max(1.2, right - left - 0.4);
      ctx.fillStyle = css(mix(p.shallow, wide, Math.min(1, Math.log2(data.count[i]) / 6)));
      ctx.fillRect(left, y, room, LANE - 6);
      // Those that an exception left, from below.
      const odd = data.odd[i] ? Math.max(2, (LANE - 6) * (data.odd[i] / data.count[i])) : 0;
      ctx.fillStyle = css(bad);
      ctx.fillRect(left, y + LANE - 6 - odd, room, odd);
      // Calls in calls: the outer one stays seen behind the inner.
      if (right - left > 3) {
        ctx.strokeStyle = p.paper;
        ctx.lineWidth = 0.6;
        ctx.strokeRect(left + 0.3, y + 0.3, right - left - 0.8, LANE - 6.6);
      }
    }
    if (chosen >= 0) {
      const [left, right] = [Math.max(NAMES, at(data.at[chosen])), at(data.at[chosen] + data.length[chosen])];
      ctx.strokeStyle = p.ink;
      ctx.lineWidth = 2;
      ctx.strokeRect(left - 1, AXIS + data.lane[chosen] * LANE + 2, Math.max(3, Math.min(width, right) - left + 2), LANE - 4);
    }
    data.threads.forEach((thread, lane) => {
      ctx.fillStyle = p.paper;
      ctx.fillRect(0, AXIS + lane * LANE, NAMES - 4, LANE);
      ctx.fillStyle = p.ink;
      ctx.fillText(`${thread.name} ${thread.tid}`.slice(0, 18), 14, AXIS + lane * LANE + LANE / 2, NAMES - 20);
    });
  };
  useLayoutEffect(() => draw.current());
  useEffect(() => {
    const element = canvas.current!;
    const watch = new ResizeObserver(() => setWidth(element.clientWidth));
    watch.observe(element);
    const stop = onTheme(() => draw.current());
    return () => {
      watch.disconnect();
      stop();
    };
  }, []);

  const show = (from: number, to: number) => {
    if (!data) return;
    const room = Math.max(1, data.end - data.begin);
    const length = Math.max(100, Math.min(room, to - from));
    const start = Math.round(Math.max(data.begin, Math.min(data.end - length, from)));
    const all = length >= room * 0.999;
    set(all ? { t0: null, t1: null } : { t0: start, t1: Math.round(start + length) }, true);
  };
  const zoom = (by: number, around = (t0 + t1) / 2) => show(around - (around - t0) * by, around + (t1 - around) * by);
  const hit = (x: number, y: number): number => {
    if (!data) return -1;
    const lane = Math.floor((y - AXIS) / LANE);
    let best = -1;
    let far = 5;
    // Later ones are drawn over earlier ones.
    for (let i = 0; i < data.at.length; i++) {
      if (data.lane[i] !== lane) continue;
      const away = Math.max(0, at(data.at[i]) - x, x - Math.max(at(data.at[i]) + 1, at(data.at[i] + data.length[i])));
      if (away <= far) [best, far] = [i, away];
    }
    return best;
  };
  const point = (event: MouseEvent) => {
    const rect = canvas.current!.getBoundingClientRect();
    return [event.clientX - rect.left, event.clientY - rect.top] as const;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (!data || event.ctrlKey || event.metaKey || event.altKey) return;
    const far = (t1 - t0) / 5;
    const step = (by: number) => {
      const next = Math.max(0, Math.min(data.id.length - 1, data.id.indexOf(state.call ?? -1) + by));
      if (data.id[next] !== undefined) set({ call: data.id[next] }, true);
    };
    const keys: Record<string, () => void> = {
      ArrowLeft: () => show(t0 - far, t1 - far),
      ArrowRight: () => show(t0 + far, t1 + far),
      ArrowUp: () => step(-1),
      ArrowDown: () => step(1),
      "+": () => zoom(0.6),
      "-": () => zoom(1.6),
      "0": () => show(data.begin, data.end),
    };
    if (!keys[event.key]) return;
    keys[event.key]();
    event.preventDefault();
    event.stopPropagation();
  };
  const describe = (i: number) => (data ? `${time(data.length[i])}${data.count[i] > 1 ? `, the longest of ${count(data.count[i])}` : ""}${data.odd[i] ? `, ${data.count[i] > 1 ? `${count(data.odd[i])} ` : ""}did not return` : ""}` : "");
  const chosen = data?.id.indexOf(state.call ?? -1) ?? -1;
  return (
    <div class="callline">
      <canvas
        ref={canvas}
        tabIndex={0}
        style={{ height: `${height}px` }}
        role="application"
        aria-label="Time line of the calls. Up and down choose a call, left and right move, plus and minus zoom, 0 shows all."
        aria-describedby="call-chosen"
        data-spans={data?.id.length ?? 0}
        data-t0={t0}
        data-t1={t1}
        onKeyDown={onKeyDown}
        onWheel={(event) => {
          event.preventDefault();
          const [x] = point(event);
          zoom(event.deltaY > 0 ? 1.25 : 0.8, t0 + ((x - NAMES) / Math.max(1, width - NAMES - 6)) * (t1 - t0));
        }}
        onPointerDown={(event) => {
          drag.current = { x: event.clientX, t0, t1, moved: false };
          canvas.current!.setPointerCapture(event.pointerId);
        }}
        onPointerMove={(event) => {
          const from = drag.current;
          if (from && (from.moved || Math.abs(event.clientX - from.x) > 4)) {
            from.moved = true;
            const by = ((from.x - event.clientX) / Math.max(1, width - NAMES - 6)) * (from.t1 - from.t0);
            show(from.t0 + by, from.t1 + by);
            return;
          }
          const [x, y] = point(event);
          const i = hit(x, y);
          setHint(i < 0 ? null : { x, i });
        }}
        onPointerUp={(event) => {
          const moved = drag.current?.moved;
          drag.current = null;
          const i = moved ? -1 : hit(...point(event));
          if (i >= 0) set({ call: data!.id[i] }, true);
        }}
        onPointerLeave={() => setHint(null)}
      />
      {data && (state.t0 !== null || state.t1 !== null) && (
        <button class="whole" onClick={() => show(data.begin, data.end)}>
          Whole time
        </button>
      )}
      {data && data.left_out > 0 && <span class="muted">{count(data.left_out)} are not drawn: zoom in</span>}
      {hint && data && (
        <div class="hint" style={hint.x > width - 200 ? { right: `${width - hint.x + 10}px` } : { left: `${hint.x + 12}px` }} aria-hidden="true">
          {describe(hint.i)} <span class="muted">at {(data.at[hint.i] / 1e9).toFixed(6)} s</span>
        </div>
      )}
      <p id="call-chosen" class="sr-only" aria-live="polite">
        {chosen >= 0 ? describe(chosen) : ""}
      </p>
    </div>
  );
}

/** About six round times, with their names. */
function ticks(t0: number, t1: number): [number, string][] {
  const rough = (t1 - t0) / 6;
  const size = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  const step = size * ([1, 2, 5, 10].find((n) => n * size >= rough) ?? 10);
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / 1e9) - 1e-9)));
  const all: [number, string][] = [];
  for (let t = Math.ceil(t0 / step) * step; t <= t1 && all.length < 20; t += step) all.push([t, `${(t / 1e9).toFixed(digits)} s`]);
  return all;
}
