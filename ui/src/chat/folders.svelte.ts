// Folders of chats: made, changed, deleted and brought back, folded and unfolded.
import { type Platform, runOrReport, sentenceOf } from '../platform/platform';
import { stored } from '../platform/stored';
import type { Conversation, Folder } from '../platform/wire';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';
import { offerUndo } from '../ui/offerUndo';
import type { UndoStack } from '../ui/undo';

const FOLDED_KEY = 'cairn.folded';

export interface FolderOptions {
  platform: Platform;
  toasts: Toasts;
  undo: UndoStack;
  report: (error: unknown) => void;
  storage?: Storage | undefined;
}

/** A folder that is being made for a dialog, and whether that was saved. */
interface Making {
  for: Partial<Folder>;
  folder: Promise<Folder>;
  isSaved: boolean;
}

/** Owns the folders, and which of them are folded. */
export class FolderStore {
  items = $state.raw<Folder[]>([]);
  /** The folder that the dialog is about; without an id a new one. */
  editing = $state.raw<Partial<Folder> | null>(null);
  /** The folder that was made for files while its dialog is open; it goes when that is cancelled. */
  #madeId = $state<string | null>(null);
  /** The folder that a new dialog has asked the core for: files and *Create* may want it at the same time. */
  #making: Making | null = null;
  /** Why that could not be saved. */
  problem = $state<string | null>(null);
  isSaving = $state(false);
  /** Chats that go into the new folder. */
  #waiting: ((folder: Folder) => void) | null = null;
  #folded = $state.raw<ReadonlySet<string>>(new Set());
  readonly #options: FolderOptions;

  constructor(options: FolderOptions) {
    this.#options = options;
    const folded: unknown = stored(options.storage, FOLDED_KEY) ?? ['archive'];
    if (Array.isArray(folded)) this.#folded = new Set(folded.filter((id) => typeof id === 'string'));
  }

  receive(folders: Folder[]): void {
    this.items = folders;
  }

  get(id: string | null): Folder | undefined {
    return this.items.find((folder) => folder.id === id);
  }

  /** `id`: of a folder, or "archive". */
  isFolded(id: string): boolean {
    return this.#folded.has(id);
  }

  /** Whether the row of a chat is in a folded archive or folder. */
  hides({ is_archived, is_pinned, folder_id }: Conversation): boolean {
    if (is_archived) return this.isFolded('archive');
    const folder = is_pinned ? undefined : this.get(folder_id);
    return folder !== undefined && this.isFolded(folder.id);
  }

  fold(id: string, isFolded: boolean): void {
    const folded = new Set(this.#folded);
    if (isFolded) folded.add(id);
    else folded.delete(id);
    this.#folded = folded;
    this.#options.storage?.setItem(FOLDED_KEY, JSON.stringify([...folded]));
  }

  /** Asks what a folder is called and what its chats begin with. `onMade`: is given the new folder. */
  edit(folder: Partial<Folder>, onMade: ((folder: Folder) => void) | null = null): void {
    this.problem = null;
    this.#madeId = null;
    this.#waiting = onMade;
    this.editing = folder;
  }

  /** The folder that the dialog is about, once there is one. */
  get editedId(): string | null {
    return this.editing?.id ?? this.#madeId;
  }

  /** Makes the new folder for files that were chosen before the rest is saved; null: that failed, and the dialog says why. */
  async make(): Promise<string | null> {
    const { editing } = this;
    if (!editing || this.editedId !== null) return this.editedId;
    try {
      const making = this.#made(editing, strings.folders.newTitle);
      const { id } = await making.folder;
      if (this.editing === editing || making.isSaved) return id;
      // Whoever has cancelled the dialog meanwhile wants none.
      await this.#discard(id);
      return null;
    } catch (error) {
      this.problem = sentenceOf(error);
      return null;
    }
  }

  async save(name: string, system_prompt: string, model: string | null): Promise<void> {
    const { editing } = this;
    if (!editing || this.isSaving) return;
    const wasMade = this.editedId !== null || this.#making?.for === editing;
    this.isSaving = true;
    try {
      const id = this.editedId ?? (await this.#made(editing, name).folder).id;
      // Whoever has cancelled the dialog meanwhile wants none; one that files had made went with it.
      if (this.editing !== editing) return wasMade ? undefined : await this.#discard(id);
      if (wasMade || system_prompt !== '' || model !== null)
        await this.#options.platform.call({ type: 'change_folder', id, name, system_prompt, model });
      // It is changed, but another dialog may be open by now.
      if (this.editing !== editing) return;
      if (this.#making?.for === editing) this.#making.isSaved = true;
      const isNew = this.#madeId !== null;
      this.#madeId = null;
      this.editing = null;
      if (isNew) this.#waiting?.({ ...(this.get(id) ?? { id }), name, system_prompt, model });
    } catch (error) {
      if (this.editing === editing) this.problem = sentenceOf(error);
      else this.#options.report(error);
    } finally {
      this.isSaving = false;
    }
  }

  /** Closes the dialog without saving. */
  async cancel(): Promise<void> {
    const id = this.#madeId;
    this.#madeId = null;
    this.editing = null;
    if (id !== null) await this.#discard(id);
  }

  async #discard(id: string): Promise<void> {
    this.items = this.items.filter((folder) => folder.id !== id);
    await runOrReport(this.#options, { type: 'delete_folder', id });
  }

  /** The folder of a new dialog, which is made once, whoever else waits for it. */
  #made(editing: Partial<Folder>, name: string): Making {
    if (this.#making?.for === editing) return this.#making;
    const making = { for: editing, folder: this.#create(editing, name), isSaved: false };
    this.#making = making;
    // What failed can be tried again.
    making.folder.catch(() => {
      if (this.#making === making) this.#making = null;
    });
    return making;
  }

  async #create(editing: Partial<Folder>, name: string): Promise<Folder> {
    const reply = await this.#options.platform.call({ type: 'create_folder', name });
    if (reply.type !== 'folder') throw new Error(strings.connection.unexpectedReply);
    const { folder } = reply;
    if (!this.get(folder.id)) this.items = [...this.items, folder];
    // If the rest cannot be saved, the next try changes this one.
    if (this.editing === editing) this.#madeId = folder.id;
    return folder;
  }

  /** Deletes a folder at once and offers to bring it back; its chats stay. */
  async remove(id: string): Promise<void> {
    const folder = this.get(id);
    if (!folder) return;
    const before = this.items;
    this.items = before.filter((other) => other.id !== id);
    const isDone = runOrReport(this.#options, { type: 'delete_folder', id });
    const wasDone = await offerUndo(
      this.#options,
      strings.folders.deleted(folder.name),
      () => void runOrReport(this.#options, { type: 'restore_folder', id }),
      isDone,
    );
    if (!wasDone) this.items = before;
  }
}
