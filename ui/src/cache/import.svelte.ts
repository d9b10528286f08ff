// Imports of prompt cache files: a file is chosen or dropped, previewed, and imported as a starting point.
import { sentenceOf, type Platform } from '../platform/platform';
import type { ImportPreview, NamedCache } from '../platform/wire';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';

/** `reading`: the file is being transferred; `refused`: that failed; `preview`: the user decides; `importing`: it is being written. */
export type ImportStep = 'reading' | 'refused' | 'preview' | 'importing';

export interface ImportStoreOptions {
  platform: Platform;
  toasts: Toasts;
  /** `isHidden`: the dialog was closed meanwhile. */
  onImported: (named: NamedCache, isHidden: boolean) => void;
}

/** Owns the one import there can be at a time. */
export class ImportStore {
  step = $state<ImportStep | null>(null);
  fileName = $state('');
  preview = $state.raw<ImportPreview | null>(null);
  name = $state('');
  isChecking = $state(false);
  /** Why it could not be imported. */
  problem = $state<string | null>(null);
  /** Files are being dragged over the window. */
  isOver = $state(false);
  /** A file is being chosen or read. */
  isBusy = $state(false);
  /** The dialog was closed while the file was being imported; the import continues. */
  isHidden = $state(false);

  /** Whether the dialog is shown. */
  readonly isOpen = $derived(this.step !== null && !this.isHidden);

  readonly #options: ImportStoreOptions;
  /** Stops the transfer of the file that was asked for last. */
  #reading = new AbortController();

  constructor(options: ImportStoreOptions) {
    this.#options = options;
  }

  /** Asks for a file. */
  async choose(): Promise<void> {
    if (!this.#isFree()) return;
    const onChosen = (fileName: string) => this.#read(fileName);
    await this.#take((signal) => this.#options.platform.importCache(undefined, { onChosen, signal }));
  }

  /** Takes a file that was dropped on the page. */
  async drop(file: File): Promise<void> {
    this.isOver = false;
    if (!this.#isFree()) return;
    this.#read(file.name);
    await this.#take((signal) => this.#options.platform.importCache(file, { signal }));
  }

  /** Takes the shell's preview of a file that was dropped on the window. */
  async dropped(preview: Promise<ImportPreview>): Promise<void> {
    this.isOver = false;
    if (this.#isFree()) return this.#take(() => preview);
    // There is one import at a time, so this one is discarded.
    const refused = await preview.catch(() => null);
    if (refused) this.#forget(refused);
  }

  async confirm(): Promise<void> {
    const { preview } = this;
    const name = this.name.trim();
    if (!preview || preview.problem !== null || this.step !== 'preview' || name === '') return;
    this.step = 'importing';
    this.problem = null;
    try {
      const check = preview.can_check && this.isChecking;
      const reply = await this.#options.platform.call({ type: 'confirm_import', token: preview.token, name, check });
      if (reply.type !== 'named') throw new Error(strings.connection.unexpectedReply);
      const { isHidden } = this;
      this.#end();
      this.#options.onImported(reply.named, isHidden);
    } catch (error) {
      this.step = 'preview';
      this.problem = sentenceOf(error);
      if (!this.isHidden) return;
      // A dialog that opens now would take the keys of whatever the user is doing.
      this.#options.toasts.show('error', strings.imports.failed(name, this.problem), {
        actions: [{ label: strings.imports.show, run: () => (this.isHidden = false) }],
      });
    }
  }

  /** Discards the file, also while it is being transferred. An import that has begun continues. */
  cancel(): void {
    // The dialog also reports that it was closed by the store.
    if (!this.isOpen) return;
    if (this.step === 'importing') return void (this.isHidden = true);
    if (this.step === 'reading') this.#reading.abort();
    if (this.preview) this.#forget(this.preview);
    this.isBusy = false;
    this.#end();
  }

  /** Whether another file can be taken. If not, the dialog of the current one is shown again. */
  #isFree(): boolean {
    this.isHidden = false;
    return !this.isBusy && this.step === null;
  }

  async #take(ask: (signal: AbortSignal) => Promise<ImportPreview | null>): Promise<void> {
    this.#reading = new AbortController();
    const { signal } = this.#reading;
    this.isBusy = true;
    try {
      const preview = await ask(signal);
      if (signal.aborted) return preview ? this.#forget(preview) : undefined;
      if (!preview) return this.#end();
      this.preview = preview;
      this.fileName = preview.file_name;
      this.name = preview.suggested_name;
      this.isChecking = false;
      this.step = 'preview';
    } catch (error) {
      if (signal.aborted) return;
      this.problem = sentenceOf(error);
      this.step = 'refused';
    } finally {
      // After a cancellation another file may already be being read.
      if (!signal.aborted) this.isBusy = false;
    }
  }

  #read(fileName: string): void {
    this.fileName = fileName;
    this.step = 'reading';
  }

  #end(): void {
    this.step = null;
    this.preview = null;
    this.problem = null;
    this.fileName = '';
    this.isHidden = false;
  }

  #forget(preview: ImportPreview): void {
    // If this fails, the core discards the preview later.
    this.#options.platform.call({ type: 'cancel_import', token: preview.token }).catch(() => undefined);
  }
}
