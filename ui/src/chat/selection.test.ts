// Several rows of the list: how they are selected, and what is done with all of them.
import { fireEvent, screen } from '@testing-library/svelte';
import { expect, test } from 'vitest';
import { CallError } from '../platform/platform';
import { bootstrap, conversation, FakePlatform, settle } from '../testing/fake';
import { drawn, openWindow, useWindow } from '../testing/window';
import { commands } from '../commands';
import { CHAT_TYPE } from './drag';

useWindow();

const folder = { id: 'f', name: 'Letters', system_prompt: '', model: null };
const other = { ...folder, id: 'g', name: 'Walls' };

async function open(change: Partial<Parameters<typeof conversation>[1]> = {}, folders = [folder]) {
  const platform = new FakePlatform();
  const ids = ['a', 'b', 'c', 'd', 'e'];
  const conversations = ids.map((id, index) =>
    conversation(id, { updated_at_ms: 9 - index, ...(id === 'd' ? change : {}) }),
  );
  platform.answers = {
    bootstrap: bootstrap({ folders, conversations }),
    get_conversation: { type: 'conversation', conversation: conversation('a'), messages: [] },
  };
  const { app } = await openWindow(platform);
  const { selection } = app.chat;
  const row = (id: string) => document.querySelector<HTMLElement>(`[data-conversation="${id}"]`)!;
  const selected = () => [...selection.ids].sort().join('');
  const looksSelected = () =>
    [...document.querySelectorAll<HTMLElement>('.is-selected [data-conversation]')]
      .map((one) => one.dataset['conversation'])
      .join('');
  const click = async (id: string, keys: MouseEventInit = {}) => {
    await fireEvent.click(row(id), keys);
    await drawn();
  };
  const press = async (key: string, keys: KeyboardEventInit = {}) => {
    await fireEvent.keyDown(document.activeElement!, { key, ...keys });
    await drawn();
  };
  const menuOf = async (id: string) => {
    await fireEvent.contextMenu(row(id), { clientX: 4, clientY: 5 });
    await drawn();
    return screen.getAllByRole('menuitem', { hidden: true }).map((item) => item.textContent);
  };
  const choose = async (label: string) => {
    await fireEvent.click(screen.getByRole('menuitem', { name: label, hidden: true }));
    await drawn();
  };
  const asked = (type: string) => platform.asked.filter((command) => command.type === type);
  const listed = () => app.chat.list.listed.map(({ id }) => id).join('');
  await click('a');
  return { app, asked, choose, click, listed, looksSelected, menuOf, platform, press, row, selected };
}

const COMMAND = { metaKey: true };
const SHIFT = { shiftKey: true };

test.each<[name: string, clicks: [string, MouseEventInit][], selected: string]>([
  ['a click alone opens and selects none', [['c', {}]], ''],
  ['the open chat is the first of several', [['c', COMMAND]], 'ac'],
  ['Control does the same', [['c', { ctrlKey: true }]], 'ac'],
  [
    'a second time takes it out',
    [
      ['c', COMMAND],
      ['d', COMMAND],
      ['c', COMMAND],
    ],
    'ad',
  ],
  ['Shift selects all between', [['c', SHIFT]], 'abc'],
  [
    'a range can end elsewhere',
    [
      ['d', SHIFT],
      ['b', SHIFT],
    ],
    'ab',
  ],
  [
    'a range begins at the last click',
    [
      ['d', COMMAND],
      ['b', SHIFT],
    ],
    'bcd',
  ],
  [
    'a click alone ends it',
    [
      ['d', SHIFT],
      ['b', {}],
    ],
    '',
  ],
])('%s', async (_name, clicks, expected) => {
  const { app, click, looksSelected, selected } = await open();
  for (const [id, keys] of clicks) await click(id, keys);
  expect(selected()).toBe(expected);
  expect(looksSelected()).toBe(expected || app.chat.selectedId);
});

test('rows are selected by keys, which open no chat, and Escape ends that', async () => {
  const { app, press, row, selected } = await open();
  row('b').focus();
  await press('ArrowDown');
  expect(app.chat.selectedId).toBe('c');
  await press('ArrowDown', SHIFT);
  await press('ArrowDown', SHIFT);
  expect([selected(), app.chat.selectedId]).toEqual(['cde', 'c']);
  expect(document.activeElement).toBe(row('e'));
  await press('ArrowUp', SHIFT);
  expect(selected()).toBe('cd');
  expect(screen.getByText('2 chats selected').getAttribute('role')).toBe('status');
  expect(document.getElementById(row('d').getAttribute('aria-describedby') ?? '')?.textContent).toMatch(/^Selected\. /);
  await press('Escape');
  expect([selected(), app.chat.selectedId]).toEqual(['', 'c']);
  expect(screen.getByText('No chats selected')).toBeTruthy();
  await press('a', COMMAND);
  expect(selected()).toBe('abcde');
});

test('all that are selected are deleted by one command, and come back by one undo', async () => {
  const { app, asked, click, listed, press, row, selected } = await open();
  await click('b');
  await click('d', SHIFT);
  await press('Delete');
  expect(asked('delete_conversations')).toEqual([{ type: 'delete_conversations', ids: ['b', 'c', 'd'] }]);
  expect([listed(), app.chat.selectedId, selected()]).toEqual(['ae', 'e', '']);
  expect(document.activeElement).toBe(row('e'));
  expect(app.toasts.items.map(({ text }) => text)).toEqual(['Deleted 3 chats.']);
  app.undo.undo();
  await settle();
  expect(asked('restore_conversations')).toEqual([{ type: 'restore_conversations', ids: ['b', 'c', 'd'] }]);
  expect([listed(), app.chat.selectedId]).toEqual(['abcde', 'b']);
});

test('several that could not be deleted stay', async () => {
  const { app, click, listed, platform, press } = await open();
  platform.answers.delete_conversations = new CallError('storage', 'The disk is full.');
  await click('c', SHIFT);
  await press('Backspace');
  expect(listed()).toBe('abcde');
  expect(app.toasts.items.map(({ text }) => text)).toEqual(['The disk is full.']);
});

test('the menu of a selected row is about all, that of another about itself', async () => {
  const { app, asked, choose, click, listed, menuOf, selected } = await open();
  await click('c', SHIFT);
  expect(await menuOf('b')).toEqual([
    'Move 3 chats to Letters',
    'Move 3 chats to a new folder…',
    'Archive 3 chats',
    'Export 3 chats…',
    'Delete 3 chats',
  ]);
  await choose('Archive 3 chats');
  expect(asked('archive_conversations')).toEqual([
    { type: 'archive_conversations', ids: ['a', 'b', 'c'], is_archived: true },
  ]);
  expect([listed(), selected()]).toEqual(['de', '']);
  app.undo.undo();
  await drawn();
  expect(listed()).toBe('abcde');
  await click('c', SHIFT);
  expect(await menuOf('e')).toContain('Rename');
  expect(selected()).toBe('');
});

test('chats are moved together, and each goes back to where it was', async () => {
  const { app, asked, choose, click, menuOf } = await open({ folder_id: 'g' }, [folder, other]);
  await click('c', SHIFT);
  await click('d', COMMAND);
  await menuOf('c');
  await choose('Move 4 chats to Letters');
  expect(asked('move_conversations')).toHaveLength(1);
  expect(app.toasts.items.map(({ text }) => text)).toEqual(['Moved 4 chats.']);
  app.undo.undo();
  await drawn();
  expect(asked('move_conversations').slice(1)).toEqual([
    { type: 'move_conversations', ids: ['a', 'b', 'c'], folder_id: null },
    { type: 'move_conversations', ids: ['d'], folder_id: 'g' },
  ]);
});

test('chats whose folder is deleted meanwhile go back to none', async () => {
  const { app, asked, choose, click, menuOf, platform } = await open({ folder_id: 'g' }, [folder, other]);
  await click('c', SHIFT);
  await click('d', COMMAND);
  await menuOf('c');
  await choose('Move 4 chats to Letters');
  platform.emit({ type: 'folders', folders: [folder] });
  app.undo.undo();
  await drawn();
  expect(asked('move_conversations').slice(1)).toEqual([
    { type: 'move_conversations', ids: ['a', 'b', 'c', 'd'], folder_id: null },
  ]);
});

test.each<[name: string, action: string]>([
  ['archived', 'Archive 3 chats'],
  ['moved to a folder', 'Move 3 chats to Letters'],
  ['deleted', 'Delete 3 chats'],
])('chats that were %s are selected no longer, also when they are brought back', async (_name, action) => {
  const { app, asked, choose, click, menuOf, press, row, selected } = await open();
  app.newChat();
  await drawn();
  await click('a', COMMAND);
  await click('c', SHIFT);
  await menuOf('b');
  await choose(action);
  expect(selected()).toBe('');
  await click('d', COMMAND);
  await click('e', COMMAND);
  expect(selected()).toBe('de');
  app.undo.undo();
  await drawn();
  expect(selected()).toBe('de');
  const before = asked('delete_conversations').length;
  row('e').focus();
  await press('Delete');
  expect(asked('delete_conversations').slice(before)).toEqual([{ type: 'delete_conversations', ids: ['d', 'e'] }]);
});

test.each<[name: string, change: Parameters<typeof open>[0], folded: string]>([
  ['a folder', { folder_id: 'f' }, 'f'],
  ['the archive', { is_archived: true }, 'archive'],
])('what is folded away in %s is not selected', async (_name, change, folded) => {
  const { app, click, press, row, selected } = await open(change);
  app.folders.fold(folded, false);
  await drawn();
  await click('d', COMMAND);
  await click('b', COMMAND);
  expect(selected()).toBe('abd');
  app.folders.fold(folded, true);
  await drawn();
  expect(selected()).toBe('ab');
  row('b').focus();
  await press('a', COMMAND);
  expect(selected()).toBe('abce');
});

test('deleting the open chat is not about others, and in the list the same keys are about those selected', async () => {
  const { app, asked, click, press, row } = await open();
  await click('c', SHIFT);
  commands.find(({ id }) => id === 'delete_chat')!.run(app);
  await drawn();
  expect(asked('delete_conversations')).toEqual([{ type: 'delete_conversations', ids: ['a'] }]);
  await click('b');
  await click('d', SHIFT);
  row('d').focus();
  await press('Backspace', COMMAND);
  expect(asked('delete_conversations').slice(1)).toEqual([{ type: 'delete_conversations', ids: ['b', 'c', 'd'] }]);
});

test('a range has also the rows that are not drawn yet', async () => {
  const { app, platform, press, row } = await open();
  const many = Array.from({ length: 400 }, (_, index) => conversation(`n${index}`, { updated_at_ms: -index }));
  platform.emit({ type: 'conversations', conversations: many });
  await drawn();
  expect(row('n399')).toBeNull();
  row('a').focus();
  await press('End', SHIFT);
  expect(app.chat.selection.ids.size).toBe(405);
  expect(document.activeElement).toBe(row('n399'));
});

test('all that are selected are dragged with one of them', async () => {
  const { click, row } = await open();
  await click('c', SHIFT);
  const data: Record<string, string> = {};
  const dataTransfer = { setData: (type: string, text: string) => (data[type] = text) };
  await fireEvent.dragStart(row('b'), { dataTransfer });
  expect(data[CHAT_TYPE]?.split('\n')).toEqual(['a', 'b', 'c']);
});

test('private chats can only be deleted with others', async () => {
  const { click, menuOf } = await open({ is_private: true });
  await click('e', SHIFT);
  expect(await menuOf('d')).toEqual(['Delete 5 chats']);
});

test('three thousand chats are deleted by one command, and come back by one', async () => {
  const { app, platform } = await open();
  const many = Array.from({ length: 3000 }, (_, index) => conversation(`n${index}`, { updated_at_ms: 1_000 + index }));
  platform.emit({ type: 'conversations', conversations: many });
  await drawn();
  const ids = many.map(({ id }) => id);
  platform.answers.delete_conversations = () => {
    platform.emit({ type: 'conversations_deleted', ids });
    return { type: 'done' };
  };
  await app.chat.actions.remove(ids);
  await drawn();
  expect(app.chat.list.items).toHaveLength(5);
  app.undo.undo();
  await drawn();
  expect(app.chat.list.items).toHaveLength(3005);
  expect(platform.askedTypes().filter((type) => type === 'delete_conversations')).toHaveLength(1);
  expect(platform.askedTypes().filter((type) => type === 'restore_conversations')).toHaveLength(1);
});
