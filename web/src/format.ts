// Figures as people read them: three digits that matter, and the unit.

export function count(n: number): string {
  return Math.round(n).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** 1 thread, 1,234 threads */
export function counted(n: number, one: string, many: string): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** 1,234 or 1.23 M: never longer than seven characters. */
export function short(n: number): string {
  const m = Math.abs(n);
  if (m < 10_000) return count(n);
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]] as const) {
    if (m >= size * 0.9995) return digits(n / size) + " " + unit;
  }
  return count(n);
}

function digits(n: number): string {
  const m = Math.abs(n);
  return n.toFixed(m >= 99.95 ? 0 : m >= 9.995 ? 1 : 2);
}

export function time(ns: number): string {
  const m = Math.abs(ns);
  if (m >= 999.5e9) return count(ns / 1e9) + " s";
  if (m >= 999.5e6) return digits(ns / 1e9) + " s";
  if (m >= 999.5e3) return digits(ns / 1e6) + " ms";
  if (m >= 999.5) return digits(ns / 1e3) + " µs";
  return Math.round(ns) + " ns";
}

/** Powers of 1024. */
export function bytes(n: number): string {
  const m = Math.abs(n);
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]] as const) {
    if (m >= size * 0.9995) return digits(n / size) + " " + unit;
  }
  return digits0(n) + " B";
}

/** A figure of a metric. */
export function inUnit(n: number, unit: string): string {
  return unit === "bytes" ? bytes(n) : unit === "nanoseconds" ? time(n) : Math.abs(n) < 10 && !Number.isInteger(n) ? n.toFixed(2) : count(n);
}

function digits0(n: number): string {
  return Number.isInteger(n) ? String(n) : n.toFixed(Math.abs(n) < 10 ? 2 : 0);
}

export function percent(share: number): string {
  const p = share * 100;
  if (!Number.isFinite(p)) return "";
  if (p >= 99.95) return "100 %";
  if (p >= 0.095) return p.toFixed(1) + " %";
  if (p >= 0.0095) return p.toFixed(2) + " %";
  return p > 0 ? "<0.01 %" : "0 %";
}

/** Of a count that may have been more: `≥ 2,732`. */
export function atLeast(text: string, bound: boolean | number | undefined): string {
  return bound ? "\u2265 " + text : text;
}

/** How far off a figure may be, in one unit less wide than the figure: ` ± 12.3 ms`; nothing where nobody knows. */
export function plusMinus(error: number | undefined, unit: (n: number) => string): string {
  return error ? " \u00b1 " + unit(error) : "";
}

export function signed(text: string, n: number): string {
  return n > 0 ? "+" + text : n < 0 ? "\u2212" + text.replace("-", "") : "=";
}

/** Loses its middle, since both ends of a name tell the most. */
export function cut(name: string, length: number): string {
  if (name.length <= length) return name;
  const tail = Math.floor(((length - 1) * 2) / 5);
  return name.slice(0, length - 1 - tail) + "…" + name.slice(name.length - tail);
}

/** Whether it can be read as a regular expression, as all but unfinished ones can. */
export function isPattern(pattern: string): boolean {
  try {
    new RegExp(pattern);
    return true;
  } catch {
    return false;
  }
}

/** A test for names: the pattern as a regular expression, or as plain text where it is none. */
export function matcher(pattern: string): ((name: string) => boolean) | null {
  if (!pattern) return null;
  try {
    const regex = new RegExp(pattern, /[A-Z]/.test(pattern) ? "" : "i");
    return (name) => regex.test(name);
  } catch {
    const text = pattern.toLowerCase();
    return (name) => name.toLowerCase().includes(text);
  }
}

/** The same test as the server's language of patterns has it. */
export function rustPattern(pattern: string): string {
  let text = pattern;
  try {
    new RegExp(pattern);
  } catch {
    text = pattern.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  }
  return /[A-Z]/.test(pattern) ? text : `(?i)${text}`;
}
