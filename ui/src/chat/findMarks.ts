// Finds text among the elements of a page, and marks it without changing them.
import { comparable, matchesOf } from './find.svelte';

/** What is in an article and not part of its text. */
const SKIPPED = 'button, .visually-hidden, .bar, svg, footer, [hidden]';
/** Within these, text goes on from element to element; all others begin a line. */
const INLINE = new Set(['a', 'bdi', 'code', 'em', 'i', 'kbd', 's', 'span', 'strong', 'sub', 'sup']);

/** The ranges of all matches below an element, in their order. A match never goes over the end of a block. */
export function rangesOf(root: Element, query: string): Range[] {
  const wanted = comparable(query);
  if (wanted === '') return [];
  const pieces: { node: Text; start: number }[] = [];
  let text = '';
  const visit = (node: Node) => {
    if (node instanceof Text) {
      pieces.push({ node, start: text.length });
      text += node.data;
      return;
    }
    if (!(node instanceof Element) || node.matches(SKIPPED)) return;
    const isBlock = !INLINE.has(node.localName) && node.namespaceURI === 'http://www.w3.org/1999/xhtml';
    if (isBlock) text += '\n';
    for (const child of node.childNodes) visit(child);
    if (isBlock) text += '\n';
  };
  visit(root);
  return matchesOf(comparable(text), wanted).flatMap((start) => {
    const range = document.createRange();
    const from = pieceAt(pieces, start);
    const to = pieceAt(pieces, start + wanted.length - 1);
    if (!from || !to) return [];
    range.setStart(from.node, start - from.start);
    range.setEnd(to.node, start + wanted.length - to.start);
    return [range];
  });
}

/** The piece that the character at an index is in. */
function pieceAt(pieces: { node: Text; start: number }[], index: number) {
  let low = 0;
  let high = pieces.length;
  while (low + 1 < high) {
    const middle = (low + high) >> 1;
    if ((pieces[middle]?.start ?? 0) <= index) low = middle;
    else high = middle;
  }
  const piece = pieces[low];
  return piece && index - piece.start < piece.node.length ? piece : undefined;
}

const ALL = 'cairn-found';
const CURRENT = 'cairn-found-current';

/** Marks ranges; an engine without highlights selects the one that is shown. */
export function markRanges(all: Range[], current: Range | null): void {
  if (typeof CSS === 'undefined' || !('highlights' in CSS)) {
    const selection = getSelection();
    selection?.removeAllRanges();
    if (current) selection?.addRange(current);
    return;
  }
  if (all.length === 0) return clearMarks();
  CSS.highlights.set(ALL, new Highlight(...all));
  const one = new Highlight(...(current ? [current] : []));
  one.priority = 1;
  CSS.highlights.set(CURRENT, one);
}

export function clearMarks(): void {
  if (typeof CSS === 'undefined' || !('highlights' in CSS)) return;
  CSS.highlights.delete(ALL);
  CSS.highlights.delete(CURRENT);
}
