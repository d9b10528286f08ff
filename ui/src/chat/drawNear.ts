// Draws the messages around what is seen of a thread, a few in each frame, and keeps what is seen where it is.
import { flushSync } from 'svelte';
import type { Message } from '../platform/wire';
import { indexAt, type DrawnMessages, type Place, type Row } from './drawn.svelte';

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
    const index = nextOf(messages, gap, view, top, bottom);
    keepPlace(box, list, () => drawn.draw(messages, index));
    return true;
  }
  return false;
}

/** The message of a gap that is nearest to what is drawn around it, or what it hides from the view. */
function nextOf(
  messages: readonly Message[],
  gap: NonNullable<Row['gap']>,
  view: DOMRect,
  top: number,
  bottom: number,
) {
  if (bottom <= view.top + view.height / 2) return gap.first + gap.count - 1;
  if (top >= view.top) return gap.first;
  return indexAt(messages, gap, view.top - top);
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
  const fresh = [...list.querySelectorAll<HTMLElement>(':scope > [data-message]:not(.is-settled)')].filter(
    ({ dataset }) => dataset.message !== growing,
  );
  const heights = fresh.map((element) => element.getBoundingClientRect().height);
  for (const [index, element] of fresh.entries()) {
    element.style.setProperty('contain-intrinsic-block-size', `auto ${heights[index]}px`);
    element.classList.add('is-settled');
  }
  return fresh.length > 0;
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
  return [...list.children].find(
    (child): child is HTMLElement => child instanceof HTMLElement && child.dataset.message === id,
  );
}
