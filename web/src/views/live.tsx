// A process while it runs: what it does now; its probes are switched, it is frozen, saved, let go.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Functions, SwitchedFunction } from "../responses";
import { act, meta, reading, useResponse } from "../api";
import { palette } from "../canvas/colours";
import { Tile, Toggle } from "../controls";
import { atLeast, count, matcher, percent, rustPattern, short, time } from "../format";
import { Inspector } from "../inspector";
import { Said, SwitchResponse, StateButtons, stateWord, STATES, switchProbes } from "../probes";
import { set, useStore } from "../store";
import { Bar, Column, sortRows, Table } from "../table";

/** Calls per second of the last readings; kept while other views are shown. */
const past: { reading: number; rate: number }[] = [];

interface Row {
  f: number;
  name: string;
  module: string;
  calls: number;
  rate: number;
  now: number;
  state: string;
}

export function Live() {
  const state = useStore();
  // The whole process, whatever the other views are narrowed to.
  const { data } = useResponse<Functions>("functions");
  const switched = useResponse<SwitchedFunction[]>(meta.live ? "switched" : null).data;
  const [sort, setSort] = useState(meta.timed ? "-now" : "-rate");
  const [switchSaid, saySwitched] = useState<Said | null>(null);
  const match = useMemo(() => matcher(state.q), [state.q]);
  const all = useMemo(() => (data ? rowsOf(data, switched ?? []) : []), [data, switched]);
  const rows = useMemo(() => sortRows(match ? all.filter((row) => match(row.name)) : all, sort, (row, column) => row[column as keyof Row]), [all, match, sort]);
  const [said, say] = useState<{ text: string; bad: boolean } | null>(null);
  const [sure, setSure] = useState(false);
  const chart = useRef<HTMLCanvasElement>(null);
  const rate = (data?.rate_calls ?? []).reduce((sum, n) => sum + n, 0);
  const load = (data?.rate_self ?? []).reduce((sum, n) => sum + n, 0) / 1e9;
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
  const change = (which: { f: number } | { match: string }, to: string) => void switchProbes(which, to).then(saySwitched);
  const onKey = (key: string, row: Row): boolean => {
    const to = STATES.find(([id]) => id[0] === key);
    if (!to || !meta.live || meta.live.ended) return false;
    change({ f: row.f }, to[0]);
    return true;
  };
  return (
    <div class="split">
      <div class="main live">
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
          <Tile name="Calls" value={atLeast(count(meta.calls), meta.at_least)} note={`${short(rate)} a second now`} />
          {meta.timed && <Tile name="Time in functions" value={time(meta.time)} note={`${percent(load)} of one processor now`} />}
          <Tile name="Contexts" value={count(meta.contexts)} note="" />
          <Tile name="Threads" value={count(meta.threads)} note={`process ${meta.live.pid}`} />
          <Tile name="Reading" value={count(meta.live.reading)} note={state.frozen ? "frozen" : meta.live.ended ? "the last" : "every second"} />
        </div>
        <div class="now">
          <h3>Calls per second</h3>
          <canvas class="chart" ref={chart} role="img" aria-label={`Calls per second, now ${short(rate)}`} />
        </div>
        <div class="tools switch" role="toolbar" aria-label="Probes">
          <span class="muted" data-count>
            {match ? `${count(rows.length)} of ${count(all.length)} functions` : `${count(rows.length)} functions`}
          </span>
          {match ? (
            <>
              <span>
                Probes of all that match <b>{state.q}</b>:
              </span>
              <StateButtons of={`all that match ${state.q}`} choose={(to) => change({ match: rustPattern(state.q) }, to)} disabled={meta.live.ended} />
            </>
          ) : (
            <span class="muted">Filter by name (/) to switch several; t, s, c, o switch the selected one.</span>
          )}
          <SwitchResponse said={switchSaid} />
        </div>
        <Table
          label="Functions now"
          columns={COLUMNS.filter((column) => column.id !== "now" || meta.timed)}
          rows={rows}
          rowKey={(row) => row.f}
          selected={(row) => row.f === state.sel}
          sort={sort}
          onSort={setSort}
          onSelect={(row) => set({ sel: row.f }, true)}
          onOpen={(row) => set({ sel: row.f, view: "function" })}
          onKey={onKey}
          rowClass={(row) => (stateWord(row.state) === "off" ? "faint" : "")}
          empty={match ? "No function has such a name." : "No function was called yet."}
        />
      </div>
      <aside class="side">
        <Inspector />
      </aside>
    </div>
  );
}

const COLUMNS: Column<Row>[] = [
  { id: "name", title: "Name", width: "minmax(160px,1fr)", cell: (row) => <span class="name">{row.name}</span> },
  { id: "module", title: "Module", width: "110px", cell: (row) => <span class="muted">{row.module}</span> },
  { id: "calls", title: "Calls", width: "112px", right: true, number: true, cell: (row) => count(row.calls) },
  { id: "rate", title: "Calls/s", hint: "Calls per second now", width: "84px", right: true, number: true, cell: (row) => short(row.rate) },
  { id: "now", title: "Now", hint: "Share of one processor now", width: "92px", right: true, number: true, cell: (row) => <Bar share={row.now / 1e9} text={percent(row.now / 1e9)} kind="self" /> },
  { id: "state", title: "State", hint: "What its probes do, and how much of its time is estimated", width: "156px", cell: (row) => <span class={`state ${stateWord(row.state).replace(/ /g, "-")}`} title={row.state}>{row.state}</span> },
];

/** What was called, and what was switched before it was. */
function rowsOf(data: Functions, switched: SwitchedFunction[]): Row[] {
  const rows = data.function.map((f, i) => ({
    f,
    name: data.name[i],
    module: data.modules[data.module[i]],
    calls: data.calls[i],
    rate: data.rate_calls?.[i] ?? 0,
    now: data.rate_self?.[i] ?? 0,
    state: data.state?.[i] ?? "timed",
  }));
  const seen = new Set(data.function);
  for (const one of switched) if (!seen.has(one.function)) rows.push({ f: one.function, name: one.name, module: one.module, calls: 0, rate: 0, now: 0, state: one.state });
  return rows;
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
