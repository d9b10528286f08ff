// Where the points of a line are in its drawing.
import type { SparklinePoint } from './Sparkline.svelte';

export interface Scale {
  from: number;
  to: number;
  /** The value at the top. */
  top: number;
  width: number;
  height: number;
}

export interface DrawnPoint {
  x: number;
  y: number;
  partY: number | null;
  leastY: number;
  mostY: number;
}

/** What a scale may end at, by powers of ten: it says something to a person, and seldom changes as values come. */
const TOPS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

/** The value at the top of a scale, a round one: `most`, or more if a value in the time is greater. */
export function scaleTop(
  points: readonly SparklinePoint[],
  { from, to, most }: { from: number; to: number; most: number },
): number {
  const shown = points.filter(({ x }) => x >= from && x <= to);
  const greatest = Math.max(
    most,
    ...shown.flatMap(({ value, range }) => (value === null ? [] : [value, range?.[1] ?? value])),
  );
  if (greatest <= 0) return 0;
  const power = 10 ** Math.floor(Math.log10(greatest));
  // A power that is no whole number of tenths is not exact.
  const step = TOPS.find((step) => step * power >= greatest * (1 - 1e-9)) ?? 10;
  return step * power;
}

/** The points as lines between which there are gaps. What lies outside of the time is left out. */
export function scaled(points: readonly SparklinePoint[], { from, to, top, width, height }: Scale): DrawnPoint[][] {
  const shown = points.filter(({ x }) => x >= from && x <= to);
  const yOf = (value: number) => (top > 0 ? height - (Math.max(0, value) / top) * height : height);
  const lines: DrawnPoint[][] = [];
  let line: DrawnPoint[] = [];
  for (const { x, value, part, range, isApart } of shown) {
    if ((value === null || isApart) && line.length > 0) {
      lines.push(line);
      line = [];
    }
    if (value === null) continue;
    const y = yOf(value);
    line.push({
      x: to > from ? ((x - from) / (to - from)) * width : width,
      y,
      partY: part === null || part === undefined ? null : yOf(part),
      leastY: range ? yOf(range[0]) : y,
      mostY: range ? yOf(range[1]) : y,
    });
  }
  return line.length > 0 ? [...lines, line] : lines;
}

/** A line through the points; of a single one a dot. */
export function lineOf(line: readonly DrawnPoint[], yOf: (point: DrawnPoint) => number): string {
  const [first] = line;
  const path = `M${line.map((point) => `${short(point.x)} ${short(yOf(point))}`).join('L')}`;
  return first && line.length === 1 ? `${path}h0.01` : path;
}

/** What is between a line and the bottom. */
export function areaOf(line: readonly DrawnPoint[], height: number, yOf: (point: DrawnPoint) => number): string {
  const [first, last] = [line[0], line.at(-1)];
  if (!first || !last || line.length === 1) return '';
  return `${lineOf(line, yOf)}L${short(last.x)} ${height}L${short(first.x)} ${height}Z`;
}

/** The index of the point that is nearest to a place; -1 without points. */
export function nearest(points: readonly { x: number }[], x: number): number {
  let best = -1;
  for (const [index, point] of points.entries()) {
    const other = points[best];
    if (!other || Math.abs(point.x - x) <= Math.abs(other.x - x)) best = index;
  }
  return best;
}

const short = (number: number) => Number(number.toFixed(2));
