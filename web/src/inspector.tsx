// The selected function beside whatever view: its figures, who calls it, what it calls.
import type { ComponentChildren } from "preact";
import type { ArcRow, OneFunction } from "./responses";
import { figure, isWeighed, labelOf, languageOf, metricOf, nameOf, query, unitOf, useResponse, useWhole, weighedPart } from "./api";
import { atLeast, count, inUnit, percent, plusMinus, short, time } from "./format";
import { Probes } from "./probes";
import { link, set, useStore } from "./store";

export function Inspector({ actions }: { actions?: ComponentChildren }) {
  const state = useStore();
  const { data, error } = useResponse<OneFunction>(state.sel === null ? null : query("function", { ...weighedPart(state), f: state.sel }));
  const whole = useWhole();
  if (state.sel === null)
    return (
      <section class="inspector" aria-label="Selected function">
        <p class="empty">Select a function to see who calls it and what it calls.</p>
      </section>
    );
  const shown = data?.function === state.sel ? data : null;
  return (
    <section class="inspector" aria-label="Selected function">
      <h2 title={nameOf(state.sel)}>
        <a href={link({ view: "function" })} onClick={(event) => go(event, () => set({ view: "function" }))}>
          <Mark f={state.sel} />
          {nameOf(state.sel)}
        </a>
      </h2>
      {error && <p class="empty">{error}</p>}
      {actions}
      <Probes f={state.sel} name={nameOf(state.sel)} />
      {shown && (
        <>
          <p class="muted module">{shown.module}</p>
          <dl class="figures">
            {isWeighed() && (
              <>
                <Figure name="self" value={figure(shown.self)} error={plusMinus(shown.self_error, figure)} share={shown.self / whole} hint={shown.self_error ? ERROR : undefined} />
                <Figure name="total" value={figure(shown.total)} error={plusMinus(shown.total_error, figure)} share={shown.total / whole} hint={shown.total_error ? ERROR : undefined} />
              </>
            )}
            <Figure name="calls" value={shown.calls || !shown.samples ? atLeast(count(shown.calls), shown.at_least) : "–"} hint={shown.at_least ? BOUND : undefined} />
            {shown.samples > 0 && <Figure name="samples" value={count(shown.samples)} />}
            {isWeighed() && shown.calls > 0 && !shown.at_least && <Figure name="self per call" value={figure(shown.self / shown.calls)} error={plusMinus(shown.self_error / shown.calls, figure)} hint={shown.self_error ? ERROR : undefined} />}
            {shown.waiting > 0 && <Figure name="waiting" value={time(shown.waiting)} />}
            {metricOf(state) === null && Object.entries(shown.metrics).map(([name, value]) => <Figure name={name} value={inUnit(value, unitOf(name))} />)}
            {shown.recursion > 0 && <Figure name="recursion" value={`${count(shown.recursion)} deep`} />}
          </dl>
          <Arcs title="Callers" arcs={shown.parents} whole={isWeighed() ? shown.total : shown.calls} />
          <Arcs title="Callees" arcs={shown.children} whole={isWeighed() ? shown.total : shown.children.reduce((n, arc) => n + arc.calls, 0)} />
        </>
      )}
    </section>
  );
}

const ERROR = "The truth is within \u00b1 19 times of 20";
const BOUND = "A lower bound: the probes were off for a while";

/** A figure and how far off it may be. */
export function WithError({ value, error }: { value: number; error: number | undefined }) {
  if (!error) return <>{figure(value)}</>;
  return (
    <span title={ERROR}>
      {figure(value)}
      <span class="muted error">{plusMinus(error, figure)}</span>
    </span>
  );
}

/** Calls, which may be a lower bound. */
export function Calls({ calls, bound }: { calls: number; bound: boolean | number | undefined }) {
  return bound ? <span title={BOUND}>{atLeast(count(calls), bound)}</span> : <>{count(calls)}</>;
}

function Figure({ name, value, error, share, hint }: { name: string; value: string; error?: string; share?: number; hint?: string }) {
  return (
    <div title={hint}>
      <dt>{name}</dt>
      <dd>
        {value}
        {error && <span class="muted error">{error}</span>}
        {share !== undefined && <div class="muted">{percent(share)}</div>}
      </dd>
    </div>
  );
}

const MOST = 8;

function Arcs({ title, arcs, whole }: { title: string; arcs: ArcRow[]; whole: number }) {
  return (
    <div class="arcs">
      <h3>
        {title} <span class="muted">{count(arcs.length)}</span>
      </h3>
      {arcs.length === 0 && <p class="empty">none</p>}
      <ul>
        {arcs.slice(0, MOST).map((arc) => (
          <li>
            <ArcName arc={arc} />
            <span class="share">
              {percent((isWeighed() ? arc.total : arc.calls) / Math.max(1, whole))}
              <span class="muted"> {atLeast(short(arc.calls), arc.at_least)}×</span>
            </span>
          </li>
        ))}
        {arcs.length > MOST && <li class="muted">and {count(arcs.length - MOST)} more</li>}
      </ul>
    </div>
  );
}

/** The other end of a call, which can be gone to. */
export function ArcName({ arc }: { arc: ArcRow }) {
  const f = arc.function;
  if (f === null) return <span class="name muted">{arc.unknown ? "(caller not kept)" : "(start)"}</span>;
  return <FunctionLink f={f} />;
}

export function FunctionLink({ f }: { f: number }) {
  return (
    <a class="name" href={link({ sel: f })} title={nameOf(f)} data-f={f} onClick={(event) => go(event, () => set({ sel: f }))}>
      <Mark f={f} />
      {labelOf(f)}
    </a>
  );
}

const MARKS: Record<string, [string, string]> = { java: ["J", "Java"], python: ["Py", "Python"], go: ["Go", "Go"] };

/** The language of a function that is not native. */
export function Mark({ f }: { f: number }) {
  const mark = MARKS[languageOf(f)];
  return mark ? <span class="mark" role="img" aria-label={mark[1]} title={mark[1]} data-mark={mark[0]} /> : null;
}

/** A plain click acts here; with a key or another button the browser does what it does with links. */
export function go(event: MouseEvent, act: () => void): void {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  act();
}
