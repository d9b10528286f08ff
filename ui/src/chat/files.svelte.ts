// Chats as files: exports that are being asked about, and imports.
import { chatFileEndings, fileName, sentenceOf, type Platform } from '../platform/platform';
import type { ChatFileFormat, ChatsImported } from '../platform/wire';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';
import type { UndoStack } from '../ui/undo';

/** How long a message about an import stays. */
const RESULT_MS = 20_000;
/** Longer than any import takes; the message goes when it is done. */
const WHILE_IMPORTING_MS = 3_600_000;

export interface ChatFilesOptions {
  platform: Platform;
  toasts: Toasts;
  undo: UndoStack;
  openConversation: (id: string) => void;
  removeChats: (ids: readonly string[]) => Promise<void>;
  /** When a chat was written in last, in milliseconds; null: it is not here. */
  updatedAtMs: (id: string) => number | null;
}

/** Owns the question in which form chats are exported, and the one import there can be at a time. */
export class ChatFiles {
  /** The chats to export, without ids all; and what they are called. */
  exporting = $state.raw<{ ids: string[]; name: string } | null>(null);
  problem = $state<string | null>(null);
  isBusy = $state(false);

  readonly #options: ChatFilesOptions;

  constructor(options: ChatFilesOptions) {
    this.#options = options;
  }

  askForExport(ids: string[], name: string): void {
    this.problem = null;
    this.exporting = { ids, name };
  }

  async export(format: ChatFileFormat): Promise<void> {
    const { exporting } = this;
    if (!exporting || this.isBusy) return;
    this.isBusy = true;
    const { platform, toasts } = this.#options;
    try {
      const name = fileName(exporting.name, chatFileEndings[format], strings.chatFiles.fileName);
      const isWritten = await platform.exportChats(exporting.ids, format, name);
      this.exporting = null;
      if (isWritten) toasts.show('info', strings.chatFiles.exported(name));
    } catch (error) {
      this.problem = sentenceOf(error);
    } finally {
      this.isBusy = false;
    }
  }

  /** Asks for a file and imports its chats. */
  choose(): Promise<void> {
    return this.#import((onChosen) => this.#options.platform.importChats(undefined, onChosen));
  }

  /** Imports the chats of a file that was dropped on the page. */
  drop(file: File): Promise<void> {
    return this.#import((onChosen) => this.#options.platform.importChats(file, onChosen));
  }

  /** Takes the shell's import of a file that was dropped on the window. */
  dropped(name: string, imported: Promise<ChatsImported | null>): Promise<void> {
    return this.#import((onChosen) => {
      onChosen(name);
      return imported;
    });
  }

  async #import(ask: (onChosen: (name: string) => void) => Promise<ChatsImported | null>): Promise<void> {
    const { toasts } = this.#options;
    let toast: number | null = null;
    const onChosen = (name: string) => {
      toast ??= toasts.show('info', strings.chatFiles.importing(name), { milliseconds: WHILE_IMPORTING_MS });
    };
    try {
      const done = await ask(onChosen);
      if (toast !== null) toasts.dismiss(toast);
      if (done) this.#report(done);
    } catch (error) {
      if (toast !== null) toasts.dismiss(toast);
      toasts.show('error', sentenceOf(error));
    }
  }

  #report(done: ChatsImported): void {
    const { openConversation, removeChats, toasts, undo, updatedAtMs } = this.#options;
    const importedAtMs = Date.now();
    const words = strings.chatFiles;
    const id = done.first_id;
    const open = id === null ? [] : [{ label: words.open, run: () => openConversation(id) }];
    const hasExtended = done.num_extended > 0;
    const isEmpty = done.num_added + done.num_here + done.num_extended + done.num_refused === 0;
    const imported = isEmpty && done.problem === null ? words.none : words.imported(done.num_added);
    const sentences = done.num_added > 0 || !hasExtended ? [imported] : [];
    if (hasExtended) sentences.push(words.extended(done.num_extended, done.num_new_messages));
    if (done.num_here > 0) sentences.push(words.here(done.num_here));
    let toast = 0;
    const takeBack = () => {
      toasts.dismiss(toast);
      // What was written since is nothing that the import has made.
      const isWritten = (id: string) => (updatedAtMs(id) ?? 0) > importedAtMs;
      void removeChats(done.added_ids.filter((id) => !isWritten(id)));
      const numWritten = done.added_ids.filter(isWritten).length;
      if (numWritten > 0) toasts.show('info', words.kept(numWritten), { milliseconds: RESULT_MS });
    };
    // Chats that were here keep their new messages.
    const label = hasExtended ? words.takeBack(done.num_added) : strings.common.undo;
    const undone = done.num_added > 0 ? [{ label, run: undo.push(takeBack) }] : [];
    toast = toasts.show('info', sentences.join(' '), { milliseconds: RESULT_MS, actions: [...open, ...undone] });
    const [first] = done.refused;
    if (first) {
      const sentence = words.refused(done.num_refused, first.title, first.number, first.why);
      toasts.show('warning', sentence, { milliseconds: RESULT_MS });
    }
    if (done.problem !== null) toasts.show('warning', done.problem, { milliseconds: RESULT_MS });
  }
}
