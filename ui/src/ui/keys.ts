// Keys that are commands instead of text.

/** Command on a Mac, Control elsewhere; both work everywhere, so the system need not be known. */
export function isCommandKey(event: KeyboardEvent, key: string): boolean {
  return (event.metaKey || event.ctrlKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === key;
}

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

/** The name of the command key on this machine. */
export const commandKey = /mac|iphone|ipad/i.test(navigator.platform) ? '⌘' : 'Ctrl+';
