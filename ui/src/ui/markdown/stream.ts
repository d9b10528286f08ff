// Parses markdown that grows at its end: complete blocks are reused, only the last one is parsed again.
import { parseBlocks, type Block, type References } from './parse';

/** A top-level block and its source text, which is shown if the block cannot be drawn. */
export interface Piece {
  block: Block;
  raw: string;
}

/**
 * Parses a text that is appended to. New text can change the last block, or join it to the one before (a list number that first
 * looked like a paragraph), but nothing earlier; so parsing restarts at the last block but one. Link definitions that come after
 * their use are found by the full parse at the end.
 */
export class MarkdownStream {
  #source = '';
  #windowStart = 0;
  #settled: Piece[] = [];
  #references: References = {};

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
    const placed = parseBlocks(tail, { ...this.#references });
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
      parseBlocks(tail.slice(0, settledLength), this.#references);
      this.#settled = all.slice(0, -2);
      this.#windowStart += settledLength;
    }
    return all;
  }

  #restart(): void {
    this.#windowStart = 0;
    this.#settled = [];
    this.#references = {};
  }
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
