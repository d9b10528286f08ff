// Which messages of a long chat are drawn. For those that are not, gaps of about their height stand in the column.
import { untrack } from 'svelte';
import type { Message } from '../platform/wire';

/** Messages in a row that are not drawn. */
export interface Gap {
  /** The index of the first, and how many there are. */
  first: number;
  count: number;
  /** In pixels, as it will be, more or less. */
  height: number;
}

/** What stands in the column: a message, or a gap that begins with it. */
export interface Row {
  key: string;
  message: Message;
  gap: Gap | null;
}

/** Where a person was in a chat: a message, and how far its upper edge is below that of the view, in pixels. */
export interface Place {
  id: string;
  top: number;
}

/** How many messages are drawn at once: about as many as fit in a window. */
const AT_FIRST = 6;

/**
 * Owns what is drawn of one thread.
 *
 * - A message that comes later is drawn, wherever it comes.
 * - One that is far from what is seen can be released: its gap is exactly as high as it was.
 */
export class DrawnMessages {
  #left = $state.raw<ReadonlySet<string>>(new Set());
  /** Of those that were drawn once. */
  readonly #heights = new Map<string, number>();

  /** Begins with the end of the chat, or with what is around a place; all else is left out. */
  begin(messages: readonly Message[], place: Place | null): void {
    const index = place ? messages.findIndex(({ id }) => id === place.id) : -1;
    const from = index < 0 ? messages.length - AT_FIRST : index - AT_FIRST / 3;
    const left = messages.filter((_, at) => at < from || at >= from + AT_FIRST);
    this.#left = new Set(left.map(({ id }) => id));
  }

  draw(messages: readonly Message[], first: number, count = 1): void {
    const left = new Set(this.#left);
    for (const message of messages.slice(Math.max(0, first), first + count)) left.delete(message.id);
    if (left.size !== this.#left.size) this.#left = left;
  }

  /** Leaves out messages that are drawn; `heights`: in pixels, by message. */
  release(heights: ReadonlyMap<string, number>): void {
    for (const [id, height] of heights) this.#heights.set(id, height);
    this.#left = new Set([...this.#left, ...heights.keys()]);
  }

  /** `from`: those before this index are not shown at all. */
  rows(messages: readonly Message[], from = 0): Row[] {
    const rows: Row[] = [];
    let gap: Gap | null = null;
    for (const [index, message] of messages.entries()) {
      if (index < from) continue;
      if (!this.#left.has(message.id)) {
        rows.push({ key: message.id, message, gap: null });
        gap = null;
      } else if (gap) {
        gap.count++;
        gap.height += this.#heightOf(message);
      } else {
        gap = { first: index, count: 1, height: this.#heightOf(message) };
        rows.push({ key: `before ${message.id}`, message, gap });
      }
    }
    return rows;
  }

  /** The index of the message that stands `y` pixels below the start of a gap. */
  indexAt(messages: readonly Message[], gap: Gap, y: number): number {
    let rest = y;
    for (let index = gap.first; index < gap.first + gap.count; index++) {
      const message = messages[index];
      rest -= message ? this.#heightOf(message) : 0;
      if (rest < 0) return index;
    }
    return gap.first + gap.count - 1;
  }

  /** The height that a message has, or will have, more or less. */
  #heightOf(message: Message): number {
    return this.#heights.get(message.id) ?? untrack(() => likelyHeight(message));
  }
}

// Of a column of 640 pixels.
const LINE = 24;
const CHARS_IN_LINE = 84;
/** Space around a message and the buttons under it, in pixels. */
const AROUND = 52;
const MOST_LINES_OF_QUESTION = 14;

/** By the length only, since it is asked for all that are not drawn. */
function likelyHeight({ role, text, segments }: Message): number {
  if (role === 'user') return AROUND + LINE * Math.min(MOST_LINES_OF_QUESTION, 1 + text.length / CHARS_IN_LINE);
  const lines = segments.map((segment) =>
    segment.kind === 'text' ? 1 + (1.3 * segment.text.length) / CHARS_IN_LINE : 2,
  );
  return AROUND + LINE * lines.reduce((sum, count) => sum + count, 0);
}
