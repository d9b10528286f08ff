// Figures of the engine and of memory: of the last minutes, a point a second while the page is open, and of the last day.
import type { Platform } from '../platform/platform';
import type { MonitorDay, MonitorPoint } from '../platform/wire';
import { after as later, type After } from '../ui/clock';

export type MonitorRange = 'now' | 'day';

/** How long the chart of the last minutes is. */
export const NOW_MS = 300_000;
const POINT_MS = 1000;
/** So often the last day is asked for again. */
const DAY_MS = 60_000;

/** Owns the figures. They are asked for only while the page is open. */
export class MonitorStore {
  points = $state.raw<MonitorPoint[]>([]);
  day = $state.raw<MonitorDay | null>(null);
  /** Memory of the machine; 0 where it is not known. */
  machineBytes = $state(0);
  range = $state<MonitorRange>('now');

  readonly #platform: Platform;
  readonly #after: After;
  /** The timers of the page as it was opened last; null while it is closed. */
  #timers: Set<() => void> | null = null;

  constructor(platform: Platform, after: After = later) {
    this.#platform = platform;
    this.#after = after;
  }

  open(): void {
    this.close();
    const timers = (this.#timers = new Set());
    this.#repeat(timers, POINT_MS, () => this.#askNow());
    this.#repeat(timers, DAY_MS, () => this.#askDay());
  }

  close(): void {
    for (const forget of this.#timers ?? []) forget();
    this.#timers = null;
  }

  /** Cairn was started again, and counts its points anew. */
  reconnected(): void {
    this.points = [];
    if (this.#timers) void this.#askDay().catch(() => undefined);
  }

  /** An answer has ended. */
  answered(): void {
    if (this.#timers) void this.#askDay().catch(() => undefined);
  }

  /** Asks now, and again so long after each reply, until the page is closed. What fails is asked again. */
  #repeat(timers: Set<() => void>, milliseconds: number, ask: () => Promise<void>): void {
    const run = async () => {
      await ask().catch(() => undefined);
      if (this.#timers !== timers) return;
      const forget = this.#after(milliseconds, () => {
        timers.delete(forget);
        void run();
      });
      timers.add(forget);
    };
    void run();
  }

  async #askNow(): Promise<void> {
    const after = this.points.at(-1)?.number ?? 0;
    const reply = await this.#platform.call({ type: 'get_monitor_now', after });
    if (reply.type !== 'monitor_now') return;
    this.machineBytes = reply.machine_bytes;
    const known = new Set(this.points.map(({ number }) => number));
    const points = [...this.points, ...reply.points.filter(({ number }) => !known.has(number))];
    const from = (points.at(-1)?.elapsed_ms ?? 0) - NOW_MS;
    this.points = points.filter(({ elapsed_ms }) => elapsed_ms >= from);
  }

  async #askDay(): Promise<void> {
    const reply = await this.#platform.call({ type: 'get_monitor_day' });
    if (reply.type === 'monitor_day') this.day = reply.day;
  }
}
