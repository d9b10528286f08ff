// The figures as lines of charts, and the numbers beside them.
import type { MonitorDay, MonitorPoint, MonitorSpan, Spread } from '../platform/wire';
import { strings } from '../text';
import type { SparklinePoint } from '../ui/Sparkline.svelte';
import { NOW_MS } from './monitor.svelte';

/** Points that are further apart were not noted in between: the machine has slept. */
const APART_MS = 10_000;
const DAY_MS = 24 * 60 * 60 * 1000;

/** One figure over time. */
export interface Series {
  points: SparklinePoint[];
  from: number;
  to: number;
}

/** What can be shown of a moment or of ten minutes. */
export interface Value {
  value: number | null;
  part?: number | null;
  range?: readonly [number, number];
  words: string;
}

export type Figure = 'memory' | 'writing' | 'reading' | 'firstToken' | 'waiting' | 'fromSaved';
export const figures: readonly Figure[] = ['memory', 'writing', 'reading', 'firstToken', 'waiting', 'fromSaved'];

const nothing = (): Value => ({ value: null, words: strings.monitor.none });

function known(value: number | null, show: (value: number) => string): Value {
  return value === null ? nothing() : { value, words: show(value) };
}

function memory(bytes: number, mlx: number): Value {
  return { value: bytes, part: Math.min(mlx, bytes), words: strings.monitor.memoryAndMlx(bytes, mlx) };
}

/** How many of the tokens came from saved context; nothing where none were read. */
function share({ prompt_tokens, cached_tokens }: { prompt_tokens: number; cached_tokens: number }): Value {
  return known(prompt_tokens > 0 ? cached_tokens / prompt_tokens : null, strings.monitor.share);
}

function spread(values: Spread | null, show: (value: number) => string): Value {
  if (!values) return nothing();
  const { least, mean, most } = values;
  const [shown, from, to] = [show(mean), show(least), show(most)];
  const words = from === to ? shown : strings.monitor.withRange(shown, from, to);
  return { value: mean, range: [least, most], words };
}

const ofPoint: Record<Figure, (point: MonitorPoint) => Value> = {
  memory: (point) => memory(point.process_bytes, point.mlx_active_bytes),
  writing: (point) => known(point.writing_tps, strings.monitor.rate),
  reading: (point) => known(point.reading_tps, strings.monitor.rate),
  firstToken: (point) => known(point.first_token_ms, strings.monitor.milliseconds),
  waiting: (point) => known(point.num_waiting, strings.monitor.requests),
  fromSaved: share,
};

const ofSpan: Record<Figure, (span: MonitorSpan) => Value> = {
  memory: ({ process_bytes, mlx_active_bytes }) =>
    process_bytes ? memory(process_bytes.most, mlx_active_bytes?.mean ?? 0) : nothing(),
  writing: (span) => spread(span.writing_tps, strings.monitor.rate),
  reading: (span) => spread(span.reading_tps, strings.monitor.rate),
  firstToken: (span) => spread(span.first_token_ms, strings.monitor.milliseconds),
  waiting: (span) => known(span.most_waiting, strings.monitor.requests),
  fromSaved: share,
};

/** The last minutes, over a clock that does not jump. */
export function seriesNow(points: readonly MonitorPoint[], figure: Figure): Series {
  const to = points.at(-1)?.elapsed_ms ?? 0;
  const shown = points.map((point, index) => {
    const before = points[index - 1];
    const { words, ...value } = ofPoint[figure](point);
    return {
      ...value,
      x: point.elapsed_ms,
      isApart: before !== undefined && point.elapsed_ms - before.elapsed_ms > APART_MS,
      words: strings.monitor.atTime(point.at_ms, words),
    };
  });
  return { points: shown, from: to - NOW_MS, to };
}

/** The last day. Memory stays what it was until it is noted again, as long as Cairn was open. */
export function seriesDay({ spans, span_ms, until_ms }: MonitorDay, figure: Figure): Series {
  const stays = figure === 'memory';
  const from = until_ms - DAY_MS;
  const points: SparklinePoint[] = [];
  let before: MonitorSpan | undefined;
  for (const span of spans) {
    const { words, ...value } = ofSpan[figure](span);
    if (value.value === null && stays) continue;
    const isNext = before !== undefined && span.at_ms - before.at_ms <= span_ms;
    // The first ten minutes may have begun before the day.
    const x = Math.min(until_ms, Math.max(from, span.at_ms + span_ms / 2));
    const isApart = stays ? span.begins_run : !isNext;
    points.push({ ...value, x, isApart, words: strings.monitor.inSpan(span.at_ms, span.at_ms + span_ms, words) });
    before = span;
  }
  const last = points.at(-1);
  if (stays && last && last.x < until_ms) points.push({ ...last, x: until_ms, isApart: false });
  return { points, from, to: until_ms };
}

/** A row of the table: the time, and a text for each figure. */
export interface TableRow {
  key: number;
  time: string;
  cells: string[];
}

/** The newest points first. */
export function rowsNow(points: readonly MonitorPoint[]): TableRow[] {
  const oldest = (points.at(-1)?.elapsed_ms ?? 0) - 60_000;
  const shown = points.filter(({ elapsed_ms }) => elapsed_ms >= oldest).toReversed();
  return shown.map((point) => ({
    key: point.number,
    time: strings.monitor.clock(point.at_ms),
    cells: figures.map((figure) => ofPoint[figure](point).words),
  }));
}

/** The newest ten minutes first. */
export function rowsDay({ spans }: MonitorDay): TableRow[] {
  return spans.toReversed().map((span) => ({
    key: span.at_ms,
    time: strings.common.time(span.at_ms),
    cells: figures.map((figure) => ofSpan[figure](span).words),
  }));
}

/** Whether the first answer with saved context was asked for before the last day. */
export function isPastFirstDay({ time_saved, until_ms }: MonitorDay): boolean {
  return time_saved.since_ms !== null && time_saved.since_ms < until_ms - DAY_MS;
}

/** The values of a line that are known. */
export function valuesOf({ points }: Series): number[] {
  return points.flatMap(({ value }) => (value === null ? [] : [value]));
}

/** The middle value; null of none. */
export function median(values: readonly number[]): number | null {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? null;
}
