// Connects the stores to one platform: asks for the state at the start and after a reconnect, and passes events on.
import { createContext } from 'svelte';
import { CacheStore } from './cache/cache.svelte';
import { ImportStore } from './cache/import.svelte';
import { ChatStore } from './chat/chat.svelte';
import { ModelStore } from './models/models.svelte';
import { CallError, sentenceOf, type Connection, type Platform } from './platform/platform';
import type { Event, NamedCache } from './platform/wire';
import { SettingsStore } from './settings/settings.svelte';
import { StatusStore } from './status/status.svelte';
import { strings } from './text';
import { Toasts } from './ui/toasts.svelte';

/** How long a message offers to start a chat from what was imported. */
const OFFER_MS = 20_000;

/** Owns the stores, the connection and which page is shown. */
export class App {
  readonly toasts = new Toasts();
  readonly status = new StatusStore();
  readonly models: ModelStore;
  readonly settings: SettingsStore;
  readonly chat: ChatStore;
  readonly cache: CacheStore;
  readonly imports: ImportStore;

  connection = $state<Connection>('connecting');
  isReady = $state(false);
  /** Why the app could not start. */
  problem = $state<string | null>(null);
  isDrawerOpen = $state(false);
  /** The page in the main area. */
  page = $state<'chat' | 'saved'>('chat');

  /** Events that arrive while the state is being fetched. They may be newer than the reply, so they are applied after it. */
  #pending: Event[] | null = null;

  constructor(
    private readonly platform: Platform,
    options: { storage?: Storage; nextFrame?: (run: () => void) => void } = {},
  ) {
    const report = (error: unknown) => this.report(error);
    this.models = new ModelStore(platform, this.status, report);
    this.settings = new SettingsStore(platform, report);
    this.chat = new ChatStore({ platform, toasts: this.toasts, report, ...options });
    this.cache = new CacheStore({ platform, chat: this.chat, toasts: this.toasts, report });
    this.imports = new ImportStore({
      platform,
      toasts: this.toasts,
      onImported: (point, isHidden) => this.#imported(point, isHidden),
    });
  }

  /** Connects; the returned function disconnects. */
  start(): () => void {
    const forgetNewChat = this.platform.onNewChat?.(() => this.newChat());
    const forgetDrops = this.platform.onFileDrop?.(
      (preview) => void this.imports.dropped(preview),
      (isOver) => (this.imports.isOver = isOver),
    );
    const disconnect = this.platform.subscribe(
      (event) => (this.#pending ? void this.#pending.push(event) : this.#receive(event)),
      (connection) => {
        this.connection = connection;
        if (connection === 'open') void this.bootstrap();
      },
    );
    return () => {
      forgetNewChat?.();
      forgetDrops?.();
      disconnect();
    };
  }

  /** Asks for the whole state. */
  async bootstrap(): Promise<void> {
    if (this.#pending) return;
    this.#pending = [];
    try {
      const reply = await this.platform.call({ type: 'bootstrap' });
      if (reply.type !== 'bootstrap') throw new Error(strings.connection.unexpectedReply);
      this.models.receive(reply.models);
      this.settings.receive(reply.settings);
      this.status.receive(reply.status);
      this.chat.start(reply.conversations, !this.isReady);
      this.isReady = true;
      this.problem = null;
      this.cache.receive({ type: 'named_caches', named: reply.named });
      if (this.cache.isOpen) void this.cache.refresh();
    } catch (error) {
      this.problem = sentenceOf(error);
    } finally {
      const pending = this.#pending;
      this.#pending = null;
      for (const event of pending) this.#receive(event);
    }
  }

  /** Whether the page itself has to take files that are dropped on it. */
  get takesDrops(): boolean {
    return this.isReady && this.platform.onFileDrop === undefined;
  }

  /** Whether a dialog or a panel covers the page; Escape closes that first. */
  get isCovered(): boolean {
    const { cache, imports } = this;
    const isFileDialogOpen = imports.isOpen || cache.exporting !== null;
    const isDialogOpen = this.settings.isOpen || this.chat.isPromptOpen || cache.savingId !== null || isFileDialogOpen;
    return isDialogOpen || this.models.isChooserOpen || cache.isPanelOpen || cache.isMenuOpen;
  }

  newChat(): void {
    this.isDrawerOpen = false;
    this.#showChat();
    this.chat.newChat();
  }

  newPrivateChat(): void {
    this.isDrawerOpen = false;
    this.#showChat();
    void this.chat.newPrivateChat();
  }

  openConversation(id: string): void {
    this.#showChat();
    this.chat.select(id);
  }

  /** Opens a new chat that begins with a starting point. */
  async startFrom(pointId: string): Promise<void> {
    if (!(await this.cache.start(pointId))) return;
    this.isDrawerOpen = false;
    this.#showChat();
  }

  openSaved(highlightedId: string | null = null): void {
    this.page = 'saved';
    this.isDrawerOpen = false;
    this.cache.open(highlightedId);
  }

  /** Back to the chat that was open. */
  closeSaved(): void {
    this.#showChat();
    this.chat.numFocusRequests++;
  }

  #showChat(): void {
    this.page = 'chat';
    this.cache.close();
  }

  #imported(point: NamedCache, isHidden: boolean): void {
    // The user who closed the dialog is doing something else by now.
    if (!isHidden) this.openSaved(point.id);
    this.toasts.show('info', strings.imports.imported(point.name), {
      milliseconds: OFFER_MS,
      action: { label: strings.startingPoints.start, run: () => void this.startFrom(point.id) },
    });
  }

  report(error: unknown): void {
    this.toasts.show('error', sentenceOf(error));
    if (error instanceof CallError && error.code === 'no_model') this.models.isChooserOpen = true;
  }

  #receive(event: Event): void {
    switch (event.type) {
      case 'models':
        return this.models.receive(event.models);
      case 'settings':
        return this.settings.receive(event.settings);
      case 'status':
        return this.status.receive(event.status);
      case 'notice':
        return void this.toasts.show(event.level, event.text);
      case 'cache_changed':
      case 'named_caches':
        return this.cache.receive(event);
      default:
        this.chat.receive(event);
    }
  }
}

export const [getApp, setApp] = createContext<App>();
