// Draws a river: arcs, then boxes, piece by piece, so that a large one can be drawn over several frames.
import type { Arc, Box, River } from "../responses";
import type { Datum } from "../store";
import { figure } from "../api";
import { atLeast, percent, short } from "../format";
import { changed, css, heat, isDark, mix, palette, Palette, RGB } from "./colours";

export const NAME_SIZE = 12.5;
const DATA_SIZE = 10.5;
const COLUMN = 52;
const PADDING = 9;

/** What of the drawing is the user's choice. */
export interface Style {
  left: Datum;
  right: Datum;
  /** Change of self of each function as a share of the whole, when boxes are coloured by it. */
  changes: Map<number, number> | null;
  match: ((f: number) => boolean) | null;
}

export interface Frame {
  x: number;
  y: number;
  k: number;
  width: number;
  height: number;
}

/** A river prepared for drawing. */
export class Picture {
  readonly order: number[];
  readonly arcBounds: Float32Array;
  readonly callers: number[][] = [];
  readonly callees: number[][] = [];
  readonly indexOf = new Map<number, number>();
  private cells = new Map<number, number[]>();

  constructor(readonly river: River) {
    const { arcs, boxes } = river;
    // Light arcs lie on top of heavy ones.
    this.order = arcs.map((_, i) => i).sort((a, b) => arcs[b].width - arcs[a].width || a - b);
    this.arcBounds = new Float32Array(arcs.length * 4);
    arcs.forEach((arc, i) => this.arcBounds.set(bounds(arc, boxes), i * 4));
    boxes.forEach((box, i) => {
      this.callers.push([]);
      this.callees.push([]);
      this.indexOf.set(key(box), i);
      for (const cell of this.cellsOf(box)) {
        const held = this.cells.get(cell);
        if (held) held.push(i);
        else this.cells.set(cell, [i]);
      }
    });
    arcs.forEach((arc, i) => {
      if (arc.kind === 2) return;
      this.callees[arc.from].push(i);
      this.callers[arc.to].push(i);
    });
    for (const list of [...this.callers, ...this.callees]) list.sort((a, b) => arcs[b].time - arcs[a].time || arcs[b].calls - arcs[a].calls);
  }

  private *cellsOf(box: Box): Iterable<number> {
    for (let cx = Math.floor(box.x / 256); cx <= Math.floor((box.x + box.w) / 256); cx++)
      for (let cy = Math.floor(box.y / 256); cy <= Math.floor((box.y + box.h) / 256); cy++) yield cx * 1_000_003 + cy;
  }

  /** The box at a place of the river. */
  boxAt(x: number, y: number): number | null {
    const held = this.cells.get(Math.floor(x / 256) * 1_000_003 + Math.floor(y / 256)) ?? [];
    for (const i of held) {
      const b = this.river.boxes[i];
      if (x >= b.x && x <= b.x + b.w && y >= b.y && y <= b.y + b.h) return i;
    }
    return null;
  }
}

/** The same for the same thing in two rivers. */
export function key(box: Box): number {
  return box.f >= 0 ? box.f : box.maker !== null ? -10 - box.maker : -1;
}

function bounds(arc: Arc, boxes: Box[]): [number, number, number, number] {
  if (arc.kind === 2) {
    const b = boxes[arc.from];
    return [b.x, b.y - 24, b.x + b.w + 8, b.y + b.h];
  }
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (let i = 0; i < arc.at.length; i += 2) {
    left = Math.min(left, arc.at[i]);
    right = Math.max(right, arc.at[i]);
    top = Math.min(top, arc.at[i + 1]);
    bottom = Math.max(bottom, arc.at[i + 1]);
  }
  const half = arc.width / 2 + 2;
  return [left - half, top - half, right + half, bottom + half];
}

/** Where a box and the arcs at it stand while the river moves from one layout to the next. */
export type Shift = (box: number) => [number, number] | null;

/** Draws what lies within the frame. Yields between pieces. */
export function* paint(ctx: CanvasRenderingContext2D, picture: Picture, frame: Frame, style: Style, shift: Shift | null = null, only: { boxes: Set<number>; arcs: Set<number> } | null = null): Generator<void> {
  const p = palette();
  const { river } = picture;
  const { k } = frame;
  ctx.setTransform(k, 0, 0, k, -frame.x * k, -frame.y * k);
  const [left, top, right, bottom] = [frame.x, frame.y, frame.x + frame.width / k, frame.y + frame.height / k];
  let done = 0;
  let thin: Arc[] = [];
  const flushThin = () => {
    if (!thin.length) return;
    ctx.beginPath();
    for (const arc of thin) trace(ctx, arc, river.down);
    ctx.lineWidth = 0.7 / k;
    ctx.strokeStyle = css(p.shallow, 0.55);
    ctx.setLineDash([]);
    ctx.stroke();
    thin = [];
  };
  for (const i of picture.order) {
    if (only && !only.arcs.has(i) && !(river.arcs[i].kind === 2 && only.boxes.has(river.arcs[i].from))) continue;
    const b = i * 4;
    const at = picture.arcBounds;
    if (!shift && (at[b] > right || at[b + 1] > bottom || at[b + 2] < left || at[b + 3] < top)) continue;
    const arc = river.arcs[i];
    if (!shift && !only && arc.kind === 0 && arc.width * k < 0.8) {
      thin.push(arc);
      if (thin.length >= 150) {
        flushThin();
        yield;
      }
      continue;
    }
    drawArc(ctx, p, picture, arc, k, shift, only !== null);
    if (++done % 40 === 0) yield;
  }
  flushThin();
  for (let i = 0; i < river.boxes.length; i++) {
    if (only && !only.boxes.has(i)) continue;
    const box = river.boxes[i];
    const moved = shift?.(i);
    const [dx, dy] = moved ?? [0, 0];
    if (box.x + dx > right || box.y + dy - 20 > bottom || box.x + box.w + dx < left || box.y + box.h + dy < top) continue;
    if (moved) ctx.translate(dx, dy);
    drawBox(ctx, p, river, box, style, k);
    if (moved) ctx.translate(-dx, -dy);
    if (++done % 60 === 0) yield;
  }
  for (const arc of river.arcs) {
    if (arc.kind !== 1 && arc.kind !== 2) continue;
    if (k * DATA_SIZE < 5) break;
    if (only && !only.boxes.has(arc.from)) continue;
    drawMark(ctx, p, river, arc, shift);
  }
}

function trace(ctx: CanvasRenderingContext2D, arc: Arc, down: boolean, from: [number, number] = [0, 0], to: [number, number] = [0, 0]): void {
  const at = arc.at;
  const last = at.length - 2;
  // A point's shift goes over from that of the arc's beginning to that of its end.
  const x = (i: number) => at[i] + from[0] + ((to[0] - from[0]) * i) / last;
  const y = (i: number) => at[i + 1] + from[1] + ((to[1] - from[1]) * i) / last;
  ctx.moveTo(x(0), y(0));
  if (arc.kind === 1) {
    ctx.bezierCurveTo(x(2), y(2), x(4), y(4), x(6), y(6));
    return;
  }
  for (let i = 2; i < at.length; i += 2) {
    const [ax, ay, bx, by] = [x(i - 2), y(i - 2), x(i), y(i)];
    if (down) {
      const middle = (ay + by) / 2;
      if (ax === bx) ctx.lineTo(bx, by);
      else ctx.bezierCurveTo(ax, middle, bx, middle, bx, by);
    } else {
      const middle = (ax + bx) / 2;
      if (ay === by) ctx.lineTo(bx, by);
      else ctx.bezierCurveTo(middle, ay, middle, by, bx, by);
    }
  }
}

function drawArc(ctx: CanvasRenderingContext2D, p: Palette, picture: Picture, arc: Arc, k: number, shift: Shift | null, lit: boolean): void {
  const { river } = picture;
  if (arc.kind === 2) {
    const [dx, dy] = shift?.(arc.from) ?? [0, 0];
    const b = river.boxes[arc.from];
    const right = b.x + b.w + dx;
    const top = b.y + dy;
    ctx.beginPath();
    ctx.moveTo(right - 6, top);
    ctx.bezierCurveTo(right - 2, top - 12, right - 30, top - 12, right - 26, top);
    ctx.lineWidth = Math.max(1.6, 0.8 / k);
    ctx.strokeStyle = p.recursion;
    ctx.setLineDash([]);
    ctx.stroke();
    return;
  }
  ctx.beginPath();
  trace(ctx, arc, river.down, shift?.(arc.from) ?? undefined, shift?.(arc.to) ?? undefined);
  const share = river.whole ? arc.time / river.whole : 0;
  if (arc.kind === 1) {
    ctx.lineWidth = Math.max(1.4, 0.7 / k);
    ctx.strokeStyle = p.recursion;
    ctx.setLineDash([5, 4]);
  } else if (arc.kind === 3) {
    ctx.lineWidth = Math.max(1.5, 0.7 / k);
    ctx.strokeStyle = p.muted;
    ctx.setLineDash([2, 4]);
  } else {
    const water = mix(p.shallow, p.deep, Math.sqrt(share));
    ctx.lineWidth = Math.max(arc.width, 0.7 / k);
    ctx.strokeStyle = css(arc.hidden ? mix(water, p.passing, 0.55) : water, lit ? 0.95 : 0.72);
    ctx.setLineDash(arc.hidden && arc.width < 3 ? [6, 4] : []);
  }
  ctx.stroke();
}

function drawMark(ctx: CanvasRenderingContext2D, p: Palette, river: River, arc: Arc, shift: Shift | null): void {
  const [dx, dy] = shift?.(arc.from) ?? [0, 0];
  const text = `rc${arc.least ? " ≥ " : "="}${short(arc.calls)}`;
  ctx.font = `${DATA_SIZE}px ${p.font}`;
  ctx.textBaseline = "alphabetic";
  ctx.textAlign = "right";
  let [x, y] = [0, 0];
  if (arc.kind === 2) {
    const b = river.boxes[arc.from];
    [x, y] = [b.x + b.w - 32, b.y - 3];
  } else {
    const at = arc.at;
    x = (at[0] + 3 * at[2] + 3 * at[4] + at[6]) / 8;
    y = (at[1] + 3 * at[3] + 3 * at[5] + at[7]) / 8 - 3;
  }
  // Where it lies on something, it is still read.
  ctx.lineWidth = 3;
  ctx.lineJoin = "round";
  ctx.setLineDash([]);
  ctx.strokeStyle = p.paper;
  ctx.strokeText(text, x + dx, y + dy);
  ctx.fillStyle = p.recursion;
  ctx.fillText(text, x + dx, y + dy);
  ctx.textAlign = "left";
}

export function datum(which: Datum, box: Box, river: River): string {
  const amount = (n: number) => (river.timed ? figure(n) : short(n));
  switch (which) {
    case "total":
      return percent(river.whole ? box.total / river.whole : 0);
    // What functions that are not shown have is no time of its own.
    case "self":
      return percent(river.whole ? (box.self - box.hidden) / river.whole : 0);
    case "calls":
      return atLeast(short(box.calls), box.least) + "×";
    case "total-time":
      return amount(box.total);
    case "self-time":
      return amount(box.self - box.hidden);
    case "mean":
      return box.calls ? amount((box.self - box.hidden) / box.calls) : "";
    case "threads":
      return box.threads ? short(box.threads) : "";
    case "none":
      return "";
  }
}

/** It waits more than it works itself, and so much that it matters: functions that only pass time on have next to none of their own. */
export function isWaiting(box: Box, river: River): boolean {
  const all = river.waits_measured ? box.self + box.waiting : box.self;
  return box.waiting > 0 && box.waiting * 2 >= all && box.waiting >= river.whole / 100;
}

/** The colour of a box. */
function fill(p: Palette, river: River, box: Box, style: Style): RGB {
  if (box.f < 0) return p.cold;
  if (style.changes) return changed(p, style.changes.get(box.f) ?? 0);
  const share = river.whole ? box.self / river.whole : 0;
  if (isWaiting(box, river)) {
    const waited = river.whole ? box.waiting / river.whole : 0;
    return mix(p.cold, p.wait, 0.25 + Math.sqrt(Math.min(1, waited)) * 0.75);
  }
  return heat(p, share);
}

function drawBox(ctx: CanvasRenderingContext2D, p: Palette, river: River, box: Box, style: Style, k: number): void {
  const colour = fill(p, river, box, style);
  ctx.setLineDash([]);
  ctx.beginPath();
  if (k > 0.25) ctx.roundRect(box.x, box.y, box.w, box.h, box.f < 0 ? Math.min(box.h, box.w, 26) / 2 : 4);
  else ctx.rect(box.x, box.y, box.w, box.h);
  ctx.fillStyle = css(colour);
  ctx.fill();
  if (isWaiting(box, river) && k > 0.3) hatch(ctx, p, box);
  ctx.lineWidth = Math.max(0.8, 0.5 / k);
  ctx.strokeStyle = p.line;
  ctx.stroke();
  if (box.f >= 0 && style.match?.(box.f)) {
    ctx.lineWidth = Math.max(2, 1.2 / k);
    ctx.strokeStyle = p.accent;
    ctx.stroke();
  }
  if (k * NAME_SIZE < 5) return;
  const dark = isDark(colour);
  const ink = dark ? "#fff" : "#15202b";
  const faint = dark ? "rgb(255 255 255 / .82)" : "rgb(21 32 43 / .72)";
  const middle = box.y + box.h / 2;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  let left = box.x + PADDING;
  let right = box.x + box.w - PADDING;
  // A box that is wider than it must be, as where many arcs end top down, keeps its text together.
  if (river.down && box.f >= 0) {
    const extra = box.w - naturalWidth(ctx, p, box, style);
    if (extra > 0) {
      left += extra / 2;
      right -= extra / 2;
    }
  }
  if (box.f < 0) {
    ctx.font = `600 ${DATA_SIZE + 0.5}px ${p.font}`;
    ctx.fillStyle = ink;
    ctx.fillText(box.label, left + 2, middle + 0.5, box.w - COLUMN);
    ctx.textAlign = "right";
    ctx.font = `${DATA_SIZE}px ${p.font}`;
    ctx.fillStyle = faint;
    ctx.fillText(river.timed ? figure(box.total) : short(box.total), right, middle + 0.5, COLUMN);
    ctx.textAlign = "left";
    return;
  }
  if (box.state) drawState(ctx, ink, box, right, middle);
  right -= 15;
  ctx.font = `${DATA_SIZE}px ${p.font}`;
  ctx.fillStyle = faint;
  if (style.left !== "none") {
    ctx.fillText(datum(style.left, box, river), left, middle + 0.5, COLUMN - 6);
    left += COLUMN;
  }
  if (style.right !== "none") {
    ctx.textAlign = "right";
    ctx.fillText(datum(style.right, box, river), right, middle + 0.5, COLUMN - 6);
    ctx.textAlign = "left";
    right -= COLUMN;
  }
  ctx.font = `600 ${NAME_SIZE}px ${p.font}`;
  ctx.fillStyle = ink;
  ctx.fillText(box.label, left, middle + 0.5, Math.max(8, right - left));
}

function naturalWidth(ctx: CanvasRenderingContext2D, p: Palette, box: Box, style: Style): number {
  ctx.font = `600 ${NAME_SIZE}px ${p.font}`;
  const columns = (style.left !== "none" ? COLUMN : 0) + (style.right !== "none" ? COLUMN : 0);
  return ctx.measureText(box.label).width + columns + 15 + 2 * PADDING;
}

/** Waiting is told from working without colour too. */
function hatch(ctx: CanvasRenderingContext2D, p: Palette, box: Box): void {
  ctx.save();
  ctx.clip();
  ctx.beginPath();
  for (let x = box.x - box.h; x < box.x + box.w; x += 7) {
    ctx.moveTo(x, box.y + box.h);
    ctx.lineTo(x + box.h, box.y);
  }
  ctx.lineWidth = 1;
  ctx.strokeStyle = css(p.wait, 0.45);
  ctx.stroke();
  ctx.restore();
  ctx.beginPath();
  ctx.roundRect(box.x, box.y, box.w, box.h, 4);
}

/** Filled: nothing below is shown; half filled: what passes the filter; open: everything. */
function drawState(ctx: CanvasRenderingContext2D, ink: string, box: Box, right: number, middle: number): void {
  const [x, w, h] = [right - 8, 8, 5];
  const path = () => {
    ctx.beginPath();
    ctx.moveTo(x, middle - h);
    ctx.lineTo(x + w, middle);
    ctx.lineTo(x, middle + h);
    ctx.closePath();
  };
  ctx.fillStyle = ink;
  ctx.strokeStyle = ink;
  ctx.lineWidth = 1.1;
  path();
  if (box.state === "closed") ctx.fill();
  else if (box.state === "some") {
    ctx.stroke();
    ctx.beginPath();
    ctx.moveTo(x, middle);
    ctx.lineTo(x + w, middle);
    ctx.lineTo(x, middle + h);
    ctx.closePath();
    ctx.fill();
  } else ctx.stroke();
}
