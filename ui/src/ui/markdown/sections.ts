// Cuts a long answer into sections that a browser can skip while they are not seen.
import type { Block } from './parse';
import type { Piece } from './stream';

const MOST_PIECES = 16;
/** A list with more items goes on in another one. */
const MOST_ITEMS = 24;

/** The pieces in their order, by section. All sections but the last stay as they are while the text grows. */
export function sectionsOf(pieces: Piece[]): Piece[][] {
  const sections: Piece[][] = [[]];
  for (const piece of pieces) {
    for (const [index, part] of partsOf(piece).entries()) {
      const last = sections[sections.length - 1];
      if (!last || last.length >= MOST_PIECES || index > 0) sections.push([part]);
      else last.push(part);
    }
  }
  return sections;
}

function partsOf(piece: Piece): Piece[] {
  const { block, raw } = piece;
  if (block.kind !== 'list' || block.items.length <= MOST_ITEMS) return [piece];
  const parts: Piece[] = [];
  for (let first = 0; first < block.items.length; first += MOST_ITEMS) {
    const start = block.start === null ? null : block.start + first;
    const part: Block = { kind: 'list', start, items: block.items.slice(first, first + MOST_ITEMS) };
    parts.push({ block: part, raw: first === 0 ? raw : '' });
  }
  return parts;
}
