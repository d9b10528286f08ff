// Parses markdown that grows at its end: complete blocks are reused, only the last one is parsed again.
import { noDefinitions, parseBlocks, type Block } from './parse';
import { withLikelyEnd } from './unfinished';

/** A top-level block and its source text, which is shown if the block cannot be drawn. */
export interface Piece {
  block: Block;
  raw: string;
}

/**
 * Parses a text that is appended to. New text can change the last block, or join it to the one before (a list number that first
 * looked like a paragraph), but nothing earlier; so parsing restarts at the last block but one. Definitions that come after their
 * use are found by the full parse at the end. Until then the text is parsed as it will most likely go on.
 */
export class MarkdownStream {
  #source = '';
  #windowStart = 0;
  #settled: Piece[] = [];
  #definitions = noDefinitions();

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
    const { links, notes } = this.#definitions;
    const known = { links: { ...links }, notes: new Set(notes) };
    const placed = parseBlocks(isDone ? tail : withLikelyEnd(tail), known, !isDone);
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
    }
    return all;
  }

  #restart(): void {
    this.#windowStart = 0;
    this.#settled = [];
    this.#definitions = noDefinitions();
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
