// Shortcuts: how they are pressed, and how they are written on this machine.

export interface Shortcut {
  /** A letter, a digit, a sign, or the name of a key as in `KeyboardEvent.key`. */
  key: string;
  shift?: true;
  alt?: true;
  /** Without the command key, as F2. */
  isPlain?: true;
}

export const isMac = /mac|iphone|ipad/i.test(navigator.platform);

const SIGNS: Record<string, string> = {
  ArrowUp: '↑',
  ArrowDown: '↓',
  ArrowLeft: '←',
  ArrowRight: '→',
  Enter: '↩',
  Escape: 'Esc',
  Backspace: '⌫',
  Delete: '⌦',
};

/** Command on a Mac, Control elsewhere; both work everywhere. */
export function isPressed(shortcut: Shortcut, event: KeyboardEvent): boolean {
  if ((event.metaKey || event.ctrlKey) === (shortcut.isPlain ?? false)) return false;
  if (event.shiftKey !== (shortcut.shift ?? false) || event.altKey !== (shortcut.alt ?? false)) return false;
  const { key } = shortcut;
  // With the option key a Mac's letters are other characters, but their keys have the same codes.
  if (shortcut.alt && /^[a-z]$/.test(key)) return event.code === `Key${key.toUpperCase()}`;
  if (shortcut.alt && /^\d$/.test(key)) return event.code === `Digit${key}`;
  return event.key.toLowerCase() === key.toLowerCase();
}

/** The shortcut as people read it: ⇧⌘N on a Mac, Ctrl+Shift+N elsewhere. */
export function shortcutText({ key, shift, alt, isPlain }: Shortcut, onMac = isMac): string {
  const name = SIGNS[key] ?? key.toUpperCase();
  if (onMac) return `${alt ? '⌥' : ''}${shift ? '⇧' : ''}${isPlain ? '' : '⌘'}${name}`;
  return [...(isPlain ? [] : ['Ctrl']), ...(alt ? ['Alt'] : []), ...(shift ? ['Shift'] : []), name].join('+');
}

/** The shortcut as the shell's menu bar writes it. */
export function accelerator({ key, shift, alt, isPlain }: Shortcut): string {
  const name = key.length === 1 ? key.toUpperCase() : key.replace('Arrow', '');
  return [...(isPlain ? [] : ['CmdOrCtrl']), ...(alt ? ['Alt'] : []), ...(shift ? ['Shift'] : []), name].join('+');
}
