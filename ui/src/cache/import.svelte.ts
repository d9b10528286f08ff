// The way of a file into Cairn: chosen or dropped, looked at, imported under a name.
import { sentenceOf, type Platform } from '../platform/platform';
import type { ImportPreview, NamedCache } from '../platform/wire';

/** `reading`: the file is on its way; `preview`: the person decides; `importing`: it is being filed. */
export type ImportStep = 'reading' | 'preview' | 'importing';

export interface ImportOptions {
  platform: Platform;
  report: (error: unknown) => void;
  onImported: (named: NamedCache) => void;
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
  /** Files are held over the window. */
  isOver = $state(false);
  /** A file is being chosen or read. */
  isBusy = $state(false);
  /** The dialog was closed while the file was being filed, which is seen through. */
  isHidden = $state(false);

  /** Whether the dialog is shown. */
  readonly isOpen = $derived(this.step !== null && !this.isHidden);

  readonly #options: ImportOptions;
  /** The dialog was closed while the file was being read. */
  #isGivenUp = false;

  constructor(options: ImportOptions) {
    this.#options = options;
  }

  /** Asks for a file. */
  async choose(): Promise<void> {
    if (this.isBusy || this.step !== null) return;
    await this.#take(this.#options.platform.importCache(undefined, (fileName) => this.#read(fileName)));
  }

  /** Takes a file that was dropped on the page. */
  async drop(file: File): Promise<void> {
    this.isOver = false;
    if (this.isBusy || this.step !== null) return;
    this.#read(file.name);
    await this.#take(this.#options.platform.importCache(file));
  }

  /** Takes what the shell found in a file that was dropped on the window. */
  async dropped(preview: Promise<ImportPreview>): Promise<void> {
    this.isOver = false;
    if (!this.isBusy && this.step === null) return this.#take(preview);
    // Nobody will decide about this one.
    const refused = await preview.catch(() => null);
    if (refused) this.#forget(refused);
  }

  async confirm(): Promise<void> {
    const { preview } = this;
    if (!preview || preview.problem !== null || this.step !== 'preview' || this.name.trim() === '') return;
    this.step = 'importing';
    this.isHidden = false;
    this.problem = null;
    try {
      const reply = await this.#options.platform.call({
        type: 'confirm_import',
        token: preview.token,
        name: this.name.trim(),
        check: preview.can_check && this.isChecking,
      });
      if (reply.type !== 'named') throw new Error('Cairn did not say what became of the file.');
      this.#end();
      this.#options.onImported(reply.named);
    } catch (error) {
      this.step = 'preview';
      this.isHidden = false;
      this.problem = sentenceOf(error);
    }
  }

  /** Lets the file go. What is already being filed is seen through. */
  cancel(): void {
    if (this.step === 'importing') return void (this.isHidden = true);
    this.#isGivenUp = this.step === 'reading';
    if (this.preview) this.#forget(this.preview);
    this.#end();
  }

  async #take(asked: Promise<ImportPreview | null>): Promise<void> {
    this.isBusy = true;
    this.#isGivenUp = false;
    try {
      const preview = await asked;
      if (!preview) return this.#end();
      if (this.#isGivenUp) return this.#forget(preview);
      this.preview = preview;
      this.fileName = preview.file_name;
      this.name = preview.suggested_name;
      this.isChecking = false;
      this.problem = null;
      this.step = 'preview';
    } catch (error) {
      this.#end();
      if (!this.#isGivenUp) this.#options.report(error);
    } finally {
      this.isBusy = false;
    }
  }

  #read(fileName: string): void {
    this.fileName = fileName;
    this.step = 'reading';
  }

  #end(): void {
    this.step = null;
    this.preview = null;
    this.fileName = '';
  }

  #forget(preview: ImportPreview): void {
    // The core forgets by itself as well, only later.
    this.#options.platform.call({ type: 'cancel_import', token: preview.token }).catch(() => undefined);
  }
}
