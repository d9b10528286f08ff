// Versions of models: which have a newer one on the hub, and the older ones on this machine that can go.
import type { Platform } from '../platform/platform';
import type { OldRevisions } from '../platform/wire';
import { shortModelName } from '../status/engine';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';
import { offerUndo } from '../ui/offerUndo';
import type { UndoStack } from '../ui/undo';

/** Opening the page asks the hub again only after so long. */
const FRESH_MS = 3_600_000;

export interface RevisionsOptions {
  platform: Platform;
  toasts: Toasts;
  undo: UndoStack;
  report: (error: unknown) => void;
  /** Whether there is a model that the hub can be asked about. */
  isFromHub: () => boolean;
  now?: () => number;
}

/** Owns what is known of newer and older versions. Nothing is asked at the start. */
export class RevisionStore {
  /** What a newer version has to download, by the model's name. */
  updates = $state.raw<ReadonlyMap<string, number>>(new Map());
  /** The person asks. That the page does so by itself is not shown. */
  isAsking = $state(false);
  /** The older versions of models whose rows were opened. */
  old = $state.raw<ReadonlyMap<string, OldRevisions>>(new Map());
  readonly #options: RevisionsOptions;
  readonly #now: () => number;
  #askedAt: number | null = null;
  /** What goes wrong with the question that is on its way. */
  #asked: Promise<unknown> | null = null;

  constructor(options: RevisionsOptions) {
    this.#options = options;
    this.#now = options.now ?? Date.now;
  }

  /** The page was opened. */
  async look(): Promise<void> {
    if (this.#askedAt === null || this.#now() - this.#askedAt >= FRESH_MS) await this.#ask();
  }

  /** Asks the hub now, and says so where there is nothing new, or where that is not known of all models. */
  async check(): Promise<void> {
    if (this.isAsking) return;
    this.isAsking = true;
    const failure = await this.#ask();
    this.isAsking = false;
    if (failure) this.#options.report(failure);
    else if (this.updates.size === 0) {
      const { none, nothingToCheck } = strings.models.versions;
      this.#options.toasts.show('info', this.#options.isFromHub() ? none : nothingToCheck);
    }
  }

  /** The newer version of a model has come. */
  arrived(name: string): void {
    this.updates = new Map([...this.updates].filter(([known]) => known !== name));
  }

  /** Asks for the older versions of a model. */
  async loadOld(name: string): Promise<void> {
    try {
      const reply = await this.#options.platform.call({ type: 'get_old_revisions', name });
      if (reply.type === 'old_revisions') this.old = new Map(this.old).set(name, reply.revisions);
    } catch {
      // A model that has gone meanwhile has none.
      this.old = new Map([...this.old].filter(([known]) => known !== name));
    }
  }

  /** Removes the older versions of a model, and offers to bring them back. */
  async removeOld(name: string): Promise<void> {
    const { platform, report } = this.#options;
    try {
      await platform.call({ type: 'remove_old_revisions', name });
    } catch (error) {
      return report(error);
    }
    await this.loadOld(name);
    void offerUndo(
      this.#options,
      strings.models.versions.removed(shortModelName(name)),
      () => void this.#restore(name),
    );
  }

  async #restore(name: string): Promise<void> {
    try {
      await this.#options.platform.call({ type: 'restore_old_revisions', name });
      await this.loadOld(name);
    } catch (error) {
      this.#options.report(error);
    }
  }

  /** Returns what went wrong, null where nothing did. */
  #ask(): Promise<unknown> {
    this.#asked ??= this.#askHub().finally(() => (this.#asked = null));
    return this.#asked;
  }

  async #askHub(): Promise<unknown> {
    this.#askedAt = this.#now();
    try {
      const reply = await this.#options.platform.call({ type: 'get_model_updates' });
      if (reply.type !== 'model_updates') return null;
      this.updates = new Map(reply.updates.map(({ name, bytes }) => [name, bytes]));
      return reply.failure && new Error(reply.failure.message);
    } catch (error) {
      return error;
    }
  }
}
