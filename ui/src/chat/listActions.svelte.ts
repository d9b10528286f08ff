// What is done with rows of the list: rename, pin, archive, move, delete, and undo each of them. One row or thousands are
// one command and one undo.
import { runOrReport, type Platform } from '../platform/platform';
import type { Command, Conversation } from '../platform/wire';
import { strings } from '../text';
import { offerUndo } from '../ui/offerUndo';
import type { Toasts } from '../ui/toasts.svelte';
import type { UndoStack } from '../ui/undo';
import { titleOf, type ConversationList } from './conversations.svelte';

export interface ListActionOptions {
  platform: Platform;
  toasts: Toasts;
  undo: UndoStack;
  report: (error: unknown) => void;
  list: ConversationList;
  /** The chat on screen. */
  openId: () => string | null;
  open: (id: string | null) => void;
  /** Closes chats, and takes them out of the list. */
  forget: (ids: readonly string[]) => void;
  /** Selects none, so that the next action is not about the same rows. `from`: where the next range begins. */
  deselect: (from: string | null) => void;
}

/** Owns which row is being renamed, and which takes the focus after an action. */
export class ListActions {
  renamingId = $state<string | null>(null);
  /** The row that takes the focus, because the one that had it is gone. */
  rowToFocus = $state<string | null>(null);
  /** Whether a folder is not deleted; the owner of the folders sets it. */
  hasFolder: (id: string) => boolean = () => true;
  readonly #options: ListActionOptions;

  constructor(options: ListActionOptions) {
    this.#options = options;
  }

  /** Takes chats out of the list, or brings them back. */
  async archive(ids: readonly string[], is_archived: boolean): Promise<void> {
    const { list, openId, open } = this.#options;
    const rows = this.#rows(ids).filter((row) => row.is_archived !== is_archived);
    if (rows.length === 0) return;
    if (is_archived) {
      const neighbour = list.neighbourOf(ids);
      this.rowToFocus = neighbour;
      if (rows.some(({ id }) => id === openId())) open(neighbour);
    }
    const set = (rows: readonly Conversation[], is_archived: boolean) =>
      this.#change(rows, { is_archived }, { type: 'archive_conversations', ids: idsOf(rows), is_archived });
    const takeBack = () => {
      void set(this.#rows(idsOf(rows)), !is_archived);
      this.rowToFocus = rows[0]?.id ?? null;
    };
    const words = is_archived ? strings.chats.archived : strings.chats.unarchived;
    const isDone = set(rows, is_archived);
    this.#options.deselect(this.rowToFocus);
    await offerUndo(this.#options, words(this.#called(rows)), takeBack, isDone);
  }

  /** Puts chats into a folder, or into none. No message tells of one that is moved: its row is seen there. */
  async move(ids: readonly string[], folder_id: string | null): Promise<void> {
    const rows = this.#rows(ids).filter((row) => row.folder_id !== folder_id);
    if (rows.length === 0) return;
    this.rowToFocus = rows[0]?.id ?? null;
    const set = (rows: readonly Conversation[], folder_id: string | null) =>
      this.#change(rows, { folder_id }, { type: 'move_conversations', ids: idsOf(rows), folder_id });
    const takeBack = () => {
      // A folder that was deleted meanwhile takes none.
      const goal = ({ folder_id: old }: Conversation) => (old !== null && this.hasFolder(old) ? old : null);
      for (const old of new Set(rows.map(goal)))
        void set(this.#rows(idsOf(rows.filter((row) => goal(row) === old))), old);
      this.rowToFocus = rows[0]?.id ?? null;
    };
    const isDone = set(rows, folder_id);
    this.#options.deselect(this.rowToFocus);
    if (rows.length === 1) this.#options.undo.push(takeBack, isDone);
    else void offerUndo(this.#options, strings.chats.moved(this.#called(rows)), takeBack, isDone);
    await isDone;
  }

  /** Lets a chat stand above the others, and its saved context stay, or takes that back; returns whether it worked. */
  async pin(id: string, is_pinned: boolean): Promise<boolean> {
    return this.#change(this.#rows([id]), { is_pinned }, { type: 'pin_conversation', id, is_pinned });
  }

  async rename(id: string, title: string): Promise<void> {
    this.renamingId = null;
    const before = this.#options.list.get(id);
    if (!before || title.trim() === '' || title.trim() === before.title) return;
    const isDone = this.#setTitle(before, title.trim());
    const takeBack = () => this.#rows([id]).forEach((row) => void this.#setTitle(row, before.title));
    if (before.title !== '') this.#options.undo.push(takeBack, isDone);
    await isDone;
  }

  #setTitle(row: Conversation, title: string): Promise<boolean> {
    return this.#change([row], { title }, { type: 'rename_conversation', id: row.id, title });
  }

  /** Hides chats at once and offers to bring them back; also those that have come so lately that they have no row yet. */
  async remove(ids: readonly string[]): Promise<void> {
    if (ids.length === 0) return;
    const { list, openId, forget, deselect } = this.#options;
    const rows = this.#rows(ids);
    const wasOpen = ids.find((id) => id === openId()) ?? null;
    const neighbour = list.neighbourOf(ids);
    forget(ids);
    deselect(neighbour);
    this.rowToFocus = neighbour;
    const isDone = runOrReport(this.#options, { type: 'delete_conversations', ids: [...ids] });
    const words = strings.chats.deleted(this.#called(rows, ids.length));
    const takeBack = () => void this.#restore(ids, rows, wasOpen);
    if (!(await offerUndo(this.#options, words, takeBack, isDone))) list.putAll(rows);
  }

  /** Says that the chat on screen was deleted elsewhere, and offers to bring it back. */
  offerBack(row: Conversation, onTakenBack: () => void): void {
    const takeBack = () => {
      onTakenBack();
      void this.#restore([row.id], [row], row.id);
    };
    void offerUndo(this.#options, strings.chats.deletedElsewhere(titleOf(row)), takeBack);
  }

  async #restore(ids: readonly string[], rows: readonly Conversation[], openId: string | null): Promise<void> {
    const { list, open } = this.#options;
    if (!(await runOrReport(this.#options, { type: 'restore_conversations', ids: [...ids] }))) return;
    list.putAll(rows.filter(({ id }) => !list.get(id)));
    if (openId !== null) open(openId);
    this.rowToFocus = openId ?? rows[0]?.id ?? null;
  }

  #rows(ids: readonly string[]): Conversation[] {
    return ids.flatMap((id) => this.#options.list.get(id) ?? []);
  }

  /** What a message calls them: one by its title, several by their number. */
  #called(rows: readonly Conversation[], count = rows.length): string | number {
    const [row] = rows;
    return row && count === 1 ? titleOf(row) : count;
  }

  /** Shows a change of rows at once, and takes it back if the core refuses it; returns whether it did not. */
  async #change(rows: readonly Conversation[], change: Partial<Conversation>, command: Command): Promise<boolean> {
    const { list } = this.#options;
    if (rows.length === 0) return false;
    list.putAll(rows.map((row) => ({ ...row, ...change })));
    const isDone = await runOrReport(this.#options, command);
    if (!isDone) list.putAll(rows);
    return isDone;
  }
}

function idsOf(rows: readonly Conversation[]): string[] {
  return rows.map(({ id }) => id);
}
