// Shortcuts: which keys they are, and how they are written.
import { expect, test } from 'vitest';
import { commands } from '../commands';
import { accelerator, isPressed, shortcutText, type Shortcut } from './shortcuts';

test.each<[shortcut: Shortcut, onMac: string, elsewhere: string, inMenus: string]>([
  [{ key: 'n' }, '⌘N', 'Ctrl+N', 'CmdOrCtrl+N'],
  [{ key: 'n', shift: true }, '⇧⌘N', 'Ctrl+Shift+N', 'CmdOrCtrl+Shift+N'],
  [{ key: 's', alt: true }, '⌥⌘S', 'Ctrl+Alt+S', 'CmdOrCtrl+Alt+S'],
  [{ key: 'ArrowUp', alt: true }, '⌥⌘↑', 'Ctrl+Alt+↑', 'CmdOrCtrl+Alt+Up'],
  [{ key: 'F2', isPlain: true }, 'F2', 'F2', 'F2'],
])('%o', (shortcut, onMac, elsewhere, inMenus) => {
  expect([shortcutText(shortcut, true), shortcutText(shortcut, false), accelerator(shortcut)]).toEqual([
    onMac,
    elsewhere,
    inMenus,
  ]);
});

test.each<[name: string, shortcut: Shortcut, event: KeyboardEventInit, expected: boolean]>([
  ['command on a Mac', { key: 'n' }, { key: 'n', metaKey: true }, true],
  ['control elsewhere', { key: 'n' }, { key: 'n', ctrlKey: true }, true],
  ['a letter alone', { key: 'n' }, { key: 'n' }, false],
  ['with shift, where it has none', { key: 'n' }, { key: 'N', metaKey: true, shiftKey: true }, false],
  ['with shift', { key: 'n', shift: true }, { key: 'N', metaKey: true, shiftKey: true }, true],
  [
    'option, which changes the character',
    { key: 's', alt: true },
    { key: 'ß', code: 'KeyS', metaKey: true, altKey: true },
    true,
  ],
  ['plain', { key: 'F2', isPlain: true }, { key: 'F2' }, true],
])('%s', (_, shortcut, event, expected) => {
  expect(isPressed(shortcut, new KeyboardEvent('keydown', event))).toBe(expected);
});

test('no two commands have the same shortcut', () => {
  const all = commands.flatMap(({ shortcut }) => (shortcut ? [accelerator(shortcut)] : []));
  expect(new Set(all).size).toBe(all.length);
});
