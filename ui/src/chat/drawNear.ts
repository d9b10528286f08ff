// Draws the messages around what is seen of a thread, a few in each frame, and keeps what is seen where it is.
import { flushSync } from 'svelte';
import type { Message } from '../platform/wire';
import type { DrawnMessages, Place, Row } from './drawn.svelte';

/** The thread's column, and what of it is drawn. */
export interface Column {
  box: HTMLElement;
  /** Its children are the rows. */
  list: HTMLElement;
  messages: readonly Message[];
  drawn: DrawnMessages;
  rows: readonly Row[];
}

/** How long drawing may take in one frame, in milliseconds. One message may take longer. */
const SLICE_MS = 4;
/** As many messages stay drawn wherever they are. */
const MOST_DRAWN = 60;
const MOST_RELEASED = 4;
/** As far as a row reaches under the next one, so that the lines around what has the focus are not cut off; as in ThreadView. */
const REACH = 4;
/** What is farther from the view than this many of its heights is far. */
const FAR_VIEWS = 3;

/** Draws until the time of one frame is over; returns whether something is left to draw. `column`: null once it is gone. */
export function drawSome(column: () => Column | null): boolean {
  const until = performance.now() + SLICE_MS;
  do {
    const now = column();
    if (now === null || !drawOne(now)) return false;
  } while (performance.now() < until);
  return true;
}

/** Draws the next message in a gap that is seen or will be soon; false if there is none. */
function drawOne({ box, list, messages, drawn, rows }: Column): boolean {
  const view = box.getBoundingClientRect();
  for (const [position, { gap }] of rows.entries()) {
    const element = gap ? list.children[position] : undefined;
    if (!gap || !element) continue;
    const { top, bottom, height } = element.getBoundingClientRect();
    if (height === 0 || bottom < view.top - view.height || top > view.bottom + view.height) continue;
    const index = nextOf(messages, drawn, gap, view, top, bottom);
    keepPlace(box, list, () => drawn.draw(messages, index));
    return true;
  }
  return false;
}

/** The message of a gap that is nearest to what is drawn around it, or what it hides from the view. */
function nextOf(
  messages: readonly Message[],
  drawn: DrawnMessages,
  gap: NonNullable<Row['gap']>,
  view: DOMRect,
  top: number,
  bottom: number,
) {
  if (bottom <= view.top + view.height / 2) return gap.first + gap.count - 1;
  if (top >= view.top) return gap.first;
  return drawn.indexAt(messages, gap, view.top - top);
}

/**
 * Releases a few messages that are far from what is seen, where many are drawn: each takes as much memory as a small page. One that a
 * person used, or selected text in, stays as it is. Returns whether there were any. `column`: null once it is gone.
 */
export function releaseFar(column: () => Column | null): boolean {
  const now = column();
  if (now === null) return false;
  const { box, list, drawn } = now;
  const all = rowsOf(list);
  if (all.length <= MOST_DRAWN) return false;
  const view = box.getBoundingClientRect();
  const selection = document.getSelection();
  const far = all
    .filter((row) => isSettled(row) && !isUsed(row) && !isSelected(row, selection))
    .map((row) => {
      const { top, bottom, height } = row.getBoundingClientRect();
      return {
        id: row.dataset.message ?? '',
        height: height - REACH,
        distance: Math.max(view.top - bottom, top - view.bottom),
      };
    })
    .filter(({ distance }) => distance > FAR_VIEWS * view.height)
    .toSorted((a, b) => b.distance - a.distance)
    .slice(0, Math.min(MOST_RELEASED, all.length - MOST_DRAWN));
  if (far.length === 0) return false;
  keepPlace(box, list, () => drawn.release(new Map(far.map(({ id, height }) => [id, height]))));
  return true;
}

/** Marks the message in which a person did something. */
export function markUsed({ target }: Event): void {
  const row = target instanceof Element ? target.closest<HTMLElement>('[data-message]') : null;
  if (row) row.dataset.used = '';
}

const isUsed = (row: HTMLElement) => row.dataset.used !== undefined;

function isSelected(row: HTMLElement, selection: Selection | null): boolean {
  return selection !== null && !selection.isCollapsed && selection.containsNode(row, true);
}

/** Changes what is drawn, without moving what is seen. */
export function keepPlace(box: HTMLElement, list: HTMLElement, change: () => void): void {
  const seen = firstSeen(box, list);
  const before = seen?.getBoundingClientRect().top;
  flushSync(change);
  if (!seen?.isConnected || before === undefined) return;
  const moved = seen.getBoundingClientRect().top - before;
  if (Math.abs(moved) >= 0.5) box.scrollTop += moved;
}

/** The first message that is seen. */
function firstSeen(box: HTMLElement, list: HTMLElement): HTMLElement | undefined {
  const view = box.getBoundingClientRect();
  const children = list.children;
  // The rows stand in their order, so half of the rest is left out with each look.
  let low = 0;
  let high = children.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((children[middle]?.getBoundingClientRect().bottom ?? 0) > view.top) high = middle;
    else low = middle + 1;
  }
  for (let at = low; at < children.length; at++) {
    const child = children[at];
    if (!(child instanceof HTMLElement) || child.getBoundingClientRect().top > view.bottom) return undefined;
    if (child.dataset.message !== undefined) return child;
  }
  return undefined;
}

/**
 * Lets the browser skip what is not seen of the messages that are whole, so that long chats cost no more than short ones. That begins
 * when their heights are known, so that nothing moves; `growing` is the message that is being written. Returns whether there were any.
 */
export function settle(list: HTMLElement, growing: string | undefined): boolean {
  const fresh = rowsOf(list).filter((row) => row.dataset.message !== growing && !isSettled(row));
  const heights = fresh.map((element) => element.getBoundingClientRect().height - REACH);
  for (const [index, element] of fresh.entries()) {
    element.style.setProperty('contain-intrinsic-block-size', `auto ${heights[index]}px`);
    element.classList.add('is-settled');
  }
  return fresh.length > 0;
}

/** Whether another message than the last one is still to be settled. */
export function hasFresh(list: HTMLElement): boolean {
  return !rowsOf(list).slice(0, -1).every(isSettled);
}

function isSettled(row: HTMLElement): boolean {
  return row.classList.contains('is-settled');
}

/** Where a person is, to return to. */
export function placeOf(box: HTMLElement, list: HTMLElement): Place | null {
  const seen = firstSeen(box, list);
  const id = seen?.dataset.message;
  if (!seen || id === undefined) return null;
  return { id, top: seen.getBoundingClientRect().top - box.getBoundingClientRect().top };
}

/** Returns to a place whose message is drawn; false if it is not there any more. */
export function returnTo(box: HTMLElement, list: HTMLElement, { id, top }: Place): boolean {
  const element = rowOf(list, id);
  if (!element) return false;
  box.scrollTop += element.getBoundingClientRect().top - box.getBoundingClientRect().top - top;
  return true;
}

export function rowOf(list: HTMLElement, id: string): HTMLElement | undefined {
  return rowsOf(list).find(({ dataset }) => dataset.message === id);
}

/** The rows of messages that are drawn. */
function rowsOf(list: HTMLElement): HTMLElement[] {
  return [...list.children].filter(
    (child): child is HTMLElement => child instanceof HTMLElement && child.dataset.message !== undefined,
  );
}
