// The river on its canvas: panning, zooming, lighting what is selected, moving from one layout to the next.
//
// A small river is drawn anew for each frame. A large one is drawn once, a few milliseconds per frame, into a picture larger than
// the pane, and that picture is moved and scaled until the next one is ready: so panning never waits for the drawing.
import type { River } from "../responses";
import { onTheme, palette } from "./colours";
import { Frame, key, Style, paint, Picture, Shift } from "./riverPaint";

/** More arcs than this are not drawn anew for each frame. */
const SMALL = 1500;
const BUDGET_MS = 7;
const MOVE_MS = 300;
const DEEPEST = 4;
/** A new picture is begun when nothing has moved for so long. */
const REST_MS = 90;

/** Below this names can hardly be read. */
const READABLE = 0.92;
const LARGEST = 1.25;
/** The line at the bottom of the pane. */
const LEGEND = 40;
/** Room beside a box at the edge of the first view. */
const EDGE = 16;

/** The first view of a river: all of it where that can be read, else the part with most time; and how much is in sight. */
export function opening(river: River, w: number, h: number): { x: number; y: number; k: number; seen: number } {
  const fit = Math.min(w / river.width, h / river.height);
  const k = Math.max(READABLE, Math.min(LARGEST, fit));
  const [vw, vh] = [w / k, h / k];
  if (fit >= READABLE) return { x: (river.width - vw) / 2, y: (river.height - vh) / 2, k, seen: 1 };
  // With a box in the middle, or at either edge.
  const along = (from: number, length: number, view: number, size: number) =>
    view >= size ? [(size - view) / 2] : [from + length / 2 - view / 2, from - EDGE, from + length + EDGE - view].map((at) => Math.max(0, Math.min(size - view, at)));
  const whole = Math.max(1, river.whole);
  const candidates = [...river.boxes].sort((a, b) => b.self - a.self).slice(0, 40);
  let best = { x: 0, y: 0, k, seen: -1 };
  for (const at of candidates)
    for (const x of along(at.x, at.w, vw, river.width))
      for (const y of along(at.y, at.h, vh, river.height)) {
        let seen = 0;
        for (const b of river.boxes) {
          if (b.x < x || b.y < y || b.x + b.w > x + vw || b.y + b.h > y + vh) continue;
          seen += (b.self / whole) * 0.65 + 0.35 / river.boxes.length;
        }
        if (seen > best.seen) best = { x, y, k, seen };
      }
  return best;
}

interface Stored {
  canvas: HTMLCanvasElement;
  frame: Frame;
}

export class RiverCanvas {
  picture: Picture | null = null;
  x = 0;
  y = 0;
  k = 1;
  private style: Style = { left: "self", right: "total", changes: null, match: null };
  private selected: number | null = null;
  private stored: Stored | null = null;
  private job: { run: Generator<void>; into: Stored } | null = null;
  private thumb: { canvas: HTMLCanvasElement; run: Generator<void>; done: boolean; k: number } | null = null;
  private move: { began: number; from: Map<number, [number, number]> } | null = null;
  private flight: { began: number; from: [number, number, number]; to: [number, number, number] } | null = null;
  private asked = 0;
  private moved = 0;
  private stop: () => void;
  frames = 0;
  onView: () => void = () => {};

  constructor(
    private canvas: HTMLCanvasElement,
    private overview: HTMLCanvasElement,
  ) {
    this.stop = onTheme(() => this.redraw());
  }

  dispose(): void {
    cancelAnimationFrame(this.asked);
    this.stop();
  }

  private get size(): [number, number] {
    return [this.canvas.clientWidth, this.canvas.clientHeight];
  }

  /** The anchor, which stays where it is on the screen: the selected box, else the one nearest to the middle. */
  show(river: River): void {
    const old = this.picture;
    const next = new Picture(river);
    const [w, h] = this.size;
    this.move = null;
    if (old && old.river.down === river.down) {
      const anchor = this.anchor(old, next);
      if (anchor !== null) {
        const a = old.river.boxes[old.indexOf.get(anchor)!];
        const b = next.river.boxes[next.indexOf.get(anchor)!];
        const dx = b.x - a.x;
        const dy = b.y + b.h / 2 - a.y - a.h / 2;
        this.x += dx;
        this.y += dy;
        this.flight = null;
        const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
        if (!still && river.arcs.length <= SMALL) {
          const from = new Map<number, [number, number]>();
          for (const [id, i] of next.indexOf) {
            const before = old.indexOf.get(id);
            if (before === undefined) continue;
            const [o, n] = [old.river.boxes[before], next.river.boxes[i]];
            from.set(id, [o.x - n.x + dx, o.y + o.h / 2 - n.y - n.h / 2 + dy]);
          }
          this.move = { began: performance.now(), from };
        }
      }
    }
    this.picture = next;
    if (!old || old.river.down !== river.down) {
      const first = opening(river, w, h - LEGEND);
      [this.x, this.y, this.k] = [first.x, first.y, first.k];
      if (this.selected !== null && next.indexOf.has(this.selected)) this.include(this.selected);
    }
    this.redraw();
  }

  /** Moves the first view to where a box is in sight, without leaving the river. */
  private include(f: number): void {
    const at = this.screenOf(f)!;
    const [w, h] = this.size;
    if (at.x >= EDGE && at.y >= EDGE && at.x + at.w <= w - EDGE && at.y + at.h <= h - LEGEND) return;
    this.centre(f, false);
    const { river } = this.picture!;
    const [vw, vh] = [w / this.k, (h - LEGEND) / this.k];
    if (river.width > vw) this.x = Math.max(0, Math.min(river.width - vw, this.x));
    if (river.height > vh) this.y = Math.max(0, Math.min(river.height - vh, this.y));
  }

  private anchor(old: Picture, next: Picture): number | null {
    if (this.selected !== null && old.indexOf.has(this.selected) && next.indexOf.has(this.selected)) return this.selected;
    const [w, h] = this.size;
    const [cx, cy] = [this.x + w / this.k / 2, this.y + h / this.k / 2];
    let [best, nearest]: [number | null, number] = [null, Infinity];
    for (const [id, i] of old.indexOf) {
      if (!next.indexOf.has(id)) continue;
      const b = old.river.boxes[i];
      const distance = Math.hypot(b.x + b.w / 2 - cx, b.y + b.h / 2 - cy);
      if (distance < nearest) [best, nearest] = [id, distance];
    }
    return best;
  }

  setLook(style: Style): void {
    this.style = style;
    this.redraw();
  }

  select(f: number | null): void {
    if (this.selected === f) return;
    this.selected = f;
    this.draw();
  }

  /** Everything that was kept is out of date. */
  redraw(): void {
    this.stored = null;
    this.job = null;
    this.thumb = null;
    this.draw();
  }

  resize(): void {
    for (const canvas of [this.canvas, this.overview]) {
      const ratio = devicePixelRatio || 1;
      const [w, h] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
      if (w && h && (canvas.width !== w || canvas.height !== h)) [canvas.width, canvas.height] = [w, h];
    }
    this.redraw();
  }

  pan(dx: number, dy: number): void {
    this.flight = null;
    this.x -= dx / this.k;
    this.y -= dy / this.k;
    this.clamp();
    this.draw();
  }

  zoom(factor: number, px = this.size[0] / 2, py = this.size[1] / 2): void {
    this.flight = null;
    const [w, h] = this.size;
    const river = this.picture?.river;
    const least = river ? Math.min(0.5, (Math.min(w / river.width, h / river.height) || 1) * 0.8) : 0.05;
    const k = Math.max(least, Math.min(DEEPEST, this.k * factor));
    this.x += px / this.k - px / k;
    this.y += py / this.k - py / k;
    this.k = k;
    this.moved = performance.now();
    this.clamp();
    this.draw();
  }

  fit(): void {
    const river = this.picture?.river;
    if (!river) return;
    const [w, h] = this.size;
    const k = Math.min(1.2, w / river.width, h / river.height);
    this.fly([(river.width - w / k) / 2, (river.height - h / k) / 2, k]);
  }

  centre(f: number, flying = true): void {
    const i = this.picture?.indexOf.get(f);
    if (i === undefined) return;
    const b = this.picture!.river.boxes[i];
    const [w, h] = this.size;
    const k = Math.max(this.k, 0.8);
    const to: [number, number, number] = [b.x + b.w / 2 - w / k / 2, b.y + b.h / 2 - h / k / 2, k];
    if (flying) this.fly(to);
    else [this.x, this.y, this.k] = to;
    this.draw();
  }

  /** Brings a box into sight if it is not. */
  reveal(f: number): void {
    const at = this.screenOf(f);
    const [w, h] = this.size;
    if (at && (at.x < 8 || at.y < 8 || at.x + at.w > w - 8 || at.y + at.h > h - 8)) this.centre(f);
  }

  private fly(to: [number, number, number]): void {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      [this.x, this.y, this.k] = to;
      this.flight = null;
    } else this.flight = { began: performance.now(), from: [this.x, this.y, this.k], to };
    this.draw();
  }

  private clamp(): void {
    const river = this.picture?.river;
    if (!river) return;
    const [w, h] = [this.size[0] / this.k, this.size[1] / this.k];
    this.x = Math.max(-w * 0.7, Math.min(river.width - w * 0.3, this.x));
    this.y = Math.max(-h * 0.7, Math.min(river.height - h * 0.3, this.y));
  }

  screenOf(f: number): { x: number; y: number; w: number; h: number } | null {
    const i = this.picture?.indexOf.get(f);
    if (i === undefined) return null;
    const b = this.picture!.river.boxes[i];
    return { x: (b.x - this.x) * this.k, y: (b.y - this.y) * this.k, w: b.w * this.k, h: b.h * this.k };
  }

  boxAt(px: number, py: number): number | null {
    return this.picture?.boxAt(this.x + px / this.k, this.y + py / this.k) ?? null;
  }

  /** The arc under the pointer, the lightest first. */
  arcAt(px: number, py: number): number | null {
    const picture = this.picture;
    if (!picture || picture.river.arcs.length > SMALL) return null;
    const ctx = this.canvas.getContext("2d")!;
    const [x, y] = [this.x + px / this.k, this.y + py / this.k];
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    for (let n = picture.order.length - 1; n >= 0; n--) {
      const i = picture.order[n];
      const b = picture.arcBounds;
      if (x < b[i * 4] || y < b[i * 4 + 1] || x > b[i * 4 + 2] || y > b[i * 4 + 3]) continue;
      const arc = picture.river.arcs[i];
      if (arc.kind === 2) continue;
      const path = new Path2D();
      const at = arc.at;
      path.moveTo(at[0], at[1]);
      if (arc.kind === 1) path.bezierCurveTo(at[2], at[3], at[4], at[5], at[6], at[7]);
      else
        for (let j = 2; j < at.length; j += 2) {
          const [mx, my] = [(at[j - 2] + at[j]) / 2, (at[j - 1] + at[j + 1]) / 2];
          if (picture.river.down) path.bezierCurveTo(at[j - 2], my, at[j], my, at[j], at[j + 1]);
          else path.bezierCurveTo(mx, at[j - 1], mx, at[j + 1], at[j], at[j + 1]);
        }
      ctx.lineWidth = Math.max(arc.width, 6 / this.k);
      if (ctx.isPointInStroke(path, x, y)) return i;
    }
    return null;
  }

  /** The part of the river that the detail pane shows, as the overview draws it. */
  moveTo(ox: number, oy: number): void {
    const o = this.overviewFrame();
    if (!o) return;
    const [w, h] = this.size;
    this.flight = null;
    this.x = o.x + ox / o.k - w / this.k / 2;
    this.y = o.y + oy / o.k - h / this.k / 2;
    this.clamp();
    this.draw();
  }

  private overviewFrame(): Frame | null {
    const river = this.picture?.river;
    if (!river) return null;
    const [w, h] = [this.overview.clientWidth, this.overview.clientHeight];
    const k = Math.min(w / river.width, h / river.height) * 0.96;
    return { x: (river.width - w / k) / 2, y: (river.height - h / k) / 2, k, width: w, height: h };
  }

  /** The box of the overview in its own pixels. */
  detailBox(): { x: number; y: number; w: number; h: number } | null {
    const o = this.overviewFrame();
    if (!o) return null;
    const [w, h] = this.size;
    return { x: (this.x - o.x) * o.k, y: (this.y - o.y) * o.k, w: (w / this.k) * o.k, h: (h / this.k) * o.k };
  }

  draw(): void {
    if (!this.asked) this.asked = requestAnimationFrame((now) => this.frame(now));
  }

  private frame(now: number): void {
    this.asked = 0;
    const picture = this.picture;
    if (!picture || !this.canvas.clientWidth) return;
    this.frames++;
    if (this.flight) {
      const t = Math.min(1, (now - this.flight.began) / MOVE_MS);
      const s = t * t * (3 - 2 * t);
      const { from, to } = this.flight;
      // Zooming goes by factors, so that it seems steady, about the middle of the pane.
      const [w, h] = this.size;
      const k = from[2] * (to[2] / from[2]) ** s;
      const middle = (a: number, ka: number, b: number, kb: number, size: number) => {
        const [ma, mb] = [a + size / ka / 2, b + size / kb / 2];
        return ma + (mb - ma) * s - size / k / 2;
      };
      this.x = middle(from[0], from[2], to[0], to[2], w);
      this.y = middle(from[1], from[2], to[1], to[2], h);
      this.k = k;
      this.moved = now;
      if (t >= 1) this.flight = null;
    }
    const shift = this.shift(now);
    const ctx = this.canvas.getContext("2d")!;
    const ratio = this.canvas.width / this.canvas.clientWidth;
    const frame = this.currentFrame(ratio);
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.fillStyle = palette().paper;
    ctx.fillRect(0, 0, this.canvas.width, this.canvas.height);
    const small = picture.river.arcs.length <= SMALL;
    let busy = false;
    if (small) for (const _ of paint(ctx, picture, frame, this.style, shift)) void _;
    else busy = this.drawStored(ctx, frame);
    this.light(ctx, picture, frame, shift);
    busy = this.drawOverview(small) || busy;
    if (busy || this.flight || this.move) this.draw();
    this.onView();
  }

  private currentFrame(ratio: number): Frame {
    return { x: this.x, y: this.y, k: this.k * ratio, width: this.canvas.width, height: this.canvas.height };
  }

  private shift(now: number): Shift | null {
    if (!this.move) return null;
    const t = Math.min(1, (now - this.move.began) / MOVE_MS);
    if (t >= 1) {
      this.move = null;
      return null;
    }
    const left = 1 - t * t * (3 - 2 * t);
    const { from } = this.move;
    const boxes = this.picture!.river.boxes;
    return (i) => {
      const d = from.get(key(boxes[i]));
      return d ? [d[0] * left, d[1] * left] : null;
    };
  }

  /** What is selected, those it calls and those that call it, above a veil. */
  private light(ctx: CanvasRenderingContext2D, picture: Picture, frame: Frame, shift: Shift | null): void {
    const i = this.selected === null ? undefined : picture.indexOf.get(this.selected);
    if (i === undefined) return;
    const p = palette();
    const arcs = new Set([...picture.callers[i], ...picture.callees[i]]);
    const boxes = new Set([i]);
    for (const a of arcs) boxes.add(picture.river.arcs[a].from).add(picture.river.arcs[a].to);
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.globalAlpha = 0.62;
    ctx.fillStyle = p.paper;
    ctx.fillRect(0, 0, frame.width, frame.height);
    ctx.globalAlpha = 1;
    for (const _ of paint(ctx, picture, frame, this.style, shift, { boxes, arcs })) void _;
    const b = picture.river.boxes[i];
    const [dx, dy] = shift?.(i) ?? [0, 0];
    ctx.beginPath();
    ctx.roundRect(b.x + dx - 2, b.y + dy - 2, b.w + 4, b.h + 4, 6);
    ctx.lineWidth = Math.max(2.2, 1.6 / this.k);
    ctx.strokeStyle = p.accent;
    ctx.setLineDash([]);
    ctx.stroke();
  }

  /** The kept picture in its place, and below it the overview's; a new one is begun where it no longer fits. */
  private drawStored(ctx: CanvasRenderingContext2D, frame: Frame): boolean {
    const put = (from: CanvasImageSource, f: Frame, w: number, h: number) => {
      const s = frame.k / f.k;
      ctx.setTransform(1, 0, 0, 1, 0, 0);
      ctx.drawImage(from, (f.x - frame.x) * frame.k, (f.y - frame.y) * frame.k, w * s, h * s);
    };
    ctx.imageSmoothingQuality = "low";
    if (this.thumb) {
      const f = { x: 0, y: 0, k: this.thumb.k, width: 0, height: 0 };
      put(this.thumb.canvas, f, this.thumb.canvas.width, this.thumb.canvas.height);
    }
    const fits = (f: Frame) =>
      Math.abs(f.k / frame.k - 1) < 0.01 &&
      f.x <= frame.x + 1 &&
      f.y <= frame.y + 1 &&
      f.x + f.width / f.k >= frame.x + frame.width / frame.k - 1 &&
      f.y + f.height / f.k >= frame.y + frame.height / frame.k - 1;
    if (this.stored) put(this.stored.canvas, this.stored.frame, this.stored.frame.width, this.stored.frame.height);
    if (this.stored && fits(this.stored.frame)) {
      this.job = null;
      return false;
    }
    if (!this.job || !fits(this.job.into.frame)) {
      // While one zooms, each picture would be too late.
      this.job = null;
      if (performance.now() - this.moved < REST_MS) return true;
      const margin = 0.25;
      const into = {
        x: frame.x - (frame.width * margin) / frame.k,
        y: frame.y - (frame.height * margin) / frame.k,
        k: frame.k,
        width: Math.round(frame.width * (1 + 2 * margin)),
        height: Math.round(frame.height * (1 + 2 * margin)),
      };
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [into.width, into.height];
      const under = canvas.getContext("2d")!;
      under.fillStyle = palette().paper;
      under.fillRect(0, 0, into.width, into.height);
      this.job = { into: { canvas, frame: into }, run: paint(under, this.picture!, into, this.style) };
    }
    if (step(this.job.run)) {
      this.stored = this.job.into;
      this.job = null;
    }
    return true;
  }

  /** The whole river, small, and where the detail pane is. Gives whether there is more to draw. */
  private drawOverview(small: boolean): boolean {
    const o = this.overviewFrame();
    const { overview } = this;
    if (!o || !overview.clientWidth) return false;
    const { river } = this.picture!;
    const ratio = overview.width / overview.clientWidth;
    let busy = false;
    if (!this.thumb) {
      const k = o.k * ratio;
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [Math.max(1, Math.ceil(river.width * k)), Math.max(1, Math.ceil(river.height * k))];
      const frame = { x: 0, y: 0, k, width: canvas.width, height: canvas.height };
      const run = paint(canvas.getContext("2d")!, this.picture!, frame, { ...this.style, match: null });
      this.thumb = { canvas, run, done: false, k };
    }
    if (!this.thumb.done) {
      this.thumb.done = step(this.thumb.run, small ? Infinity : BUDGET_MS / 2);
      busy = !this.thumb.done;
    }
    const p = palette();
    const ctx = overview.getContext("2d")!;
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.fillStyle = p.paper;
    ctx.fillRect(0, 0, overview.width, overview.height);
    ctx.drawImage(this.thumb.canvas, -o.x * o.k * ratio, -o.y * o.k * ratio);
    const selected = this.selected === null ? undefined : this.picture!.indexOf.get(this.selected);
    if (selected !== undefined) {
      const lit = new Set<number>();
      for (const a of [...this.picture!.callers[selected], ...this.picture!.callees[selected]]) lit.add(river.arcs[a].from).add(river.arcs[a].to);
      lit.add(selected);
      for (const i of lit) {
        const b = river.boxes[i];
        ctx.fillStyle = i === selected ? p.accent : p.ink;
        const [w, h] = [Math.max(3 * ratio, b.w * o.k * ratio), Math.max(3 * ratio, b.h * o.k * ratio)];
        ctx.fillRect((b.x - o.x) * o.k * ratio, (b.y - o.y) * o.k * ratio, w, h);
      }
    }
    const d = this.detailBox()!;
    ctx.lineWidth = 1.5 * ratio;
    ctx.strokeStyle = p.accent;
    ctx.setLineDash([]);
    ctx.strokeRect(d.x * ratio, d.y * ratio, d.w * ratio, d.h * ratio);
    ctx.globalAlpha = 0.08;
    ctx.fillStyle = p.accent;
    ctx.fillRect(d.x * ratio, d.y * ratio, d.w * ratio, d.h * ratio);
    ctx.globalAlpha = 1;
    return busy;
  }
}

/** Goes on with a drawing for a while; gives whether it is finished. */
function step(run: Generator<void>, budget = BUDGET_MS): boolean {
  const end = performance.now() + budget;
  do {
    if (run.next().done) return true;
  } while (performance.now() < end);
  return false;
}
