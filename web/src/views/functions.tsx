// Every function, sorted by any figure, filtered by name.
import { useMemo } from "preact/hooks";
import { figure, figureName, finder, isWeighed, languagesShown, metricOf, query, unitOf, useFunctions, weighedPart } from "../api";
import type { Functions as Data } from "../responses";
import { By } from "../by";
import { Failure, Waiting } from "../controls";
import { count, inUnit, percent, short } from "../format";
import { Calls, Inspector, Mark, WithError } from "../inspector";
import { current, set, useStore } from "../store";
import { Bar, Column, sortRows, Table } from "../table";

interface Row {
  i: number;
  f: number;
  name: string;
}

type Figure = "calls" | "self" | "total" | "min" | "max" | "waiting" | "threads" | "contexts" | "recursion" | "unwound";

const USUAL = ["self", "self-share", "total", "total-share", "calls", "mean", "name", "module"];

export function Functions() {
  const state = useStore();
  const { data, error } = useFunctions();
  const match = useMemo(() => finder(state.q), [state.q]);
  const rows = useMemo(() => {
    if (!data) return [];
    const all: Row[] = [];
    data.name.forEach((name, i) => {
      if (!match || match(data.function[i])) all.push({ i, f: data.function[i], name });
    });
    const sort = columnsOf(data).some((column) => column.id === state.sort.replace("-", "")) ? state.sort : isWeighed() ? "-self" : "-calls";
    return sortRows(all, sort, (row, column) => value(data, row, column));
  }, [data, match, state.sort]);
  const all = data ? columnsOf(data) : [];
  const chosen = state.columns ? state.columns.split(",") : usual(data);
  const columns = all.filter((column) => chosen.includes(column.id) || column.id === "name");
  return (
    <div class="split">
      <div class="main">
        <div class="tools" role="toolbar" aria-label="Columns">
          <span class="muted" data-count>
            {data ? (match ? `${count(rows.length)} of ${count(data.name.length)} functions` : `${count(rows.length)} functions`) : ""}
          </span>
          <By query={(metric) => query("functions", weighedPart({ ...state, metric }))} />
          {languagesShown().map((language) => {
            const q = `^language:${language}$`;
            return (
              <button class="toggle" key={language} aria-pressed={state.q === q} onClick={() => set({ q: state.q === q ? "" : q })} title={`Only functions in this language, in all views`}>
                {language}
              </button>
            );
          })}
          <details class="columns">
            <summary>Columns</summary>
            <div class="choices">
              {all
                .filter((column) => column.id !== "name")
                .map((column) => (
                  <label key={column.id}>
                    <input
                      type="checkbox"
                      checked={chosen.includes(column.id)}
                      onChange={(event) => {
                        const next = all.filter((other) => (other.id === column.id ? event.currentTarget.checked : chosen.includes(other.id) || other.id === "name"));
                        set({ columns: next.map((other) => other.id).join(",") }, true);
                      }}
                    />
                    {column.hint ?? column.title}
                  </label>
                ))}
            </div>
          </details>
          <button onClick={() => set({ view: "river" })} disabled={state.sel === null} title="Show the selected function there">
            Locate in river
          </button>
        </div>
        {error && <Failure text={error} />}
        {!data && !error && <Waiting />}
        {data && (
          <Table
            label="Functions"
            columns={columns}
            rows={rows}
            rowKey={(row) => row.f}
            selected={(row) => row.f === state.sel}
            sort={state.sort}
            onSort={(sort) => set({ sort })}
            onSelect={(row) => set({ sel: row.f }, true)}
            onOpen={(row) => set({ sel: row.f, view: "function" })}
            onKey={(key, row) => key === "l" && (set({ sel: row.f, view: "river" }), true)}
            empty={match ? "No function has such a name." : "No function was called."}
          />
        )}
      </div>
      <aside class="side">
        <Inspector />
      </aside>
    </div>
  );
}

function usual(data: Data | null): string[] {
  // In a narrow window names have more use of the room.
  const narrow = innerWidth < 1150;
  const timed = isWeighed() ? USUAL.filter((id) => !narrow || id !== "total-share") : ["calls", "name", "module", "threads", "contexts"];
  return [...timed, ...metricsShown(data), ...(data?.state && !narrow ? ["state"] : []), ...(data?.rate_calls ? ["rate"] : [])];
}

/** Beside times, one metric that anything was counted of. */
function metricsShown(data: Data | null): string[] {
  if (metricOf(current())) return [];
  const counted = Object.entries(data?.metrics ?? {}).filter(([, column]) => column.some((n) => n > 0)).map(([name]) => name);
  return [counted.find((name) => unitOf(name) === "bytes") ?? counted[0]].filter(Boolean);
}

function value(data: Data, row: Row, column: string): number | string {
  switch (column) {
    case "name":
      return row.name;
    case "module":
      return data.modules[data.module[row.i]];
    case "self-share":
      return data.self[row.i];
    case "total-share":
      return data.total[row.i];
    case "mean":
      return perCall(data, row) ?? 0;
    case "rate":
      return data.rate_calls?.[row.i] ?? 0;
    case "state":
      return data.state?.[row.i] ?? "";
    case "load":
      return data.rate_self?.[row.i] ?? 0;
    default:
      if (data.metrics?.[column]) return data.metrics[column][row.i];
      return data[column as Figure]?.[row.i] ?? 0;
  }
}

/** Of a function that was not counted all the time, no time is that of its counted calls. */
function perCall(data: Data, row: Row): number | null {
  return data.calls[row.i] && !data.samples?.[row.i] ? data.self[row.i] / data.calls[row.i] : null;
}

function columnsOf(data: Data): Column<Row>[] {
  const whole = Math.max(1, data.time);
  const times = (id: Figure, title: string, hint: string): Column<Row> => ({ id, title, hint, width: "86px", right: true, number: true, cell: (row) => figure(data[id][row.i]) });
  const measured = (id: "self" | "total", title: string, hint: string): Column<Row> => {
    const errors = id === "self" ? data.self_error : data.total_error;
    if (!errors) return times(id, title, hint);
    return { ...times(id, title, `${hint}; \u00b1 is what it is within 19 times of 20`), width: "156px", cell: (row) => <WithError value={data[id][row.i]} error={errors[row.i]} /> };
  };
  const counts = (id: Figure, title: string, hint: string, width = "84px"): Column<Row> => ({ id, title, hint, width, right: true, number: true, cell: (row) => count(data[id][row.i]) });
  const shares = (id: string, of: "self" | "total", title: string, hint: string): Column<Row> => ({
    id,
    title,
    hint,
    width: "92px",
    right: true,
    number: true,
    cell: (row) => <Bar share={data[of][row.i] / whole} text={percent(data[of][row.i] / whole)} kind={of} />,
  });
  return [
    // First, so that it is in sight in a narrow window too.
    { id: "name", title: "Name", width: "minmax(180px,1fr)", cell: (row) => <span class="name"><Mark f={row.f} />{row.name}</span> },
    ...(isWeighed()
      ? [
          shares("self-share", "self", "Self %", "Self, as a share of all"),
          measured("self", "Self", `Self: ${figureName()} without what it called`),
          shares("total-share", "total", "Total %", "Total, as a share of all"),
          measured("total", "Total", `Total: ${figureName()} with all that it called`),
        ]
      : []),
    { ...counts("calls", "Calls", "Calls", "104px"), cell: (row) => (data.calls[row.i] || !data.samples?.[row.i] ? <Calls calls={data.calls[row.i]} bound={data.at_least?.[row.i]} /> : "–") },
    ...(isWeighed()
      ? [
          { id: "mean", title: "Per call", hint: `Self per call`, width: "82px", right: true, number: true, cell: (row: Row) => { const each = perCall(data, row); return each === null ? "–" : figure(each); } },
        ]
      : []),
    ...(isWeighed() && !metricOf(current())
      ? [
          times("min", "Least", "Self of the shortest call"),
          times("max", "Most", "Self of the longest call"),
          times("waiting", "Waiting", data.waits_measured ? "Time off the processor" : "Time in functions that wait by their nature"),
        ]
      : []),
    { id: "module", title: "Module", width: "130px", cell: (row) => <span class="muted">{data.modules[data.module[row.i]]}</span> },
    counts("threads", "Threads", "Threads it ran in", "70px"),
    counts("contexts", "Contexts", "Ways in which it was reached", "80px"),
    counts("recursion", "Rec.", "Deepest recursion", "60px"),
    counts("unwound", "Unwound", "Calls that ended without a return", "78px"),
    ...Object.entries(data.metrics ?? {}).map(([name, column]): Column<Row> => ({ id: name, title: name, hint: `${name} of the function itself`, width: "96px", right: true, number: true, cell: (row) => inUnit(column[row.i], unitOf(name)) })),
    ...(data.state ? [{ id: "state", title: "State", hint: "What its probes do, and how much of its time is estimated", width: "148px", cell: (row: Row) => <span title={data.state![row.i]}>{data.state![row.i]}</span> }] : []),
    ...(data.rate_calls
      ? [
          { id: "rate", title: "Calls/s", hint: "Calls per second now", width: "86px", right: true, number: true, cell: (row: Row) => short(data.rate_calls![row.i]) },
          { id: "load", title: "Now", hint: "Share of one processor now", width: "74px", right: true, number: true, cell: (row: Row) => percent(data.rate_self![row.i] / 1e9) },
        ]
      : []),
  ];
}
