// Wires the stores to one platform: what is asked at the start, where events go, what happens when the connection comes back.
import { createContext } from 'svelte';
import { ChatStore } from './chat/chat.svelte';
import { ModelStore } from './models/models.svelte';
import { CallError, sentenceOf, type Connection, type Platform } from './platform/platform';
import type { Event } from './platform/wire';
import { SettingsStore } from './settings/settings.svelte';
import { StatusStore } from './status/status.svelte';
import { Toasts } from './ui/toasts.svelte';

/** Owns the stores and the connection. */
export class App {
  readonly toasts = new Toasts();
  readonly status = new StatusStore();
  readonly models: ModelStore;
  readonly settings: SettingsStore;
  readonly chat: ChatStore;

  connection = $state<Connection>('connecting');
  isReady = $state(false);
  /** Why the app could not start. */
  problem = $state<string | null>(null);
  isDrawerOpen = $state(false);

  /** Events that come while the state is asked for; they are newer than the answer may be, so they are applied after it. */
  #held: Event[] | null = null;

  constructor(
    private readonly platform: Platform,
    options: { storage?: Storage; nextFrame?: (run: () => void) => void } = {},
  ) {
    const report = (error: unknown) => this.report(error);
    this.models = new ModelStore(platform, this.status, report);
    this.settings = new SettingsStore(platform, report);
    this.chat = new ChatStore({ platform, toasts: this.toasts, report, ...options });
  }

  /** Connects; the returned function disconnects. */
  start(): () => void {
    const forgetNewChat = this.platform.onNewChat?.(() => this.chat.newChat());
    const disconnect = this.platform.subscribe(
      (event) => (this.#held ? void this.#held.push(event) : this.#receive(event)),
      (connection) => {
        this.connection = connection;
        if (connection === 'open') void this.bootstrap();
      },
    );
    return () => {
      forgetNewChat?.();
      disconnect();
    };
  }

  /** Asks for the whole state. */
  async bootstrap(): Promise<void> {
    if (this.#held) return;
    this.#held = [];
    try {
      const reply = await this.platform.call({ type: 'bootstrap' });
      if (reply.type !== 'bootstrap') throw new Error('Cairn did not answer with its state.');
      this.models.receive(reply.models);
      this.settings.receive(reply.settings);
      this.status.receive(reply.status);
      this.chat.start(reply.conversations, !this.isReady);
      this.isReady = true;
      this.problem = null;
    } catch (error) {
      this.problem = sentenceOf(error);
    } finally {
      const held = this.#held;
      this.#held = null;
      for (const event of held) this.#receive(event);
    }
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
      default:
        this.chat.receive(event);
    }
  }
}

export const [getApp, setApp] = createContext<App>();
