// The whole program in a few figures.
import type { ComponentChildren } from "preact";
import type { SelfTotal, Summary as Data } from "../responses";
import { figure, functionNamed, isWeighed, meta, metricOf, query, useResponse, weighedPart } from "../api";
import { By } from "../by";
import { Failure, Tile, Waiting } from "../controls";
import { atLeast, count, counted, percent, time } from "../format";
import { FunctionLink } from "../inspector";
import { useStore } from "../store";
import { Bar } from "../table";

const selfOf = (row: SelfTotal) => row.self_ns ?? row.self ?? 0;
const totalOf = (row: SelfTotal) => row.total_ns ?? row.total ?? 0;

export function Summary() {
  const state = useStore();
  const { data, error } = useResponse<Data>(query("summary", weighedPart(state)));
  if (error) return <Failure text={error} />;
  if (!data)
    return (
      <div class="blank">
        <Waiting />
      </div>
    );
  const whole = Math.max(1, data.time_ns ?? data.whole ?? 1);
  const metric = metricOf(state);
  const weighed = isWeighed();
  return (
    <div class="summary scroll">
      <By query={(metric) => query("summary", weighedPart({ ...state, metric }))} />
      <div class="tiles">
        {weighed && <Tile name={metric ? `${metric.name} of all threads` : "Time of all threads"} value={figure(whole)} note={`in ${time(data.duration_ns)}`} />}
        {meta.timed && !metric && <Tile name="Waiting" value={time(data.waiting_ns ?? 0)} note={meta.wall ? "off the processor" : "in functions that wait by nature"} />}
        <Tile name="Calls" value={atLeast(count(data.calls), data.calls_at_least)} note={data.folded_calls ? `${count(data.folded_calls)} folded` : `${count(data.calls / Math.max(1e-9, data.duration_ns / 1e9))} a second`} />
        <Tile name="Functions seen" value={count(data.functions_seen)} note={data.functions_total ? `of ${count(data.functions_patched)} patched, ${count(data.skipped)} skipped` : ""} />
        <Tile name="Contexts" value={count(data.contexts)} note={`${count(data.deepest)} levels deep`} />
        <Tile name="Graph" value={`${count(data.nodes)} nodes`} note={`${count(data.edges)} edges${data.made ? `, ${count(data.made)} of them make threads` : ""}`} />
        <Tile name="Threads" value={count(data.threads)} note={counted(data.processes, "process", "processes") + (data.threads_by_level.length > 1 ? `; by level ${data.threads_by_level.map(count).join(", ")}` : "")} />
        <Tile name="Recursion" value={data.recursion ? `${count(data.recursion.levels)} levels` : "none"} note={data.recursion?.name ?? ""} />
      </div>
      <div class="tables">
        <Section title="Hottest functions">
          {data.hottest.map((row) => (
            <div class="line" data-f={row.function}>
              <FunctionLink f={row.function} />
              <span class="calls">{atLeast(count(row.calls), row.calls_at_least)}×</span>
              {weighed && <span class="calls">{figure(selfOf(row))}</span>}
              {weighed && <Bar share={selfOf(row) / whole} text={percent(selfOf(row) / whole)} kind="self" />}
            </div>
          ))}
        </Section>
        <Section title="Hottest calls">
          {data.hottest_edges.map((row) => (
            <div class="line">
              <span class="name pair">
                <Name name={row.caller} /> → <Name name={row.callee} />
              </span>
              <span class="calls">{atLeast(count(row.calls), row.calls_at_least)}×</span>
              {weighed && <Bar share={totalOf(row) / whole} text={percent(totalOf(row) / whole)} kind="total" />}
            </div>
          ))}
        </Section>
        <Section title="Modules">
          {data.modules.map((row) => (
            <div class="line">
              <span class="name">{row.name}</span>
              <span class="calls">{count(row.functions_seen)} functions</span>
              <span class="calls">{atLeast(count(row.calls), row.calls_at_least)}×</span>
              {weighed && <Bar share={selfOf(row) / whole} text={percent(selfOf(row) / whole)} kind="self" />}
            </div>
          ))}
        </Section>
        <Section title="Cycles" empty="No functions call each other in a ring.">
          {data.cycles.slice(0, 12).map((row) => (
            <div class="line">
              <span class="name">{row.functions.slice(0, 4).map((name, i) => [i > 0 && " ⇄ ", <Name name={name} />])}{row.functions.length > 4 && <span class="muted"> and {count(row.functions.length - 4)} more</span>}</span>
              <span class="calls">rc{row.calls_at_least ? " ≥ " : "="}{count(row.calls)}</span>
            </div>
          ))}
        </Section>
        {!metric && (
          <Section title="Waiting" empty="Nothing was seen to wait.">
            {data.waits.slice(0, 12).map((row) => (
              <div class="line">
                <span class="name">
                  <Name name={row.name} />
                </span>
                <span class="calls">{time(row.time_ns)}</span>
                <Bar share={row.time_ns / Math.max(1, data.waiting_ns ?? 0)} text={percent(row.time_ns / Math.max(1, data.waiting_ns ?? 0))} kind="wait" />
              </div>
            ))}
          </Section>
        )}
        {data.notes.length > 0 && (
          <Section title="Notes">
            {data.notes.map((note) => (
              <p class="note">{note}</p>
            ))}
          </Section>
        )}
      </div>
    </div>
  );
}

function Name({ name }: { name: string }) {
  const f = functionNamed(name);
  return f === null ? <span>{name}</span> : <FunctionLink f={f} />;
}

function Section({ title, children, empty }: { title: string; children: ComponentChildren; empty?: string }) {
  const none = Array.isArray(children) && children.length === 0;
  return (
    <section aria-label={title}>
      <h3>{title}</h3>
      <div class="list">{none ? <p class="empty">{empty ?? "none"}</p> : children}</div>
    </section>
  );
}
