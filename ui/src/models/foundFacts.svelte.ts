// What the models that a search found take in memory: asked for a few at a time, and remembered.
import type { Platform } from '../platform/platform';
import type { ModelFacts } from '../platform/wire';

/** Each asks for two lists and a file. */
const MOST_ASKED = 4;

/** Owns the facts of models of the hub by their name; null: they cannot be known. */
export class FoundFacts {
  known = $state.raw<ReadonlyMap<string, ModelFacts | null>>(new Map());
  #waiting: string[] = [];
  readonly #asked = new Set<string>();

  constructor(private readonly platform: Platform) {}

  get(name: string): ModelFacts | null {
    return this.known.get(name) ?? null;
  }

  /** A row shows this model. */
  want(name: string): void {
    if (this.known.has(name) || this.#asked.has(name) || this.#waiting.includes(name)) return;
    this.#waiting.push(name);
    this.#askNext();
  }

  /** No row shows this model any more. */
  forget(name: string): void {
    this.#waiting = this.#waiting.filter((waiting) => waiting !== name);
  }

  #askNext(): void {
    while (this.#asked.size < MOST_ASKED) {
      const name = this.#waiting.shift();
      if (name === undefined) return;
      this.#asked.add(name);
      void this.#ask(name);
    }
  }

  async #ask(name: string): Promise<void> {
    let facts: ModelFacts | null = null;
    try {
      const reply = await this.platform.call({ type: 'get_model_facts', name });
      if (reply.type === 'model_facts') facts = reply.facts;
    } catch {
      // A row is of use without them, and its card says what is wrong.
    }
    this.known = new Map(this.known).set(name, facts);
    this.#asked.delete(name);
    this.#askNext();
  }
}
