// Rows of the list that are selected together, so that one action is about all of them.
import type { Conversation } from '../platform/wire';
import type { ConversationList } from './conversations.svelte';

/** Owns which rows are selected. None while only a chat is open: then keys and menus are about one row. */
export class ChatSelection {
  #chosen = $state.raw<ReadonlySet<string>>(new Set());
  /** Where a range begins: the row that was clicked last without Shift. */
  #from: string | null = null;
  readonly #list: ConversationList;

  /** Whether a row is folded away; the owner of the folders sets it. */
  isFolded: (row: Conversation) => boolean = () => false;

  /** Without those that are gone by now, or folded away: an action must not be about what nobody sees. */
  readonly ids = $derived.by(() => {
    const isSeen = (row: Conversation | undefined) => row !== undefined && !this.isFolded(row);
    return new Set([...this.#chosen].filter((id) => isSeen(this.#list.get(id))));
  });

  constructor(list: ConversationList) {
    this.#list = list;
  }

  get isEmpty(): boolean {
    return this.ids.size === 0;
  }

  /** The rows that an action on this one is about: all that are selected, if it is one of several. */
  with(id: string): string[] {
    return this.ids.size > 1 && this.ids.has(id) ? [...this.ids] : [id];
  }

  /** Selects none. The next range begins at this row. */
  clear(from: string | null = null): void {
    this.#from = from;
    if (this.#chosen.size > 0) this.#chosen = new Set();
  }

  /** Selects a row besides the others, or no longer. `openId`: the row of the open chat, which looks selected at first. */
  toggle(id: string, openId: string | null): void {
    const chosen = new Set(this.isEmpty && openId !== null ? [openId] : this.ids);
    if (!chosen.delete(id)) chosen.add(id);
    this.#chosen = chosen;
    this.#from = id;
  }

  /** Selects the rows between the one where the range begins and this one. `order`: all that are not folded, from the top. */
  extendTo(id: string, order: readonly string[], openId: string | null): void {
    const isThere = (from: string | null): from is string => from !== null && order.includes(from);
    this.#from = [this.#from, openId].find(isThere) ?? id;
    const [first = 0, last = 0] = [order.indexOf(this.#from), order.indexOf(id)].sort((a, b) => a - b);
    this.#chosen = new Set(order.slice(first, last + 1));
  }

  selectAll(order: readonly string[]): void {
    this.#chosen = new Set(order);
  }
}
