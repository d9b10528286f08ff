// Messages that wait until an answer is done. They survive a reload, as drafts do.

const PREFIX = 'cairn.queue.';

/** Owns what waits in each chat. What waits in private chats stays in memory. */
export class Queue {
  #texts = $state<Record<string, string[]>>({});

  constructor(
    private readonly storage: Storage | undefined,
    private readonly isPrivate: (id: string) => boolean,
  ) {}

  of(id: string | null): readonly string[] {
    if (id === null) return [];
    return this.#texts[id] ?? this.#stored(id);
  }

  add(id: string, text: string): void {
    this.#set(id, [...this.of(id), text]);
  }

  /** Puts a text back where it was taken from. */
  putBack(id: string, text: string): void {
    this.#set(id, [text, ...this.of(id)]);
  }

  /** Takes one out and returns it; another text takes its place, if there is one. */
  take(id: string, index = 0, instead?: string): string | undefined {
    const texts = [...this.of(id)];
    const [taken] = texts.splice(index, 1, ...(instead === undefined ? [] : [instead]));
    this.#set(id, texts);
    return taken;
  }

  forget(id: string): void {
    delete this.#texts[id];
    this.storage?.removeItem(PREFIX + id);
  }

  /** Forgets what waits in all other chats: these were deleted while the window was closed. */
  keep(ids: string[]): void {
    const { storage } = this;
    if (!storage) return;
    const wanted = new Set(ids.map((id) => PREFIX + id));
    const keys = Array.from({ length: storage.length }, (_, index) => storage.key(index) ?? '');
    for (const key of keys) if (key.startsWith(PREFIX) && !wanted.has(key)) storage.removeItem(key);
  }

  #set(id: string, texts: string[]): void {
    this.#texts[id] = texts;
    if (this.isPrivate(id)) return;
    if (texts.length === 0) this.storage?.removeItem(PREFIX + id);
    else this.storage?.setItem(PREFIX + id, JSON.stringify(texts));
  }

  #stored(id: string): string[] {
    try {
      const texts: unknown = JSON.parse(this.storage?.getItem(PREFIX + id) ?? '[]');
      return Array.isArray(texts) ? texts.filter((text) => typeof text === 'string') : [];
    } catch {
      return [];
    }
  }
}
