// What the palette finds in the messages of all chats.
import type { Platform } from '../platform/platform';
import type { FoundMessage } from '../platform/wire';
import { after as realAfter, type After } from '../ui/clock';

/** As long as a person who types does between two keys. */
const PAUSE_MS = 120;

export interface SearchOptions {
  platform: Platform;
  after?: After | undefined;
}

/** Owns the messages that were found last. Those of an earlier text stay until the next are here. */
export class SearchStore {
  found = $state.raw<FoundMessage[]>([]);
  /** How much of the messages is indexed, from 0 to 1. */
  indexedShare = $state(1);
  /** Whether messages for the text that was asked for last are still to come. */
  isLooking = $state(false);
  /** The text that `found` belongs to. */
  text = $state('');

  #wanted = '';
  #stop: () => void = () => undefined;
  readonly #options: SearchOptions;

  constructor(options: SearchOptions) {
    this.#options = options;
  }

  /** Looks for a text once nothing has been typed for a moment. Without one, nothing is found. */
  look(text: string): void {
    this.#stop();
    this.#wanted = text;
    this.isLooking = text.trim() !== '';
    if (!this.isLooking) {
      this.found = [];
      this.text = text;
      return;
    }
    this.#stop = (this.#options.after ?? realAfter)(PAUSE_MS, () => void this.#ask(text));
  }

  async #ask(text: string): Promise<void> {
    try {
      const reply = await this.#options.platform.call({ type: 'search_messages', text });
      if (reply.type !== 'found_messages' || text !== this.#wanted) return;
      this.found = reply.found;
      this.indexedShare = reply.indexed_share;
      this.text = text;
    } catch {
      // The other results stay; the next key asks again.
      if (text === this.#wanted) this.found = [];
    } finally {
      if (text === this.#wanted) this.isLooking = false;
    }
  }
}
