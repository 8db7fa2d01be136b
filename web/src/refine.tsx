// What is shown, in every view, by names on the way to a context: pprof's "Refine". It stands in the address, so that a link
// shows a colleague the same.
import { useState } from "preact/hooks";
import { isFile, meta, nameOf } from "./api";
import { isPattern } from "./format";
import { current, set, State, useStore } from "./store";

const PATTERNS = [
  ["focus", "Focus", "--focus", "only what has it on its way"],
  ["ignore", "Ignore", "--ignore", "nothing that has it on its way"],
  ["hide", "Hide", "--hide", "its time is its caller's"],
  ["from", "Show from", "--show-from", "what stands above it goes"],
] as const;

const GRANULARITY = [
  ["", "each function"],
  ["file", "each file"],
  ["module", "each module"],
] as const;

export function Refine() {
  const state = useStore();
  const [said, say] = useState("");
  if (isFile) return null;
  const exactly = state.sel === null ? null : `^${escaped(nameOf(state.sel))}$`;
  const copy = () => {
    const command = commandOf(current());
    const done = navigator.clipboard?.writeText(command);
    void (done ?? Promise.reject()).then(
      () => say(`copied: ${command}`),
      () => say(command),
    );
  };
  const active = PATTERNS.filter(([key]) => state[key]).length + (state.per ? 1 : 0);
  return (
    <details class="refine">
      <summary>Refine{active > 0 && <b> {active}</b>}</summary>
      <div class="choices">
        {PATTERNS.map(([key, title, , hint]) => (
          <label key={key} title={hint}>
            <span>{title}</span>
            <Pattern of={title} value={state[key]} change={(value) => set({ [key]: value, at: null })} />
            {exactly !== null && (
              <button title={`${title}: ${nameOf(state.sel!)}`} onClick={() => set({ [key]: exactly, at: null })}>
                selected
              </button>
            )}
          </label>
        ))}
        <label>
          <span>One for</span>
          <select aria-label="Granularity" value={state.per} onChange={(event) => set({ per: event.currentTarget.value, sel: null, root: null, at: null })}>
            {GRANULARITY.map(([id, text]) => (
              <option value={id} key={id}>
                {text}
              </option>
            ))}
          </select>
        </label>
        <div class="actions">
          <button onClick={copy} title="The terminal's command for what is on the screen">
            Copy as command
          </button>
          <button disabled={active === 0} onClick={() => set({ focus: "", ignore: "", hide: "", from: "", per: "", at: null })}>
            Clear
          </button>
        </div>
        {said && (
          <p role="status" class="muted command">
            {said}
          </p>
        )}
      </div>
    </details>
  );
}

/** What is in force, as chips that can be dropped. */
export function RefineChips() {
  const state = useStore();
  return (
    <>
      {PATTERNS.filter(([key]) => state[key]).map(([key, title]) => (
        <button key={key} class="chip" onClick={() => set({ [key]: "", at: null })} title={`Drop: ${title} ${state[key]}`}>
          {title.toLowerCase()} <b>{state[key].replace(/^\^(.*)\$$/, "$1").replace(/\\(.)/g, "$1")}</b> <span aria-hidden="true">×</span>
        </button>
      ))}
      {state.per && (
        <button class="chip" onClick={() => set({ per: "", sel: null, root: null, at: null })} title="Back to functions">
          by <b>{state.per}</b> <span aria-hidden="true">×</span>
        </button>
      )}
    </>
  );
}

/** Takes effect with Enter, or when it is left. */
function Pattern({ of, value, change }: { of: string; value: string; change: (value: string) => void }) {
  const [text, setText] = useState<string | null>(null);
  const shown = text ?? value;
  const bad = !isPattern(shown);
  const done = () => {
    if (text !== null && !bad && text !== value) change(text);
    if (!bad) setText(null);
  };
  return (
    <input
      value={shown}
      placeholder="regular expression"
      spellcheck={false}
      aria-label={of}
      aria-invalid={bad}
      title={bad ? "invalid pattern" : undefined}
      onInput={(event) => setText(event.currentTarget.value)}
      onBlur={done}
      onKeyDown={(event) => event.key === "Enter" && done()}
    />
  );
}

function escaped(name: string): string {
  return name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

function quoted(text: string): string {
  return /^[\w./:=@%,+-]+$/.test(text) ? text : `'${text.replace(/'/g, "'\\''")}'`;
}

/** The terminal's command for what is on the screen. */
export function commandOf(state: State): string {
  const words = [];
  const name = state.sel === null ? null : quoted(nameOf(state.sel));
  switch (state.view) {
    case "river":
      words.push("graph", "-o", "river.svg", ...(state.cut === null ? [] : ["--cutoff", String(state.cut)]), ...(state.root === null ? [] : ["--root", quoted(nameOf(state.root))]));
      break;
    case "functions":
    case "live":
      words.push("report", "--flat");
      break;
    case "function":
      words.push("report", ...(name ? ["--callers", name] : ["--flat"]));
      break;
    case "timeline":
      words.push("serve");
      break;
    case "tree":
      words.push("report", "--tree");
      break;
    case "flame":
      if (state.shape === "sandwich" && name) words.push("report", "--callers", name);
      else if (state.shape) words.push("report", "--flat");
      else words.push("export", "--format", "folded");
      break;
    case "compare":
      words.push("diff", "BEFORE");
      break;
    default:
      words.push(state.view, ...(state.view === "calls" && state.where ? ["--where", quoted(state.where)] : []));
  }
  for (const [key, , option] of PATTERNS) if (state[key]) words.push(option, quoted(state[key]));
  if (state.per) words.push("--granularity", state.per);
  if (meta.metrics.some((metric) => metric.name === state.metric)) words.push("--by", state.metric);
  return ["thalweg", ...words, meta.live ? `-p ${meta.live.pid}` : quoted(meta.origin)].join(" ");
}
