// The window, used with a keyboard.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { tick } from 'svelte';
import { expect, test } from 'vitest';
import { FoldedAnswers } from './chat/folded.svelte';
import { Navigation } from './navigation.svelte';
import type { DownloadState, ModelProblemKind, RoundingChoice } from './platform/wire';
import {
  bootstrap,
  conversation,
  download,
  FakePlatform,
  message,
  model,
  problem,
  settle,
  stats,
  status,
} from './testing/fake';
import { openWindow, useWindow } from './testing/window';

useWindow();

async function open(change: Parameters<typeof bootstrap>[0] = {}) {
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap({
      conversations: [conversation('a', { updated_at_ms: 2 }), conversation('b', { updated_at_ms: 1 })],
      ...change,
    }),
    get_conversation: {
      type: 'conversation',
      conversation: conversation('a'),
      messages: [
        message('u', { role: 'user', text: 'Why?' }),
        message('m', { parent_id: 'u', text: '**Because**', stats: stats() }),
      ],
    },
  };
  return { ...(await openWindow(platform)), platform };
}

const composer = () => screen.getByRole<HTMLTextAreaElement>('textbox', { name: 'Message' });
const write = (text: string) => fireEvent.input(composer(), { target: { value: text } });

test('a conversation shows its messages and figures', async () => {
  await open();
  expect(within(screen.getByRole('article', { name: 'You' })).getByText('Why?')).toBeTruthy();
  const answer = within(screen.getByRole('article', { name: 'Answer' }));
  expect(answer.getByText('Because').tagName).toBe('STRONG');
  expect(answer.getByText('Continued').closest('summary')?.title).toBe('32 tokens read, 1,204 from saved context');
  expect(answer.getByRole('button', { name: 'Regenerate' })).toBeTruthy();
});

test.each<[name: string, event: KeyboardEventInit, isSent: boolean]>([
  ['Enter', { key: 'Enter' }, true],
  ['Shift-Enter', { key: 'Enter', shiftKey: true }, false],
  ['Enter while composing', { key: 'Enter', isComposing: true }, false],
  ['Enter that ended composing in WebKit', { key: 'Enter', keyCode: 229 }, false],
  ['a letter', { key: 'e' }, false],
])('%s in the composer', async (_, event, isSent) => {
  const { platform } = await open();
  await write('Hello');
  await fireEvent.keyDown(composer(), event);
  await settle();
  expect(platform.asked.filter(({ type }) => type === 'send_message')).toEqual(
    isSent ? [{ type: 'send_message', conversation_id: 'a', text: 'Hello' }] : [],
  );
});

test('while an answer is written, Stop stands where Send was and Escape stops', async () => {
  const { platform } = await open();
  platform.emit({ type: 'message', message: message('n', { parent_id: 'm', status: 'streaming', text: 'So' }) });
  await tick();
  expect(screen.queryByRole('button', { name: 'Send' })).toBeNull();
  expect(screen.getByRole('button', { name: 'Stop' })).toBeTruthy();
  await fireEvent.keyDown(composer(), { key: 'Escape' });
  expect(platform.asked.at(-1)).toEqual({ type: 'stop', conversation_id: 'a' });
});

test('Escape does nothing when no answer is written', async () => {
  const { platform } = await open();
  await fireEvent.keyDown(window, { key: 'Escape' });
  expect(platform.askedTypes()).not.toContain('stop');
});

test.each<KeyboardEventInit>([
  { key: 'n', metaKey: true },
  { key: 'n', ctrlKey: true },
])('%o opens an empty page with the composer in focus', async (event) => {
  const { app } = await open();
  await fireEvent.keyDown(window, event);
  await tick();
  expect(app.chat.selectedId).toBeNull();
  expect(screen.getByRole('heading', { name: 'A conversation keeps its place' })).toBeTruthy();
  expect(document.activeElement).toBe(composer());
});

test('command and comma open the settings; Escape leads back to the chat', async () => {
  const { app } = await open();
  await fireEvent.keyDown(window, { key: ',', metaKey: true });
  await tick();
  expect(screen.getByRole('heading', { level: 1, name: 'General' })).toBeTruthy();
  await fireEvent.keyDown(window, { key: 'Escape' });
  await tick();
  expect([app.navigation.page, document.activeElement]).toEqual(['chat', composer()]);
});

test('arrows walk through the list, F2 renames, Delete deletes and can be undone', async () => {
  const { app, platform } = await open();
  const row = (name: string) => screen.getByRole('button', { name });
  await fireEvent.keyDown(row('Title a'), { key: 'ArrowDown' });
  await tick();
  expect(app.chat.selectedId).toBe('b');
  expect(document.activeElement).toBe(row('Title b'));

  await fireEvent.keyDown(row('Title b'), { key: 'F2' });
  await tick();
  const field = screen.getByRole<HTMLInputElement>('textbox', { name: 'Title' });
  field.value = 'Renamed';
  await fireEvent.keyDown(field, { key: 'Enter' });
  await settle();
  expect(platform.asked).toContainEqual({ type: 'rename_conversation', id: 'b', title: 'Renamed' });

  await fireEvent.keyDown(row('Renamed'), { key: 'Delete' });
  await settle();
  await tick();
  expect(screen.queryByRole('button', { name: 'Renamed' })).toBeNull();
  await fireEvent.click(screen.getByRole('button', { name: 'Undo' }));
  await settle();
  await tick();
  expect(platform.asked).toContainEqual({ type: 'restore_conversations', ids: ['b'] });
  expect(row('Renamed')).toBeTruthy();
});

test('what is chosen for rounding stays chosen while news of the import come, and is proposed anew the next time', async () => {
  const { app, platform } = await open();
  const choice = (form: RoundingChoice['form'], is_proposed: boolean): RoundingChoice => ({
    form,
    is_proposed,
    bytes: 1e9,
    memory: null,
    relative_error: 0.01,
  });
  const tell = async (bytes: number) => {
    const choices = [choice('bits4', false), choice('bits8', true)];
    platform.emit({ type: 'model_import', import: { file_name: 'a.gguf', bytes, total_bytes: 9, choices } });
    await settle();
  };
  const radio = (name: RegExp) => screen.getByRole<HTMLInputElement>('radio', { name });
  await tell(0);
  app.modelImport.isAsked = true;
  await settle();
  expect(radio(/^8 bits/).checked).toBe(true);
  await fireEvent.click(radio(/^4 bits/));
  await tell(1);
  expect(radio(/^4 bits/).checked).toBe(true);
  app.modelImport.isAsked = false;
  await settle();
  app.modelImport.isAsked = true;
  await settle();
  expect(radio(/^8 bits/).checked).toBe(true);
});

test('without a model the composer says why', async () => {
  await open({ models: [], conversations: [], status: { ...status, engine: { state: 'empty' } } });
  expect(composer().disabled).toBe(true);
  expect(composer().placeholder).toBe('Choose a model to start');
  expect(screen.getAllByText('There is no model on this computer yet.').length).toBeGreaterThan(0);
  expect(screen.getByRole('heading', { name: 'Choose a model to start' })).toBeTruthy();
});

test.each<[DownloadState, string]>([
  ['queued', 'You can write once the model is here'],
  ['running', 'You can write once the model is here'],
  ['offline', 'You can write once the model is here'],
  ['paused', 'Choose a model to start'],
  ['failed', 'Choose a model to start'],
])('without a model, while a download is %s, the composer says: %s', async (state, words) => {
  const downloads = [download('owner/model', { state })];
  await open({ models: [], conversations: [], downloads, status: { ...status, engine: { state: 'empty' } } });
  expect(composer().placeholder).toBe(words);
});

test('an answer that was interrupted says what can be done', async () => {
  const { platform } = await open();
  platform.emit({ type: 'message', message: message('m', { parent_id: 'u', status: 'interrupted', text: 'Beca' }) });
  await tick();
  expect(
    screen.getByText('Cairn quit before this answer was finished. Regenerate to have it written again.'),
  ).toBeTruthy();
  await fireEvent.click(screen.getByRole('button', { name: 'Regenerate' }));
  expect(platform.askedTypes()).toContain('regenerate');
});

test('without a model the pill has its first line for saying so', async () => {
  const { platform } = await open();
  platform.emit({ type: 'status', status: { ...status, engine: { state: 'empty' }, process_bytes: 132e6 } });
  await tick();
  expect(screen.getByTestId('engine-state').textContent).toBe('No model loaded');
  expect(screen.getByTestId('engine-state').className).toContain('name');
  expect(screen.getByTestId('memory').textContent).toBe('132 MB');
});

test('an engine that fails without a model says why', async () => {
  const message = 'Cannot compute on the GPU: /mlx.metallib is missing: install Cairn again.';
  await open({ status: { ...status, engine: { state: 'failed', model: '', message } } });
  expect(screen.getByRole('alert').textContent.trim()).toBe(message);
  expect(within(screen.getByRole('alert')).queryByRole('button')).toBeNull();
  const pill = screen.getByTestId('engine-state').closest('button');
  expect(pill?.textContent).toMatch(/Cairn\s*Model not loaded/);
});

test('a lost connection is told, also where it would say Ready', async () => {
  const { platform } = await open();
  expect(screen.getByTestId('engine-state').textContent).toBe('Ready');
  platform.connect('reconnecting');
  await tick();
  expect(screen.getByTestId('engine-state').textContent).toBe('Not connected');
  expect(screen.getByText('Lost the connection to Cairn. Reconnecting…')).toBeTruthy();
});

test('the appearance is set on the page', async () => {
  const { platform } = await open();
  expect(document.documentElement.dataset.appearance).toBe('system');
  platform.emit({ type: 'settings', settings: { ...(await import('./testing/fake')).settings, appearance: 'dark' } });
  await tick();
  expect(document.documentElement.dataset.appearance).toBe('dark');
});

test('the settings of a chat say where each value comes from, and can be taken back', async () => {
  const { app, platform } = await open();
  const { settings } = await import('./testing/fake');
  platform.answers.get_settings = {
    type: 'settings',
    resolved: {
      settings: { ...settings, temperature: 0.2, top_p: 0.8 },
      from: { temperature: 'chat', top_p: 'generation_config', max_tokens: 'app' },
      thinking: null,
    },
  };
  app.navigation.show('inspector', true);
  await tick();
  await settle();
  await tick();
  const field = (name: string) => screen.queryByRole<HTMLInputElement>('textbox', { name });
  expect(field('Temperature')?.value).toBe('0.2');
  expect(field('Disk limit')).toBeNull();
  const source = (name: string) => screen.getByText(name).parentElement?.textContent;
  expect(source('Temperature')).toContain('From this chat');
  expect(source('Top-p')).toContain('From the model');
  expect(source('Min-p')).toContain('Default');
  const resets = screen.getAllByRole('button', { name: /^Reset/ });
  expect(resets.map((button) => button.getAttribute('aria-label'))).toEqual(['Reset Temperature']);
  await fireEvent.click(screen.getByRole('button', { name: 'Reset Temperature' }));
  const change = { type: 'set_setting', scope: { type: 'chat', id: 'a' }, key: 'temperature', value: null };
  expect(platform.asked).toContainEqual(change);
});

test('on a Mac models can be kept wired, and one that leaves nothing is named', async () => {
  const { app, platform } = await open();
  const { status } = await import('./testing/fake');
  const { strings } = await import('./text');
  app.navigation.goToSettings('models');
  const wired_memory = { recommended_bytes: 20e9, tight_model: null };
  platform.emit({ type: 'status', status: { ...status, wired_memory } });
  await settle();
  await tick();
  expect(screen.getByText(strings.settings.rows.wires_memory.label)).toBeTruthy();
  expect(screen.queryByText(/iogpu/)).toBeNull();
  const tight_model = { name: 'mlx-community/Qwen3-32B-4bit', fingerprint: 'q', bytes: 19e9, draft: null };
  platform.emit({ type: 'status', status: { ...status, wired_memory: { ...wired_memory, tight_model } } });
  await tick();
  expect(screen.getByText(/“Qwen3 32B” takes 19 GB of the 20 GB/)).toBeTruthy();
});

test('the settings have a row for each setting of all chats, and arrow keys change numbers by a step', async () => {
  const { app, platform } = await open();
  const { table } = await import('./settings/table');
  const { strings } = await import('./text');
  for (const page of ['general', 'models', 'storage', 'generation'] as const) {
    app.navigation.goToSettings(page);
    await tick();
    await settle();
    await tick();
    const sections = page === 'generation' ? ['generation', 'advanced'] : [page];
    // Here no memory can be kept wired.
    expect(screen.queryByText(strings.settings.rows.wires_memory.label)).toBeNull();
    const rows = table.filter(
      ({ key, section, scopes }) => sections.includes(section) && scopes.includes('app') && key !== 'wires_memory',
    );
    for (const { key } of rows) expect(screen.getByText(strings.settings.rows[key].label)).toBeTruthy();
  }
  await fireEvent.keyDown(screen.getByRole('textbox', { name: 'Temperature' }), { key: 'ArrowUp' });
  const change = { type: 'set_setting', scope: { type: 'app' }, key: 'temperature', value: 0.75 };
  expect(platform.asked).toContainEqual(change);
});

test('a private chat looks private: in the title bar, in the inspector, in its row, and while it is empty', async () => {
  const { app, platform } = await open({ conversations: [conversation('a', { is_private: true })] });
  const badge = screen.getByText('Private');
  expect(badge.title).toBe('Private: nothing of this chat is saved.');
  expect(badge.querySelector('.icon')).toBeTruthy();
  const [mark, title] = screen.getByRole('button', { name: 'Title a' }).children;
  expect([mark?.matches('.icon'), title?.textContent]).toEqual([true, 'Title a']);
  app.navigation.show('inspector', true);
  await tick();
  const panel = within(screen.getByRole('complementary', { name: 'This chat' }));
  const note =
    'Private: nothing of this chat is saved. Each message is read again, and the chat is gone when Cairn closes.';
  expect(panel.getByText(note)).toBeTruthy();
  expect(panel.queryByText('Not saved')).toBeNull();

  expect(screen.queryByRole('heading', { name: 'This chat is private' })).toBeNull();
  platform.answers.new_private_conversation = {
    type: 'conversation',
    conversation: conversation('p', { is_private: true }),
    messages: [],
  };
  await fireEvent.keyDown(window, { key: 'N', metaKey: true, shiftKey: true });
  await settle();
  await tick();
  expect(screen.getByRole('heading', { name: 'This chat is private' })).toBeTruthy();
});

test('the system prompt of a chat from a starting point is shown and cannot be changed', async () => {
  const prefix = { name: 'Manual', tokens: 9, start_text: 'Be brief.', end_text: '', is_imported: false };
  const { app } = await open({ conversations: [conversation('a', { prefix })] });
  app.chat.isPromptOpen = true;
  await tick();
  const dialog = within(screen.getByRole('dialog', { name: 'System prompt' }));
  expect(dialog.getByText('It comes from the starting point and cannot be changed here.')).toBeTruthy();
  expect(dialog.getByText('Be brief.')).toBeTruthy();
  expect([dialog.queryByRole('textbox'), dialog.queryByRole('button', { name: 'Save' })]).toEqual([null, null]);
});

test('after a refresh that found a model, the message field has the focus', async () => {
  const { platform } = await open({ models: [], status: { ...status, engine: { state: 'empty' } } });
  await fireEvent.keyDown(window, { key: 'n', metaKey: true });
  await tick();
  platform.answers.list_models = { type: 'models', models: [model('owner/model')] };
  const refresh = within(screen.getByRole('region', { name: 'Welcome' })).getByRole('button', { name: 'Refresh' });
  refresh.focus();
  await fireEvent.click(refresh);
  await settle();
  await tick();
  expect(document.activeElement).toBe(composer());
});

test('while the model that a refresh found is looked at, the focus waits', async () => {
  const { platform } = await open({ models: [], status: { ...status, engine: { state: 'empty' } } });
  await fireEvent.keyDown(window, { key: 'n', metaKey: true });
  await tick();
  platform.answers.list_models = { type: 'models', models: [model('owner/model', { is_being_checked: true })] };
  const refresh = within(screen.getByRole('region', { name: 'Welcome' })).getByRole('button', { name: 'Refresh' });
  refresh.focus();
  await fireEvent.click(refresh);
  await settle();
  await tick();
  expect(document.activeElement).toBe(screen.getByRole('heading', { name: 'Looking at the model…' }));
  expect(composer().placeholder).toBe('You can write once the model is here');
  expect(screen.queryByText(/will be loaded when you ask/)).toBeNull();
  platform.emit({ type: 'models', models: [model('owner/model')] });
  await settle();
  await tick();
  expect(document.activeElement).toBe(composer());
});

test('after a model is chosen, the message field has the focus', async () => {
  const { app, platform } = await open({ models: [model('owner/model'), model('owner/other')] });
  app.models.isMenuOpen = true;
  await tick();
  const other = screen.getByTitle('/models/owner/other');
  other.focus();
  await fireEvent.click(other);
  await settle();
  await tick();
  expect(platform.asked).toContainEqual({ type: 'load_model', name: 'owner/other' });
  expect(document.activeElement).toBe(composer());
});

test('a disk limit below what is stored asks first, and cancelling restores the old one', async () => {
  const { app, platform } = await open({ status: { ...status, cache_disk_bytes: 30e6 } });
  app.navigation.goToSettings('storage');
  await tick();
  await settle();
  await tick();
  const dialog = within(screen.getByRole('main'));
  const field = dialog.getByRole<HTMLInputElement>('textbox', { name: 'Disk limit' });
  const changes = () => platform.asked.filter(({ type }) => type === 'set_setting');
  const enter = async (text: string) => {
    await fireEvent.input(field, { target: { value: text } });
    await fireEvent.change(field);
    await tick();
  };
  const question = 'This deletes about 8 MB of saved context. Pinned chats and starting points stay.';

  await enter('0.022');
  expect(dialog.getByText(question)).toBeTruthy();
  expect(document.activeElement).toBe(dialog.getByRole('button', { name: 'Cancel' }));
  await fireEvent.click(dialog.getByRole('button', { name: 'Cancel' }));
  expect([field.value, document.activeElement, changes()]).toEqual(['20', field, []]);
  expect(dialog.queryByText(question)).toBeNull();

  await enter('0.022');
  await fireEvent.click(dialog.getByRole('button', { name: 'Delete' }));
  const change = { type: 'set_setting', scope: { type: 'app' }, key: 'cache_budget_bytes', value: 22e6 };
  expect(changes()).toEqual([change]);

  await enter('0.03');
  expect(changes()).toEqual([change, { ...change, value: 30e6 }]);
});

test.each<[kind: ModelProblemKind, sentence: string, hasRest: boolean]>([
  ['incomplete', 'It is not complete: it lacks a file.', true],
  ['unsupported', 'This version of Cairn cannot run it: it lacks a file.', false],
  ['broken', 'One of its files is damaged: it lacks a file.', false],
  ['unreadable', 'It cannot be read now: it lacks a file.', false],
  ['unsafe', 'Its files are not opened again, because that was not safe: it lacks a file.', false],
])(
  'a model that cannot be loaded says what to do, where something can be done: %s',
  async (kind, sentence, hasRest) => {
    const { app, platform } = await open({
      models: [model('owner/model'), model('owner/broken', problem(kind, 'it lacks a file'))],
    });
    app.navigation.go('models');
    await tick();
    expect(screen.getByText(sentence)).toBeTruthy();
    await fireEvent.click(screen.getByRole('button', { name: 'Check again' }));
    expect(platform.asked).toContainEqual({ type: 'check_model', name: 'owner/broken' });
    const rest = screen.queryByRole('button', { name: 'Download the rest' });
    expect(rest !== null).toBe(hasRest);
    if (rest) await fireEvent.click(rest);
    expect(platform.askedTypes().includes('download_model')).toBe(hasRest);
  },
);

test('messages stand beside the page, and inside a modal dialog, which makes all else inert', async () => {
  const { app } = await open();
  app.toasts.show('error', 'No.');
  await settle();
  const notifications = screen.getByRole('region', { name: 'Notifications' });
  const sidebar = screen.getByRole('navigation', { name: 'Sidebar' });
  expect(notifications.closest('nav')).toBe(sidebar);
  app.chat.isPromptOpen = true;
  await settle();
  expect(notifications.closest('dialog')).toBe(screen.getByRole('dialog', { name: 'System prompt' }));
  app.chat.isPromptOpen = false;
  await settle();
  expect(notifications.closest('nav')).toBe(sidebar);
});

test.each(['chat', 'models'] as const)('without a sidebar messages stand in the page %s', async (page) => {
  const { app } = await open();
  app.toasts.show('info', 'It is done.');
  app.navigation.go(page);
  app.navigation.show('sidebar', false);
  await settle();
  await tick();
  expect(screen.getByText('It is done.').closest('main')).toBe(document.getElementById('page'));
});

test('command and Z takes back the last deletion, but not while a field has what was typed', async () => {
  const { platform } = await open();
  const row = screen.getByRole('button', { name: 'Title a' });
  row.focus();
  await fireEvent.keyDown(row, { key: 'Delete' });
  await settle();
  await tick();
  expect(document.activeElement).toBe(screen.getByRole('button', { name: 'Title b' }));
  await write('Why');
  await fireEvent.keyDown(composer(), { key: 'z', metaKey: true });
  // What was typed and deleted by hand is the field's own as well.
  await write('');
  await fireEvent.keyDown(composer(), { key: 'z', metaKey: true });
  expect(platform.askedTypes()).not.toContain('restore_conversations');
  await fireEvent.keyDown(window, { key: 'z', metaKey: true });
  await settle();
  await tick();
  expect(platform.asked).toContainEqual({ type: 'restore_conversations', ids: ['a'] });
  expect(document.activeElement).toBe(screen.getByRole('button', { name: 'Title a' }));
  expect(screen.queryByRole('button', { name: 'Undo' })).toBeNull();
});

test('command and Z in the empty message field takes back the last deletion', async () => {
  const { platform } = await open();
  await write('Why');
  await write('');
  await fireEvent.keyDown(screen.getByRole('button', { name: 'Title a' }), { key: 'Delete' });
  await settle();
  await fireEvent.keyDown(composer(), { key: 'z', metaKey: true });
  await settle();
  expect(platform.asked).toContainEqual({ type: 'restore_conversations', ids: ['a'] });
});

test('the sidebar is made wider with the arrow keys and by dragging, and stays so', async () => {
  const { app } = await open();
  const edge = screen.getByRole('separator', { name: 'Width of the sidebar' });
  const width = () => Number(edge.getAttribute('aria-valuenow'));
  const before = width();
  await fireEvent.keyDown(edge, { key: 'ArrowRight' });
  expect(width()).toBe(before + 16);
  await fireEvent.keyDown(edge, { key: 'End' });
  await fireEvent.keyDown(edge, { key: 'ArrowRight' });
  expect(width()).toBe(Number(edge.getAttribute('aria-valuemax')));
  await fireEvent.pointerMove(edge, { clientX: 300 });
  expect(width()).not.toBe(300);
  edge.setPointerCapture = () => undefined;
  edge.hasPointerCapture = () => true;
  await fireEvent.pointerDown(edge, { button: 0, pointerId: 1 });
  await fireEvent.pointerMove(edge, { clientX: 300.4, pointerId: 1 });
  expect(width()).toBe(300);
  expect(new Navigation(localStorage).sidebarWidth).not.toBe(300);
  await fireEvent(edge, new Event('lostpointercapture'));
  expect(new Navigation(localStorage).sidebarWidth).toBe(300);
  expect(app.navigation.sidebarWidth).toBe(300);
  await fireEvent.dblClick(edge);
  expect(width()).toBe(before);
});

test('the sidebar is never said to be wider than it is drawn', async () => {
  await open();
  const edge = screen.getByRole('separator', { name: 'Width of the sidebar' });
  await fireEvent.keyDown(edge, { key: 'End' });
  const { innerWidth } = window;
  window.innerWidth = 800;
  await fireEvent(window, new Event('resize'));
  const value = (name: string) => Number(edge.getAttribute(`aria-value${name}`));
  expect([value('now'), value('max')]).toEqual([360, 360]);
  window.innerWidth = innerWidth;
  await fireEvent(window, new Event('resize'));
  expect([value('now'), value('max')]).toEqual([460, 460]);
});

test('nothing of a deleted chat stays among the folded answers', () => {
  localStorage.setItem('cairn.folded-answers', '["of an earlier version"]');
  const folded = new FoldedAnswers(localStorage);
  const answer = (id: string, chatId: string) => ({ id, chatId, isPrivate: chatId === 'private' });
  const kept = () => JSON.parse(localStorage.getItem('cairn.folded-answers') ?? '[]').map(([id]: string[]) => id);
  folded.fold(answer('one', 'a'), true);
  folded.fold(answer('two', 'b'), true);
  folded.fold(answer('three', 'private'), true);
  expect(kept()).toEqual(['one', 'two']);
  folded.forget('a');
  expect([kept(), folded.has('one')]).toEqual([['two'], true]);
  // Undo brings the chat back.
  folded.restore('a', false);
  expect(kept()).toEqual(['one', 'two']);
  folded.forget('b');
  const later = new FoldedAnswers(localStorage);
  later.keep(['c']);
  expect([kept(), later.has('one')]).toEqual([[], false]);
  for (let index = 0; index < 1100; index++) later.fold(answer(`${index}`, 'c'), true);
  expect([kept().length, later.has('99'), later.has('1099')]).toEqual([1000, false, true]);
});

test('a long answer of the past can be folded, and stays so', async () => {
  const { app, platform } = await open();
  const text = 'A line of an answer.\n\n'.repeat(80);
  platform.emit({ type: 'message', message: message('long', { parent_id: 'm', text }) });
  await tick();
  const fold = () => screen.queryByRole('button', { name: 'Show less of this answer' });
  expect(fold()).toBeNull();
  platform.emit({ type: 'message', message: message('u2', { role: 'user', parent_id: 'long', text: 'Why?' }) });
  await tick();
  await fireEvent.click(fold() as HTMLElement);
  expect(screen.getByRole('button', { name: 'Show all of this answer' }).getAttribute('aria-expanded')).toBe('false');
  expect(new FoldedAnswers(localStorage).has('long')).toBe(true);
  // What is looked for may stand in any part of it.
  app.find.open();
  await tick();
  expect(screen.queryByRole('button', { name: 'Show all of this answer' })).toBeNull();
  expect(document.querySelector('.is-folded')).toBeNull();
  app.find.close();
  await tick();
  await fireEvent.click(screen.getByRole('button', { name: 'Show all of this answer' }));
  expect(fold()).not.toBeNull();
});

test('a right click on a chat shows what can be done with it', async () => {
  const { app } = await open();
  const row = screen.getByRole('button', { name: 'Title b' });
  row.focus();
  await fireEvent.contextMenu(row, { clientX: 40, clientY: 50 });
  await tick();
  const menu = screen.getByRole('menu', { name: 'Actions for Title b', hidden: true });
  const items = within(menu).getAllByRole('menuitem', { hidden: true });
  expect(items.map(({ textContent }) => textContent)).toEqual([
    'Rename',
    'Pin',
    'Move to a new folder…',
    'Archive',
    'Export chat…',
    'Delete',
  ]);
  await fireEvent.click(items[0] as HTMLElement);
  await tick();
  expect([app.chat.actions.renamingId, app.menu.open]).toEqual(['b', null]);
  expect(document.activeElement).toBe(screen.getByRole('textbox', { name: 'Title' }));
});

test('the sidebar and the inspector are hidden and shown by shortcuts', async () => {
  const { app } = await open();
  const press = async (letter: string) => {
    await fireEvent.keyDown(window, { key: letter, code: `Key${letter.toUpperCase()}`, metaKey: true, altKey: true });
    await tick();
  };
  expect(screen.getByRole('navigation', { name: 'Sidebar' })).toBeTruthy();
  await press('s');
  expect(screen.queryByRole('navigation')).toBeNull();
  await fireEvent.click(screen.getByRole('button', { name: 'Show sidebar' }));
  await tick();
  expect(screen.getByRole('navigation', { name: 'Sidebar' })).toBeTruthy();
  await press('i');
  expect(screen.getByRole('complementary', { name: 'This chat' })).toBeTruthy();
  expect(app.navigation.isShown('inspector')).toBe(true);
});

test('the window speaks the language that is chosen', async () => {
  const { app } = await open();
  const { language } = await import('./text');
  app.navigation.goToSettings('general');
  await tick();
  const field = screen.getByRole<HTMLSelectElement>('combobox', { name: 'Language' });
  await fireEvent.change(field, { target: { value: 'de' } });
  await tick();
  expect(screen.getByRole('heading', { level: 1, name: 'Allgemein' })).toBeTruthy();
  expect(document.documentElement.lang).toBe('de');
  // What was said before is not left in the other language.
  app.toasts.show('info', 'Auf Deutsch');
  language.choose('system', localStorage);
  await tick();
  expect(app.toasts.items).toEqual([]);
});

test('a problem with a system prompt stands in its dialog', async () => {
  const { app, platform } = await open();
  platform.answers.set_system_prompt = new Error('It is too long.');
  app.chat.isPromptOpen = true;
  await tick();
  const dialog = within(screen.getByRole('dialog', { name: 'System prompt' }));
  await fireEvent.input(dialog.getByRole('textbox'), { target: { value: 'Long' } });
  await fireEvent.click(dialog.getByRole('button', { name: 'Save' }));
  await settle();
  await tick();
  expect(dialog.getByRole('alert').textContent).toBe('It is too long.');
  expect(app.toasts.items).toEqual([]);
});

test('an example fills the message field and waits there', async () => {
  const { app, platform } = await open({ conversations: [] });
  const list = within(screen.getByRole('list', { name: 'Try one of these' }));
  const [example] = list.getAllByRole('button');
  await fireEvent.click(example as HTMLElement);
  await tick();
  expect([composer().value, document.activeElement]).toEqual([example?.textContent, composer()]);
  expect(app.chat.list.items).toEqual([]);
  expect(platform.askedTypes()).not.toContain('send_message');
});

test('a long message is folded until it is asked for', async () => {
  const { platform } = await open();
  platform.emit({
    type: 'message',
    message: message('long', { role: 'user', parent_id: 'm', text: 'word '.repeat(400) }),
  });
  await tick();
  const show = screen.getByRole('button', { name: 'Show all' });
  expect(show.getAttribute('aria-expanded')).toBe('false');
  await fireEvent.click(show);
  expect(screen.getByRole('button', { name: 'Show less' }).getAttribute('aria-expanded')).toBe('true');
});

test('the first stop of the Tab key leads past the sidebar, on every page', async () => {
  const { app } = await open();
  const first = () => document.querySelector<HTMLElement>('button, input, textarea, [tabindex="0"]') as HTMLElement;
  expect(first().textContent).toBe('Skip to the message field');
  await fireEvent.click(first());
  await tick();
  expect(document.activeElement).toBe(composer());
  for (const page of ['models', 'settings'] as const) {
    app.navigation.go(page);
    await tick();
    expect(first().textContent).toBe('Skip to the page');
    await fireEvent.click(first());
    expect(document.activeElement).toBe(document.getElementById('page'));
  }
});
