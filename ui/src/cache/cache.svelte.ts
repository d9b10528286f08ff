// Saved context: that of chats, starting points, and the overview on the page.
import type { ChatStore } from '../chat/chat.svelte';
import { titleOf } from '../chat/conversations.svelte';
import { cacheFileName, type Platform, runOrReport, sentenceOf } from '../platform/platform';
import type {
  CacheFileLayout,
  CacheOverview,
  CacheSource,
  ChatOutlook,
  Command,
  Event,
  NamedCache,
} from '../platform/wire';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';
import { offerUndo } from '../ui/offerUndo';
import type { UndoStack } from '../ui/undo';
import { cutAtWord, deletedMessage } from './saved';
import { TreeState } from './tree.svelte';

const REFRESH_MS = 1000;
/** The longest name of a starting point. */
const MAX_NAME_CHARS = 200;
/** Until it is dismissed; the longest that a timer can wait. */
const LASTING_MS = 2 ** 31 - 1;

export interface CacheOptions {
  platform: Platform;
  chat: ChatStore;
  toasts: Toasts;
  undo: UndoStack;
  report: (error: unknown) => void;
  /** Whether a page is shown that needs the overview. */
  isWanted: () => boolean;
}

/** Owns the starting points and the overview. The overview is asked for only while its page is open, at most once a second. */
export class CacheStore {
  overview = $state.raw<CacheOverview | null>(null);
  startingPoints = $state.raw<NamedCache[]>([]);
  readonly tree = new TreeState();
  /** The stored pieces are shown. */
  isDetailsOpen = $state(false);
  /** Why the overview could not be loaded. */
  problem = $state<string | null>(null);
  /** The starting point that was just imported. */
  highlightedId = $state<string | null>(null);
  renamingId = $state<string | null>(null);
  /** Why the name that was typed was refused. */
  renameProblem = $state<string | null>(null);
  /** The row that takes the focus of one that was deleted; without an id the heading takes it. */
  focus = $state.raw<{ id: string | null } | null>(null);
  /** The page has been opened, and what it shows may be old. */
  isLoading = $state(false);

  /** The chat whose part of the inspector takes the focus as soon as it is there. */
  panelAskedFor = $state<string | null>(null);

  /** How many changes of saved context were reported. */
  numChanges = $state(0);

  /** The chat that is being saved as a starting point. */
  savingId = $state<string | null>(null);
  /** The name that is suggested for it; none: the chat's title. */
  savingName = $state<string | null>(null);
  saveProblem = $state<string | null>(null);
  isSaving = $state(false);
  /** What the export dialog asks about. */
  exporting = $state.raw<{ source: CacheSource; name: string } | null>(null);
  isStarting = $state(false);

  #ahead = $state.raw<{ id: string; outlook: ChatOutlook } | null>(null);
  #numLooks = 0;
  readonly #options: CacheOptions;
  #isAsking = false;
  #isRenaming = false;
  #isStale = false;
  #lastAsked = -Infinity;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(options: CacheOptions) {
    this.#options = options;
  }

  /** Shows the page; `highlightedId` is the row to point at. */
  open(highlightedId: string | null = null): void {
    this.highlightedId = highlightedId;
    this.isLoading = true;
    void this.refresh();
  }

  get isOpen(): boolean {
    return this.#options.isWanted();
  }

  /** Forgets what belongs to the page as it was. */
  close(): void {
    this.highlightedId = null;
    this.focus = null;
    this.askForRename(null);
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  receive(event: Extract<Event, { type: 'cache_changed' | 'named_caches' }>): void {
    if (event.type === 'named_caches') this.startingPoints = event.named;
    else {
      this.numChanges++;
      if (this.isOpen) this.#refreshSoon();
    }
  }

  /** Asks for a chat's row again: what its saved context is shared with changes without an event of its own. */
  async refreshConversation(id: string): Promise<void> {
    // The row that is shown stays, if a slightly old one.
    await this.#options.platform.call({ type: 'refresh_conversation', id }).catch(() => undefined);
  }

  /** What the engine would find of the open chat now; null where that is not known. */
  aheadOf(id: string): ChatOutlook | null {
    return this.#ahead?.id === id ? this.#ahead.outlook : null;
  }

  /** Asks what the next turn of the open chat will find. */
  async lookAhead(id: string): Promise<void> {
    const number = ++this.#numLooks;
    const reply = await this.#options.platform.call({ type: 'get_outlook', id }).catch(() => null);
    if (number !== this.#numLooks) return;
    this.#ahead = reply?.type === 'outlook' && reply.outlook ? { id, outlook: reply.outlook } : null;
  }

  /** What was found is old: the chat is being answered, or is no longer open. */
  forgetAhead(): void {
    this.#numLooks++;
    this.#ahead = null;
  }

  /** Asks for everything now. */
  async refresh(): Promise<void> {
    if (this.#isAsking) return void (this.#isStale = true);
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#isAsking = true;
    this.#isStale = false;
    this.#lastAsked = Date.now();
    try {
      const reply = await this.#options.platform.call({ type: 'get_cache' });
      if (reply.type === 'cache') {
        this.overview = reply.cache;
        this.startingPoints = reply.cache.named;
        this.tree.nodes = reply.cache.nodes;
      }
      this.problem = null;
    } catch (error) {
      this.problem = sentenceOf(error);
    } finally {
      this.#isAsking = false;
      this.isLoading = false;
      if (this.#isStale && this.isOpen) this.#refreshSoon();
    }
  }

  #refreshSoon(): void {
    if (this.#isAsking) return void (this.#isStale = true);
    const wait = Math.max(0, this.#lastAsked + REFRESH_MS - Date.now());
    this.#timer ??= setTimeout(() => this.#refreshIfOpen(), wait);
  }

  #refreshIfOpen(): void {
    this.#timer = undefined;
    if (this.isOpen) void this.refresh();
  }

  /** Keeps the saved context of a chat from being evicted, or allows that again. */
  async pin(id: string, isPinned: boolean): Promise<void> {
    this.#putPinned(id, isPinned);
    if (!(await runOrReport(this.#options, { type: 'pin_conversation', id, is_pinned: isPinned })))
      this.#putPinned(id, !isPinned);
  }

  #putPinned(id: string, is_pinned: boolean): void {
    const conversation = this.#options.chat.list.get(id);
    if (!conversation?.cache) return;
    this.#options.chat.list.put({ ...conversation, cache: { ...conversation.cache, is_pinned } });
  }

  /** Deletes the saved context of a chat; its messages stay. */
  async deleteSaved(id: string): Promise<void> {
    const { chat, toasts } = this.#options;
    const before = chat.list.get(id)?.cache;
    if (!(await runOrReport(this.#options, { type: 'purge_conversation', id }))) return;
    const conversation = chat.list.get(id);
    if (!conversation || !before) return;
    // An event may have said meanwhile what is still saved.
    if (conversation.cache === before) chat.list.put({ ...conversation, cache: null });
    toasts.show('info', deletedMessage(titleOf(conversation), before));
  }

  /** Deletes all saved context but that of pinned chats and starting points. */
  async deleteAll(): Promise<void> {
    if (await runOrReport(this.#options, { type: 'clear_cache' })) await this.refresh();
  }

  askForName(conversationId: string, name: string | null = null): void {
    this.saveProblem = null;
    this.savingName = name === null ? null : cutAtWord(name, MAX_NAME_CHARS);
    this.savingId = conversationId;
  }

  /** Saves the chat that the dialog asks about as a starting point; the dialog says why a name is refused. */
  async save(name: string): Promise<void> {
    const id = this.savingId;
    if (id === null || this.isSaving || name.trim() === '') return;
    this.isSaving = true;
    try {
      const command: Command = { type: 'save_named_cache', conversation_id: id, name: name.trim() };
      const reply = await this.#options.platform.call(command);
      if (reply.type === 'named') this.#put(reply.named);
      this.savingId = null;
      this.#options.toasts.show('info', strings.startingPoints.savedAs(name.trim()));
    } catch (error) {
      this.saveProblem = sentenceOf(error);
    } finally {
      this.isSaving = false;
    }
  }

  /** Shows the field for the name of a starting point; null: hides it. */
  askForRename(id: string | null): void {
    this.renamingId = id;
    this.renameProblem = null;
  }

  /** The field stays until the name is saved, and says why it is refused. */
  async rename(id: string, typed: string): Promise<void> {
    const name = typed.trim();
    // Leaving the field saves as well.
    if (this.#isRenaming) return;
    const before = this.#get(id)?.name;
    if (name === '' || name === before) return this.askForRename(null);
    this.#isRenaming = true;
    try {
      await this.#options.platform.call({ type: 'rename_named_cache', id, name });
      this.#putName(id, name);
      if (before !== undefined) this.#options.undo.push(() => void this.#takeBackName(id, before));
      if (this.renamingId === id) this.askForRename(null);
    } catch (error) {
      if (this.renamingId === id) this.renameProblem = sentenceOf(error);
      else this.#options.report(error);
    } finally {
      this.#isRenaming = false;
    }
  }

  async #takeBackName(id: string, name: string): Promise<void> {
    if (await runOrReport(this.#options, { type: 'rename_named_cache', id, name })) this.#putName(id, name);
  }

  #putName(id: string, name: string): void {
    const point = this.#get(id);
    if (point) this.#put({ ...point, name });
  }

  /** Hides a starting point at once and offers to bring it back. */
  async deleteStartingPoint(id: string): Promise<void> {
    const before = this.startingPoints;
    const point = this.#get(id);
    if (!point) return;
    const index = before.indexOf(point);
    this.focus = { id: (before[index + 1] ?? before[index - 1])?.id ?? null };
    this.startingPoints = before.filter((row) => row.id !== id);
    const isDone = runOrReport(this.#options, { type: 'delete_named_cache', id });
    const wasDone = await offerUndo(
      this.#options,
      strings.startingPoints.deleted(point.name),
      () => void this.#restore(point),
      isDone,
    );
    if (!wasDone) {
      this.focus = { id };
      return void (this.startingPoints = before);
    }
  }

  async #restore(point: NamedCache): Promise<void> {
    if (!(await runOrReport(this.#options, { type: 'restore_named_cache', id: point.id }))) return;
    this.#put(this.#get(point.id) ?? point);
    if (this.isOpen) this.focus = { id: point.id };
  }

  /** Opens a new chat that begins with a starting point; returns whether it worked. */
  async start(id: string): Promise<boolean> {
    if (this.isStarting) return false;
    this.isStarting = true;
    const isDone = await this.#options.chat.startFrom(id, this.#get(id)?.name ?? null);
    this.isStarting = false;
    return isDone;
  }

  /** Opens the dialog about an export. */
  askForExport(source: CacheSource, name: string): void {
    this.exporting = { source, name };
  }

  /** Writes the prompt cache file that the dialog asked about. A message says so until it is written. */
  async export(layout: CacheFileLayout): Promise<void> {
    if (!this.exporting) return;
    const { source, name } = this.exporting;
    this.exporting = null;
    const { platform, toasts, report } = this.#options;
    const messages = source.type === 'named' ? strings.startingPoints : strings.saved;
    const notice = toasts.show('info', messages.exporting(name), { milliseconds: LASTING_MS });
    try {
      const isDone = await platform.exportCache(source, layout, cacheFileName(name));
      if (isDone) toasts.show('info', messages.exported(name));
    } catch (error) {
      report(error);
    } finally {
      toasts.dismiss(notice);
    }
  }

  /** Adds or replaces the starting point of a reply. */
  #put(point: NamedCache): void {
    const isKnown = this.#get(point.id) !== undefined;
    const points = this.startingPoints;
    this.startingPoints = isKnown ? points.map((row) => (row.id === point.id ? point : row)) : [point, ...points];
  }

  #get(id: string): NamedCache | undefined {
    return this.startingPoints.find((row) => row.id === id);
  }
}
