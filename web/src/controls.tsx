// Small parts that several views have: choices, switches, figures, failures.

export function Choose({ label, value, options, change }: { label: string; value: string; options: [string, string][]; change: (value: string) => void }) {
  return (
    <label class="choose">
      <span>{label}</span>
      <select value={value} onChange={(event) => change(event.currentTarget.value)} aria-label={label} disabled={options.length < 2}>
        {options.map(([id, text]) => (
          <option value={id} key={id}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}

export function Toggle({ label, hint, on, change, disabled }: { label: string; hint?: string; on: boolean; change: (on: boolean) => void; disabled?: boolean }) {
  return (
    <button class="toggle" aria-pressed={on} onClick={() => change(!on)} title={hint} disabled={disabled}>
      {label}
    </button>
  );
}

export function Failure({ text }: { text: string }) {
  return (
    <p class="failure" role="alert">
      {text}
    </p>
  );
}

/** Where a response is on its way: seen only if that takes long. */
export function Waiting() {
  return (
    <p class="empty over waiting" role="status">
      Computing …
    </p>
  );
}

export function Tile({ name, value, error, note }: { name: string; value: string; error?: string; note: string }) {
  return (
    <div class="tile">
      <span class="label">{name}</span>
      <span class="value">
        {value}
        {error && <span class="error muted">{error}</span>}
      </span>
      <span class="note" title={note}>
        {note}
      </span>
    </div>
  );
}
