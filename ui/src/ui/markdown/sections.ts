// Cuts a long answer into sections that a browser can skip while they are not seen.
import type { Item } from './parse';
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
  return sections.map(asBefore);
}

/** By their first pieces: one whose pieces are the same stays the same array, so that nothing of it is looked at again. */
const known = new WeakMap<Piece, Piece[]>();

function asBefore(section: Piece[]): Piece[] {
  const [first] = section;
  if (!first) return section;
  const before = known.get(first);
  if (before && areSame(before, section)) return before;
  known.set(first, section);
  return section;
}

/** The whole parts of lists by their first items: while a list grows they stay the same, so that nothing of them is drawn again. */
const parts = new WeakMap<Item, Piece>();

function partsOf(piece: Piece): Piece[] {
  const { block, raw } = piece;
  if (block.kind !== 'list' || block.items.length <= MOST_ITEMS) return [piece];
  const all: Piece[] = [];
  for (let first = 0; first < block.items.length; first += MOST_ITEMS) {
    const start = block.start === null ? null : block.start + first;
    all.push(partOf(block.items.slice(first, first + MOST_ITEMS), start, first === 0 ? raw : ''));
  }
  return all;
}

function partOf(items: Item[], start: number | null, raw: string): Piece {
  const [first] = items;
  const before = first && parts.get(first);
  if (before?.block.kind === 'list' && before.block.start === start && areSame(before.block.items, items))
    return before;
  const part: Piece = { block: { kind: 'list', start, items }, raw };
  if (first && items.length === MOST_ITEMS) parts.set(first, part);
  return part;
}

function areSame<T>(some: T[], others: T[]): boolean {
  return some.length === others.length && some.every((one, index) => one === others[index]);
}
