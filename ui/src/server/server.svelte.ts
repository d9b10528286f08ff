// The server for other programs: whether it runs, its keys, the last requests. A key itself is here only until it was copied.
import { sentenceOf, type Platform } from '../platform/platform';
import type { ApiKey, ApiRequest, ApiServer, Event } from '../platform/wire';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';

/** How many requests the core remembers. */
const MAX_REQUESTS = 100;

/** A key that was just made, with its text. */
export interface MadeKey {
  key: ApiKey;
  secret: string;
}

/** Owns what is known of the server. */
export class ServerStore {
  current = $state.raw<ApiServer | null>(null);
  keys = $state.raw<ApiKey[]>([]);
  /** The newest first. */
  requests = $state.raw<ApiRequest[]>([]);
  /** The key that is shown this once. */
  made = $state.raw<MadeKey | null>(null);
  /** The dialog that asks for a key's name is open. */
  isNaming = $state(false);
  /** The key that the open dialog asks about. */
  revoking = $state.raw<ApiKey | null>(null);
  isBusy = $state(false);
  /** Counts what went while it had the focus, which the page then moves to where keys are made. */
  numFocusRequests = $state(0);
  /** Why the last thing that a dialog asked for failed. */
  problem = $state<string | null>(null);

  constructor(
    private readonly platform: Platform,
    private readonly toasts: Toasts,
    private readonly report: (error: unknown) => void,
  ) {}

  /** Where it listens; null while it does not. */
  get address(): string | null {
    return this.current?.state === 'running' ? this.current.address : null;
  }

  /** It runs because `cairn serve` does, so that there is nothing to switch. */
  get isByCommand(): boolean {
    return this.current?.state === 'running' && !this.current.is_switched;
  }

  /** Why it is off although it was switched on. */
  get failure(): string | null {
    return this.current?.state === 'off' ? this.current.problem : null;
  }

  get isAsking(): boolean {
    return this.isNaming || this.revoking !== null;
  }

  async load(): Promise<void> {
    try {
      const reply = await this.platform.call({ type: 'get_api' });
      if (reply.type !== 'api') return;
      this.current = reply.api.server;
      this.keys = reply.api.keys;
      this.requests = reply.api.requests;
    } catch (error) {
      this.report(error);
    }
  }

  receive(event: Extract<Event, { type: 'api_server' | 'api_keys' | 'api_request' }>): void {
    if (event.type === 'api_server') this.current = event.server;
    else if (event.type === 'api_keys') this.keys = event.keys;
    else this.#add(event.request);
  }

  /** An event may come before the reply that has it too. */
  #add(request: ApiRequest): void {
    const others = this.requests.filter(({ number }) => number !== request.number);
    this.requests = [request, ...others].sort((a, b) => b.number - a.number).slice(0, MAX_REQUESTS);
  }

  askForName(): void {
    this.problem = null;
    this.isNaming = true;
  }

  async make(name: string): Promise<void> {
    await this.#run(async () => {
      const reply = await this.platform.call({ type: 'make_api_key', name });
      if (reply.type !== 'api_key_made') return;
      this.made = { key: reply.key, secret: reply.secret };
      this.isNaming = false;
    });
  }

  forgetMade(): void {
    this.made = null;
    this.numFocusRequests++;
  }

  askToRevoke(key: ApiKey): void {
    this.problem = null;
    this.revoking = key;
  }

  async revoke(deletesSaved: boolean): Promise<void> {
    const key = this.revoking;
    if (!key) return;
    await this.#run(async () => {
      await this.platform.call({ type: 'revoke_api_key', id: key.id, deletes_saved: deletesSaved });
      this.keys = this.keys.filter(({ id }) => id !== key.id);
      if (this.made?.key.id === key.id) this.made = null;
      this.revoking = null;
      this.numFocusRequests++;
      this.toasts.show('info', strings.server.revoked(key.name));
    });
  }

  /** One thing at a time; why it failed is shown in the dialog that asked for it. */
  async #run(work: () => Promise<void>): Promise<void> {
    if (this.isBusy) return;
    this.isBusy = true;
    this.problem = null;
    try {
      await work();
    } catch (error) {
      this.problem = sentenceOf(error);
    } finally {
      this.isBusy = false;
    }
  }
}
