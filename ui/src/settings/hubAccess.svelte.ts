// Which hub is asked, and with what token. The token itself is never here: it is typed, sent, and forgotten.
import { sentenceOf, type Platform } from '../platform/platform';
import type { HubAccess } from '../platform/wire';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';

/** Owns what is known of the access to the hub. */
export class HubAccessStore {
  current = $state.raw<HubAccess | null>(null);
  isSaving = $state(false);
  /** Why it could not be asked for, or saved. */
  problem = $state<string | null>(null);

  constructor(
    private readonly platform: Platform,
    private readonly toasts: Toasts,
  ) {}

  get canChooseFolder(): boolean {
    return this.platform.chooseFolder !== undefined;
  }

  /** Asks for a folder; null: the user cancelled. */
  async chooseFolder(): Promise<string | null> {
    return (await this.platform.chooseFolder?.()) ?? null;
  }

  async load(): Promise<void> {
    try {
      const reply = await this.platform.call({ type: 'get_hub_access' });
      if (reply.type === 'hub_access') this.current = reply.access;
      this.problem = null;
    } catch (error) {
      this.problem = sentenceOf(error);
    }
  }

  /** Stores a token; returns whether that worked. */
  async save(token: string): Promise<boolean> {
    return token.trim() !== '' && this.#set(token.trim(), strings.hub.saved);
  }

  async remove(): Promise<boolean> {
    return this.#set('', strings.hub.removed);
  }

  async #set(token: string, done: string): Promise<boolean> {
    if (this.isSaving) return false;
    this.isSaving = true;
    this.problem = null;
    try {
      const reply = await this.platform.call({ type: 'set_hub_token', token });
      if (reply.type === 'hub_access') this.current = reply.access;
      this.toasts.show('info', done);
      return true;
    } catch (error) {
      this.problem = sentenceOf(error);
      return false;
    } finally {
      this.isSaving = false;
    }
  }
}
