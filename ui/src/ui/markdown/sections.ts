// Cuts a long answer into sections that a browser can skip while they are not seen.
import type { Item } from './parse';
import type { Piece } from './stream';

const MOST_PIECES = 16;
/** A browser looks at each section that it may skip in every frame, so those that are long past are skipped together. */
const MOST_SECTIONS = 8;
/** A list with more items goes on in another one. */
const MOST_ITEMS = 24;

/** The sections of some pieces, in groups. All groups but the last stay as they are while the text grows. */
export function groupsOf(pieces: Piece[]): Piece[][][] {
  const sections = sectionsOf(pieces);
  const groups: Piece[][][] = [];
  for (let first = 0; first < sections.length; first += MOST_SECTIONS)
    groups.push(sections.slice(first, first + MOST_SECTIONS));
  return groups.map((group) => asBefore(group, knownGroups));
}

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
  return sections.map((section) => asBefore(section, knownSections));
}

/** By what is first in them: one that holds the same stays the same array, so that nothing of it is looked at again. */
const knownSections = new WeakMap<Piece, Piece[]>();
const knownGroups = new WeakMap<Piece[], Piece[][]>();

function asBefore<T extends object>(all: T[], known: WeakMap<T, T[]>): T[] {
  const [first] = all;
  if (!first) return all;
  const before = known.get(first);
  if (before && areSame(before, all)) return before;
  known.set(first, all);
  return all;
}

/**
 * The whole parts of lists by their last items: while a list grows they stay the same, so that nothing of them is drawn again. Items are
 * parsed again from one of them on to the end, so that a part whose last item is the same is the same.
 */
const parts = new WeakMap<Item, Piece>();

function partsOf(piece: Piece): Piece[] {
  const { block, raw } = piece;
  if (block.kind !== 'list' || block.items.length <= MOST_ITEMS) return [piece];
  const all: Piece[] = [];
  for (let first = 0; first < block.items.length; first += MOST_ITEMS) {
    const start = block.start === null ? null : block.start + first;
    all.push(partOf(block.items, first, start, first === 0 ? raw : ''));
  }
  return all;
}

function partOf(all: Item[], first: number, start: number | null, raw: string): Piece {
  const last = all[first + MOST_ITEMS - 1];
  const before = last && parts.get(last);
  if (before?.block.kind === 'list' && before.block.start === start && before.block.items[0] === all[first]) {
    return before;
  }
  const part: Piece = { block: { kind: 'list', start, items: all.slice(first, first + MOST_ITEMS) }, raw };
  if (last) parts.set(last, part);
  return part;
}

function areSame<T>(some: T[], others: T[]): boolean {
  return some.length === others.length && some.every((one, index) => one === others[index]);
}
