// What the probes of functions do while the process runs: shown, and switched as `thalweg switch` does it.
import { useState } from "preact/hooks";
import type { Functions, SwitchedFunction } from "./responses";
import { act, meta, query, useResponse } from "./api";

export const STATES = [
  ["timed", "Timed", "count and time every call"],
  ["timed 1 in 64", "1 in 64", "count every call, time about one in 64"],
  ["counted", "Counted", "count every call, time none"],
  ["off", "Off", "take the probes out: nothing is known of its calls"],
] as const;

/** The mode out of what the server says of a function: `timed 1 in 64, 98% est.` */
export function stateWord(text: string | undefined): string {
  return STATES.map(([state]) => state).filter((state) => text?.startsWith(state)).sort((a, b) => b.length - a.length)[0] ?? text?.split(/[ ,]/)[0] ?? "timed";
}

/** What can be said of functions by their numbers: `off 87%`. */
export function useStates(): (f: number) => string {
  const functions = useResponse<Functions>(meta.live ? "functions" : null).data;
  const switched = useResponse<SwitchedFunction[]>(meta.live ? "switched" : null).data;
  return (f) => {
    const i = functions?.function.indexOf(f) ?? -1;
    return (i >= 0 ? functions?.state?.[i] : undefined) ?? switched?.find((one) => one.function === f)?.state ?? "timed";
  };
}

export interface Said {
  text: string;
  bad: boolean;
}

/** Switches the functions of these numbers, or all whose names match. */
export function switchProbes(which: { f: number } | { match: string }, state: string): Promise<Said> {
  return act(query("switch", { ...which, state })).then(
    (text) => ({ text, bad: false }),
    (error) => ({ text: error.message, bad: true }),
  );
}

/** The states as buttons; `now` is the one that stands. */
export function StateButtons({ of, now, choose, disabled }: { of: string; now?: string; choose: (state: string) => void; disabled?: boolean }) {
  return (
    <span class="states" role="group" aria-label={`Probes of ${of}`}>
      {STATES.map(([state, title, what]) => (
        <button class="toggle" key={state} data-state={state} aria-pressed={now === undefined ? undefined : now === state} aria-label={`${title}: ${what}, of ${of}`} title={what} disabled={disabled} onClick={() => choose(state)}>
          {title}
        </button>
      ))}
    </span>
  );
}

/** Of one function, of a process that still runs; nothing otherwise. */
export function Probes({ f, name }: { f: number; name: string }) {
  const state = useStates()(f);
  const [said, say] = useState<(Said & { f: number }) | null>(null);
  if (!meta.live) return null;
  const choose = (to: string) => void switchProbes({ f }, to).then((said) => say({ ...said, f }));
  return (
    <div class="probes" data-state={stateWord(state)}>
      <span class="muted">Probes{state.includes(" ") ? ` (${state})` : ""}</span>
      <StateButtons of={name} now={stateWord(state)} choose={choose} disabled={meta.live.ended} />
      <SwitchResponse said={said?.f === f ? said : null} />
    </div>
  );
}

/** What the server said to the last order. */
export function SwitchResponse({ said }: { said: Said | null }) {
  return (
    <p role="status" class={`response ${said?.bad ? "bad" : "muted"}`} data-switched>
      {said?.text.trim() ?? ""}
    </p>
  );
}
