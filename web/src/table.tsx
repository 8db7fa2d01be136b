// A table of any length: only the rows in sight exist. Headers sort, arrow keys move, Enter opens.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export interface Column<Row> {
  id: string;
  title: string;
  /** What it means, for those who point at it. */
  hint?: string;
  /** As in grid-template-columns. */
  width: string;
  right?: boolean;
  /** Largest first when it is sorted by it for the first time. */
  number?: boolean;
  fixed?: boolean;
  cell: (row: Row) => ComponentChildren;
}

interface Props<Row> {
  label: string;
  columns: Column<Row>[];
  rows: Row[];
  rowKey: (row: Row) => string | number;
  selected: (row: Row) => boolean;
  /** `-self`: by self, largest first. */
  sort?: string;
  onSort?: (sort: string) => void;
  onSelect: (row: Row) => void;
  onOpen?: (row: Row) => void;
  /** Further keys; gives whether the key meant something. */
  onKey?: (key: string, row: Row) => boolean;
  /** Of a tree: level and whether it is open. */
  tree?: (row: Row) => { level: number; open?: boolean };
  rowClass?: (row: Row) => string;
  empty: string;
}

const HEIGHT = 25;
const HEAD = 27;
const BEYOND = 8;

export function Table<Row>(props: Props<Row>) {
  const { columns, rows } = props;
  const body = useRef<HTMLDivElement>(null);
  const [scroll, setScroll] = useState({ top: 0, height: 600 });
  const at = rows.findIndex(props.selected);
  const [cursor, setCursor] = useState(-1);
  const active = cursor >= 0 && cursor < rows.length ? cursor : at;

  useLayoutEffect(() => {
    const element = body.current!;
    const measure = () => setScroll({ top: element.scrollTop, height: element.clientHeight });
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(element);
    return () => watch.disconnect();
  }, []);

  const show = (i: number) => {
    const element = body.current;
    if (!element || i < 0) return;
    const top = i * HEIGHT;
    const room = element.clientHeight;
    // What is far away comes to the middle.
    if (top < element.scrollTop - room || top > element.scrollTop + 2 * room) element.scrollTop = top - room / 2;
    else if (top < element.scrollTop) element.scrollTop = top;
    else if (top + HEIGHT + HEAD > element.scrollTop + element.clientHeight) element.scrollTop = top + HEIGHT + HEAD - element.clientHeight;
  };
  // What was selected elsewhere comes into sight, and a new order begins at its top.
  useEffect(() => show(at), [at, props.sort]);
  useEffect(() => setCursor(at), [at]);

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(scroll.height / HEIGHT) - 1);
    const steps: Record<string, number> = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -rows.length,
      End: rows.length,
    };
    if (event.key in steps) {
      const next = Math.max(0, Math.min(rows.length - 1, (active < 0 && steps[event.key] > 0 ? -1 : active) + steps[event.key]));
      if (rows[next] !== undefined) {
        setCursor(next);
        props.onSelect(rows[next]);
        show(next);
      }
    } else if (active >= 0 && props.onKey?.(event.key, rows[active])) {
      // It was theirs.
    } else if (event.key === "Enter" && active >= 0) props.onOpen?.(rows[active]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const first = Math.max(0, Math.floor(scroll.top / HEIGHT) - BEYOND);
  const last = Math.min(rows.length, Math.ceil((scroll.top + scroll.height) / HEIGHT) + BEYOND);
  const template = columns.map((column) => column.width).join(" ");
  // Narrower than this, the table scrolls sideways.
  const least = `${columns.reduce((sum, column) => sum + Number(/(\d+)px/.exec(column.width)![1]), 20)}px`;
  const sorted = props.sort?.replace("-", "");
  const id = `table-${props.label.replace(/\W+/g, "-")}`;
  return (
    <div class="table" role={props.tree ? "treegrid" : "grid"} aria-label={props.label} aria-rowcount={rows.length + 1} aria-colcount={columns.length}>
      <div
        class="tbody"
        ref={body}
        tabIndex={0}
        onScroll={(event) => setScroll({ top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight })}
        onKeyDown={onKeyDown}
        aria-activedescendant={active >= 0 ? `${id}-${active}` : undefined}
        aria-label={`${props.label}, ${rows.length} rows`}
      >
        <div class="thead" role="row" aria-rowindex={1} style={{ gridTemplateColumns: template, minWidth: least }}>
          {columns.map((column) => (
            <div
              role="columnheader"
              class={column.right ? "right" : ""}
              aria-sort={sorted === column.id ? (props.sort!.startsWith("-") ? "descending" : "ascending") : props.onSort && !column.fixed ? "none" : undefined}
            >
              {props.onSort && !column.fixed ? (
                <button
                  title={column.hint}
                  onClick={() => {
                    const same = sorted === column.id;
                    const down = same ? !props.sort!.startsWith("-") : column.number;
                    props.onSort!((down ? "-" : "") + column.id);
                  }}
                >
                  {column.title}
                  <span class="arrow" aria-hidden="true">
                    {sorted === column.id ? (props.sort!.startsWith("-") ? "▾" : "▴") : ""}
                  </span>
                </button>
              ) : (
                <span title={column.hint}>{column.title}</span>
              )}
            </div>
          ))}
        </div>
        {rows.length === 0 && <p class="empty">{props.empty}</p>}
        <div class="spacer" style={{ height: `${rows.length * HEIGHT}px`, minWidth: least }}>
          {rows.slice(first, last).map((row, n) => {
            const i = first + n;
            const place = props.tree?.(row);
            return (
              <div
                key={props.rowKey(row)}
                id={`${id}-${i}`}
                class={`tr ${i % 2 ? "odd" : ""} ${props.selected(row) ? "selected" : ""} ${i === active ? "active" : ""} ${props.rowClass?.(row) ?? ""}`}
                role="row"
                aria-rowindex={i + 2}
                aria-selected={props.selected(row)}
                aria-level={place ? place.level + 1 : undefined}
                aria-expanded={place?.open}
                style={{ top: `${i * HEIGHT}px`, height: `${HEIGHT}px`, gridTemplateColumns: template }}
                onClick={() => {
                  setCursor(i);
                  props.onSelect(row);
                }}
                onDblClick={() => props.onOpen?.(row)}
              >
                {columns.map((column) => (
                  <div role="gridcell" class={column.right ? "right" : ""} data-column={column.id}>
                    {column.cell(row)}
                  </div>
                ))}
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}

/** Sorted by the value of a column; equal ones by what they had before. */
export function sortRows<Row>(rows: Row[], sort: string, value: (row: Row, column: string) => number | string): Row[] {
  const down = sort.startsWith("-");
  const column = sort.replace("-", "");
  const keyed = rows.map((row) => ({ row, key: value(row, column) }));
  keyed.sort((a, b) => {
    const order = typeof a.key === "number" ? a.key - (b.key as number) : a.key < b.key ? -1 : a.key > b.key ? 1 : 0;
    return down ? -order : order;
  });
  return keyed.map((entry) => entry.row);
}

/** A share as a bar behind its figure. */
export function Bar({ share, text, kind = "" }: { share: number; text: string; kind?: string }) {
  return (
    <span class="bar">
      <span class={`fill ${kind}`} style={{ width: `${Math.max(0, Math.min(100, share * 100))}%` }} />
      <span class="figure">{text}</span>
    </span>
  );
}
