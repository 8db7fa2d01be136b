// What a live process did in the last minutes: calls a second, processors, waits. The server remembers it, so that a page that is
// opened late has it as well.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Load } from "../responses";
import { useResponse } from "../api";
import { onTheme, palette, css } from "../canvas/colours";
import { short } from "../format";

const SECONDS = 120;

/** Three curves over one axis, which scrolls. */
export function LoadChart() {
  const { data } = useResponse<Load>("load");
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const last = (data?.at.length ?? 0) - 1;
  const now = (of: number[] | undefined) => (of && last >= 0 ? of[last] : 0);
  const draw = useRef<() => void>(() => {});
  draw.current = () => {
    const element = canvas.current;
    if (!element || !width || !data) return;
    const ratio = devicePixelRatio || 1;
    const height = element.clientHeight;
    [element.width, element.height] = [width * ratio, height * ratio];
    const ctx = element.getContext("2d")!;
    const p = palette();
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.font = `11px ${p.font}`;
    ctx.textBaseline = "middle";
    const end = data.at[last] ?? 0;
    const each = (height - 4) / 3;
    const curves: [string, number[], string, (n: number) => string][] = [
      ["calls a second", data.calls, p.accent, short],
      ["processors", data.processors, css(p.hot), (n) => n.toFixed(2)],
      ["threads that wait", data.waiting, css(p.wait), (n) => n.toFixed(1)],
    ];
    curves.forEach(([name, of, colour, text], row) => {
      const most = Math.max(1e-9, ...of);
      const bottom = (row + 1) * each;
      ctx.beginPath();
      let begun = 0;
      of.forEach((value, i) => {
        const x = width - 4 - ((end - data.at[i]) / 1e9 / SECONDS) * (width - 154);
        if (x < 150) return;
        const y = bottom - 2 - (value / most) * (each - 8);
        if (begun++) ctx.lineTo(x, y);
        else ctx.moveTo(x, y);
      });
      ctx.lineWidth = 1.6;
      ctx.strokeStyle = colour;
      ctx.stroke();
      ctx.fillStyle = p.line;
      ctx.fillRect(150, bottom, width - 154, 0.5);
      ctx.fillStyle = p.ink;
      ctx.fillText(text(now(of)), 12, bottom - each / 2 - 6);
      ctx.fillStyle = p.muted;
      ctx.fillText(name, 12, bottom - each / 2 + 7);
    });
  };
  useLayoutEffect(() => draw.current());
  useEffect(() => {
    const element = canvas.current!;
    const watch = new ResizeObserver(() => setWidth(element.clientWidth));
    watch.observe(element);
    const stop = onTheme(() => draw.current());
    return () => {
      watch.disconnect();
      stop();
    };
  }, []);
  return <canvas class="load" ref={canvas} role="img" data-points={data?.at.length ?? 0} aria-label={`Now ${short(now(data?.calls))} calls a second, ${now(data?.processors).toFixed(2)} processors, ${now(data?.waiting).toFixed(1)} threads that wait`} />;
}
