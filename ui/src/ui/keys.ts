// Keys that move the focus, and keys that end a word.

/** Moves the focus up or down through the elements of a list, around its ends; returns whether the key was one of these. */
export function moveFocus(event: KeyboardEvent, items: HTMLElement[]): boolean {
  const step = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0;
  if (step === 0) return false;
  event.preventDefault();
  const index = items.indexOf(document.activeElement as HTMLElement);
  items[index < 0 ? 0 : (index + step + items.length) % items.length]?.focus();
  return true;
}

/** Whether Enter ends a word in an input method; WebKit says so only by the old key code. */
export function isComposing(event: KeyboardEvent): boolean {
  return event.isComposing || event.keyCode === 229;
}
