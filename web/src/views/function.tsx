// One function: its figures, who calls it and what it calls, the threads it ran in, its source.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { ArcRow, OneFunction, SiteRow, Source } from "../responses";
import { figure, isFile, isWeighed, meta, metricOf, nameOf, query, unitOf, useFunctions, useResponse, useWhole, weighedPart } from "../api";
import { Failure, Tile } from "../controls";
import { By } from "../by";
import { atLeast, count, inUnit, percent, plusMinus, time } from "../format";
import { ArcName, FunctionLink } from "../inspector";
import { Probes } from "../probes";
import { set, useStore } from "../store";
import { Bar } from "../table";

export function Function() {
  const state = useStore();
  const whole = useWhole();
  const { data, error } = useResponse<OneFunction>(state.sel === null ? null : query("function", { ...weighedPart(state), f: state.sel }));
  const source = useResponse<Source>(meta.sources && data?.file ? query("source", { f: state.sel }) : null);
  const sites = useResponse<SiteRow[]>(state.sel === null ? null : query("sites", { f: state.sel }));
  // Where nobody chose one, the hottest is what most want to see.
  const all = useFunctions().data;
  useEffect(() => {
    if (state.sel !== null || !all?.function.length) return;
    const weight = isWeighed() ? all.self : all.calls;
    const hottest = weight.reduce((best, n, i) => (n > weight[best] ? i : best), 0);
    set({ sel: all.function[hottest] }, true);
  }, [state.sel, all]);
  if (state.sel === null)
    return (
      <div class="blank">
        <p>No function is selected.</p>
        <button onClick={() => set({ view: "functions" })}>Choose one from the list</button>
      </div>
    );
  if (error)
    return (
      <div class="function scroll">
        <header>
          <h2>{nameOf(state.sel)}</h2>
          <Probes f={state.sel} name={nameOf(state.sel)} />
        </header>
        <Failure text={error} />
      </div>
    );
  if (!data || data.function !== state.sel) return <div class="blank" />;
  const sum = (pick: (arc: ArcRow) => number) => data.children.reduce((n, arc) => n + pick(arc), 0);
  return (
    <div class="function scroll">
      <header>
        <h2>{data.name}</h2>
        <p class="muted">
          {data.path || data.module} · 0x{data.address.toString(16)}
          {data.file && ` · ${data.file}${data.line ? `:${data.line}` : ""}`}
        </p>
        <div class="actions">
          <By query={(metric) => query("function", { ...weighedPart({ ...state, metric }), f: state.sel })} />
          <button onClick={() => set({ view: "river" })}>Locate in river</button>
          <button onClick={() => set({ view: "flame", q: `^${escape(data.name)}$`, at: null })}>Find in flame</button>
          <button onClick={() => set({ root: state.root === state.sel ? null : state.sel })} disabled={isFile && state.root !== state.sel}>
            {state.root === state.sel ? "Leave root" : "Make root"}
          </button>
          {meta.recorded && !isFile && <button onClick={() => set({ view: "calls", only: true, call: null })}>Recorded calls</button>}
        </div>
        <Probes f={state.sel} name={data.name} />
      </header>
      <div class="tiles">
        {isWeighed() && (
          <>
            <Tile name="Self" value={figure(data.self)} error={plusMinus(data.self_error, figure)} note={percent(data.self / whole)} />
            <Tile name="Total" value={figure(data.total)} error={plusMinus(data.total_error, figure)} note={percent(data.total / whole)} />
          </>
        )}
        <Tile name="Calls" value={data.calls || !data.samples ? atLeast(count(data.calls), data.at_least) : "–"} note={data.at_least && !data.samples ? "a lower bound: off for a while" : data.samples ? `not counted at ${count(data.samples)} samples` : data.folded_calls ? `${count(data.folded_calls)} of them folded` : data.on_stack_at_attach ? "and one that began before" : ""} />
        {isWeighed() && data.calls > 0 && !data.at_least && <Tile name="Self per call" value={figure(data.self / data.calls)} error={plusMinus(data.self_error / data.calls, figure)} note={data.max ? `${figure(data.min)} to ${figure(data.max)}` : ""} />}
        {metricOf(state) === null && Object.entries(data.metrics).map(([name, value]) => <Tile name={name} value={inUnit(value, unitOf(name))} note="by itself" />)}
        {data.waiting > 0 && <Tile name="Waiting" value={time(data.waiting)} note={meta.wall ? "off the processor" : "waits by its nature"} />}
        <Tile name="Contexts" value={count(data.contexts)} note={data.recursion ? `recursion ${count(data.recursion)} deep` : ""} />
        {data.unwound > 0 && <Tile name="Unwound" value={count(data.unwound)} note="calls without a return" />}
      </div>
      <div class="around">
        <Box title="Callers" arcs={data.parents} calls={data.calls} total={data.total} of="of its calls and time" />
        <Box title="Callees" arcs={data.children} calls={sum((arc) => arc.calls)} total={data.total} of="of its total time" rest={data.self} />
      </div>
      {sites.data && sites.data.length > 0 && !sites.late && (
        <div class="around">
          <Sites title="Called from" rows={sites.data.filter((row) => row.callee === state.sel)} other={(row) => row.caller} />
          <Sites title="Calls from" rows={sites.data.filter((row) => row.caller === state.sel)} other={(row) => row.callee} />
        </div>
      )}
      <div class="around">
        <section>
          <h3>
            Threads <span class="muted">{count(data.threads.length)}</span>
          </h3>
          <div class="list">
            <Lines of={data.threads} line={(share) => (
              <div class="line">
                <span class="name">
                  <button class="plain" onClick={() => set({ threads: [share.thread] })} title="Show this thread only">
                    {share.made_by === null ? share.thread : `${share.made_by}→${share.thread}`} {share.name || "thread"} <span class="muted">{share.tid}</span>
                  </button>
                </span>
                <span class="calls">{atLeast(count(share.calls), data.at_least)}×</span>
                {isWeighed() && <Bar share={share.total / Math.max(1, data.total)} text={percent(share.total / Math.max(1, data.total))} kind="total" />}
              </div>
            )} />
          </div>
        </section>
        <section class="source">
          <h3>Source</h3>
          {source.data?.lines ? (
            <>
              <p class="muted">{source.data.file}</p>
              <pre tabIndex={0} aria-label={`Source of ${nameOf(state.sel)}`}>
                {source.data.lines.map((text, i) => (
                  <span class={source.data!.first + i === source.data!.line ? "here" : ""}>
                    <i>{source.data!.first + i}</i>
                    {text + "\n"}
                  </span>
                ))}
              </pre>
            </>
          ) : (
            <p class="empty">{source.data?.reason ?? source.error ?? (isFile ? "Sources are shown by 'thalweg serve', where they are found." : data.file ? "" : "It is not known where the source is: the module has no debug information.")}</p>
          )}
        </section>
      </div>
    </div>
  );
}

/** Call sites, of all threads and whatever the root is. */
function Sites({ title, rows, other }: { title: string; rows: SiteRow[]; other: (row: SiteRow) => number | null }) {
  return (
    <section aria-label={title}>
      <h3>
        {title} <span class="muted">{count(rows.length)}</span>
        <span class="of muted">call sites, all threads</span>
      </h3>
      <div class="list">
        {rows.length === 0 && <p class="empty">none</p>}
        <Lines of={rows} line={(row) => {
          const f = other(row);
          return (
            <div class="line" data-site={row.name} data-calls={row.calls}>
              <span class="name">
                {row.name || "(place not known)"}
                <span class="muted">
                  {row.file && ` ${row.file.split("/").pop()}:${row.line}`}
                  {row.indirect && " indirect"}
                  {row.tail && " tail call"}
                </span>
              </span>
              {f !== null && title === "Calls from" && <FunctionLink f={f} />}
              <span class="calls">{count(row.calls)}×</span>
              {isWeighed() && <span class="calls">{figure(row.total)}</span>}
            </div>
          );
        }} />
      </div>
    </section>
  );
}

/** The first of many: what a browser draws at once. */
const AT_ONCE = 300;

/** A line for each; where there are very many, the rest when asked for. */
function Lines<T>({ of, line }: { of: T[]; line: (one: T) => ComponentChildren }) {
  const [all, setAll] = useState(false);
  const shown = all ? of : of.slice(0, AT_ONCE);
  return (
    <>
      {shown.map(line)}
      {shown.length < of.length && (
        <button class="plain" onClick={() => setAll(true)}>
          show {count(of.length - shown.length)} more
        </button>
      )}
    </>
  );
}

function escape(name: string): string {
  return name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

function Box({ title, arcs, calls, total, of, rest }: { title: string; arcs: ArcRow[]; calls: number; total: number; of: string; rest?: number }) {
  return (
    <section aria-label={title}>
      <h3>
        {title} <span class="muted">{count(arcs.length)}</span>
        <span class="of muted">{of}</span>
      </h3>
      <div class="list">
        {arcs.length === 0 && <p class="empty">none</p>}
        <Lines of={arcs} line={(arc) => {
          const share = isWeighed() ? arc.total / Math.max(1, total) : arc.calls / Math.max(1, calls);
          return (
            <div class="line" data-arc={arc.function ?? (arc.unknown ? "unknown" : "start")} data-calls={arc.calls} data-total={arc.total}>
              <ArcName arc={arc} />
              <span class="calls">
                {atLeast(count(arc.calls), arc.at_least)}× <span class="muted">{percent(arc.calls / Math.max(1, calls))}</span>
              </span>
              {isWeighed() && <span class="calls">{figure(arc.total)}</span>}
              <Bar share={share} text={percent(share)} kind="total" />
            </div>
          );
        }} />
        {rest !== undefined && isWeighed() && arcs.length > 0 && (
          <div class="line self">
            <span class="name muted">itself</span>
            <span class="calls" />
            <span class="calls">{figure(rest)}</span>
            <Bar share={rest / Math.max(1, total)} text={percent(rest / Math.max(1, total))} kind="self" />
          </div>
        )}
      </div>
    </section>
  );
}
