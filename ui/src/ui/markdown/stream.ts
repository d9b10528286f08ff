// Parses markdown that grows at its end: complete blocks are reused, only the last one is parsed again.
import { noDefinitions, parseBlocks, type Block, type Item, type Placed } from './parse';
import { isFenceOpen, withLikelyEnd } from './unfinished';

/** A top-level block and its source text, which is shown if the block cannot be drawn. */
export interface Piece {
  block: Block;
  raw: string;
}

/** So many items of a list that grows are parsed again with each piece of text, and up to twice as many. */
const PARSED_ITEMS = 24;

/** A long list at the end whose first items stay as they are. */
interface LongList {
  /** The blocks of the window before it. */
  before: Placed[];
  line: number;
  start: number | null;
  items: Item[];
  /** Where the items start that are parsed again: in the window's text, and in its lines. */
  restOffset: number;
  restLine: number;
}

/**
 * Parses a text that is appended to. New text can change the last block, or join it to the one before (a list number that first
 * looked like a paragraph), but nothing earlier; so parsing restarts at the last block but one. Definitions that come after their
 * use are found by the full parse at the end. Until then the text is parsed as it will most likely go on. Of a long list only the last
 * items are parsed again, as long as there is no empty line between items, which would change all of them.
 */
export class MarkdownStream {
  #source = '';
  #windowStart = 0;
  #settled: Piece[] = [];
  #definitions = noDefinitions();
  #list: LongList | null = null;

  update(source: string, isDone: boolean): Piece[] {
    if (isDone || !source.startsWith(this.#source)) this.#restart();
    this.#source = source;
    const tail = source.slice(this.#windowStart);
    try {
      return this.#parseTail(tail, isDone);
    } catch {
      return [...this.#settled, plain(tail)];
    }
  }

  #parseTail(tail: string, isDone: boolean): Piece[] {
    const starts = lineStarts(tail);
    const placed = isDone
      ? this.#parsed(tail, false)
      : (this.#parsedRest(tail, starts) ?? this.#parsed(withLikelyEnd(tail), true));
    if (!isDone) this.#keepItems(tail, starts, placed);
    const pieces = placed.map(({ block, line }, index): Piece => {
      const next = placed[index + 1];
      const raw = tail.slice(starts[line], next ? starts[next.line] : undefined);
      return block ? { block, raw } : plain(raw);
    });
    const all = [...this.#settled, ...pieces];
    const restart = placed[placed.length - 2];
    if (!isDone && placed.length > 2 && restart) {
      const settledLength = starts[restart.line] ?? 0;
      // Parsed again on its own, so that a link definition that is only half written is never remembered.
      parseBlocks(tail.slice(0, settledLength), this.#definitions);
      this.#settled = all.slice(0, -2);
      this.#windowStart += settledLength;
      this.#list = null;
    }
    return all;
  }

  /** The blocks of a text behind what is settled. */
  #parsed(text: string, isGrowing: boolean): Placed[] {
    const { links, notes } = this.#definitions;
    return parseBlocks(text, { links: { ...links }, notes: new Set(notes) }, isGrowing);
  }

  /** The blocks of the window with the kept items of its list; null if there is none, or what came since changes them. */
  #parsedRest(tail: string, starts: number[]): Placed[] | null {
    const list = this.#list;
    if (!list) return null;
    const [first, ...others] = this.#parsed(withLikelyEnd(tail.slice(list.restOffset)), true);
    if (first?.block?.kind !== 'list' || !isTight(first.block.items)) {
      this.#list = null;
      return null;
    }
    const own = first.block.items;
    const itemLines = first.itemLines.map((line) => line + list.restLine);
    if (others.length === 0 && own.length >= 2 * PARSED_ITEMS) {
      const line = itemLines[own.length - PARSED_ITEMS] ?? 0;
      const offset = starts[line] ?? 0;
      if (isPlain(tail.slice(list.restOffset, offset))) {
        this.#list = {
          ...list,
          items: [...list.items, ...own.slice(0, -PARSED_ITEMS)],
          restOffset: offset,
          restLine: line,
        };
      }
    }
    const block: Block = { kind: 'list', start: list.start, items: [...list.items, ...own] };
    const moved = others.map((placed) => ({ ...placed, line: placed.line + list.restLine }));
    return [...list.before, { block, line: list.line, itemLines }, ...moved];
  }

  /** Keeps the first items of a list at the end that has become long. */
  #keepItems(tail: string, starts: number[], placed: Placed[]): void {
    const last = placed[placed.length - 1];
    if (this.#list || last?.block?.kind !== 'list' || !isTight(last.block.items)) return;
    const { items, start } = last.block;
    const restLine = last.itemLines[items.length - PARSED_ITEMS] ?? 0;
    const restOffset = starts[restLine] ?? 0;
    if (items.length < 2 * PARSED_ITEMS || !isPlain(tail.slice(0, restOffset))) return;
    const kept = items.slice(0, -PARSED_ITEMS);
    this.#list = { before: placed.slice(0, -1), line: last.line, start, items: kept, restOffset, restLine };
  }

  #restart(): void {
    this.#windowStart = 0;
    this.#settled = [];
    this.#definitions = noDefinitions();
    this.#list = null;
  }
}

/** Whether no empty line stands between the items of a list. */
function isTight(items: Item[]): boolean {
  const paragraphs = items.flatMap(({ children }) => children.filter((child) => child.kind === 'paragraph'));
  return paragraphs.length > 0 && paragraphs.every((paragraph) => paragraph.isTight);
}

/** Whether a text changes nothing about what comes after it: it defines nothing, and no fence is open at its end. */
function isPlain(text: string): boolean {
  return !/^[ \t>*+\d.)-]*\[[^\]]+\]:/m.test(text) && !isFenceOpen(text);
}

function plain(text: string): Piece {
  return { block: { kind: 'plain', text }, raw: text };
}

/** Where each line starts, counting line ends as the parser does. */
function lineStarts(text: string): number[] {
  const starts = [0];
  for (const match of text.matchAll(/\r\n?|\n/g)) starts.push(match.index + match[0].length);
  return starts;
}
