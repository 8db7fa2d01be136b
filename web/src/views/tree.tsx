// The tree of contexts: each function as often as there are ways to it.
import { useEffect, useMemo, useState } from "preact/hooks";
import { ask, figure, figureName, finder, isFile, isWeighed, labelOf, part, query, useResponse, weightOf } from "../api";
import { FOLDED, SAMPLED, type TreeRows } from "../responses";
import { By } from "../by";
import { Failure, Waiting } from "../controls";
import { count, percent } from "../format";
import { Calls, Inspector, Mark } from "../inspector";
import { set, State, useStore } from "../store";
import { Bar, Column, Table } from "../table";

interface Node {
  id: number;
  f: number;
  level: number;
  rl: number;
  calls: number;
  least: boolean;
  self: number;
  total: number;
  weight: number;
  folded: boolean;
  sampled: boolean;
  parent: Node | null;
  children: Node[];
  /** How many it has, whether they were sent or not. */
  all: number;
}

/** So many rows are asked for; a file holds fewer. */
const LIMIT = isFile ? 5000 : 12000;

/** Deep contexts keep some room for their names. */
function indent(level: number): number {
  return Math.min(level, 10) * 14 + Math.min(Math.max(0, level - 10), 60) * 4;
}

export function treeQuery(state: State): string {
  return query("tree", { ...part(state), metric: weightOf(state), limit: LIMIT });
}

export function Tree() {
  const state = useStore();
  const asked = treeQuery(state);
  const { data, error } = useResponse<TreeRows>(asked);
  const [open, setOpen] = useState<Set<number>>(new Set());
  const [at, setAt] = useState<number | null>(null);
  const [version, loaded] = useState(0);
  const roots = useMemo(() => (data ? grow(data, null) : []), [data]);
  const match = useMemo(() => finder(state.q), [state.q]);
  const whole = Math.max(1, data?.whole ?? 1);

  // At first the heaviest path is open.
  useEffect(() => {
    const opened = new Set<number>();
    let nodes = roots;
    for (let node = nodes[0]; node && node.weight * 20 > whole; node = nodes[0]) {
      opened.add(node.id);
      nodes = node.children;
      if (nodes.length > 1 && nodes[0].weight * 5 < node.weight) break;
    }
    setOpen(opened);
    setAt(null);
  }, [roots]);

  const least = (state.cut ?? 0) / 100;
  const wanted = useMemo(() => {
    if (!match) return null;
    const found = new Set<number>();
    const walk = (nodes: Node[]) => {
      const stack = [...nodes];
      while (stack.length) {
        const node = stack.pop()!;
        stack.push(...node.children);
        if (match(node.f)) for (let up: Node | null = node; up && !found.has(up.id); up = up.parent) found.add(up.id);
      }
    };
    walk(roots);
    return found;
  }, [roots, match, version]);

  const rows = useMemo(() => {
    const rows: Node[] = [];
    const stack = [...roots].reverse();
    while (stack.length) {
      const node = stack.pop()!;
      if ((wanted && !wanted.has(node.id)) || node.weight < least * whole) continue;
      rows.push(node);
      if (wanted || open.has(node.id)) for (let i = node.children.length - 1; i >= 0; i--) stack.push(node.children[i]);
      if (rows.length > 100_000) break;
    }
    return rows;
  }, [roots, open, wanted, least, version]);

  const toggle = async (node: Node, to: boolean) => {
    const next = new Set(open);
    if (to) next.add(node.id);
    else next.delete(node.id);
    if (to && node.children.length < node.all && !isFile) {
      const more: TreeRows = await ask(query("tree", { ...part(state), metric: weightOf(state), limit: 2000, at: node.id }));
      const [again] = grow(more, node.parent);
      if (again) {
        node.children = again.children;
        for (const child of node.children) child.parent = node;
        loaded((n) => n + 1);
      }
    }
    setOpen(next);
  };
  const onKey = (key: string, node: Node): boolean => {
    if (key === "ArrowRight") {
      if (node.all && !open.has(node.id)) void toggle(node, true);
      else if (node.children[0]) pick(node.children[0]);
    } else if (key === "ArrowLeft") {
      if (open.has(node.id)) void toggle(node, false);
      else if (node.parent) pick(node.parent);
    } else if (key === "x") {
      // The heaviest path below.
      const next = new Set(open);
      for (let at: Node | undefined = node; at; at = at.children[0]?.weight * 5 >= at.weight ? at.children[0] : undefined) next.add(at.id);
      setOpen(next);
    } else if (key === "z") set({ view: "flame", at: node.id });
    else return false;
    return true;
  };
  const pick = (node: Node) => {
    setAt(node.id);
    set({ sel: node.f }, true);
  };

  const columns: Column<Node>[] = [
    { id: "level", title: "Level", width: "50px", right: true, cell: (n) => n.level },
    { id: "rl", title: "RL", hint: "Recursion level", width: "40px", right: true, cell: (n) => n.rl || "" },
    { id: "calls", title: "Calls", width: "100px", right: true, cell: (n) => (n.calls || !n.sampled ? <Calls calls={n.calls} bound={n.least} /> : "–") },
    ...(isWeighed()
      ? [
          { id: "self", title: "Self", hint: `${figureName()} without all below`, width: "84px", right: true, cell: (n: Node) => figure(n.self) },
          { id: "total", title: "Total", hint: `${figureName()} with all below`, width: "84px", right: true, cell: (n: Node) => figure(n.total) },
        ]
      : []),
    { id: "share", title: "Share", width: "86px", right: true, cell: (n) => <Bar share={n.weight / whole} text={percent(n.weight / whole)} kind="total" /> },
    {
      id: "name",
      title: "Name",
      width: "minmax(320px,1fr)",
      cell: (n) => (
        <span class="indented" style={{ paddingLeft: `${indent(n.level)}px` }}>
          {n.all > 0 ? (
            <button
              class="twist"
              tabIndex={-1}
              aria-label={open.has(n.id) ? "Close" : "Open"}
              onClick={(event) => {
                event.stopPropagation();
                void toggle(n, !open.has(n.id));
              }}
            >
              {open.has(n.id) || wanted ? "▾" : "▸"}
            </button>
          ) : (
            <span class="twist" />
          )}
          <Mark f={n.f} />
          <span class={match?.(n.f) ? "found" : ""}>{labelOf(n.f)}</span>
          {n.folded && <span class="muted"> (context not kept)</span>}
          {n.sampled && <span class="muted" title="Its time, or how its calls are divided among its callers, comes from samples"> (sampled)</span>}
        </span>
      ),
    },
  ];
  return (
    <div class="split">
      <div class="main">
        <div class="tools">
          <By every query={(metric) => treeQuery({ ...state, metric })} change={() => setAt(null)} />
          <span class="muted" data-count>
            {data ? `${count(rows.length)} of ${count(data.contexts)} contexts shown` : ""}
            {data && data.id.length < data.contexts && isFile ? `; this file holds the ${count(data.id.length)} heaviest` : ""}
          </span>
          <button onClick={() => setOpen(new Set(everyOpen(roots, whole)))}>Open all above 1 %</button>
          <button onClick={() => setOpen(new Set())}>Close all</button>
          {state.cut !== null && (
            <button onClick={() => set({ cut: null })} title="Contexts below the time filter are left out">
              below {state.cut} % left out ×
            </button>
          )}
        </div>
        {error && <Failure text={error} />}
        {!data && !error && <Waiting />}
        {data && (
          <Table
            label="Contexts"
            columns={columns}
            rows={rows}
            rowKey={(n) => n.id}
            selected={(n) => (at !== null ? n.id === at : n.f === state.sel && rows.find((row) => row.f === state.sel) === n)}
            onSelect={pick}
            onOpen={(n) => void toggle(n, !open.has(n.id))}
            onKey={onKey}
            tree={(n) => ({ level: n.level, open: n.all ? open.has(n.id) || wanted !== null : undefined })}
            rowClass={(n) => (at !== null && n.f === state.sel && n.id !== at ? "same" : "")}
            empty={match ? "No context has such a function among those that were sent." : "There are no contexts."}
          />
        )}
      </div>
      <aside class="side">
        <Inspector />
      </aside>
    </div>
  );
}

/** Rows as nodes with their links. */
function grow(data: TreeRows, above: Node | null): Node[] {
  const nodes: Node[] = [];
  const roots: Node[] = [];
  for (let i = 0; i < data.id.length; i++) {
    const parent = data.parent[i] < 0 ? above : nodes[data.parent[i]];
    const node: Node = {
      id: data.id[i],
      f: data.function[i],
      level: data.level[i],
      rl: data.recursion[i],
      calls: data.calls[i],
      least: data.at_least?.[i] === 1,
      self: data.self[i],
      total: data.total[i],
      weight: data.weight[i],
      folded: (data.flags[i] & FOLDED) !== 0,
      sampled: (data.flags[i] & SAMPLED) !== 0,
      parent,
      children: [],
      all: data.children[i],
    };
    nodes.push(node);
    if (data.parent[i] < 0) roots.push(node);
    else parent!.children.push(node);
  }
  return roots;
}

function everyOpen(roots: Node[], whole: number): number[] {
  const ids: number[] = [];
  const stack = [...roots];
  while (stack.length) {
    const node = stack.pop()!;
    if (node.weight * 100 < whole) continue;
    ids.push(node.id);
    stack.push(...node.children);
  }
  return ids;
}
