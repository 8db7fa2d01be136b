// How long the listed calls took: a histogram, each bar of which chooses the calls in it.
import { isFile, meta, query, useResponse } from "../api";
import { count, time } from "../format";
import type { Durations as Data } from "../responses";
import { set, useStore } from "../store";

export function Durations({ parameters }: { parameters: Record<string, string | number | null | undefined> }) {
  const { where, list } = useStore();
  // A request is found by any call in it: a bar could not choose its requests.
  const roots = list ? list === "roots" : meta.recorded!.requests;
  const { data } = useResponse<Data>(query("calldurations", parameters));
  if (!data || data.calls === 0) return null;
  const most = Math.max(...data.buckets.map((bucket) => bucket.calls));
  return (
    <section class="durations inspector" aria-label="Durations of the listed calls">
      <h3>Durations</h3>
      <p class="muted">
        half within <b>{time(data.median_ns)}</b>, 90 % <b>{time(data.p90_ns)}</b>, 99 % <b>{time(data.p99_ns)}</b>, all <b>{time(data.longest_ns)}</b>
      </p>
      {without(where) !== where && (
        <button class="plain" data-all onClick={() => set({ where: without(where) })}>
          all durations
        </button>
      )}
      <ul>
        {data.buckets.map((bucket) => {
          const within = between(bucket.from_ns, bucket.to_ns);
          const text = `${time(bucket.from_ns)} to ${time(bucket.to_ns)}: ${count(bucket.calls)} calls`;
          return (
            <li>
              <button data-calls={bucket.calls} disabled={isFile || roots || !bucket.calls} title={text} aria-label={text} onClick={() => set({ where: [without(where), within].filter(Boolean).join(" and ") })}>
                <span class="from">{time(bucket.from_ns)}</span>
                <span class="bar">
                  <i style={{ width: `${(100 * bucket.calls) / most}%` }} />
                </span>
                <span class="calls">{bucket.calls ? count(bucket.calls) : ""}</span>
              </button>
            </li>
          );
        })}
      </ul>
    </section>
  );
}

/** As `thalweg calls --where` reads it. */
function between(from: number, to: number): string {
  return `duration >= ${exact(from)} and duration < ${exact(to)}`;
}

function without(where: string): string {
  const parts = where.split(/ and |&&/).map((part) => part.trim());
  return parts.filter((part) => part && !/^duration\b/.test(part)).join(" and ");
}

/** In the largest unit in which it is whole; a bare number is nanoseconds. */
function exact(ns: number): string {
  for (const [unit, scale] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]] as const) if (ns >= scale && ns % scale === 0) return ns / scale + unit;
  return String(ns);
}
