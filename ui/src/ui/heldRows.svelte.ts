// Rows that stay where they are while they are held: one that goes leaves its space, and new ones wait.

export interface HeldRow<T> {
  item: T;
  /** It is gone; its space is still there. */
  isGap: boolean;
}

/** Owns the order of the rows while it is held. */
export class HeldRows<T> {
  #held = $state.raw<readonly T[] | null>(null);
  readonly #items: () => readonly T[];
  readonly #keyOf: (item: T) => string;

  readonly rows = $derived.by((): HeldRow<T>[] => {
    const items = this.#items();
    if (!this.#held) return items.map((item) => ({ item, isGap: false }));
    const now = new Map(items.map((item) => [this.#keyOf(item), item]));
    return this.#held.map((item) => {
      const current = now.get(this.#keyOf(item));
      return { item: current ?? item, isGap: current === undefined };
    });
  });

  constructor(items: () => readonly T[], keyOf: (item: T) => string) {
    this.#items = items;
    this.#keyOf = keyOf;
  }

  hold(): void {
    this.#held ??= this.#items();
  }

  release(): void {
    this.#held = null;
  }
}
