// What is kept: of each conversation, under names, and all of it on the cache page.
import type { ChatStore } from '../chat/chat.svelte';
import { titleOf } from '../chat/conversations.svelte';
import { cacheFileName, sentenceOf, type Platform } from '../platform/platform';
import type { CacheOverview, CacheSource, Command, Event, NamedCache } from '../platform/wire';
import type { Toasts } from '../ui/toasts.svelte';
import { TreeState } from './tree.svelte';
import { purgedWords } from './words';

const REFRESH_MS = 1000;
const UNDO_MS = 8000;
/** Until it is dismissed; the longest that a timer can wait. */
const LASTING_MS = 2 ** 31 - 1;

export interface CacheOptions {
  platform: Platform;
  chat: ChatStore;
  toasts: Toasts;
  report: (error: unknown) => void;
}

/** Owns the named prompt caches and the overview. The overview is asked for only while its page is open, at most once a second. */
export class CacheStore {
  overview = $state.raw<CacheOverview | null>(null);
  named = $state.raw<NamedCache[]>([]);
  readonly tree = new TreeState();
  isOpen = $state(false);
  /** Why the overview could not be had. */
  problem = $state<string | null>(null);
  /** The named cache that was just imported. */
  highlightedId = $state<string | null>(null);
  renamingId = $state<string | null>(null);
  /** Why the name that was typed is not to be had. */
  renameProblem = $state<string | null>(null);
  /** The row that takes the focus which another one took along, or none: the heading. */
  focus = $state.raw<{ id: string | null } | null>(null);
  /** The page has been opened, and what it shows may be old. */
  isLoading = $state(false);

  /** Panels that hang on buttons. */
  isKeptOpen = $state(false);
  isStartOpen = $state(false);
  /** The conversation that is being saved under a name. */
  savingId = $state<string | null>(null);
  saveProblem = $state<string | null>(null);
  isSaving = $state(false);
  isStarting = $state(false);

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
    this.isOpen = true;
    this.highlightedId = highlightedId;
    this.isLoading = true;
    void this.refresh();
  }

  close(): void {
    this.isOpen = false;
    this.highlightedId = null;
    this.focus = null;
    this.askForRename(null);
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  receive(event: Extract<Event, { type: 'cache_changed' | 'named_caches' }>): void {
    if (event.type === 'named_caches') this.named = event.named;
    else if (this.isOpen) this.#refreshSoon();
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
        this.named = reply.cache.named;
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
    this.#timer ??= setTimeout(() => void this.refresh(), wait);
  }

  /** Keeps a conversation from being evicted, or lets it go again. */
  async pin(id: string, isPinned: boolean): Promise<void> {
    this.#putPinned(id, isPinned);
    if (!(await this.#run({ type: 'pin_conversation', id, is_pinned: isPinned }))) this.#putPinned(id, !isPinned);
  }

  #putPinned(id: string, is_pinned: boolean): void {
    const conversation = this.#options.chat.list.get(id);
    if (!conversation?.cache) return;
    this.#options.chat.list.put({ ...conversation, cache: { ...conversation.cache, is_pinned } });
  }

  /** Removes what is kept of a conversation; its messages stay. */
  async purge(id: string): Promise<void> {
    const { chat, toasts } = this.#options;
    const before = chat.list.get(id)?.cache;
    if (!(await this.#run({ type: 'purge_conversation', id }))) return;
    const conversation = chat.list.get(id);
    if (!conversation || !before) return;
    // What is still kept may have been told meanwhile.
    if (conversation.cache === before) chat.list.put({ ...conversation, cache: null });
    toasts.show('info', purgedWords(titleOf(conversation), before));
  }

  /** Removes everything but what is named or pinned. */
  async clear(): Promise<void> {
    if (await this.#run({ type: 'clear_cache' })) await this.refresh();
  }

  askForName(conversationId: string): void {
    this.isKeptOpen = false;
    this.saveProblem = null;
    this.savingId = conversationId;
  }

  /** Saves the conversation that is being asked about; a name that is not free is said where it was typed. */
  async save(name: string): Promise<void> {
    const id = this.savingId;
    if (id === null || this.isSaving || name.trim() === '') return;
    this.isSaving = true;
    try {
      const command: Command = { type: 'save_named_cache', conversation_id: id, name: name.trim() };
      const reply = await this.#options.platform.call(command);
      if (reply.type === 'named') this.#put(reply.named);
      this.savingId = null;
      this.#options.toasts.show('info', `Saved as “${name.trim()}”. New conversations can start from it.`);
    } catch (error) {
      this.saveProblem = sentenceOf(error);
    } finally {
      this.isSaving = false;
    }
  }

  /** Shows the field for the name of a named cache; null: hides it. */
  askForRename(id: string | null): void {
    this.renamingId = id;
    this.renameProblem = null;
  }

  /** The field stays until the name is saved; one that is not free is said where it was typed. */
  async rename(id: string, typed: string): Promise<void> {
    const name = typed.trim();
    // Leaving the field saves as well.
    if (this.#isRenaming) return;
    if (name === '' || name === this.#get(id)?.name) return this.askForRename(null);
    this.#isRenaming = true;
    try {
      await this.#options.platform.call({ type: 'rename_named_cache', id, name });
      const named = this.#get(id);
      if (named) this.#put({ ...named, name });
      if (this.renamingId === id) this.askForRename(null);
    } catch (error) {
      if (this.renamingId === id) this.renameProblem = sentenceOf(error);
      else this.#options.report(error);
    } finally {
      this.#isRenaming = false;
    }
  }

  /** Hides a named cache at once and offers to bring it back. */
  async remove(id: string): Promise<void> {
    const before = this.named;
    const named = this.#get(id);
    if (!named) return;
    const index = before.indexOf(named);
    this.focus = { id: (before[index + 1] ?? before[index - 1])?.id ?? null };
    this.named = before.filter((row) => row.id !== id);
    if (!(await this.#run({ type: 'delete_named_cache', id }))) {
      this.focus = { id };
      return void (this.named = before);
    }
    this.#options.toasts.show('info', `Deleted “${named.name}”.`, {
      milliseconds: UNDO_MS,
      action: { label: 'Undo', run: () => void this.#restore(named) },
    });
  }

  async #restore(named: NamedCache): Promise<void> {
    if (!(await this.#run({ type: 'restore_named_cache', id: named.id }))) return;
    this.#put(this.#get(named.id) ?? named);
    if (this.isOpen) this.focus = { id: named.id };
  }

  /** Opens a new conversation that begins with a named cache; says whether it worked. */
  async start(id: string): Promise<boolean> {
    if (this.isStarting) return false;
    this.isStarting = true;
    const isDone = await this.#options.chat.startFrom(id);
    this.isStarting = false;
    if (isDone) this.isStartOpen = false;
    return isDone;
  }

  /** Writes a file. While that takes its time, a message says so. */
  async export(source: CacheSource, name: string): Promise<void> {
    const { platform, toasts, report } = this.#options;
    this.isKeptOpen = false;
    const notice = toasts.show('info', `Exporting “${name}”…`, { milliseconds: LASTING_MS });
    try {
      const isDone = await platform.exportCache(source, cacheFileName(name));
      if (isDone) toasts.show('info', `Exported “${name}”.`);
    } catch (error) {
      report(error);
    } finally {
      toasts.dismiss(notice);
    }
  }

  /** Takes in a named cache that a command answered with. */
  #put(named: NamedCache): void {
    const isKnown = this.#get(named.id) !== undefined;
    this.named = isKnown ? this.named.map((row) => (row.id === named.id ? named : row)) : [named, ...this.named];
  }

  #get(id: string): NamedCache | undefined {
    return this.named.find((row) => row.id === id);
  }

  async #run(command: Command): Promise<boolean> {
    try {
      await this.#options.platform.call(command);
      return true;
    } catch (error) {
      this.#options.report(error);
      return false;
    }
  }
}
