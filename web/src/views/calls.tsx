// Calls that rules have recorded: a list, the time line of the same calls, and the tree of the chosen one with its values.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { CallPage, CallRow, CallTree } from "../responses";
import { isAvailable, ask, isFile, meta, nameOf, part, query, reading, useResponse } from "../api";
import { Choose, Failure, Toggle } from "../controls";
import { count, rustPattern, time } from "../format";
import { FunctionLink } from "../inspector";
import { current, set, State, useStore } from "../store";
import { Column, Table } from "../table";
import { TimeLine } from "./callLine";
import { Durations } from "./durations";

/** As many rows has a page of the list; see crates/cli/src/page/calls.rs. */
const PAGE = 200;

type Parameters = Record<string, string | number | null | undefined>;

/** Which calls: the filters that all queries about them share. A file holds the usual ones only. */
function asked(state: State): Parameters {
  if (isFile) return {};
  return { ...part(state), list: state.list, where: state.where, q: state.q && rustPattern(state.q), f: state.only ? state.sel : null };
}

export function Calls() {
  const state = useStore();
  const recorded = meta.recorded;
  if (!recorded)
    return (
      <div class="blank">
        <p>No single calls were recorded. To record those that matter:</p>
        <pre>thalweg record --rule 'FUNCTIONS: duration &gt; 5ms' -- PROGRAM</pre>
      </div>
    );
  return (
    <div class="split calls">
      <List />
      <aside class="side" aria-label="Chosen call">
        {state.call === null ? <Rules /> : <One id={state.call} />}
        <Durations parameters={isFile ? {} : { ...asked(state), t0: state.t0, t1: state.t1 }} />
      </aside>
    </div>
  );
}

/** The list by its places: pages come as rows of them are drawn. */
function usePages(parameters: Parameters) {
  const base = query("calls", parameters);
  const key = `${reading} ${base}`;
  const [, again] = useState({});
  const held = useRef<{ key: string; pages: Map<number, CallPage>; before: Map<number, CallPage>; asked: Set<number>; error: string | null }>();
  if (held.current?.key !== key) {
    // Of a process that runs, the rows of the last reading stay until the new ones are there.
    const same = held.current?.key.split(" ")[1] === base;
    held.current = { key, pages: new Map(), before: same ? held.current!.pages : new Map(), asked: new Set(), error: null };
  }
  const now = held.current!;
  const load = (n: number) => {
    const text = query("calls", { ...parameters, from: n * PAGE || null });
    if (now.asked.has(n) || !isAvailable(text)) return;
    now.asked.add(n);
    ask(text).then(
      (page: CallPage) => {
        now.pages.set(n, page);
        if (held.current === now) again({});
      },
      (error) => {
        now.error = error.message;
        if (held.current === now) again({});
      },
    );
  };
  useEffect(() => load(0), [key]);
  const peek = (i: number): CallRow | null => {
    const page = now.pages.get(Math.floor(i / PAGE)) ?? now.before.get(Math.floor(i / PAGE));
    return page?.rows[i % PAGE] ?? null;
  };
  const row = (i: number): CallRow | null => {
    if (!now.pages.has(Math.floor(i / PAGE))) load(Math.floor(i / PAGE));
    return peek(i);
  };
  const whole = async (i: number): Promise<CallRow | null> => {
    const page: CallPage = await ask(query("calls", { ...parameters, from: Math.floor(i / PAGE) * PAGE || null }));
    return page.rows[i % PAGE] ?? null;
  };
  return { first: now.pages.get(0) ?? now.before.get(0) ?? null, error: now.error, peek, row, whole };
}

function List() {
  const state = useStore();
  const filter = asked(state);
  const listed = isFile ? {} : { ...filter, sort: state.order !== "at" ? state.order : null, t0: state.t0, t1: state.t1 };
  const pages = usePages(listed);
  const placed = useResponse<{ place: number | null }>(state.call !== null && !isFile ? query("callplace", { ...listed, id: state.call }) : null);
  const { first } = pages;
  const held = isFile ? Math.min(first?.count ?? 0, PAGE) : (first?.count ?? 0);
  const rows = useMemo(() => Array.from({ length: held }, (_, i) => i), [held]);
  const [text, setText] = useState(state.where);
  useEffect(() => setText(state.where), [state.where]);
  const choose = async (i: number) => {
    const row = pages.peek(i) ?? (await pages.whole(i));
    if (row) set({ call: row.id, sel: current().only ? current().sel : row.function }, true);
  };
  const roots = first?.roots ?? meta.recorded!.requests;
  const columns: Column<number>[] = COLUMNS.filter((column) => (column.id !== "within" && column.id !== "request") || roots).map((column) => ({
    ...column,
    fixed: column.fixed || isFile,
    cell: (i) => {
      const row = pages.row(i);
      return row ? column.cell(row) : <span class="muted">…</span>;
    },
  }));
  return (
    <div class="main">
      <div class="tools" role="toolbar" aria-label="Calls">
        <span class="muted" data-count>
          {first ? `${first.count < first.whole ? `${count(first.count)} of ` : ""}${count(first.whole)} ${roots ? "requests" : "chosen calls"}` : ""}
          {first && held < first.count ? `; this file holds the first ${count(held)}` : ""}
        </span>
        {!isFile && (
          <>
            <Choose
              label="List"
              value={state.list || (meta.recorded!.requests ? "roots" : "chosen")}
              options={[
                ["roots", meta.recorded!.requests ? "requests" : "outermost"],
                ["chosen", "chosen calls"],
              ]}
              change={(list) => set({ list })}
            />
            <form
              class="where"
              onSubmit={(event) => {
                event.preventDefault();
                set({ where: text.trim() });
              }}
            >
              <label>
                <span>Where</span>
                <input type="search" value={text} placeholder="duration > 5ms and n >= 100" aria-label="Where: conditions as of thalweg calls --where" title={`duration, self, waiting, function, module, thread, rule, end, pid, tid, request${meta.recorded!.names.map((name) => ", " + name).join("")}`} spellcheck={false} onInput={(event) => (setText(event.currentTarget.value), event.currentTarget.value || set({ where: "" }))} />
              </label>
              <button>Find</button>
            </form>
            {state.sel !== null && <Toggle label={`Only ${nameOf(state.sel)}`} hint="Only calls of the selected function" on={state.only} change={(only) => set({ only })} />}
          </>
        )}
      </div>
      {pages.error && <Failure text={pages.error} />}
      <TimeLine filter={filter} />
      {first && (
        <Table
          label="Recorded calls"
          columns={columns}
          rows={rows}
          rowKey={(i) => i}
          selected={(i) => state.call !== null && (placed.data && !placed.late ? placed.data.place === i : pages.peek(i)?.id === state.call)}
          sort={isFile ? undefined : state.order}
          onSort={isFile ? undefined : (order) => set({ order }, true)}
          onSelect={(i) => void choose(i)}
          onOpen={() => state.sel !== null && set({ view: "function" })}
          rowClass={(i) => (pages.peek(i)?.end === "unwound" ? "odd-end" : "")}
          empty={first.whole ? "None of the recorded calls is like that." : "No call was chosen yet."}
        />
      )}
    </div>
  );
}

const COLUMNS: Column<CallRow>[] = [
  { id: "at", title: "At", hint: "When it began, since the recording did", width: "90px", right: true, number: false, cell: (row) => when(row.at) },
  { id: "total", title: "Total", hint: "From entry to exit, waiting included", width: "78px", right: true, number: true, cell: (row) => span(row, row.total) },
  { id: "waiting", title: "Waiting", hint: "Off the processor, callees included", width: "78px", right: true, number: true, cell: (row) => span(row, row.waiting) },
  { id: "request", title: "Request", width: "72px", right: true, number: true, cell: (row) => row.request || "" },
  { id: "within", title: "Chosen", hint: "Chosen calls in it", width: "66px", right: true, number: true, cell: (row) => count(row.within) },
  {
    id: "name",
    title: "Call",
    width: "minmax(220px,1fr)",
    cell: (row) => (
      <span class="name" title={`${row.name}  ${row.values}`}>
        {row.name}
        {row.end !== "returned" && <span class="end"> [{row.end}]</span>}
        <span class="muted"> {row.values}</span>
      </span>
    ),
  },
  { id: "thread", title: "Thread", width: "116px", cell: (row) => <span title={`thread ${row.tid} of process ${row.pid}`}>{row.thread} <span class="muted">{row.tid}</span></span> },
];

function when(ns: number): string {
  return (ns / 1e9).toFixed(6) + " s";
}

function span(row: { end: string }, ns: number): string {
  return row.end === "lost" ? "?" : time(ns);
}

/** What was asked for, while no call is chosen. */
function Rules() {
  const recorded = meta.recorded!;
  return (
    <section class="inspector" aria-label="Rules">
      <p class="empty">Choose a call to see what it called and what was read of it.</p>
      <h3>Rules</h3>
      <ul class="rules">
        {recorded.rules.map((rule) => (
          <li>
            <code>{rule.text}</code> <span class="muted">{count(rule.kept)} chosen</span>
          </li>
        ))}
      </ul>
      {recorded.dropped > 0 && <p class="bad">{count(recorded.dropped)} chosen calls found no room and were dropped.</p>}
    </section>
  );
}

type Branch = CallTree["rows"][number];

function One({ id }: { id: number }) {
  const { data, error } = useResponse<CallTree>(query("call", { id }));
  const [closed, setClosed] = useState<Set<number>>(new Set());
  useEffect(() => setClosed(new Set()), [id]);
  const rows = useMemo(() => {
    const hidden = new Set<number>();
    return (data?.rows ?? []).map((row, n) => ({ row, n })).filter(({ row, n }) => {
      const below = row.parent !== null && (hidden.has(row.parent) || closed.has(row.parent));
      if (below) hidden.add(n);
      return !below;
    });
  }, [data, closed]);
  if (error) return <p class="empty">{error}</p>;
  const call = data?.rows[data.at];
  if (!data || !call || call.id !== id) return null;
  const parents = new Set(data.rows.map((row) => row.parent));
  const columns: Column<{ row: Branch; n: number }>[] = [
    { id: "total", title: "Total", hint: "From entry to exit, waiting included", width: "70px", right: true, fixed: true, cell: ({ row }) => span(row, row.total) },
    { id: "self", title: "Self", hint: "On a processor, in the function itself", width: "70px", right: true, fixed: true, cell: ({ row }) => span(row, row.self) },
    {
      id: "name",
      title: "Call",
      width: "minmax(240px,1fr)",
      fixed: true,
      cell: ({ row, n }) => (
        <span class={`indented ${row.rule === null ? "muted" : ""}`} style={{ paddingLeft: `${Math.min(row.level, 30) * 11}px` }} title={`${row.name}${row.values.map((v) => `  ${v.entry ? "" : "-> "}${v.name}=${shown(v.value)}`).join("")}`}>
          <span class="twist">{parents.has(n) ? (closed.has(n) ? "▸" : "▾") : ""}</span>
          {row.name}
          {row.end !== "returned" && <span class="end"> [{row.end}]</span>}
          {row.values.map((v) => (
            <span class="value-of">
              {v.entry ? " " : " → "}
              <i>{v.name}</i>={shown(v.value)}
            </span>
          ))}
        </span>
      ),
    },
  ];
  const toggle = (n: number) => {
    const next = new Set(closed);
    if (!next.delete(n)) next.add(n);
    setClosed(next);
  };
  return (
    <div class="call">
      <section class="inspector" aria-label="Chosen call">
        <h2>
          <FunctionLink f={call.function} />
        </h2>
        <p class="muted module">{call.module}</p>
        <dl class="figures">
          <Figure name="began" value={when(call.at)} />
          <Figure name="total" value={span(call, call.total)} />
          <Figure name="self" value={span(call, call.self)} />
          <Figure name="waiting" value={span(call, call.waiting)} />
          <Figure name="ended" value={call.end} />
          <Figure name="thread" value={`${call.thread} ${call.tid}${call.pid === call.tid ? "" : ` of ${call.pid}`}`} />
          {call.request > 0 && <Figure name="request" value={count(call.request)} />}
          {data.calls > 0 && <Figure name="below it" value={`${count(data.calls)} calls`} />}
        </dl>
        {call.rule !== null && (
          <p class="rule">
            <span class="muted">chosen by</span> <code>{meta.recorded!.rules[call.rule]?.text}</code>
          </p>
        )}
        {call.values.length > 0 && (
          <table class="values" aria-label="Values">
            <tbody>
              {call.values.map((v) => (
                <tr class={v.name.startsWith("exception") ? "bad" : ""}>
                  <th scope="row">{v.name}</th>
                  <td class="muted">{v.entry ? "at entry" : "at exit"}</td>
                  <td>
                    <code>{shown(v.value)}</code>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </section>
      <Table
        label="Tree of the call"
        columns={columns}
        rows={rows}
        rowKey={({ n }) => n}
        selected={({ row }) => row.id === id}
        onSelect={({ row, n }) => (row.id === id ? toggle(n) : set({ sel: row.function }, true))}
        onOpen={({ row }) => set({ call: row.id, sel: row.function })}
        onKey={(key, { n }) => (key === "ArrowLeft" && !closed.has(n) && parents.has(n) ? (toggle(n), true) : key === "ArrowRight" && closed.has(n) ? (toggle(n), true) : false)}
        tree={({ row, n }) => ({ level: row.level, open: parents.has(n) ? !closed.has(n) : undefined })}
        rowClass={({ row }) => (row.end === "unwound" ? "odd-end" : "")}
        empty=""
      />
    </div>
  );
}

function Figure({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

/** Text in quotes, what could not be read as such, the rest as JSON has it. */
function shown(value: unknown): string {
  if (value && typeof value === "object" && "missing" in value) return `(${String((value as { missing: unknown }).missing)})`;
  return JSON.stringify(value) ?? "?";
}
