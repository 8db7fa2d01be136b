// A process while it runs: what it does now, freeze, checkpoint, detach.
import { useEffect, useRef, useState } from "preact/hooks";
import { act, meta, nameOf, reading, useFunctions } from "../api";
import { palette } from "../canvas/colours";
import { Tile, Toggle } from "../controls";
import { count, percent, short, time } from "../format";
import { FunctionLink, Inspector } from "../inspector";
import { set, useStore } from "../store";
import { Bar } from "../table";

/** Calls per second of the last readings; kept while other views are shown. */
const past: { reading: number; rate: number }[] = [];

export function Live() {
  const state = useStore();
  const { data } = useFunctions();
  const [said, say] = useState<{ text: string; bad: boolean } | null>(null);
  const [sure, setSure] = useState(false);
  const chart = useRef<HTMLCanvasElement>(null);
  const rate = (data?.rate_calls ?? []).reduce((sum, n) => sum + n, 0);
  const load = (data?.rate_base ?? []).reduce((sum, n) => sum + n, 0) / 1e9;
  useEffect(() => {
    if (data?.rate_calls && past[past.length - 1]?.reading !== reading) past.push({ reading, rate });
    if (past.length > 120) past.shift();
    draw(chart.current);
  }, [data]);
  if (!meta.live)
    return (
      <div class="blank">
        <p>This is a recording. To watch a process while it runs:</p>
        <pre>thalweg serve -p PID</pre>
      </div>
    );
  const run = (what: string) =>
    act(what).then(
      (text) => say({ text, bad: false }),
      (error) => say({ text: error.message, bad: true }),
    );
  const hot = data ? data.function.map((f, i) => ({ f, calls: data.rate_calls?.[i] ?? 0, base: data.rate_base?.[i] ?? 0 })).filter((row) => row.calls > 0 || row.base > 0) : [];
  hot.sort((a, b) => (meta.timed ? b.base - a.base : 0) || b.calls - a.calls);
  return (
    <div class="split">
      <div class="main live scroll">
        <div class="tools" role="toolbar" aria-label="Live">
          <Toggle label={state.frozen ? "Frozen" : "Freeze"} hint="Keep this picture; the process goes on (space)" on={state.frozen} change={(frozen) => set({ frozen }, true)} />
          <button onClick={() => run("checkpoint")} title="Save what was counted so far; it goes on counting">
            Checkpoint
          </button>
          {sure ? (
            <span class="sure">
              Restore its code?{" "}
              <button class="danger" onClick={() => (setSure(false), void run("detach"))}>
                Detach
              </button>{" "}
              <button onClick={() => setSure(false)}>No</button>
            </span>
          ) : (
            <button onClick={() => setSure(true)} disabled={meta.live.ended}>
              Detach…
            </button>
          )}
          <span role="status" class={said?.bad ? "bad" : "muted"} data-said>
            {said?.text ?? (meta.live.ended ? "the process has ended, or is no longer attached" : "")}
          </span>
        </div>
        <div class="tiles">
          <Tile name="Calls" value={count(meta.calls)} note={`${short(rate)} a second now`} />
          {meta.timed && <Tile name="Time in functions" value={time(meta.time)} note={`${percent(load)} of one processor now`} />}
          <Tile name="Contexts" value={count(meta.contexts)} note="" />
          <Tile name="Threads" value={count(meta.threads)} note={`process ${meta.live.pid}`} />
          <Tile name="Reading" value={count(meta.live.reading)} note={state.frozen ? "frozen" : meta.live.ended ? "the last" : "every second"} />
        </div>
        <section class="now">
          <h3>Calls per second</h3>
          <canvas class="chart" ref={chart} role="img" aria-label={`Calls per second, now ${short(rate)}`} />
        </section>
        <section class="now">
          <h3>Now</h3>
          <div class="list">
            {hot.length === 0 && <p class="empty">Nothing was called between the last two readings.</p>}
            {hot.slice(0, 40).map((row) => (
              <div class="line" key={row.f} title={nameOf(row.f)}>
                <FunctionLink f={row.f} />
                <span class="calls">{short(row.calls)} calls/s</span>
                {meta.timed && <Bar share={row.base / 1e9} text={percent(row.base / 1e9)} kind="base" />}
              </div>
            ))}
          </div>
        </section>
      </div>
      <aside class="side">
        <Inspector />
      </aside>
    </div>
  );
}

function draw(canvas: HTMLCanvasElement | null): void {
  if (!canvas || !canvas.clientWidth) return;
  const ratio = devicePixelRatio || 1;
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  [canvas.width, canvas.height] = [w * ratio, h * ratio];
  const ctx = canvas.getContext("2d")!;
  const p = palette();
  ctx.scale(ratio, ratio);
  const most = Math.max(1, ...past.map((at) => at.rate));
  ctx.beginPath();
  past.forEach((at, i) => {
    const x = w - (past.length - 1 - i) * (w / 120);
    const y = h - 4 - (at.rate / most) * (h - 20);
    i ? ctx.lineTo(x, y) : ctx.moveTo(x, y);
  });
  ctx.lineWidth = 1.8;
  ctx.strokeStyle = p.accent;
  ctx.stroke();
  ctx.fillStyle = p.muted;
  ctx.font = `10.5px ${p.font}`;
  ctx.fillText(`${short(most)}/s`, 2, 10);
}
