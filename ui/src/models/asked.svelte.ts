// What the core is asked about one model after another: a few at a time, and what it said is remembered.

/** Each asks for two lists and a file. */
const MOST_ASKED = 4;

/** Owns the answers by the names of models. A question that failed leaves no answer, so it is asked again when a row wants it. */
export class Asked<T> {
  #known = $state.raw<ReadonlyMap<string, T>>(new Map());
  #waiting: string[] = [];
  readonly #asked = new Set<string>();

  /** `ask` rejects where there is no answer. */
  constructor(private readonly ask: (name: string) => Promise<T>) {}

  get(name: string): T | undefined {
    return this.#known.get(name);
  }

  /** A row shows this model. */
  want(name: string): void {
    if (!this.#known.has(name) && !this.#asked.has(name)) this.renew(name);
  }

  /** Asks once more, also where an answer is on its way, which may be too old; what is known is shown until then. */
  renew(name: string): void {
    if (this.#waiting.includes(name)) return;
    this.#waiting.push(name);
    this.#askNext();
  }

  /** No row shows this model any more. */
  forget(name: string): void {
    this.#waiting = this.#waiting.filter((waiting) => waiting !== name);
  }

  /** Takes an answer that was asked for elsewhere; without one, what was known no longer holds. */
  receive(name: string, answer: T | undefined): void {
    const known = new Map(this.#known);
    if (answer === undefined) known.delete(name);
    else known.set(name, answer);
    this.#known = known;
  }

  #askNext(): void {
    while (this.#asked.size < MOST_ASKED) {
      const name = this.#waiting.find((waiting) => !this.#asked.has(waiting));
      if (name === undefined) return;
      this.forget(name);
      this.#asked.add(name);
      void this.#ask(name);
    }
  }

  async #ask(name: string): Promise<void> {
    // A row is of use without the answer, and its card says what is wrong.
    const answer = await this.ask(name).catch(() => undefined);
    this.#asked.delete(name);
    this.receive(name, answer);
    this.#askNext();
  }
}
