// What changed since another profile, function by function.
import { useMemo } from "preact/hooks";
import type { Changes } from "../answers";
import { figure, figureName, isWeighed, meta, metricOf, question, useAnswer } from "../api";
import { By } from "../by";
import { Failure, Toggle } from "../controls";
import { count, matcher, percent, signed } from "../format";
import { Inspector } from "../inspector";
import { set, State, useStore } from "../store";
import { Column, sortRows, Table } from "../table";

type Row = Changes["rows"][number];

export function compareQuestion(state: State): string {
  return question("compare", { metric: metricOf(state)?.name });
}

export function Compare() {
  const state = useStore();
  const { data, error } = useAnswer<Changes>(meta.before === null ? null : compareQuestion(state));
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
  const whole = Math.max(1, data?.base[0] ?? 1, data?.base[1] ?? 1);
  const columns: Column<Row>[] = [
    ...(isWeighed()
      ? ([
          { id: "change", title: "Own: change", hint: `Change of own ${figureName()}`, width: "150px", right: true, number: true, cell: (row) => <Change by={(row.base[1] - row.base[0]) / whole} text={signed(figure(Math.abs(row.base[1] - row.base[0])), row.base[1] - row.base[0])} /> },
          { id: "before", title: "Before", width: "84px", right: true, number: true, cell: (row) => figure(row.base[0]) },
          { id: "after", title: "After", width: "84px", right: true, number: true, cell: (row) => figure(row.base[1]) },
          { id: "ratio", title: "Ratio", width: "70px", right: true, number: true, cell: (row) => (row.base[0] ? ratio(row.base[1] / row.base[0]) : "new") },
          { id: "cum", title: "Total: change", hint: `Change of total ${figureName()}`, width: "110px", right: true, number: true, cell: (row) => signed(figure(Math.abs(row.cum[1] - row.cum[0])), row.cum[1] - row.cum[0]) },
        ] satisfies Column<Row>[])
      : []),
    { id: "calls", title: "Calls: change", width: "110px", right: true, number: true, cell: (row) => signed(count(Math.abs(row.calls[1] - row.calls[0])), row.calls[1] - row.calls[0]) },
    { id: "name", title: "Name", width: "minmax(180px,1fr)", cell: (row) => <span class={row.function === null ? "gone" : ""}>{row.name}</span> },
    { id: "module", title: "Module", width: "120px", cell: (row) => <span class="muted">{row.module}</span> },
  ];
  return (
    <div class="split">
      <div class="main">
        <div class="tools" role="toolbar" aria-label="Comparison">
          <By question={(metric) => compareQuestion({ ...state, metric })} />
          {data && (
            <span data-whole>
              {isWeighed() ? `${figure(data.base[0])} → ${figure(data.base[1])} (${signed(percent(Math.abs(data.base[1] / Math.max(1, data.base[0]) - 1)), data.base[1] - data.base[0])})` : `${count(data.calls[0])} → ${count(data.calls[1])} calls`}
            </span>
          )}
          <Toggle label="Colour the river by change" on={state.change} change={(change) => set({ change })} />
          <button onClick={() => set({ view: "river", change: true })}>Show in river</button>
          <span class="muted">since {meta.before}</span>
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

const KEYS = ["change", "before", "after", "ratio", "cum", "calls", "name", "module"];

/** Changes are sorted by their size, whichever way they go. */
function value(row: Row, column: string): number | string {
  switch (column) {
    case "name":
      return row.name;
    case "module":
      return row.module;
    case "before":
      return row.base[0];
    case "after":
      return row.base[1];
    case "ratio":
      return row.base[0] ? row.base[1] / row.base[0] : Infinity;
    case "cum":
      return Math.abs(row.cum[1] - row.cum[0]);
    case "calls":
      return Math.abs(row.calls[1] - row.calls[0]);
    default:
      return isWeighed() ? Math.abs(row.base[1] - row.base[0]) : Math.abs(row.calls[1] - row.calls[0]);
  }
}

/** A bar to the left for less, to the right for more. */
function Change({ by, text }: { by: number; text: string }) {
  const width = `${Math.min(50, Math.abs(by) * 250)}%`;
  return (
    <span class="change">
      <span class={by > 0 ? "more" : "less"} style={by > 0 ? { left: "50%", width } : { right: "50%", width }} />
      <span class="figure">{text}</span>
    </span>
  );
}
