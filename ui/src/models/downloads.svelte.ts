// Downloads of models: how far they are, and start, pause, resume and cancel.
import { type Platform, runOrReport } from '../platform/platform';
import type { Download, DownloadState } from '../platform/wire';
import { shortModelName } from '../status/engine';
import { strings } from '../text';
import { after, type After } from '../ui/clock';
import type { Toasts } from '../ui/toasts.svelte';
import { offerUndo } from '../ui/offerUndo';
import { UNDO_MS, type UndoStack } from '../ui/undo';

/** After this time it is said that the hub has not answered. Asking it again, which is what happens meanwhile, takes longer. */
const UNANSWERED_MS = 3000;

export interface DownloadsOptions {
  platform: Platform;
  toasts: Toasts;
  undo: UndoStack;
  report: (error: unknown) => void;
  /** A download has ended well. */
  onDone: (name: string) => void;
  after?: After;
}

/** All running downloads together. */
export interface DownloadsTotal {
  /** From 0 to 1. */
  share: number;
  secondsLeft: number | null;
}

const isActive = (state: DownloadState) => state === 'running' || state === 'queued' || state === 'offline';

const isWaiting = ({ state, total_bytes }: Download) =>
  (state === 'running' || state === 'offline') && total_bytes === 0;

/**
 * Owns the list of downloads.
 *
 * - A download that is cancelled is only paused until it can no longer be undone, so that nothing that came is lost.
 * - The time left that is shown does not grow, unless the rest has become quite another matter.
 */
export class DownloadStore {
  /** Names of downloads that are being asked for. */
  #asked = $state.raw<ReadonlySet<string>>(new Set());
  /** Names of downloads that are being cancelled, and how that is stopped. */
  #cancelling = $state.raw<ReadonlyMap<string, () => void>>(new Map());
  #items = $state.raw<Download[]>([]);
  /** How the wait for the hub's first answer is ended, by name. */
  readonly #asking = new Map<string, () => void>();
  /** Names of downloads that the hub has not answered for a while. */
  #unanswered = $state.raw<ReadonlySet<string>>(new Set());
  #isFirst = true;
  readonly #options: DownloadsOptions;

  readonly items = $derived(this.#items.filter(({ name }) => !this.#cancelling.has(name)));
  readonly unfinished = $derived(this.items.filter(({ state }) => state !== 'done'));
  /** Whether any goes on without being asked to: one that is paused or has failed does not. */
  readonly isComing = $derived(this.items.some(({ state }) => ['queued', 'running', 'offline'].includes(state)));
  /** Null while none is running. */
  readonly total = $derived(totalOf(this.items));

  constructor(options: DownloadsOptions) {
    this.#options = options;
  }

  get(name: string): Download | undefined {
    return this.items.find((download) => download.name === name);
  }

  /** Whether the hub has not yet said what there is to download, for longer than it takes. */
  isUnanswered(name: string): boolean {
    return this.#unanswered.has(name);
  }

  isAsked(name: string): boolean {
    return this.#asked.has(name);
  }

  receive(downloads: Download[]): void {
    const before = new Map(this.#items.map((download) => [download.name, download]));
    this.#items = downloads.map((download) => ({
      ...download,
      seconds_left: shownSeconds(before.get(download.name) ?? null, download),
    }));
    this.#watchAnswers();
    const isFirst = this.#isFirst;
    this.#isFirst = false;
    for (const { name, state } of downloads) {
      // What was done before the window was opened is no news.
      if (state === 'done' && !isFirst && before.get(name)?.state !== 'done') this.#options.onDone(name);
    }
  }

  #watchAnswers(): void {
    const waiting = this.#items.filter(isWaiting);
    const asking = new Set(waiting.filter(({ state }) => state === 'running').map(({ name }) => name));
    for (const [name, stop] of this.#asking) {
      if (asking.has(name)) continue;
      stop();
      this.#asking.delete(name);
    }
    for (const name of asking) {
      if (this.#asking.has(name)) continue;
      const say = () => (this.#unanswered = new Set([...this.#unanswered, name]));
      this.#asking.set(name, (this.#options.after ?? after)(UNANSWERED_MS, say));
    }
    // The hub is looked for again and again: until it answers, that changes nothing of what is said.
    const known = waiting.filter(({ name, state }) => state === 'offline' || this.#unanswered.has(name));
    this.#unanswered = new Set(known.map(({ name }) => name));
  }

  /** Begins a download, or lets one go on; returns whether that worked. */
  async start(name: string): Promise<boolean> {
    if (this.isAsked(name)) return false;
    this.#keep(name);
    this.#asked = new Set([...this.#asked, name]);
    const isDone = await runOrReport(this.#options, { type: 'download_model', name });
    this.#asked = new Set([...this.#asked].filter((other) => other !== name));
    return isDone;
  }

  async pause(name: string): Promise<void> {
    await runOrReport(this.#options, { type: 'pause_download', name });
  }

  /** Tries one that failed again, or asks the hub at once for those that wait for it. */
  async retry(name: string): Promise<void> {
    if (this.get(name)?.state === 'offline') await runOrReport(this.#options, { type: 'retry_downloads' });
    else await this.start(name);
  }

  /** Takes a download from the list and offers to bring it back. */
  async cancel(name: string): Promise<void> {
    const download = this.get(name);
    if (!download) return;
    const wasActive = isActive(download.state);
    const stop = (this.#options.after ?? after)(UNDO_MS, () => void this.#commit(name));
    this.#cancelling = new Map(this.#cancelling).set(name, stop);
    void offerUndo(this.#options, strings.downloads.cancelled(shortModelName(name)), () => {
      const isCommitted = !this.#cancelling.has(name);
      this.#keep(name);
      if (wasActive || isCommitted) void this.start(name);
    });
    if (wasActive) await runOrReport(this.#options, { type: 'pause_download', name });
  }

  /** Removes what has come, as it cannot be undone any more. */
  async #commit(name: string): Promise<void> {
    if (!this.#cancelling.has(name)) return;
    const isDone = await runOrReport(this.#options, { type: 'cancel_download', name });
    if (isDone) this.#items = this.#items.filter((download) => download.name !== name);
    this.#keep(name);
  }

  /** Shows a download again that was being cancelled. */
  #keep(name: string): void {
    this.#cancelling.get(name)?.();
    const cancelling = new Map(this.#cancelling);
    cancelling.delete(name);
    this.#cancelling = cancelling;
  }
}

/** Of more than two days nobody knows how long they will be: the first bytes came slowly. */
const MOST_SECONDS = 48 * 60 * 60;

/** A longer time is shown only when it is at least twice as long: that is no inaccuracy any more. */
function shownSeconds(before: Download | null, now: Download): number | null {
  const shown = before?.seconds_left ?? null;
  const next = now.seconds_left !== null && now.seconds_left <= MOST_SECONDS ? now.seconds_left : null;
  if (shown === null || next === null || before?.state !== now.state) return next;
  return next > shown && next < 2 * shown ? shown : next;
}

function totalOf(downloads: Download[]): DownloadsTotal | null {
  const running = downloads.filter(({ state }) => state === 'running' || state === 'queued');
  if (!running.some(({ state }) => state === 'running')) return null;
  const total = running.reduce((sum, { total_bytes }) => sum + total_bytes, 0);
  const bytes = running.reduce((sum, download) => sum + download.bytes, 0);
  const times = running.map(({ seconds_left }) => seconds_left);
  // Of one that the hub has not answered nobody knows how much there is.
  if (total === 0) return null;
  // Others have to come after those that run, so their time is not known.
  const secondsLeft = times.some((time) => time === null) ? null : Math.max(...times.map(Number));
  return { share: bytes / total, secondsLeft };
}
