// The list of conversations, newest activity first.
import type { ChatModel, Conversation, ModelOfChat } from '../platform/wire';
import { strings } from '../text';

export function titleOf(conversation: Pick<Conversation, 'title'>): string {
  return conversation.title.trim() || strings.chats.untitled;
}

/** The title of a branch, as no other chat has it. What tells it apart comes first: rows cut titles at their end. */
export function branchTitle(
  { title, branch_of }: Pick<Conversation, 'title' | 'branch_of'>,
  others: readonly Pick<Conversation, 'title'>[],
): string {
  const { branch } = strings.chats;
  const base = titleOf({ title: branch_of ?? title });
  const taken = new Set(others.map((other) => other.title));
  for (let number = 1; ; number++) {
    const name = `${number === 1 ? branch : `${branch} ${number}`}: ${base}`;
    if (!taken.has(name)) return name;
  }
}

function isSame(a: ChatModel, b: ChatModel): boolean {
  return a.name === b.name && a.source === b.source && a.missing === b.missing;
}

/**
 * Whether no message is shown in a chat, and nobody has named it. A name stays when all messages are deleted: such a chat
 * is not empty.
 */
export function isEmpty({ title, has_messages }: Pick<Conversation, 'title' | 'has_messages'>): boolean {
  return title === '' && !has_messages;
}

/**
 * A chat in which nothing was sent yet. It has a row because documents were attached, and those must not be lost; the list
 * has it with its first message, and a new chat is this one until then. Chats that a person has begun as private ones or
 * from a starting point are listed at once.
 */
export function isUnsent(row: Conversation): boolean {
  const { is_private, is_pinned, is_archived, is_streaming, prefix } = row;
  return isEmpty(row) && !is_private && !is_pinned && !is_archived && !is_streaming && prefix === null;
}

/** A row of the list; `isGap`: the conversation is gone, and its space stays until the pointer leaves the list. */
export interface ListRow {
  conversation: Conversation;
  isGap: boolean;
}

/** Owns the rows of the list. While `hold` is in effect nothing moves under the pointer: rows keep their order, and those that go leave a gap. */
export class ConversationList {
  #conversations = $state.raw<Conversation[]>([]);
  #fixedOrder = $state.raw<string[] | null>(null);
  #gaps = $state.raw<Conversation[]>([]);
  readonly #byId = $derived(new Map(this.#conversations.map((row) => [row.id, row])));

  readonly items = $derived(this.#inOrder(this.#conversations));
  readonly rows = $derived.by((): ListRow[] => {
    const gaps = new Set(this.#gaps);
    const all = this.#inOrder([...this.#conversations.filter((row) => !isUnsent(row)), ...this.#gaps]);
    return all.map((conversation) => ({ conversation, isGap: gaps.has(conversation) }));
  });

  #inOrder(conversations: Conversation[]): Conversation[] {
    const sorted = conversations.toSorted((a, b) => b.updated_at_ms - a.updated_at_ms || (a.id < b.id ? 1 : -1));
    const order = this.#fixedOrder;
    if (!order) return sorted;
    const position = new Map(order.map((id, index) => [id, index]));
    return sorted.toSorted((a, b) => (position.get(a.id) ?? -1) - (position.get(b.id) ?? -1));
  }

  /** Those that are not in the archive, and begun. */
  readonly listed = $derived(this.items.filter((row) => !row.is_archived && !isUnsent(row)));

  replace(conversations: Conversation[]): void {
    this.#conversations = conversations;
    this.#gaps = [];
  }

  put(conversation: Conversation): void {
    this.putAll([conversation]);
  }

  putAll(conversations: readonly Conversation[]): void {
    const ids = new Set(conversations.map(({ id }) => id));
    this.#conversations = [...this.#conversations.filter(({ id }) => !ids.has(id)), ...conversations];
    this.#gaps = this.#gaps.filter(({ id }) => !ids.has(id));
  }

  /** Takes over which model answers each chat. */
  setModels(models: readonly ModelOfChat[]): void {
    const byId = new Map(models.map(({ conversation_id, model }) => [conversation_id, model]));
    this.#conversations = this.#conversations.map((row) => {
      const model = byId.get(row.id);
      return model && !isSame(model, row.model) ? { ...row, model } : row;
    });
  }

  /** One that goes leaves a gap. Several were selected, and the list closes up behind them. */
  take(ids: readonly string[]): void {
    const gone = new Set(ids);
    const taken = this.#conversations.filter(({ id }) => gone.has(id));
    this.#conversations = this.#conversations.filter(({ id }) => !gone.has(id));
    const [row] = taken;
    if (row && taken.length === 1 && this.#fixedOrder && !isUnsent(row)) this.#gaps = [...this.#gaps, row];
  }

  get(id: string | null): Conversation | undefined {
    return id === null ? undefined : this.#byId.get(id);
  }

  /** The row below these, else the one above: where the focus goes when they are deleted. */
  neighbourOf(ids: readonly string[]): string | null {
    const gone = new Set(ids);
    const isInArchive = ids.some((id) => this.get(id)?.is_archived);
    const rows = isInArchive ? this.items.filter((row) => !isUnsent(row)) : this.listed;
    const last = rows.findLastIndex(({ id }) => gone.has(id));
    const above = rows.slice(0, Math.max(last, 0)).findLast(({ id }) => !gone.has(id));
    return (rows[last + 1] ?? above)?.id ?? null;
  }

  get isHeld(): boolean {
    return this.#fixedOrder !== null;
  }

  hold(): void {
    this.#fixedOrder ??= this.items.map((row) => row.id);
  }

  release(): void {
    this.#fixedOrder = null;
    this.#gaps = [];
  }
}
