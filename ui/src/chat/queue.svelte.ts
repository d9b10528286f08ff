// Messages that wait until an answer is done. They survive a reload, as drafts do, and all windows show them: the one in which the first
// was written sends them.
import { stored } from '../platform/stored';

const PREFIX = 'cairn.queue.';

/** A message that waits. */
export interface Waiting {
  text: string;
  /** The ids of the documents of the draft that go with it. */
  documents: readonly string[];
}

/** Owns what waits in each chat. What waits in private chats stays in memory. */
export class Queue {
  #waiting = $state<Record<string, Waiting[]>>({});
  /** What waited in chats that were deleted. */
  readonly #deleted = new Map<string, readonly Waiting[]>();
  /** The chats whose messages this window sends, and what ends that. */
  readonly #claims = new Map<string, () => void>();
  /** Those for which that is still being found out. */
  readonly #asked = new Map<string, Promise<boolean>>();

  constructor(
    private readonly storage: Storage | undefined,
    private readonly isPrivate: (id: string) => boolean,
  ) {}

  of(id: string | null): readonly Waiting[] {
    if (id === null) return [];
    return this.#waiting[id] ?? this.#stored(id);
  }

  /** The documents that go with what waits in a chat. */
  heldBy(id: string | null): ReadonlySet<string> {
    return new Set(this.of(id).flatMap(({ documents }) => documents));
  }

  add(id: string, message: Waiting): void {
    this.#set(id, [...this.of(id), message]);
    void this.claim(id);
  }

  /** Whether this window sends what waits in a chat. The first that asks does, until nothing waits or it is closed. */
  claim(id: string): true | Promise<boolean> {
    const { locks } = navigator;
    if (this.#claims.has(id) || this.isPrivate(id) || !locks) return true;
    const asked = this.#asked.get(id) ?? this.#ask(id, locks);
    this.#asked.set(id, asked);
    return asked;
  }

  #ask(id: string, locks: LockManager): Promise<boolean> {
    return new Promise((answer) => {
      const hold = (lock: Lock | null) => {
        this.#asked.delete(id);
        answer(lock !== null);
        // All of it may be gone by now.
        if (lock === null || this.of(id).length === 0) return;
        return new Promise<void>((release) => this.#claims.set(id, release));
      };
      void locks.request(PREFIX + id, { ifAvailable: true }, hold);
    });
  }

  #release(id: string): void {
    this.#claims.get(id)?.();
    this.#claims.delete(id);
  }

  /** Takes over what another window has stored. */
  follow({ key, storageArea }: StorageEvent): void {
    if (storageArea !== this.storage || !key?.startsWith(PREFIX)) return;
    const id = key.slice(PREFIX.length);
    this.#waiting[id] = this.#stored(id);
    if (this.#waiting[id].length === 0) this.#release(id);
  }

  /** Puts a message back where it was taken from. */
  putBack(id: string, message: Waiting): void {
    this.#set(id, [message, ...this.of(id)]);
  }

  /** Takes one out and returns it; another takes its place, if there is one. */
  take(id: string, index = 0, instead?: Waiting): Waiting | undefined {
    const all = [...this.of(id)];
    const [taken] = all.splice(index, 1, ...(instead === undefined ? [] : [instead]));
    this.#set(id, all);
    return taken;
  }

  /** Forgets what waits in a chat that was deleted, unless that is taken back. */
  forget(id: string): void {
    const all = this.of(id);
    if (all.length > 0) this.#deleted.set(id, all);
    this.#release(id);
    delete this.#waiting[id];
    this.storage?.removeItem(PREFIX + id);
  }

  /** Brings back what waited in a chat that was deleted and is there again. */
  restore(id: string): void {
    const all = this.#deleted.get(id);
    if (all === undefined) return;
    this.#deleted.delete(id);
    this.#set(id, [...all]);
  }

  /** Forgets what waits in all other chats: these were deleted while the window was closed. */
  keep(ids: string[]): void {
    const { storage } = this;
    if (!storage) return;
    const wanted = new Set(ids.map((id) => PREFIX + id));
    const keys = Array.from({ length: storage.length }, (_, index) => storage.key(index) ?? '');
    for (const key of keys) if (key.startsWith(PREFIX) && !wanted.has(key)) storage.removeItem(key);
  }

  #set(id: string, all: Waiting[]): void {
    this.#waiting[id] = all;
    if (all.length === 0) this.#release(id);
    if (this.isPrivate(id)) return;
    if (all.length === 0) this.storage?.removeItem(PREFIX + id);
    else this.storage?.setItem(PREFIX + id, JSON.stringify(all));
  }

  #stored(id: string): Waiting[] {
    const all = stored(this.storage, PREFIX + id);
    return Array.isArray(all) ? all.flatMap(read) : [];
  }
}

/** A stored message. Earlier versions stored its text alone. */
function read(stored: unknown): Waiting[] {
  if (typeof stored === 'string') return [{ text: stored, documents: [] }];
  const { text, documents } = (stored ?? {}) as Partial<Waiting>;
  if (typeof text !== 'string') return [];
  return [{ text, documents: Array.isArray(documents) ? documents.filter((id) => typeof id === 'string') : [] }];
}
