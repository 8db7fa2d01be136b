// Threads: who made whom, when they lived, how long they ran on a processor and waited. The chosen ones are all that other views show.
import { useMemo, useState } from "preact/hooks";
import type { ThreadRow, Threads as Data } from "../responses";
import { figure, isFile, isWeighed, meta, metricOf, nameOf, useResponse } from "../api";
import { By } from "../by";
import { Failure } from "../controls";
import { matcher, percent, time, count } from "../format";
import { Calls } from "../inspector";
import { set, useStore } from "../store";
import { Column, Table } from "../table";

export function Threads() {
  const state = useStore();
  const { data, error } = useResponse<Data>("threads");
  const [at, setAt] = useState<number | null>(null);
  const match = useMemo(() => matcher(state.q), [state.q]);
  const rows = useMemo(() => (data ? nested(data.threads).filter((row) => !match || match(row.name)) : []), [data, match]);
  const chosen = new Set(state.threads);
  const duration = Math.max(1, data?.duration ?? 1);
  const metric = metricOf(state);
  const own = (row: ThreadRow) => (metric ? (row.metrics?.[metric.name] ?? 0) : row.self);
  const most = Math.max(1, ...(data?.threads ?? []).map(own));
  const toggle = (row: ThreadRow) => {
    const next = new Set(chosen);
    if (!next.delete(row.thread)) next.add(row.thread);
    set({ threads: [...next].sort((a, b) => a - b), at: null, closed: [], open: [] });
  };
  const withChildren = (row: ThreadRow) => {
    const next = new Set([row.thread]);
    for (const other of rows) if (other.made_by !== null && next.has(other.made_by)) next.add(other.thread);
    set({ threads: [...next].sort((a, b) => a - b), at: null, closed: [], open: [] });
  };
  const columns: Column<ThreadRow>[] = [
    {
      id: "chosen",
      title: "",
      width: "34px",
      cell: (row) => <input type="checkbox" tabIndex={-1} checked={chosen.has(row.thread)} disabled={isFile} aria-label={`Choose thread ${row.thread} ${row.name}`} onClick={(event) => event.stopPropagation()} onChange={() => toggle(row)} />,
    },
    {
      id: "name",
      title: "Thread",
      width: "minmax(150px,1.1fr)",
      cell: (row) => (
        <span class="indented" style={{ paddingLeft: `${Math.min(row.level, 12) * 14}px` }}>
          <b>{row.thread}</b> {row.name || "thread"}
          <span class="muted"> {row.tid}</span>
          {row.others > 0 && <span class="muted"> and {count(row.others)} others</span>}
        </span>
      ),
    },
    {
      id: "maker",
      title: "Made by",
      width: "minmax(100px,.8fr)",
      cell: (row) => (row.made_by === null ? <span class="muted">START</span> : <span title={row.made_in === null ? "" : nameOf(row.made_in)}>{`${row.made_by}→${row.thread}`} <span class="muted">{row.made_in === null ? "" : nameOf(row.made_in)}</span></span>),
    },
    {
      id: "life",
      title: "Life",
      hint: "From the start of the recording to its end",
      width: "minmax(90px,1.6fr)",
      cell: (row) => {
        const left = (row.start / duration) * 100;
        const width = Math.max(0.4, ((Math.max(row.end, row.start) - row.start) / duration) * 100);
        return (
          <span class="life" title={`${time(row.start)} to ${time(row.end)}`}>
            <span class="span" style={{ left: `${left}%`, width: `${width}%` }} />
          </span>
        );
      },
    },
    {
      id: "did",
      title: "Of its life",
      hint: "How much of its life it was on a processor, and how much it waited",
      width: "minmax(90px,1fr)",
      cell: (row) => {
        const lived = Math.max(1, row.end - row.start) * (1 + row.others);
        const waited = Math.min(1, row.waiting / lived);
        const worked = Math.max(0, Math.min(1 - waited, (data!.waits_measured ? row.self : row.self - row.waiting) / lived));
        return (
          <span class="life" title={`${percent(worked)} on a processor, ${percent(waited)} waiting`}>
            <span class="span" style={{ left: "0", width: "100%" }}>
              <span class="work" style={{ width: `${worked * 100}%` }} />
              <span class="wait" style={{ width: `${waited * 100}%` }} />
            </span>
          </span>
        );
      },
    },
    ...(metric ? [{ id: "metric", title: metric.name, width: "104px", right: true, cell: (row: ThreadRow) => figure(own(row)) }] : []),
    ...(meta.timed && !metric
      ? [
          { id: "self", title: "Self", width: "84px", right: true, cell: (row: ThreadRow) => time(data!.waits_measured ? row.self : Math.max(0, row.self - row.waiting)) },
          { id: "waiting", title: "Waiting", width: "84px", right: true, cell: (row: ThreadRow) => time(row.waiting) },
        ]
      : []),
    { id: "calls", title: "Calls", width: "104px", right: true, cell: (row) => <Calls calls={row.calls} bound={data?.at_least} /> },
    { id: "contexts", title: "Contexts", width: "80px", right: true, cell: (row) => count(row.contexts) },
    { id: "share", title: "Of most", width: "70px", right: true, cell: (row) => (isWeighed() ? percent(own(row) / most) : "") },
  ];
  return (
    <div class="main">
      <div class="tools" role="toolbar" aria-label="Threads">
        <span class="muted" data-count>
          {data ? data.threads.length === 1 ? "1 thread" : `${count(data.threads.length)} threads, ${chosen.size ? count(chosen.size) : "all"} shown in every view` : ""}
        </span>
        <By query={() => "threads"} />
        <button onClick={() => set({ threads: [] })} disabled={chosen.size === 0}>
          All threads
        </button>
        <button onClick={() => rows.find((row) => row.thread === at) && withChildren(rows.find((row) => row.thread === at)!)} disabled={at === null || isFile}>
          This and those it made
        </button>
        <span class="scale">
          <i class="swatch work" /> on a processor <i class="swatch wait" /> waiting
        </span>
        {isFile && <span class="muted">Threads are chosen in 'thalweg serve'.</span>}
      </div>
      {error && <Failure text={error} />}
      {data && (
        <Table
          label="Threads"
          columns={columns}
          rows={rows}
          rowKey={(row) => row.thread}
          selected={(row) => row.thread === at}
          onSelect={(row) => setAt(row.thread)}
          onOpen={(row) => !isFile && toggle(row)}
          onKey={(key, row) => key === " " && !isFile && (toggle(row), true)}
          tree={(row) => ({ level: row.level })}
          rowClass={(row) => (chosen.size && !chosen.has(row.thread) ? "faint" : "")}
          empty={match ? "No thread has such a name." : "There are no threads."}
        />
      )}
    </div>
  );
}

/** Each thread followed by those it made. */
function nested(threads: ThreadRow[]): ThreadRow[] {
  const made = new Map<number | null, ThreadRow[]>();
  for (const row of threads) {
    const list = made.get(row.made_by);
    if (list) list.push(row);
    else made.set(row.made_by, [row]);
  }
  const rows: ThreadRow[] = [];
  const stack = [...(made.get(null) ?? [])].reverse();
  while (stack.length) {
    const row = stack.pop()!;
    rows.push(row);
    stack.push(...[...(made.get(row.thread) ?? [])].reverse());
  }
  return rows;
}
