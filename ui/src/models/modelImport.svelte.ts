// Imports of GGUF files and model folders into Cairn's own folder.
import { sentenceOf, type Platform } from '../platform/platform';
import type { Command, ImportedModel, ModelImport, RoundingChoice, RoundingForm } from '../platform/wire';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';

/** How long a message offers to start a chat. */
const OFFER_MS = 20_000;

export interface ModelImportOptions {
  platform: Platform;
  toasts: Toasts;
  /** A file is whole and in its place. */
  onDone: () => void;
  startChatting: (name: string) => void;
}

/** Owns the one import of a model that there can be at a time. */
export class ModelImportStore {
  /** How far it is; null while none is under way. */
  current = $state.raw<ModelImport | null>(null);
  isChoosing = $state(false);
  /** It is asked what the import that is under way rounds weights to. */
  isAsked = $state(false);
  readonly #options: ModelImportOptions;
  /** Stops the transfer of a file that was dropped. */
  #sending: AbortController | null = null;
  #isCancelled = false;
  /** Imports of this window that have not ended. */
  #numOwn = 0;
  /** Of the file or folder that was imported last. */
  #lastName = '';

  constructor(options: ModelImportOptions) {
    this.#options = options;
  }

  /** What the import can round weights to while it waits for a choice; otherwise nothing. */
  get choices(): readonly RoundingChoice[] {
    return this.current?.choices ?? [];
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

  /** What is under way when the window is opened, or connected again. */
  restore(now: ModelImport | null): void {
    this.current = now;
  }

  receive(now: ModelImport | null): void {
    const before = this.current;
    this.current = now;
    const waits = this.choices.length > 0;
    // In other windows, the question would come from nowhere: there the import's card leads to it.
    if (waits && (before?.choices.length ?? 0) === 0) this.isAsked = this.#numOwn > 0;
    if (!waits) this.isAsked = false;
    this.#lastName = now?.file_name ?? this.#lastName;
    if (now !== null || before === null) return;
    const isWhole = !this.#isCancelled && before.total_bytes > 0 && before.bytes >= before.total_bytes;
    this.#isCancelled = false;
    // Of this window's own import the answer says more.
    if (!isWhole || this.#numOwn > 0) return;
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
    if (this.current !== null) return void toasts.show('error', strings.models.import.oneAtATime);
    this.#sending = new AbortController();
    // Until the core has all of the file, only this window knows of it.
    this.receive({ file_name: file.name, bytes: 0, total_bytes: 0, choices: [] });
    await this.#take(platform.importModel(file, this.#sending.signal));
    this.#sending = null;
    this.current = null;
  }

  /** Follows an import that the shell has begun with what was dropped on its window. */
  async dropped(imported: Promise<ImportedModel | null>): Promise<void> {
    await this.#take(imported);
  }

  /** Goes on with the import, rounding weights to this. */
  async round(form: RoundingForm): Promise<void> {
    this.isAsked = false;
    await this.#call({ type: 'choose_rounding', form });
  }

  /** Closes the question; without an answer there is no import. */
  decline(): void {
    if (!this.isAsked) return;
    this.isAsked = false;
    void this.cancel();
  }

  async cancel(): Promise<void> {
    this.#isCancelled = true;
    this.#sending?.abort();
    await this.#call({ type: 'cancel_model_import' });
  }

  async #call(command: Command): Promise<void> {
    try {
      await this.#options.platform.call(command);
    } catch (error) {
      this.#options.toasts.show('error', sentenceOf(error));
    }
  }

  /** Only the window that has begun an import knows the model's name, and what was lost. */
  #finish({ name, rounded_weights: rounded, has_chat_template: canChat }: ImportedModel): void {
    const { onDone, startChatting, toasts } = this.#options;
    const words = strings.models.import;
    const loss = rounded ? ` ${words.rounded(rounded.num_tensors, rounded.relative_error)}` : '';
    const lack = canChat ? '' : ` ${words.noTemplate}`;
    const offer = { label: strings.models.startChatting, run: () => startChatting(name) };
    toasts.show(canChat ? 'info' : 'warning', words.done(this.#lastName || name) + loss + lack, {
      milliseconds: OFFER_MS,
      actions: canChat ? [offer] : [],
    });
    onDone();
  }

  async #take(done: Promise<ImportedModel | null>): Promise<void> {
    this.#isCancelled = false;
    this.#numOwn++;
    try {
      const model = await done;
      if (model !== null) this.#finish(model);
    } catch (error) {
      if (!this.#isCancelled) this.#options.toasts.show('error', sentenceOf(error));
    } finally {
      this.#numOwn--;
    }
  }
}
