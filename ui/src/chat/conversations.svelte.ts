// The list of conversations, newest activity first.
import type { Conversation } from '../platform/wire';
import { strings } from '../text';

export function titleOf(conversation: Pick<Conversation, 'title'>): string {
  return conversation.title.trim() || strings.chats.untitled;
}

/** Owns the rows of the list. While `hold` is in effect, known rows keep their order, so that nothing moves under the pointer. */
export class ConversationList {
  #rows = $state.raw<Conversation[]>([]);
  #fixedOrder = $state.raw<string[] | null>(null);

  readonly items = $derived.by(() => {
    const sorted = this.#rows.toSorted((a, b) => b.updated_at_ms - a.updated_at_ms || (a.id < b.id ? 1 : -1));
    const order = this.#fixedOrder;
    if (!order) return sorted;
    const position = new Map(order.map((id, index) => [id, index]));
    return sorted.toSorted((a, b) => (position.get(a.id) ?? -1) - (position.get(b.id) ?? -1));
  });

  replace(conversations: Conversation[]): void {
    this.#rows = conversations;
  }

  put(conversation: Conversation): void {
    this.#rows = [...this.#rows.filter((row) => row.id !== conversation.id), conversation];
  }

  take(id: string): Conversation | undefined {
    const taken = this.get(id);
    this.#rows = this.#rows.filter((row) => row.id !== id);
    return taken;
  }

  get(id: string | null): Conversation | undefined {
    return this.#rows.find((row) => row.id === id);
  }

  /** The row below, else the one above: where the selection goes when a row is deleted. */
  neighbourOf(id: string): string | null {
    const index = this.items.findIndex((row) => row.id === id);
    return (this.items[index + 1] ?? this.items[index - 1])?.id ?? null;
  }

  hold(): void {
    this.#fixedOrder ??= this.items.map((row) => row.id);
  }

  release(): void {
    this.#fixedOrder = null;
  }
}
