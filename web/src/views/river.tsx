// The river of time: detail pane, overview pane, and what is shown of it.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { isAvailable, figure, figureName, finder, isFile, labelOf, meta, metricOf, moduleOf, nameOf, part, query, useResponse, weightOf } from "../api";
import type { Arc, Box, Changes, River as Data } from "../responses";
import { opening, RiverCanvas } from "../canvas/riverCanvas";
import { isWaiting, key } from "../canvas/riverPaint";
import { atLeast, count, counted, percent, plusMinus, short, time } from "../format";
import { current, DATA, Datum, set, State, useStore } from "../store";
import { Inspector } from "../inspector";
import { By } from "../by";
import { Choose, Failure, Toggle } from "../controls";
import { changeShares, compareQuery } from "./compare";

const DATA_NAMES: Record<Datum, string> = {
  total: "total share",
  self: "self share",
  calls: "calls",
  "total-time": "total time",
  "self-time": "self",
  mean: "self per call",
  threads: "threads",
  none: "nothing",
};

export function riverQuery(state: State, cut: number | null = state.cut, down = state.down === 1): string {
  return query("river", {
    ...part(state),
    cut,
    brief: state.brief ? null : 0,
    metric: weightOf(state),
    width: state.width === "linear" ? null : state.width,
    dir: down ? "down" : null,
    names: state.names === 28 ? null : state.names,
    columns: [state.left, state.right].filter((datum) => datum !== "none").length === 2 || isFile ? null : [state.left, state.right].filter((datum) => datum !== "none").length,
    closed: state.closed.join(","),
    open: state.open.join(","),
  });
}

export function River() {
  const state = useStore();
  const { data, error, late } = useRiver(state);
  const changes = useResponse<Changes>(meta.before !== null && state.change ? compareQuery(state) : null).data;
  const detail = useRef<HTMLCanvasElement>(null);
  const overview = useRef<HTMLCanvasElement>(null);
  const canvas = useRef<RiverCanvas | null>(null);
  const [hint, setHint] = useState<{ x: number; y: number; box?: Box; arc?: Arc } | null>(null);
  const [, seen] = useState(0);

  useLayoutEffect(() => {
    const river = new RiverCanvas(detail.current!, overview.current!);
    canvas.current = river;
    river.onView = () => {
      const element = detail.current;
      if (!element) return;
      element.dataset.zoom = river.k.toFixed(4);
      element.dataset.x = river.x.toFixed(1);
      element.dataset.y = river.y.toFixed(1);
      element.dataset.frames = String(river.frames);
    };
    const watch = new ResizeObserver(() => river.resize());
    watch.observe(detail.current!);
    watch.observe(overview.current!);
    river.resize();
    return () => {
      watch.disconnect();
      river.dispose();
    };
  }, []);

  const match = useMemo(() => finder(state.q), [state.q]);
  useEffect(() => {
    const shares = changes && changeShares(changes);
    canvas.current!.setLook({ left: state.left, right: state.right, changes: shares, match });
  }, [state.left, state.right, changes, match]);
  useEffect(() => canvas.current!.select(state.sel), [state.sel]);
  // The keys work at once.
  useEffect(() => {
    if (document.activeElement === document.body) detail.current!.focus({ preventScroll: true });
  }, []);
  const shown = useRef<Data | null>(null);
  useEffect(() => {
    if (data && data !== shown.current) {
      canvas.current!.show(data);
      shown.current = data;
      seen((n) => n + 1);
    }
  }, [data]);
  // Whatever was selected elsewhere is brought into sight; a click here is in sight already.
  useEffect(() => {
    if (state.sel !== null) canvas.current!.reveal(state.sel);
  }, [state.sel, data]);

  const river = canvas.current;
  const boxOf = (f: number | null) => (f === null || !data ? undefined : data.boxes[river?.picture?.indexOf.get(f) ?? -1]);

  const drag = useRef<{ x: number; y: number; moved: boolean } | null>(null);
  const place = (event: MouseEvent) => {
    const rect = detail.current!.getBoundingClientRect();
    return [event.clientX - rect.left, event.clientY - rect.top] as const;
  };
  const onPointerDown = (event: PointerEvent) => {
    if (event.button > 1) return;
    detail.current!.setPointerCapture(event.pointerId);
    drag.current = { x: event.clientX, y: event.clientY, moved: false };
  };
  const onPointerMove = (event: PointerEvent) => {
    const held = drag.current;
    if (held) {
      const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
      if (held.moved || Math.hypot(dx, dy) > 3) {
        river!.pan(dx, dy);
        drag.current = { x: event.clientX, y: event.clientY, moved: true };
        setHint(null);
      }
      return;
    }
    const [x, y] = place(event);
    if (!river || !data) return;
    const i = river.boxAt(x, y);
    if (i !== null) return setHint({ x, y, box: data.boxes[i] });
    const a = river.arcAt(x, y);
    setHint(a === null ? null : { x, y, arc: data.arcs[a] });
  };
  const onPointerUp = (event: PointerEvent) => {
    const held = drag.current;
    drag.current = null;
    if (!held || held.moved) return;
    const i = river!.boxAt(...place(event));
    const f = i === null ? null : data!.boxes[i].f;
    set({ sel: f !== null && f >= 0 ? f : null });
    detail.current!.focus();
  };
  const onWheel = (event: WheelEvent) => {
    event.preventDefault();
    setHint(null);
    if (event.shiftKey) river!.pan(-event.deltaY, 0);
    else river!.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), ...place(event));
  };
  useEffect(() => {
    // Preact's own handler would be passive.
    const element = detail.current!;
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  });

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !data || !river) return;
    setHint(null);
    // Keys may come faster than the page is drawn.
    const { sel, root } = current();
    const far = event.shiftKey;
    const along: Record<string, string> = data.down ? { ArrowUp: "back", ArrowDown: "on", ArrowLeft: "before", ArrowRight: "after" } : { ArrowLeft: "back", ArrowRight: "on", ArrowUp: "before", ArrowDown: "after" };
    const direction = along[event.key];
    if (direction && far) {
      const pans: Record<string, [number, number]> = { ArrowLeft: [80, 0], ArrowRight: [-80, 0], ArrowUp: [0, 80], ArrowDown: [0, -80] };
      river.pan(...pans[event.key]);
    } else if (direction) {
      const next = neighbour(data, river, sel, direction);
      if (next !== null) set({ sel: next }, true);
    } else if (event.key === "+" || event.key === "=") river.zoom(1.25);
    else if (event.key === "-") river.zoom(0.8);
    else if (event.key === "0") river.fit();
    else if (event.key === "Home" && sel !== null) river.centre(sel);
    else if (event.key === "Enter" && sel !== null) set({ view: "function" });
    else if (event.key === "c" && sel !== null) stepState(sel, -1, boxOf(sel));
    else if (event.key === "e" && sel !== null) stepState(sel, 1, boxOf(sel));
    else if (event.key === "r") set({ root: root === sel ? null : sel });
    else if (event.key === "d") set({ down: data.down ? 0 : 1 });
    else if (event.key === "[" || event.key === "]") stepFilter(data, event.key === "[" ? -1 : 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const selected = boxOf(state.sel);
  const unit = (n: number) => (data?.timed ? figure(n) : `${short(n)} calls`);
  return (
    <div class="river">
      <Tools data={data} />
      <div class="panes">
        <div class={`detail ${late ? "late" : ""}`}>
          <canvas
            ref={detail}
            tabIndex={0}
            role="application"
            aria-roledescription="call graph"
            aria-label="River of time. Arrow keys go along calls, plus and minus zoom, shift with arrows pans, Enter opens the function, c and e collapse and expand, r makes it the root."
            aria-describedby="river-selected"
            data-boxes={data?.boxes.length ?? 0}
            data-arcs={data?.arcs.length ?? 0}
            data-cutoff={data?.cutoff}
            onPointerDown={onPointerDown}
            onPointerMove={onPointerMove}
            onPointerUp={onPointerUp}
            onPointerLeave={() => setHint(null)}
            onDblClick={() => state.sel !== null && set({ view: "function" })}
            onKeyDown={onKeyDown}
          />
          {error && <Failure text={error} />}
          {data && data.whole === 0 && <p class="empty over">Nothing was counted here.</p>}
          {hint && <Hint {...hint} data={data!} unit={unit} />}
          <p id="river-selected" class="sr-only" aria-live="polite">
            {selected ? describe(selected, data!) : "no function selected"}
          </p>
          {data && data.boxes.length <= 600 && (
            <ul class="sr-only" aria-label="Functions in the river">
              {data.boxes.map((box) => {
                const at = river?.screenOf(key(box));
                return (
                  <li key={key(box)}>
                    <button
                      tabIndex={-1}
                      data-f={box.f}
                      data-self={box.self}
                      data-total={box.total}
                      data-state={box.state}
                      data-x={at && Math.round(at.x + at.w / 2)}
                      data-y={at && Math.round(at.y + at.h / 2)}
                      onClick={() => box.f >= 0 && set({ sel: box.f })}
                    >
                      {describe(box, data)}
                    </button>
                  </li>
                );
              })}
            </ul>
          )}
          <div class="zoom" role="group" aria-label="Zoom">
            <button onClick={() => river!.zoom(1.3)} aria-label="Zoom in" title="Zoom in (+)">
              +
            </button>
            <button onClick={() => river!.zoom(1 / 1.3)} aria-label="Zoom out" title="Zoom out (−)">
              −
            </button>
            <button onClick={() => river!.fit()} aria-label="Show all" title="Show all (0)">
              ⤢
            </button>
          </div>
          <Legend data={data} />
        </div>
        <aside class="side">
          <Overview canvas={overview} river={() => canvas.current!} />
          <Inspector
            actions={
              state.sel !== null && (
                <div class="actions" role="group" aria-label="Of the selected function">
                  <button onClick={() => river!.centre(state.sel!)} disabled={!selected} title="Bring it to the middle (Home)">
                    Centre
                  </button>
                  <button onClick={() => stepState(state.sel!, -1, selected)} disabled={isFile || !selected?.state || selected.state === "closed"} title="Show less below it (c)">
                    Collapse
                  </button>
                  <button onClick={() => stepState(state.sel!, 1, selected)} disabled={isFile || !selected || !canOpen(state, selected)} title="Show more below it (e)">
                    Expand
                  </button>
                  <button
                    onClick={() => set({ root: state.root === state.sel ? null : state.sel })}
                    disabled={state.root !== state.sel && !isAvailable(riverQuery({ ...state, root: state.sel }))}
                    title="Make it the whole (r)"
                  >
                    {state.root === state.sel ? "Leave root" : "Make root"}
                  </button>
                </div>
              )
            }
          />
        </aside>
      </div>
    </div>
  );
}

/** To the right or down: whichever shows more at once in a window of this shape, unless somebody has chosen. */
function useRiver(state: State): { data: Data | null; error: string | null; late: boolean } {
  const chosen = useResponse<Data>(riverQuery(state));
  // The panes beside it, and the bars above and below.
  const [w, h] = [innerWidth - 300, innerHeight - 150];
  const right = chosen.data;
  const downQuery = riverQuery(state, state.cut, true);
  const doubt = state.down === null && right !== null && right.boxes.length <= MAX_TURNED && isAvailable(downQuery) && opening(right, w, h).seen < 1;
  const down = useResponse<Data>(doubt ? downQuery : null);
  const last = useRef<Data | null>(null);
  if (!doubt) last.current = right;
  else if (!down.late && down.data) last.current = opening(down.data, w, h).seen > opening(right, w, h).seen ? down.data : right;
  else if (down.error) last.current = right;
  return { data: last.current, error: chosen.error, late: chosen.late || (doubt && down.late) };
}

/** Larger ones are laid out once only. */
const MAX_TURNED = 300;

function describe(box: Box, data: Data): string {
  const share = (n: number) => percent(data.whole ? n / data.whole : 0);
  if (box.f === -1) return `START, ${share(box.total)}`;
  if (box.f < 0) return `${box.label} made by ${nameOf(box.maker!)}, ${share(box.total)}`;
  const waits = isWaiting(box, data) ? ", mostly waiting" : "";
  const below = { "": "", closed: ", closed", some: `, ${box.more} callees not shown`, all: "" }[box.state];
  return `${nameOf(box.f)}, total ${share(box.total)}, self ${share(box.self - box.hidden)}${box.hidden ? `, callees not shown ${share(box.hidden)}` : ""}, ${atLeast(count(box.calls), box.least)} calls${waits}${below}`;
}

function canOpen(state: State, box: Box): boolean {
  return box.state === "closed" || (box.state === "some" && !state.open.includes(box.f));
}

/** Closed, what passes the filter, everything: one step less or more. */
function stepState(f: number, by: number, box: Box | undefined): void {
  const state = current();
  if (isFile || !box) return;
  const without = (list: number[]) => list.filter((g) => g !== f);
  if (by < 0) {
    if (state.open.includes(f)) set({ open: without(state.open) });
    else if (box.state && box.state !== "closed") set({ closed: [...without(state.closed), f] });
  } else if (state.closed.includes(f)) set({ closed: without(state.closed) });
  else if (canOpen(state, box)) set({ open: [...state.open, f] });
}

function stepFilter(data: Data, by: number): void {
  const at = nearestStep(data.steps, data.cutoff);
  const next = data.steps[Math.max(0, Math.min(data.steps.length - 1, at + by))];
  if (isAvailable(riverQuery(current(), next))) set({ cut: next }, true);
}

function nearestStep(steps: number[], value: number): number {
  let best = 0;
  steps.forEach((step, i) => {
    if (Math.abs(step - value) < Math.abs(steps[best] - value)) best = i;
  });
  return best;
}

/** Along the heaviest arc, or to the next box of the same layer. */
function neighbour(data: Data, river: RiverCanvas, sel: number | null, direction: string): number | null {
  const picture = river.picture;
  const i = sel === null ? undefined : picture?.indexOf.get(sel);
  if (!picture) return null;
  if (i === undefined) {
    // From nowhere one comes to where most of the time goes first.
    const first = data.boxes[0];
    if (first?.f >= 0) return first.f;
    const arc = picture.callees[0]?.[0];
    return arc === undefined ? null : data.boxes[data.arcs[arc].to].f;
  }
  const { boxes, arcs } = data;
  if (direction === "back" || direction === "on") {
    const list = direction === "back" ? picture.callers[i] : picture.callees[i];
    for (const a of list) {
      let other = boxes[direction === "back" ? arcs[a].from : arcs[a].to];
      // Threads stand between their maker and what they do.
      if (other.f === -2) {
        const through = direction === "back" ? picture.callers[picture.indexOf.get(key(other))!] : picture.callees[picture.indexOf.get(key(other))!];
        if (!through.length) continue;
        other = boxes[direction === "back" ? arcs[through[0]].from : arcs[through[0]].to];
      }
      if (other.f >= 0 && other.f !== sel) return other.f;
    }
    return null;
  }
  const line = (box: Box) => (data.down ? box.y : box.x);
  const across = (box: Box) => (data.down ? box.x + box.w / 2 : box.y + box.h / 2);
  const here = boxes[i];
  const sign = direction === "before" ? -1 : 1;
  const beside = boxes.filter((box) => box.f >= 0 && line(box) === line(here) && (across(box) - across(here)) * sign > 0);
  beside.sort((a, b) => (across(a) - across(b)) * sign);
  return beside[0]?.f ?? null;
}

function Hint({ x, y, box, arc, data, unit }: { x: number; y: number; box?: Box; arc?: Arc; data: Data; unit: (n: number) => string }) {
  const share = (n: number) => percent(data.whole ? n / data.whole : 0);
  const left = x > 520 ? { right: `calc(100% - ${x - 14}px)` } : { left: `${x + 14}px` };
  const name = (b: Box) => (b.f >= 0 ? nameOf(b.f) : b.label);
  return (
    <div class="hint" style={{ ...left, top: `${y + 14}px` }} aria-hidden="true">
      {box && (
        <>
          <b>{box.f >= 0 ? labelOf(box.f) : box.label}</b>
          {box.f === -1 && data.folded.map((f) => <span>→ {nameOf(f)}</span>)}
          {box.f >= 0 && <span class="muted">{moduleOf(box.f)}</span>}
          {box.maker !== null && <span class="muted">made by {nameOf(box.maker)}</span>}
          <span>
            total {share(box.total)} · {unit(box.total)}
            {plusMinus(box.total_error, unit)}
          </span>
          {box.f >= 0 && (
            <span>
              self {share(box.self - box.hidden)} · {unit(box.self - box.hidden)}
              {plusMinus(box.self_error, unit)}
              {box.hidden > 0 && `, and ${share(box.hidden)} in callees that are not shown`}
            </span>
          )}
          {box.waiting > 0 && <span>waiting {time(box.waiting)}</span>}
          {box.f >= 0 && <span>{atLeast(count(box.calls), box.least)} calls</span>}
          {box.rec > 0 && <span>recursion {count(box.rec)} deep</span>}
          {box.more > 0 && <span class="muted">{count(box.more)} callees not shown</span>}
        </>
      )}
      {arc && (
        <>
          <b>
            {name(data.boxes[arc.from])} → {name(data.boxes[arc.to])}
          </b>
          {arc.kind === 3 ? (
            <span>made {counted(arc.calls, "thread", "threads")}</span>
          ) : (
            <span>
              {share(arc.time)} · {unit(arc.time)} · {atLeast(count(arc.calls), arc.least)} calls
            </span>
          )}
          {arc.hidden && <span class="muted">partly through functions that are not shown</span>}
        </>
      )}
    </div>
  );
}

function Overview({ canvas, river }: { canvas: preact.RefObject<HTMLCanvasElement>; river: () => RiverCanvas }) {
  const held = useRef(false);
  const move = (event: PointerEvent) => {
    const rect = canvas.current!.getBoundingClientRect();
    river().moveTo(event.clientX - rect.left, event.clientY - rect.top);
  };
  return (
    <canvas
      class="overview"
      ref={canvas}
      tabIndex={0}
      role="application"
      aria-label="Overview of the whole river; the box is what the detail pane shows. Arrow keys move it, plus and minus size it."
      onPointerDown={(event) => {
        held.current = true;
        canvas.current!.setPointerCapture(event.pointerId);
        move(event);
      }}
      onPointerMove={(event) => held.current && move(event)}
      onPointerUp={() => (held.current = false)}
      onKeyDown={(event) => {
        const pans: Record<string, [number, number]> = { ArrowLeft: [120, 0], ArrowRight: [-120, 0], ArrowUp: [0, 120], ArrowDown: [0, -120] };
        if (pans[event.key]) river().pan(...pans[event.key]);
        else if (event.key === "+" || event.key === "=") river().zoom(1.25);
        else if (event.key === "-") river().zoom(0.8);
        else return;
        event.preventDefault();
        event.stopPropagation();
      }}
    />
  );
}

function Legend({ data }: { data: Data | null }) {
  const state = useStore();
  if (!data) return null;
  const functions = data.boxes.filter((box) => box.f >= 0).length;
  const parts = [`${count(functions)} functions`];
  if (data.hidden_functions) parts.push(`${count(data.hidden_functions)} below ${Number(data.cutoff.toPrecision(3))} % in their callers`);
  if (data.passing_functions) parts.push(`${count(data.passing_functions)} that only pass time on`);
  if (data.hidden_edges) parts.push(`${count(data.hidden_edges)} thin arcs left out`);
  return (
    <div class="legend">
      {state.change ? (
        <span class="scale">
          faster <i class="ramp change" /> slower
        </span>
      ) : (
        <>
          <span class="scale">
            self share <i class="ramp heat" />
          </span>
          {metricOf(state) === null && (
            <span class="scale">
              waiting <i class="ramp wait" />
            </span>
          )}
        </>
      )}
      <span class="muted" data-legend>
        {parts.join(" · ")}
      </span>
    </div>
  );
}

function Tools({ data }: { data: Data | null }) {
  const state = useStore();
  const steps = data?.steps ?? [0];
  const value = state.cut ?? data?.cutoff ?? 0;
  const at = nearestStep(steps, value);
  const put = (i: number, small: boolean) => {
    // A file holds some of the steps: the nearest one that it holds is taken.
    for (let n = 0; n < steps.length; n++)
      for (const step of [steps[i + n], steps[i - n]])
        if (step !== undefined && isAvailable(riverQuery(state, step))) return set({ cut: step }, small);
  };
  const held = (patch: Partial<State>) => isAvailable(riverQuery({ ...state, ...patch }));
  const table = state.width.includes(":");
  return (
    <div class="tools" role="toolbar" aria-label="What the river shows">
      <label class="filter" title="Functions below this share are part of their callers ([ and ])">
        <span>Filter</span>
        <input
          type="range"
          min={0}
          max={steps.length - 1}
          step={1}
          value={at}
          aria-label="Time filter"
          aria-valuetext={`${value} percent`}
          onInput={(event) => put(Number(event.currentTarget.value), true)}
        />
        <input
          key={value}
          class="number"
          type="number"
          min={0}
          max={20}
          step="any"
          defaultValue={String(Math.round(value * 1000) / 1000)}
          aria-label="Time filter in percent"
          disabled={isFile}
          onChange={(event) => {
            const number = Number(event.currentTarget.value);
            if (number >= 0 && number <= 20) set({ cut: number });
          }}
        />
        <span class="unit">%</span>
        <button onClick={() => set({ cut: null })} disabled={state.cut === null} title="About 30 functions">
          auto
        </button>
      </label>
      <Toggle label="Brief" hint="Leave out functions that only pass time on, and hair-thin arcs" on={state.brief} disabled={isFile} change={(on) => set({ brief: on })} />
      <Choose
        label="Width"
        value={table ? "table" : state.width}
        options={[
          ["linear", "linear"],
          ["log", "logarithmic"],
          ["adaptive", "adaptive"],
          ["none", "none"],
          ...(isFile ? [] : ([["table", "table…"]] as [string, string][])),
        ]}
        change={(width) => set({ width: width === "table" ? "1%:1,5%:3,20%:6,100%:10" : width })}
      />
      {table && (
        <input
          key={state.width}
          class="table-of-widths"
          defaultValue={state.width}
          aria-label="Table of widths: up to a share, so many units"
          title="Up to 1 % one unit, up to 5 % three …"
          onChange={(event) => set({ width: event.currentTarget.value })}
        />
      )}
      <By every query={(metric) => riverQuery({ ...state, metric, cut: null })} patch={{ cut: null }} />
      <Choose label="Left" value={state.left} options={DATA.map((d) => [d, DATA_NAMES[d].replace("time", figureName())])} change={(left) => set({ left: left as Datum })} />
      <Choose label="Right" value={state.right} options={DATA.map((d) => [d, DATA_NAMES[d].replace("time", figureName())])} change={(right) => set({ right: right as Datum })} />
      <label class="names" title="Longer names lose their middle">
        <span>Names</span>
        <input key={state.names} type="number" class="number" min={4} max={200} defaultValue={String(state.names)} disabled={isFile} aria-label="Length of names" onChange={(event) => set({ names: Math.max(4, Math.min(200, Number(event.currentTarget.value) || 28)) })} />
      </label>
      <Toggle label="Top down" hint="Let it flow down instead of to the right (d)" on={data?.down ?? state.down === 1} disabled={!held({ down: data?.down ? 0 : 1 })} change={(down) => set({ down: down ? 1 : 0 })} />
      {meta.before !== null && <Toggle label="Change" hint="Colour by what changed since the other profile" on={state.change} change={(change) => set({ change })} />}
      {(state.closed.length > 0 || state.open.length > 0) && (
        <button onClick={() => set({ closed: [], open: [] })} title="Everything as the filter has it">
          Reset {count(state.closed.length + state.open.length)} opened or closed
        </button>
      )}
    </div>
  );
}
