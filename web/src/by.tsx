// What the figures are of: time, calls, or any metric that the profile has.
import { isAvailable, meta, metricOf } from "./api";
import { Choose } from "./controls";
import { set, State, useStore } from "./store";

/** `every`: calls and wall time as well, where a view can be weighed by them. What a file does not hold is not offered. */
export function By({ every, query, patch, change }: { every?: boolean; query: (metric: string) => string; patch?: Partial<State>; change?: () => void }) {
  const state = useStore();
  const options: [string, string][] = [["", meta.timed ? "time" : "calls"]];
  if (every && meta.timed) options.push(["calls", "calls"]);
  if (every && meta.wall) options.push(["wall", "wall time"]);
  for (const { name } of meta.metrics) options.push([name, name]);
  const held = options.filter(([metric]) => !metric || isAvailable(query(metric)));
  if (held.length < 2 && !every) return null;
  const value = every || metricOf(state) ? state.metric : "";
  return (
    <Choose
      label="By"
      value={value}
      options={held}
      change={(metric) => {
        set({ metric, ...patch });
        change?.();
      }}
    />
  );
}
