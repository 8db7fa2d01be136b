// What changed since another profile, function by function.
import { useMemo } from "preact/hooks";
import type { Changes } from "../responses";
import { figure, figureName, isWeighed, meta, metricOf, query, useResponse } from "../api";
import { By } from "../by";
import { Failure, Toggle } from "../controls";
import { count, matcher, percent, signed } from "../format";
import { Inspector } from "../inspector";
import { set, State, useStore } from "../store";
import { Column, sortRows, Table } from "../table";

type Row = Changes["rows"][number];

export function compareQuery(state: State): string {
  return query("compare", { metric: metricOf(state)?.name });
}

/** Of each function that changed, by what share of the whole its self did. */
export function changeShares(changes: Changes): Map<number, number> {
  const changed = changes.rows.filter((row) => row.function !== null && row.self_changed);
  return new Map(changed.map((row) => [row.function!, (row.self[1] - row.self[0]) / Math.max(1, changes.self[1])]));
}

export function Compare() {
  const state = useStore();
  const { data, error } = useResponse<Changes>(meta.before === null ? null : compareQuery(state));
  const match = useMemo(() => matcher(state.q), [state.q]);
  const sort = KEYS.includes(state.sort.replace("-", "")) ? state.sort : "-change";
  const rows = useMemo(() => sortRows((data?.rows ?? []).filter((row) => !match || match(row.name)), sort, value), [data, match, sort]);
  if (meta.before === null)
    return (
      <div class="blank">
        <p>There is one profile only. To see what changed:</p>
        <pre>thalweg serve after.thalweg --before before.thalweg</pre>
      </div>
    );
  const errors = data?.rows.some((row) => row.self_error > 0);
  const unseen = (data?.rows ?? []).filter((row) => !row.calls_changed && !(isWeighed() && row.self_changed)).length;
  const whole = Math.max(1, data?.self[0] ?? 1, data?.self[1] ?? 1);
  const columns: Column<Row>[] = [
    ...(isWeighed()
      ? ([
          { id: "change", title: "Self: change", hint: `Change of self ${figureName()}`, width: "150px", right: true, number: true, cell: (row) => <Change by={row.self_changed ? (row.self[1] - row.self[0]) / whole : 0} text={changed(row.self, row.self_changed, figure)} seen={row.self_changed} /> },
          ...(errors ? [{ id: "error", title: "±", hint: "What the change may be off by: within it no change is seen", width: "84px", right: true, number: true, cell: (row: Row) => <span class="muted">{row.self_error ? figure(row.self_error) : ""}</span> }] : []),
          { id: "before", title: "Before", width: "84px", right: true, number: true, cell: (row) => figure(row.self[0]) },
          { id: "after", title: "After", width: "84px", right: true, number: true, cell: (row) => figure(row.self[1]) },
          { id: "ratio", title: "Ratio", width: "70px", right: true, number: true, cell: (row) => (row.self[0] ? ratio(row.self[1] / row.self[0]) : "new") },
          { id: "total", title: "Total: change", hint: `Change of total ${figureName()}`, width: "110px", right: true, number: true, cell: (row) => <Seen text={changed(row.total, row.total_changed, figure)} seen={row.total_changed} /> },
        ] satisfies Column<Row>[])
      : []),
    { id: "calls", title: "Calls: change", width: "110px", right: true, number: true, cell: (row) => <Seen text={changed(row.calls, row.calls_changed, count)} seen={row.calls_changed} bound={row.calls_at_least !== undefined} /> },
    { id: "name", title: "Name", width: "minmax(180px,1fr)", cell: (row) => <span class={row.function === null ? "gone" : ""}>{row.name}</span> },
    { id: "module", title: "Module", width: "120px", cell: (row) => <span class="muted">{row.module}</span> },
  ];
  return (
    <div class="split">
      <div class="main">
        <div class="tools" role="toolbar" aria-label="Comparison">
          <By query={(metric) => compareQuery({ ...state, metric })} />
          {data && (
            <span data-whole>
              {isWeighed() ? `${figure(data.self[0])} → ${figure(data.self[1])} (${signed(percent(Math.abs(data.self[1] / Math.max(1, data.self[0]) - 1)), data.self[1] - data.self[0])})` : `${count(data.calls[0])} → ${count(data.calls[1])} calls`}
            </span>
          )}
          <Toggle label="Colour the river by change" on={state.change} change={(change) => set({ change })} />
          <button onClick={() => set({ view: "river", change: true })}>Show in river</button>
          <span class="muted">since {meta.before}</span>
          {data && <span class="muted" data-unseen title="Differences within the errors of both sides, and those of lower bounds, are marked with ~">{unseen === data.rows.length ? "no change seen" : `no change seen in ${count(unseen)} of ${count(data.rows.length)} functions`}</span>}
        </div>
        {error && <Failure text={error} />}
        {data && (
          <Table
            label="Changes"
            columns={columns}
            rows={rows}
            rowKey={(row) => row.module + "\0" + row.name}
            selected={(row) => row.function !== null && row.function === state.sel}
            sort={sort}
            onSort={(next) => set({ sort: next })}
            onSelect={(row) => row.function !== null && set({ sel: row.function }, true)}
            onOpen={(row) => row.function !== null && set({ sel: row.function, view: "function" })}
            empty="Nothing is there to compare."
          />
        )}
      </div>
      <aside class="side">
        <Inspector />
      </aside>
    </div>
  );
}

function ratio(r: number): string {
  return r >= 1000 ? ">999×" : (r >= 100 ? r.toFixed(0) : r >= 0.01 || r === 0 ? r.toFixed(2) : "<0.01") + "×";
}

const KEYS = ["change", "error", "before", "after", "ratio", "total", "calls", "name", "module"];

/** Changes are sorted by their size, whichever way they go. */
function value(row: Row, column: string): number | string {
  switch (column) {
    case "name":
      return row.name;
    case "module":
      return row.module;
    case "error":
      return row.self_error;
    case "before":
      return row.self[0];
    case "after":
      return row.self[1];
    case "ratio":
      return row.self[0] ? row.self[1] / row.self[0] : Infinity;
    case "total":
      return size(row.total, row.total_changed);
    case "calls":
      return size(row.calls, row.calls_changed);
    default:
      return isWeighed() ? size(row.self, row.self_changed) : size(row.calls, row.calls_changed);
  }
}

/** What was not seen to change comes after all that was. */
function size([before, after]: [number, number], seen: boolean): number {
  return Math.abs(after - before) * (seen ? 1 : 1e-30);
}

/** A difference that is no change that was seen has a mark: `~ +1.2 ms`. */
function changed([before, after]: [number, number], seen: boolean, unit: (n: number) => string): string {
  const text = signed(unit(Math.abs(after - before)), after - before);
  return after === before || seen ? text : `~ ${text}`;
}

function Seen({ text, seen, bound }: { text: string; seen: boolean; bound?: boolean }) {
  if (seen || !text.startsWith("~")) return <>{text}</>;
  return (
    <span class="muted" title={bound ? "One side is a lower bound: its probes were off for a while" : "Within the errors: no change seen"}>
      {text}
    </span>
  );
}

/** A bar to the left for less, to the right for more. */
function Change({ by, text, seen }: { by: number; text: string; seen: boolean }) {
  const width = `${Math.min(50, Math.abs(by) * 250)}%`;
  return (
    <span class="change">
      <span class={by > 0 ? "more" : "less"} style={by > 0 ? { left: "50%", width } : { right: "50%", width }} />
      <span class="figure">
        <Seen text={text} seen={seen} />
      </span>
    </span>
  );
}
