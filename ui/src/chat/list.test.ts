// The list of chats: pinned ones, folders, the archive, and chats as files.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { expect, test } from 'vitest';
import { CallError } from '../platform/platform';
import type { ChatsImported } from '../platform/wire';
import { bootstrap, conversation, FakePlatform, model, settle } from '../testing/fake';
import { drawn, openWindow, useWindow } from '../testing/window';
import { CHAT_TYPE } from './drag';

useWindow();

const folder = { id: 'f', name: 'Letters', system_prompt: 'Be formal.', model: 'owner/other' };

async function open() {
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap({
      folders: [folder],
      models: [model('owner/model'), model('owner/other')],
      conversations: [
        conversation('a', { updated_at_ms: 5 }),
        conversation('b', { updated_at_ms: 4, is_pinned: true }),
        conversation('c', { updated_at_ms: 3, folder_id: 'f' }),
        conversation('d', { updated_at_ms: 2, folder_id: 'deleted' }),
        conversation('e', { updated_at_ms: 1, is_archived: true }),
      ],
    }),
    get_conversation: { type: 'conversation', conversation: conversation('a'), messages: [] },
    create_folder: { type: 'folder', folder: { ...folder, id: 'g', name: 'New' } },
  };
  const { app } = await openWindow(platform);
  const list = () => screen.getByRole('region', { name: 'Chats' });
  const titles = () =>
    [...list().querySelectorAll('[data-conversation]')].map((row) => (row as HTMLElement).dataset.conversation);
  const menu = async (element: HTMLElement, item: string) => {
    await fireEvent.contextMenu(element, { clientX: 4, clientY: 5 });
    await drawn();
    await fireEvent.click(screen.getByRole('menuitem', { name: item, hidden: true }));
    await drawn();
  };
  const row = (title: string) => screen.getByRole('button', { name: title });
  return { app, list, menu, platform, row, titles };
}

test('pinned chats stand first, then folders, then the others; the archive is folded', async () => {
  const { list, titles } = await open();
  expect(titles()).toEqual(['b', 'c', 'a', 'd']);
  const archive = within(list()).getByRole('button', { name: 'Archive (1)' });
  expect(archive.getAttribute('aria-expanded')).toBe('false');
  await fireEvent.click(archive);
  expect(titles().at(-1)).toBe('e');
});

test('a chat that has messages and no title is listed, and not begun again as a new one', async () => {
  const { app, list, titles } = await open();
  app.chat.list.put(conversation('n', { title: '', has_messages: true, updated_at_ms: 6 }));
  await drawn();
  expect(titles()).toEqual(['b', 'c', 'n', 'a', 'd']);
  expect(within(list()).getByRole('button', { name: 'New chat' })).toBeTruthy();
  app.newChat();
  await drawn();
  expect(app.chat.selectedId).toBeNull();
  // One without either is the page of a new chat, as long as nobody has named it.
  app.chat.list.put(conversation('n', { title: '', has_messages: false, updated_at_ms: 6 }));
  await drawn();
  expect(titles()).not.toContain('n');
  app.newChat();
  expect(app.chat.selectedId).toBe('n');
});

test('a chat is archived and brought back by undo', async () => {
  const { app, menu, platform, row, titles } = await open();
  await menu(row('Title a'), 'Archive');
  expect(platform.asked).toContainEqual({ type: 'archive_conversations', ids: ['a'], is_archived: true });
  expect(titles()).toEqual(['b', 'c', 'd']);
  app.undo.undo();
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'archive_conversations', ids: ['a'], is_archived: false });
  expect(titles()).toContain('a');
});

test('a chat that could not be archived stays', async () => {
  const { menu, platform, row, titles } = await open();
  platform.answers.archive_conversations = new CallError('storage', 'The disk is full.');
  await menu(row('Title a'), 'Archive');
  await drawn();
  expect(titles()).toContain('a');
});

test('a chat is moved by the menu, by dragging, and back by undo', async () => {
  const { app, menu, platform, row } = await open();
  await menu(row('Title a'), 'Move to Letters');
  expect(platform.asked).toContainEqual({ type: 'move_conversations', ids: ['a'], folder_id: 'f' });
  app.undo.undo();
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'move_conversations', ids: ['a'], folder_id: null });

  const dataTransfer = { types: [CHAT_TYPE], getData: () => 'd' };
  const target = screen.getByRole('button', { name: 'Folder Letters, 1 chat' }).parentElement as HTMLElement;
  await fireEvent.dragOver(target, { dataTransfer });
  await fireEvent.drop(target, { dataTransfer });
  await drawn();
  expect(app.chat.list.get('d')?.folder_id).toBe('f');
});

test('a chat goes into a folder that is made for it', async () => {
  const { app, menu, platform, row } = await open();
  await menu(row('Title a'), 'Move to a new folder…');
  const dialog = screen.getByRole('dialog', { name: 'New folder', hidden: true });
  await fireEvent.input(within(dialog).getByLabelText('Name'), { target: { value: 'New' } });
  await fireEvent.submit(dialog.querySelector('form') as HTMLElement);
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'create_folder', name: 'New' });
  expect(app.chat.list.get('a')?.folder_id).toBe('g');
});

test('a chat that is begun in a folder has its prompt and its model', async () => {
  const { app, platform } = await open();
  platform.answers.new_conversation_in = {
    type: 'conversation',
    conversation: conversation('n', { folder_id: 'f', system_prompt: 'Be formal.', title: '' }),
    messages: [],
  };
  app.newChatIn('f');
  expect(platform.asked).toContainEqual({ type: 'load_model', name: 'owner/other' });
  app.chat.draft = 'Hello';
  await app.chat.send();
  expect(platform.asked).toContainEqual({ type: 'new_conversation_in', folder_id: 'f' });
  // The next one is in no folder.
  app.newChat();
  expect(app.chat.unsent.folderId).toBeNull();
});

test('a deleted folder is offered back, and its chats stay in the list', async () => {
  const { app, platform, titles } = await open();
  await app.folders.remove('f');
  await drawn();
  expect(titles()).toEqual(['b', 'a', 'c', 'd']);
  app.undo.undo();
  await settle();
  expect(platform.asked).toContainEqual({ type: 'restore_folder', id: 'f' });
});

const done: ChatsImported = {
  num_added: 2,
  added_ids: ['a', 'd'],
  num_here: 1,
  num_extended: 0,
  num_new_messages: 0,
  num_refused: 0,
  refused: [],
  problem: null,
  first_id: 'a',
};
const toasts = (app: { toasts: { items: { text: string }[] } }) => app.toasts.items.map(({ text }) => text);

test.each([
  [
    { num_added: 0, added_ids: [], num_here: 0, num_extended: 1, num_new_messages: 1 },
    '1 new message in 1 chat that was here already.',
  ],
  [
    { num_added: 1, num_here: 2, num_extended: 2, num_new_messages: 8 },
    'Imported 1 chat. 8 new messages in 2 chats that were here already. 2 were here already.',
  ],
])('an import says what came into chats that were here: %j', async (change, sentence) => {
  const { app, platform } = await open();
  platform.importedChats = { ...done, ...change };
  await app.dropFiles([new File(['[{"mapping":{}}]'], 'chats.json')], null);
  await settle();
  expect(toasts(app)).toEqual([sentence]);
});

test('an import says what became of each chat, and opens the first', async () => {
  const { app, platform } = await open();
  const refused = [{ number: 3, title: 'Broken', why: 'It has no messages.' }];
  platform.importedChats = { ...done, num_refused: 1, refused };
  await app.dropFiles([new File(['[{"mapping":{}}]'], 'conversations.json')], null);
  await settle();
  expect(toasts(app)).toEqual([
    'Imported 2 chats. One was here already.',
    '1 chat could not be imported. “Broken”: It has no messages.',
  ]);
  app.chat.select(null);
  app.toasts.act(app.toasts.items[0]?.id ?? 0);
  expect(app.chat.selectedId).toBe('a');
});

test('a chat without a title that was not imported is named by its place in the file', async () => {
  const { app, platform } = await open();
  const refused = [{ number: 7, title: '', why: 'It has no messages.' }];
  platform.importedChats = { ...done, num_refused: 1, refused };
  await app.chatFiles.choose();
  expect(toasts(app)[1]).toBe('1 chat could not be imported. Number 7 in the file: It has no messages.');
});

test('a list without chats is called so', async () => {
  const { app, platform } = await open();
  platform.importedChats = { ...done, num_added: 0, num_here: 0, added_ids: [], first_id: null };
  await app.chatFiles.choose();
  expect(toasts(app)).toEqual(['There are no chats in this file.']);
});

test('a file without chats is refused in one sentence', async () => {
  const { app, platform } = await open();
  platform.importedChats = new CallError('invalid', '“x.json” has no chats.');
  await app.chatFiles.choose();
  expect(toasts(app)).toEqual(['“x.json” has no chats.']);
});

test('a chat is exported in the form that is chosen', async () => {
  const { app, menu, platform, row } = await open();
  await menu(row('Title a'), 'Export chat…');
  const dialog = screen.getByRole('dialog', { name: 'Export “Title a”', hidden: true });
  await fireEvent.click(within(dialog).getByRole('radio', { name: /^Markdown/, hidden: true }));
  await fireEvent.submit(dialog.querySelector('form') as HTMLElement);
  await drawn();
  expect(platform.exportedChats).toEqual([[['a'], 'markdown', 'Title a.md']]);
  expect(app.chatFiles.exporting).toBeNull();
});

test('an import is taken back: exactly the chats that it made go, and come again', async () => {
  const { app, platform, titles } = await open();
  platform.importedChats = done;
  await app.dropFiles([new File(['[{"mapping":{}}]'], 'conversations.json')], null);
  await settle();
  expect(app.toasts.items[0]?.actions.map(({ label }) => label)).toEqual(['Open', 'Undo']);
  app.toasts.act(app.toasts.items[0]?.id ?? 0, 1);
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'delete_conversations', ids: ['a', 'd'] });
  expect([titles(), toasts(app)]).toEqual([['b', 'c'], ['Deleted 2 chats.']]);
  app.undo.undo();
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'restore_conversations', ids: ['a', 'd'] });
  expect(titles()).toEqual(['b', 'c', 'a', 'd']);
});

test('an import that made no chat has nothing to take back', async () => {
  const { app, platform } = await open();
  platform.importedChats = { ...done, num_added: 0, added_ids: [] };
  await app.chatFiles.choose();
  expect(app.toasts.items[0]?.actions.map(({ label }) => label)).toEqual(['Open']);
  app.undo.undo();
  expect(platform.askedTypes()).not.toContain('delete_conversations');
});

test('taking an import back leaves chats in which something was written since', async () => {
  const { app, platform } = await open();
  platform.importedChats = { ...done, num_extended: 1, num_new_messages: 2 };
  await app.dropFiles([new File(['[{"mapping":{}}]'], 'conversations.json')], null);
  await settle();
  expect(app.toasts.items[0]?.actions.map(({ label }) => label)).toEqual(['Open', 'Delete 2 new chats']);
  app.chat.list.put(conversation('d', { updated_at_ms: Date.now() + 60_000 }));
  app.toasts.act(app.toasts.items[0]?.id ?? 0, 1);
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'delete_conversations', ids: ['a'] });
  expect(toasts(app)).toContain('1 imported chat stays: something was written since.');
});
