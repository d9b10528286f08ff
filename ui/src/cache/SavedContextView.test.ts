// The page of saved context, the panel and the dialogs, used with a keyboard.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { tick } from 'svelte';
import { expect, test, vi } from 'vitest';
import { CallError } from '../platform/platform';
import type { CacheFileLayout, Reply } from '../platform/wire';
import {
  bootstrap,
  conversation,
  FakePlatform,
  gate,
  saved,
  message,
  startingPoint,
  node,
  overview,
  preview,
  settle,
  stats,
  status,
} from '../testing/fake';
import { openWindow, useWindow } from '../testing/window';

useWindow();

const prefix = { name: 'Manual', tokens: 2048, start_text: 'It begins', end_text: 'and ends.', is_imported: true };

async function open(change: Parameters<typeof overview>[0] = {}) {
  const platform = new FakePlatform();
  const first = conversation('a', { cache: saved({ shared_with: ['Other'] }), prefix });
  platform.answers = {
    bootstrap: bootstrap({
      conversations: [first, conversation('b', { updated_at_ms: 0 })],
      named: [startingPoint('x', { imported_from: 'x.safetensors' })],
    }),
    get_conversation: {
      type: 'conversation',
      conversation: first,
      messages: [message('m', { text: 'Yes.', stats: stats({ cache_note: 're-read 3,100 tokens: evicted' }) })],
    },
    get_cache: {
      type: 'cache',
      cache: overview({
        named: [startingPoint('x', { imported_from: 'x.safetensors' })],
        nodes: [
          node('root', { kind: 'system', text: 'You are' }),
          node('leaf', { parent_key: 'root', start: 256, conversations: ['b'], named: ['x'], is_pinned: true }),
          node('foreign', { text: null, model: 'owner/other' }),
        ],
        ...change,
      }),
    },
  };
  return { ...(await openWindow(platform)), platform };
}

const button = (name: string | RegExp) => screen.getByRole('button', { name });
const item = (name: RegExp) => screen.getByRole('treeitem', { name });

/** The words beside a row's name, and the state of its glyph. */
function described(name: string) {
  const row = button(name);
  const words = document.getElementById(row.getAttribute('aria-describedby') ?? '')?.textContent;
  return [words, row.querySelector<SVGElement>('[data-state]')?.dataset.state];
}

async function openPage(change: Parameters<typeof overview>[0] = {}) {
  const opened = await open(change);
  await fireEvent.click(button('Saved context'));
  await settle();
  await tick();
  return opened;
}

test('a row says how much of its chat is saved, beside its name', async () => {
  await open();
  expect(described('Title a')).toEqual(['Saved: 3,120 tokens, 143 MB', 'saved']);
  expect(described('Title b')).toEqual(['Not saved', 'none']);
});

test('rows follow the model that is loaded', async () => {
  const { platform } = await open();
  const engine = { state: 'ready', model: 'owner/other' } as const;
  platform.emit({ type: 'status', status: { ...status, engine, model_fingerprint: 'g' } });
  await tick();
  expect(described('Title a')).toEqual(['Not saved for other, only for model', 'none']);
  platform.emit({ type: 'status', status: { ...status, engine: { state: 'empty' }, model_fingerprint: null } });
  await tick();
  expect(described('Title a')).toEqual(['Saved: 3,120 tokens, 143 MB', 'saved']);
});

test('the page says why something could not be saved to disk', async () => {
  await openPage({ problem: 'The disk is full.' });
  expect(screen.getByText('Some context could not be saved to disk. The disk is full.')).toBeTruthy();
});

test('the thread shows its starting point, and what an answer had to read again', async () => {
  await open();
  const card = within(screen.getByRole('complementary', { name: 'Starting point' }));
  for (const text of ['Manual', 'imported', '2,048 tokens']) expect(card.getByText(text)).toBeTruthy();
  expect(screen.getByText('Read 3,100 tokens again: evicted')).toBeTruthy();
});

test('the inspector asks who shares its context when it opens and at each change', async () => {
  const { app, platform } = await open();
  const numAsked = () => platform.asked.filter((command) => command.type === 'refresh_conversation').length;
  platform.emit({ type: 'cache_changed' });
  await tick();
  expect(numAsked()).toBe(0);
  app.navigation.show('inspector', true);
  await tick();
  expect(platform.asked).toContainEqual({ type: 'refresh_conversation', id: 'a' });
  platform.emit({ type: 'cache_changed' });
  await tick();
  expect(numAsked()).toBe(2);
});

test('who asks for the saved context of a chat has the focus there, also where the inspector was open', async () => {
  const { app } = await open();
  const panel = () => screen.getByRole('region', { name: 'Saved context of this chat' });
  for (const isShown of [false, true]) {
    app.navigation.show('inspector', isShown);
    app.showSavedContext('a');
    await vi.waitFor(() => expect(document.activeElement).toBe(panel()));
    (document.activeElement as HTMLElement).blur();
  }
});

test('the inspector begins with saved context and ends with what is set', async () => {
  const { app } = await open();
  app.navigation.show('inspector', true);
  await tick();
  const inspector = within(screen.getByRole('complementary', { name: 'This chat' }));
  const headings = inspector.getAllByRole('heading', { level: 3, hidden: true });
  expect(headings.map((heading) => heading.textContent?.trim())).toEqual([
    'Saved context',
    'Context',
    'Model',
    'System prompt',
    'Answers of this chat',
  ]);
});

test('the panel says what is saved, pins, and deletes after a second press', async () => {
  const { app, platform } = await open();
  app.navigation.show('inspector', true);
  await tick();
  const panel = within(screen.getByRole('region', { name: 'Saved context of this chat' }));
  const press = (name: string) => fireEvent.click(panel.getByRole('button', { name, hidden: true }));
  for (const text of [
    'Ready to continue',
    '3,120 tokens',
    '143 MB, 12 MB of it only for this chat',
    'ready in memory',
    'Other',
  ])
    expect(panel.getByText(text)).toBeTruthy();

  await press('Pin');
  expect(platform.asked).toContainEqual({ type: 'pin_conversation', id: 'a', is_pinned: true });
  await settle();
  await press('Unpin');
  expect(platform.asked).toContainEqual({ type: 'pin_conversation', id: 'a', is_pinned: false });

  await press('Delete saved context…');
  expect(platform.askedTypes()).not.toContain('purge_conversation');
  await press('Delete');
  await settle();
  expect(platform.asked).toContainEqual({ type: 'purge_conversation', id: 'a' });
  expect(panel.getByText('Not saved')).toBeTruthy();
});

test.each<[name: string, sharedWith: string[], words: string]>([
  [
    'others that are named',
    ['Other', 'Manual'],
    'Nothing to delete: every part of it is used elsewhere too (“Other” and “Manual”).',
  ],
  ['others without names', [], 'Nothing to delete: every part of it is used elsewhere too.'],
])('the panel offers no deletion where all is shared with %s', async (_, shared_with, words) => {
  const { app, platform } = await open();
  const cache = saved({ own_bytes: 0, shared_with });
  platform.emit({ type: 'conversation', conversation: conversation('a', { cache }) });
  app.navigation.show('inspector', true);
  await tick();
  const panel = within(screen.getByRole('region', { name: 'Saved context of this chat' }));
  expect(panel.getByText(words)).toBeTruthy();
  expect(panel.queryByRole('button', { name: 'Delete saved context…', hidden: true })).toBeNull();
});

test('saving a starting point suggests the title', async () => {
  const { app, platform } = await open();
  app.cache.askForName('a');
  await tick();
  const field = screen.getByRole<HTMLInputElement>('textbox', { name: 'Name' });
  expect(field.value).toBe('Title a');
  await fireEvent.input(field, { target: { value: 'Notes' } });
  // Events about the chat do not change what was typed.
  platform.emit({ type: 'conversation', conversation: conversation('a', { title: 'Changed' }) });
  await tick();
  await fireEvent.click(button('Save'));
  await settle();
  expect(platform.asked).toContainEqual({ type: 'save_named_cache', conversation_id: 'a', name: 'Notes' });
});

test('the page takes the place of the chat; Escape leads back', async () => {
  const { app } = await openPage();
  expect(screen.getByRole('heading', { level: 1, name: 'Saved context' })).toBeTruthy();
  expect(screen.queryByRole('textbox', { name: 'Message' })).toBeNull();
  expect(screen.getByRole('meter', { name: 'Disk' }).getAttribute('aria-valuetext')).toBe('1.2 GB of 20 GB');
  await fireEvent.keyDown(window, { key: 'Escape' });
  await tick();
  expect(app.navigation.page).toBe('chat');
  expect(document.activeElement).toBe(screen.getByRole('textbox', { name: 'Message' }));
});

test('a chat chosen in the list leads back as well', async () => {
  const { app } = await openPage();
  await fireEvent.click(button('Title b'));
  expect([app.navigation.page, app.chat.selectedId]).toEqual(['chat', 'b']);
});

test('deleting all asks first, and Escape takes that back without leaving the page', async () => {
  const { app, platform } = await openPage();
  await fireEvent.click(button('Change limits…'));
  await tick();
  await fireEvent.click(button('Delete saved context…'));
  await tick();
  expect(document.activeElement).toBe(button('Cancel'));
  await fireEvent.keyDown(button('Delete'), { key: 'Escape' });
  await tick();
  expect([app.navigation.page, screen.queryByRole('button', { name: 'Delete' })]).toEqual(['settings', null]);
  await fireEvent.click(button('Delete saved context…'));
  await fireEvent.click(button('Delete'));
  expect(platform.askedTypes()).toContain('clear_cache');
});

test('a starting point can be renamed and started from', async () => {
  const { app, platform } = await openPage();
  await fireEvent.click(button('Rename starting point Name x'));
  await tick();
  const field = screen.getByRole<HTMLInputElement>('textbox', { name: 'Name' });
  field.value = 'Better';
  await fireEvent.keyDown(field, { key: 'Enter' });
  await settle();
  await tick();
  expect(document.activeElement).toBe(button('Rename starting point Better'));
  expect(platform.asked).toContainEqual({ type: 'rename_named_cache', id: 'x', name: 'Better' });

  platform.answers.new_conversation_from = { type: 'conversation', conversation: conversation('n'), messages: [] };
  await fireEvent.click(button('Start a chat from Better'));
  await settle();
  expect([app.navigation.page, app.chat.selectedId]).toEqual(['chat', 'n']);
});

test.each<[name: string, isForOlder: boolean, layout: CacheFileLayout]>([
  ['for the newest mlx-lm, unless', false, '0.32'],
  ['for an older mlx-lm where', true, '0.30'],
])('a starting point is exported %s that is checked', async (_, isForOlder, layout) => {
  const { app, platform } = await openPage();
  await fireEvent.click(button('Export starting point Name x'));
  await tick();
  const dialog = screen.getByRole('dialog', { name: 'Export “Name x”' });
  expect([app.isCovered, platform.exported]).toEqual([true, []]);
  const older = within(dialog).getByRole<HTMLInputElement>('checkbox', { name: /^For mlx-lm 0\.31 or older/ });
  expect(older.checked).toBe(false);
  if (isForOlder) await fireEvent.click(older);
  await fireEvent.click(within(dialog).getByRole('button', { name: 'Export' }));
  await settle();
  expect(platform.exported).toEqual([[{ type: 'named', id: 'x' }, layout, 'Name x.safetensors']]);
  expect(app.isCovered).toBe(false);
});

test('the export of saved context is called otherwise than that of the texts of its chat', async () => {
  const { app } = await openPage();
  app.cache.askForExport({ type: 'conversation', id: 'a' }, 'Title a');
  await tick();
  expect(screen.getByRole('dialog', { name: 'Export saved context of “Title a”' })).toBeTruthy();
});

test('an export can be cancelled', async () => {
  const { app, platform } = await openPage();
  await fireEvent.click(button('Export starting point Name x'));
  await tick();
  const dialog = screen.getByRole('dialog', { name: 'Export “Name x”' });
  await fireEvent.click(within(dialog).getByRole('button', { name: 'Cancel' }));
  await settle();
  expect([app.isCovered, platform.exported]).toEqual([false, []]);
});

test('a name that is taken leaves the field as it was typed, and says so under it', async () => {
  const { platform } = await openPage();
  platform.answers.rename_named_cache = new CallError('invalid', 'There is one of this name.');
  await fireEvent.click(button('Rename starting point Name x'));
  const field = screen.getByRole<HTMLInputElement>('textbox', { name: 'Name' });
  field.value = 'Taken';
  await fireEvent.keyDown(field, { key: 'Enter' });
  await settle();
  await tick();
  expect([field.value, field.isConnected, document.activeElement]).toEqual(['Taken', true, field]);
  expect(document.getElementById(field.getAttribute('aria-describedby') ?? '')?.textContent).toBe(
    'There is one of this name.',
  );
  await fireEvent.input(field);
  expect(field.getAttribute('aria-invalid')).toBe('false');
});

test('the focus goes to the neighbour of a deleted row, to the heading after the last, and back with Undo', async () => {
  const { app } = await openPage({ named: [startingPoint('x'), startingPoint('y')] });
  const remove = async (name: string) => {
    button(`Delete starting point ${name}`).focus();
    await fireEvent.click(button(`Delete starting point ${name}`));
    await settle();
    await tick();
  };
  await remove('Name x');
  expect(document.activeElement).toBe(button('Rename starting point Name y'));
  await remove('Name y');
  expect(document.activeElement).toBe(screen.getByRole('heading', { name: 'Starting points' }));

  const undo = screen.getAllByRole('button', { name: 'Undo' }).at(-1) as HTMLElement;
  undo.focus();
  await fireEvent.click(undo);
  await settle();
  await tick();
  expect(document.activeElement).toBe(button('Rename starting point Name y'));
  expect(app.cache.focus).toBeNull();
});

test('where nothing is saved any more, only unpinning is offered', async () => {
  const { app, platform } = await open();
  app.navigation.show('inspector', true);
  const cache = saved({ cached_tokens: 0, cached_bytes: 0, is_whole: false, is_pinned: true });
  platform.emit({ type: 'conversation', conversation: conversation('a', { cache }) });
  await tick();
  const panel = within(screen.getByRole('region', { name: 'Saved context of this chat' }));
  expect(panel.getByText('Will be read again once')).toBeTruthy();
  expect(panel.getAllByRole('button', { hidden: true }).map(({ textContent }) => textContent?.trim())).toEqual([
    'Unpin',
  ]);
});

test('what goes beyond a limit says so, and fills its bar', async () => {
  await openPage({ disk_bytes: 55e6, disk_budget_bytes: 0 });
  const meter = screen.getByRole('meter', { name: 'Disk' });
  expect([meter.getAttribute('aria-valuenow'), meter.getAttribute('aria-valuetext')]).toEqual([
    '100',
    '55 MB, over the limit of 0 MB',
  ]);
  expect(
    screen.getByText('Pinned chats, starting points and what is in use are never deleted, even above a limit.'),
  ).toBeTruthy();
});

test('a starting point that another model has read says which one to choose', async () => {
  const { platform } = await open();
  const cache = saved({ fingerprint: 'g', model: 'owner/other' });
  platform.emit({ type: 'conversation', conversation: conversation('a', { cache, prefix }) });
  await tick();
  const card = within(screen.getByRole('complementary', { name: 'Starting point' }));
  expect(card.getByText('other has read this: choose that model to continue.')).toBeTruthy();
});

test('an empty tree is not called empty before it has been looked at', async () => {
  const { platform } = await openPage({ nodes: [] });
  await fireEvent.click(button('Title b'));
  const answer = gate<Reply>();
  platform.answers.get_cache = answer.promise;
  await fireEvent.click(button('Saved context'));
  expect(screen.getByText('Loading…')).toBeTruthy();
  answer.open({ type: 'cache', cache: overview() });
  await settle();
  await tick();
  expect(screen.getByText('Nothing is saved yet. Cairn saves context with the first answer.')).toBeTruthy();
});

test('keys walk through the tree and open a row; what ends there can be visited', async () => {
  const { app } = await openPage();
  const root = item(/^You are tokens 1–256/);
  expect([root.getAttribute('aria-level'), root.getAttribute('aria-expanded'), root.tabIndex]).toEqual([
    '1',
    'true',
    0,
  ]);
  expect(item(/Read by other/)).toBeTruthy();
  root.focus();
  await fireEvent.keyDown(root, { key: 'ArrowRight' });
  await tick();
  const leaf = item(/^Text leaf pinned 2 tokens 257–512/);
  expect([document.activeElement, leaf.getAttribute('aria-level')]).toEqual([leaf, '2']);

  await fireEvent.keyDown(leaf, { key: 'Enter' });
  const ends = within(screen.getByRole('list', { name: 'Last piece of:' }));
  await fireEvent.click(ends.getByRole('button', { name: 'Title b' }));
  expect([app.navigation.page, app.chat.selectedId]).toEqual(['chat', 'b']);
});

test('folding a row hides what continues it', async () => {
  await openPage();
  const root = item(/You are/);
  root.focus();
  await fireEvent.keyDown(root, { key: 'ArrowLeft' });
  await tick();
  expect(screen.queryByRole('treeitem', { name: /Text leaf/ })).toBeNull();
  expect(root.getAttribute('aria-expanded')).toBe('false');
});

test('an empty page says how it fills', async () => {
  await openPage({ named: [], nodes: [] });
  expect(screen.getByText('Nothing is saved yet. Cairn saves context with the first answer.')).toBeTruthy();
  expect(screen.getByText(/^None yet\. Open the saved context of a chat/)).toBeTruthy();
});

test('an import shows what the file holds, then points at what came of it', async () => {
  const { platform } = await openPage();
  // What somebody else's file tells the model must not stay hidden.
  const start_text = '<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\nIt begins';
  platform.importAnswer = preview({ start_text, warnings: ['It does not say its tokens.'] });
  platform.answers.confirm_import = { type: 'named', named: startingPoint('x', { name: 'Suggested' }) };
  await fireEvent.click(button('Import…'));
  await settle();
  await tick();
  const dialog = within(screen.getByRole('dialog', { name: 'Import a prompt cache' }));
  for (const text of ['file.safetensors', 'It begins', 'It does not say its tokens.']) {
    expect(dialog.getByText(text, { exact: false })).toBeTruthy();
  }
  expect(dialog.getByText('You are kind.', { exact: false })).toBeTruthy();
  await fireEvent.click(
    dialog.getByRole('checkbox', {
      name: /^Verify \(reads it again\).*Checks that the file really is what this model computes\. Without it, a damaged or forged file goes unnoticed\.$/,
    }),
  );
  await fireEvent.click(dialog.getByRole('button', { name: 'Import' }));
  await settle();
  await tick();
  expect(platform.asked).toContainEqual({ type: 'confirm_import', token: 'token', name: 'Suggested', check: true });
  expect(screen.getByRole('listitem', { current: true }).textContent).toContain('imported');
  expect(button('Start a chat')).toBeTruthy();
});

test('a file that does not fit offers nothing but to close', async () => {
  const { platform } = await openPage();
  platform.importAnswer = preview({ problem: 'It was made by another model.' });
  await fireEvent.click(button('Import…'));
  await settle();
  await tick();
  const dialog = within(screen.getByRole('dialog', { name: 'This file cannot be imported' }));
  expect(dialog.getByRole('alert').textContent).toBe('It was made by another model.');
  expect(dialog.queryByRole('button', { name: 'Import' })).toBeNull();
  expect(dialog.queryByRole('textbox')).toBeNull();
});

test('a file that could not be transferred is told in the same place', async () => {
  const { app, platform } = await openPage();
  platform.importAnswer = new CallError('invalid', 'It is a film.');
  await fireEvent.click(button('Import…'));
  await settle();
  await tick();
  const dialog = within(screen.getByRole('dialog', { name: 'This file cannot be imported' }));
  expect(dialog.getByRole('alert').textContent).toBe('It is a film.');
  await fireEvent.click(dialog.getAllByRole('button', { name: 'Close' }).at(-1) as HTMLElement);
  expect(app.imports.step).toBeNull();
});

test('special tokens are signs between the words; the text itself is a tooltip and opens with the row', async () => {
  const text = '<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nWhy?';
  await openPage({
    nodes: [node('root', { kind: 'system', text })],
    named: [startingPoint('x', { start_text: text })],
  });
  const row = item(/^Be kind\. You: Why\? tokens 1–256/);
  const line = row.querySelector('code');
  expect([line?.textContent?.trim(), line?.title]).toEqual(['Be kind. You: Why?', text]);
  const excerpt = document.querySelector<HTMLElement>('li p[title]:not(.facts)');
  expect([excerpt?.textContent?.replaceAll(/\s+/g, ' '), excerpt?.title]).toEqual(['Begins: Why? …', text]);
  await fireEvent.click(row);
  expect(row.parentElement?.querySelector('pre')?.textContent).toBe(text);
});

test('what is not shown of the tree is only counted', async () => {
  await openPage({ num_hidden_nodes: 1200 });
  expect(screen.getByText('And 1,200 more.')).toBeTruthy();
});

test('starting points stand in the sidebar, and one press begins a chat', async () => {
  const { app, platform } = await open();
  platform.answers.new_conversation_from = { type: 'conversation', conversation: conversation('n'), messages: [] };
  const list = within(screen.getByRole('region', { name: 'Starting points' }));
  await fireEvent.click(list.getByRole('button', { name: 'Name x' }));
  await settle();
  expect([app.navigation.page, app.chat.selectedId]).toEqual(['chat', 'n']);
});

test('an empty chat from a starting point is opened again instead of making another', async () => {
  const { app, platform } = await open();
  const empty = conversation('empty', { title: '', prefix: { ...prefix, name: 'Name x' }, updated_at_ms: 5 });
  platform.emit({ type: 'conversation', conversation: empty });
  await app.startFrom('x');
  expect(app.chat.selectedId).toBe('empty');
  expect(platform.askedTypes()).not.toContain('new_conversation_from');
});

test('a file dropped anywhere is previewed', async () => {
  const { app, platform } = await open();
  platform.importAnswer = preview();
  const dataTransfer = { types: ['Files'], files: [new File(['x'], 'dropped.safetensors')] };
  await fireEvent.dragOver(window, { dataTransfer });
  expect(
    screen.getByText('Drop documents to attach them, or chats, a prompt cache or a model to import it'),
  ).toBeTruthy();
  await fireEvent.drop(window, { dataTransfer });
  await settle();
  expect([app.imports.step, app.imports.isOver]).toEqual(['preview', false]);
});

test('text dragged over the window is nobody’s business', async () => {
  const { app } = await open();
  await fireEvent.dragOver(window, { dataTransfer: { types: ['text/plain'], files: [] } });
  expect(app.imports.isOver).toBe(false);
});
