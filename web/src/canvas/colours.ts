// Colours of the canvases, from the style sheet, so that both themes stand in one place.

export interface Palette {
  paper: string;
  ink: string;
  muted: string;
  line: string;
  accent: string;
  bad: string;
  cold: RGB;
  warm: RGB;
  hot: RGB;
  wait: RGB;
  shallow: RGB;
  deep: RGB;
  passing: RGB;
  recursion: string;
  better: RGB;
  worse: RGB;
  font: string;
}

export type RGB = [number, number, number];

let known: Palette | null = null;

export function palette(): Palette {
  if (known) return known;
  const style = getComputedStyle(document.documentElement);
  const text = (name: string) => style.getPropertyValue(`--${name}`).trim();
  known = {
    paper: text("paper"),
    ink: text("ink"),
    muted: text("muted"),
    line: text("line"),
    accent: text("accent"),
    bad: text("bad"),
    cold: rgb(text("cold")),
    warm: rgb(text("warm")),
    hot: rgb(text("hot")),
    wait: rgb(text("wait")),
    shallow: rgb(text("shallow")),
    deep: rgb(text("deep")),
    passing: rgb(text("passing")),
    recursion: text("recursion"),
    better: rgb(text("better")),
    worse: rgb(text("worse")),
    font: '"DejaVu Sans Condensed", "DejaVu Sans", system-ui, Verdana, sans-serif',
  };
  return known;
}

const themeChanges = new Set<() => void>();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  known = null;
  themeChanges.forEach((listener) => listener());
});

export function onTheme(listener: () => void): () => void {
  themeChanges.add(listener);
  return () => themeChanges.delete(listener);
}

export function rgb(hex: string): RGB {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

export function mix(a: RGB, b: RGB, t: number): RGB {
  const s = Math.max(0, Math.min(1, t));
  return [a[0] + (b[0] - a[0]) * s, a[1] + (b[1] - a[1]) * s, a[2] + (b[2] - a[2]) * s];
}

export function css(c: RGB, alpha = 1): string {
  return `rgb(${c[0] | 0} ${c[1] | 0} ${c[2] | 0} / ${alpha})`;
}

/** From cold over warm to hot by a function's own share. */
export function heat(p: Palette, share: number): RGB {
  return share < 0.12 ? mix(p.cold, p.warm, share / 0.12) : mix(p.warm, p.hot, (share - 0.12) / 0.4);
}

/** From better over unchanged to worse by the change of the own time as a share of the whole. */
export function changed(p: Palette, change: number): RGB {
  const t = Math.sqrt(Math.min(1, Math.abs(change) * 10));
  return mix(p.cold, change > 0 ? p.worse : p.better, Math.abs(change) < 0.0005 ? 0 : 0.15 + 0.85 * t);
}

/** Whether ink or paper is read better on it. */
export function isDark(c: RGB): boolean {
  return c[0] * 0.299 + c[1] * 0.587 + c[2] * 0.114 < 128;
}
