// What was written and not sent, for each chat. It survives a reload.

const PREFIX = 'cairn.draft.';

/** Owns the drafts. Those of private chats stay in memory; the chat that does not exist yet has the id null. */
export class Drafts {
  #texts = $state<Record<string, string>>({});
  readonly #deleted = new Set<string>();

  constructor(
    private readonly storage: Storage | undefined,
    private readonly isPrivate: (id: string) => boolean,
  ) {}

  get(id: string | null): string {
    return this.#texts[id ?? ''] ?? this.storage?.getItem(PREFIX + (id ?? '')) ?? '';
  }

  set(id: string | null, text: string): void {
    this.#texts[id ?? ''] = text;
    if (id !== null && this.isPrivate(id)) return;
    if (text === '') this.storage?.removeItem(PREFIX + (id ?? ''));
    else this.storage?.setItem(PREFIX + (id ?? ''), text);
  }

  /** Forgets the draft of a chat that was deleted, unless that is taken back. */
  forget(id: string): void {
    this.#texts[id] = this.get(id);
    this.#deleted.add(id);
    this.storage?.removeItem(PREFIX + id);
  }

  /** Stores the draft of a chat again that was deleted and is there again. */
  restore(id: string): void {
    if (this.#deleted.delete(id)) this.set(id, this.get(id));
  }

  /** Forgets the drafts of all other chats: these were deleted while the window was closed. */
  keep(ids: string[]): void {
    const wanted = new Set([PREFIX, ...ids.map((id) => PREFIX + id)]);
    const { storage } = this;
    if (!storage) return;
    const keys = Array.from({ length: storage.length }, (_, index) => storage.key(index) ?? '');
    for (const key of keys) if (key.startsWith(PREFIX) && !wanted.has(key)) storage.removeItem(key);
  }
}
