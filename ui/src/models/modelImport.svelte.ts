// Imports of GGUF files and model folders into Cairn's own folder.
import { sentenceOf, type Platform } from '../platform/platform';
import type { ModelImport } from '../platform/wire';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';

export interface ModelImportOptions {
  platform: Platform;
  toasts: Toasts;
  /** A file is whole and in its place. */
  onDone: () => void;
}

/** Owns the one import of a model that there can be at a time. */
export class ModelImportStore {
  /** How far it is; null while none is under way. */
  current = $state.raw<ModelImport | null>(null);
  isChoosing = $state(false);
  readonly #options: ModelImportOptions;
  /** Stops the transfer of a file that was dropped. */
  #sending: AbortController | null = null;
  #isCancelled = false;

  constructor(options: ModelImportOptions) {
    this.#options = options;
  }

  get canChoose(): boolean {
    return this.#options.platform.chooseModelFile !== undefined;
  }

  /** Folders come only through the shell: a browser hands over files. */
  get takesDrops(): 'files' | 'folders' | null {
    const { platform } = this.#options;
    if (platform.onFileDrop) return 'folders';
    return platform.importModel ? 'files' : null;
  }

  receive(now: ModelImport | null): void {
    const before = this.current;
    this.current = now;
    if (now !== null || before === null) return;
    const isWhole = !this.#isCancelled && before.total_bytes > 0 && before.bytes >= before.total_bytes;
    this.#isCancelled = false;
    if (!isWhole) return;
    this.#options.toasts.show('info', strings.models.import.done(before.file_name));
    this.#options.onDone();
  }

  /** Asks for a file and imports it. */
  async choose(): Promise<void> {
    const { platform } = this.#options;
    if (!platform.chooseModelFile || this.isChoosing) return;
    this.isChoosing = true;
    await this.#take(platform.chooseModelFile());
    this.isChoosing = false;
  }

  /** Imports a file that was dropped on the page. */
  async drop(file: File): Promise<void> {
    const { platform, toasts } = this.#options;
    if (!platform.importModel) return void toasts.show('error', strings.models.import.notHere);
    this.#sending = new AbortController();
    await this.#take(platform.importModel(file, this.#sending.signal));
    this.#sending = null;
  }

  /** Follows an import that the shell has begun with what was dropped on its window. */
  async dropped(isImported: Promise<boolean>): Promise<void> {
    await this.#take(isImported);
  }

  async cancel(): Promise<void> {
    this.#isCancelled = true;
    this.#sending?.abort();
    try {
      await this.#options.platform.call({ type: 'cancel_model_import' });
    } catch (error) {
      this.#options.toasts.show('error', sentenceOf(error));
    }
  }

  async #take(done: Promise<unknown>): Promise<void> {
    this.#isCancelled = false;
    try {
      await done;
    } catch (error) {
      if (!this.#isCancelled) this.#options.toasts.show('error', sentenceOf(error));
    }
  }
}
