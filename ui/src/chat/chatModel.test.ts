// A chat keeps its model: what the composer and the inspector say of it, and what choosing another does.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { beforeEach, expect, test } from 'vitest';
import type { App } from '../app.svelte';
import type { ChatModel, Conversation, Model, Reply } from '../platform/wire';
import { bootstrap, conversation, FakePlatform, gate, model, problem, saved, status } from '../testing/fake';
import { drawn, openWindow, useWindow } from '../testing/window';

useWindow();

let platform: FakePlatform;
let app: App;

const of = (change: Partial<ChatModel>): ChatModel => ({ name: null, source: 'app', missing: null, ...change });

/** Opens a chat; `owner/model` is loaded. */
async function open(change: Partial<Conversation> = {}): Promise<void> {
  const row = conversation('a', change);
  platform.answers.bootstrap = bootstrap({
    conversations: [row],
    models: [model('owner/model'), model('owner/other')],
    folders: [{ id: 'm', name: 'Moving', system_prompt: '', model: 'owner/other' }],
  });
  platform.answers.get_conversation = { type: 'conversation', conversation: row, messages: [] };
  ({ app } = await openWindow(platform));
  app.chat.select('a');
  await drawn();
}

const chooser = () => screen.getByRole('button', { name: /^Model: / });
async function inspector() {
  app.navigation.show('inspector', true);
  await drawn();
  return within(screen.getByRole('complementary', { name: 'This chat' }));
}
const choices = () => platform.asked.filter(({ type }) => type === 'choose_model' || type === 'load_model');

beforeEach(() => {
  platform = new FakePlatform();
});

test.each<[Partial<Conversation>, name: string, source: string]>([
  [{}, 'model', 'Loaded'],
  [{ model: of({ name: 'owner/other', source: 'chat' }) }, 'other', 'Chosen in this chat'],
  [{ model: of({ name: 'owner/other', source: 'answer' }) }, 'other', 'Of the last answer'],
  [{ model: of({ name: 'owner/other', source: 'folder' }), folder_id: 'm' }, 'other', 'From the folder “Moving”'],
])('the model of %j', async (change, name, source) => {
  await open(change);
  expect(chooser().getAttribute('aria-label')).toBe(`Model: ${name}`);
  expect((await inspector()).getByText(name)).toBeTruthy();
  expect((await inspector()).getByText(source)).toBeTruthy();
});

test('a reply that comes after the end of its answer takes back nothing of what that has told', async () => {
  await open();
  const sent = gate<Reply>();
  platform.answers.send_message = sent.promise;
  app.chat.draft = 'Hello';
  const sending = app.chat.send();
  const row = conversation('a', { updated_at_ms: 9 });
  platform.emit({
    type: 'conversation',
    conversation: { ...row, model: of({ name: 'owner/other', source: 'answer' }) },
  });
  sent.open({ type: 'sent', conversation: row, messages: [] });
  await sending;
  await drawn();
  expect(chooser().getAttribute('aria-label')).toBe('Model: other');
});

test('a model that is loaded elsewhere is offered instead of the one that would be loaded', async () => {
  await open({ model: of({ name: 'owner/other', source: 'answer' }), cache: saved({ model: 'owner/other' }) });
  expect(screen.getByText('other will be loaded when you ask.')).toBeTruthy();
  await fireEvent.click(screen.getByRole('button', { name: 'Answer with model instead' }));
  await drawn();
  expect(choices()).toEqual([{ type: 'choose_model', id: 'a', model: 'owner/model' }]);

  // Nothing is to be said once both are in memory, and while it is loading that is.
  const other = { name: 'owner/other', fingerprint: 'g', bytes: 1e6, draft: null };
  platform.emit({ type: 'status', status: { ...status, models: [other, ...status.models] } });
  await drawn();
  expect(screen.queryByText(/will be loaded/)).toBeNull();
  const engine = { state: 'loading' as const, model: 'owner/other', bytes_read: 1e9, total_bytes: 2e9 };
  platform.emit({ type: 'status', status: { ...status, engine, model_fingerprint: null } });
  await drawn();
  expect(screen.getByRole('progressbar', { name: 'Loading other' }).getAttribute('aria-valuenow')).toBe('50');
  await fireEvent.click(screen.getByRole('button', { name: 'Cancel, Loading other' }));
  expect(platform.asked).toContainEqual({ type: 'stop_loading' });
});

test('a model that is gone is named beforehand', async () => {
  await open({ model: of({ missing: 'owner/gone' }) });
  expect(screen.getByText('gone is not here; model answers.')).toBeTruthy();
  await fireEvent.click(screen.getByRole('button', { name: 'Keep model' }));
  await drawn();
  expect(choices()).toEqual([{ type: 'choose_model', id: 'a', model: 'owner/model' }]);
  platform.emit({
    type: 'status',
    status: { ...status, engine: { state: 'empty' }, model_fingerprint: null, models: [] },
  });
  await drawn();
  expect(screen.getByText('gone is not here. Choose another model.')).toBeTruthy();
  expect(screen.queryByRole('button', { name: /^Keep/ })).toBeNull();
});

test('a model that is gone is named until another has answered', async () => {
  await open({ model: of({ name: 'owner/other', source: 'folder', missing: 'owner/gone' }) });
  expect(screen.getByText(/^gone is not here; other answers\./)).toBeTruthy();
  // Also where it was chosen after an answer of another one.
  app.chat.list.put(conversation('a', { model: of({ name: 'owner/other', source: 'answer', missing: 'owner/gone' }) }));
  await drawn();
  expect(screen.getByText(/^gone is not here; other answers\./)).toBeTruthy();
  app.chat.list.put(conversation('a', { model: of({ name: 'owner/other', source: 'answer' }) }));
  await drawn();
  expect(chooser().getAttribute('aria-label')).toBe('Model: other');
  expect(screen.queryByText(/gone is not here/)).toBeNull();
});

test('while none is loaded, the composer names the model that will be, and loading it shows', async () => {
  platform.answers.bootstrap = bootstrap({
    conversations: [],
    models: [model('owner/model'), model('owner/other', { is_proposed: true })],
    status: unloaded,
  });
  ({ app } = await openWindow(platform));
  expect(chooser().getAttribute('aria-label')).toBe('Model: other');
  expect(screen.getByText('other will be loaded when you ask.')).toBeTruthy();
  expect((await inspector()).getByText('Not loaded yet')).toBeTruthy();
  platform.emit({ type: 'models', models: [model('owner/model', { is_proposed: true }), model('owner/other')] });
  await drawn();
  expect(chooser().getAttribute('aria-label')).toBe('Model: model');

  // Nothing is chosen for the chat by that.
  platform.answers.new_conversation = { type: 'conversation', conversation: conversation('b'), messages: [] };
  app.chat.draft = 'Hello';
  await app.chat.send();
  expect(choices()).toEqual([]);
  expect(platform.asked.at(-1)).toEqual({ type: 'send_message', conversation_id: 'b', text: 'Hello' });
  const engine = { state: 'loading' as const, model: 'owner/model', bytes_read: 1e9, total_bytes: 2e9 };
  platform.emit({ type: 'status', status: { ...unloaded, engine } });
  await drawn();
  expect(screen.queryByText(/will be loaded/)).toBeNull();
  expect(screen.getByRole('progressbar', { name: 'Loading model' }).getAttribute('aria-valuenow')).toBe('50');
});

test('a model is not called loaded while it is loading', async () => {
  await open();
  app.newChat();
  const engine = { state: 'loading' as const, model: 'owner/model', bytes_read: 35e6, total_bytes: 115e6 };
  platform.emit({ type: 'status', status: { ...unloaded, engine } });
  await drawn();
  expect((await inspector()).getByText('Loading…')).toBeTruthy();
  expect((await inspector()).queryByText('Loaded')).toBeNull();
  platform.emit({ type: 'status', status });
  await drawn();
  expect((await inspector()).getByText('Loaded')).toBeTruthy();
});

test('the row of a chat that is not open is of the model that answers it now', async () => {
  await open();
  const row = conversation('b', {
    title: 'Beta',
    cache: saved({ model: 'owner/other', fingerprint: 'g' }),
    model: of({ name: 'owner/other', source: 'answer' }),
  });
  app.chat.list.put(row);
  await drawn();
  const label = () => screen.getByTitle(/^Beta /).title.split('\n')[1];
  expect(label()).toMatch(/^Saved: /);
  platform.emit({ type: 'chat_models', models: [{ conversation_id: 'b', model: of({ missing: 'owner/other' }) }] });
  await drawn();
  expect(label()).toMatch(/^Not saved for model/);
  expect(app.chat.selectedId).toBe('a');
});

test('what is chosen in a chat is stored for it and loaded', async () => {
  await open({ model: of({ name: 'owner/model', source: 'answer' }) });
  await fireEvent.click(chooser());
  await drawn();
  const own = within(screen.getByRole('dialog', { name: 'Models' }));
  expect(own.getByRole('button', { current: true }).textContent).toContain('model');
  await fireEvent.click(own.getByText('other').closest('button') as HTMLElement);
  await drawn();
  expect(choices()).toEqual([
    { type: 'choose_model', id: 'a', model: 'owner/other' },
    { type: 'load_model', name: 'owner/other' },
  ]);
});

test('a choice that is refused loads nothing', async () => {
  platform.answers.choose_model = new Error('It is gone.');
  await open();
  expect(await app.chatModel.choose('owner/other')).toBe(false);
  expect(choices().map(({ type }) => type)).toEqual(['choose_model']);
});

test('the palette chooses for the open chat, and loads on other pages', async () => {
  await open();
  const use = async () => {
    app.openPalette();
    await drawn();
    const field = screen.getByRole('combobox', { name: 'Search' });
    await fireEvent.input(field, { target: { value: 'use other' } });
    await drawn();
    await fireEvent.keyDown(field, { key: 'Enter' });
    await drawn();
  };
  await use();
  expect(choices().map(({ type }) => type)).toEqual(['choose_model', 'load_model']);
  app.navigation.go('models');
  await drawn();
  await use();
  expect(choices().map(({ type }) => type)).toEqual(['choose_model', 'load_model', 'load_model']);
});

test('what is chosen before the first message is stored with it', async () => {
  await open();
  app.newChatAs({ id: 'p', name: 'Poet', system_prompt: '', model: 'owner/other', values: {} });
  await drawn();
  expect(chooser().getAttribute('aria-label')).toBe('Model: other');
  expect((await inspector()).getByText('From the persona')).toBeTruthy();
  await app.chatModel.choose('owner/model');
  await drawn();
  expect(chooser().getAttribute('aria-label')).toBe('Model: model');
  expect((await inspector()).getByText('Chosen in this chat')).toBeTruthy();
  platform.answers.new_conversation_as = { type: 'conversation', conversation: conversation('b'), messages: [] };
  app.chat.draft = 'Hello';
  await app.chat.send();
  const begun = platform.asked.map(({ type }) => type).filter((type) => /^(new|choose|send)_/.test(type));
  expect(begun).toEqual(['new_conversation_as', 'choose_model', 'send_message']);
  expect(choices()).toContainEqual({ type: 'choose_model', id: 'b', model: 'owner/model' });
  app.newChat();
  await drawn();
  expect((await inspector()).getByText('Loaded')).toBeTruthy();
});

const unloaded = { ...status, engine: { state: 'empty' as const }, model_fingerprint: null, models: [] };
const incomplete = problem('incomplete', 'model.safetensors is missing');

/** A new chat with `owner/gone`, which is listed and not in memory; listed again, there are these models. */
async function openWithGone(now: Model[], chooses = false): Promise<void> {
  platform.answers.bootstrap = bootstrap({
    models: [model('owner/gone', { is_proposed: !chooses }), model('owner/other', { is_proposed: chooses })],
    status: unloaded,
  });
  platform.answers.new_conversation = { type: 'conversation', conversation: conversation('b'), messages: [] };
  platform.answers.list_models = { type: 'models', models: now };
  ({ app } = await openWindow(platform));
  app.newChat();
  if (chooses) app.chat.unsent.model = 'owner/gone';
  app.chat.draft = 'Hello';
  await drawn();
  expect(chooser().getAttribute('aria-label')).toBe('Model: gone');
}

/** Above the composer, not only for those who listen. */
const offered = (said: string) => screen.getByText(said, { selector: 'form p span' });
const sending = () => platform.askedTypes().filter((type) => /^(new|send)_/.test(type));

test.each<[string, now: Model[], chooses: boolean, said: string, answering: string]>([
  [
    'the chosen one is gone',
    [model('owner/other', { is_proposed: true })],
    true,
    'gone is not here; other answers.',
    'other',
  ],
  [
    'the proposed one is gone',
    [model('owner/other', { is_proposed: true })],
    false,
    'gone is not here; other answers.',
    'other',
  ],
  [
    'a file of the proposed one is gone',
    [model('owner/gone', incomplete), model('owner/other', { is_proposed: true })],
    false,
    'gone cannot be loaded. It is not complete: model.safetensors is missing. other answers instead.',
    'other',
  ],
  [
    'a file of the chosen one is gone',
    [model('owner/gone', incomplete), model('owner/other', { is_proposed: true })],
    true,
    'gone cannot be loaded. It is not complete: model.safetensors is missing. Choose another model.',
    'gone',
  ],
])('what a person reads before anything is made where %s', async (_, now, chooses, said, answering) => {
  await openWithGone(now, chooses);
  await app.chat.send();
  await drawn();
  expect(sending()).toEqual([]);
  expect([app.chat.selectedId, app.chat.draft, app.navigation.page]).toEqual([null, 'Hello', 'chat']);
  expect(offered(said)).toBeTruthy();
  expect(app.chat.announcement).toBe(said);
  expect(app.toasts.items).toEqual([]);
  expect(chooser().getAttribute('aria-label')).toBe(`Model: ${answering}`);
  // It cannot be kept: it is not in memory.
  expect(screen.queryByRole('button', { name: /^Keep/ })).toBeNull();
  expect(screen.queryByRole('button', { name: 'Load other' }) !== null).toBe(answering === 'other');
  if (answering === 'gone') {
    await app.chat.send();
    expect(sending()).toEqual([]);
    await fireEvent.click(screen.getByRole('button', { name: 'Answer with other instead' }));
    await drawn();
    expect(chooser().getAttribute('aria-label')).toBe('Model: other');
    expect(platform.asked).toContainEqual({ type: 'load_model', name: 'owner/other' });
  }
  await app.chat.send();
  await drawn();
  expect(sending()).toEqual(['new_conversation', 'send_message']);
  app.newChat();
  await drawn();
  expect(screen.queryByText(/gone/, { selector: 'form p span' })).toBeNull();
});

test('where all models are gone, nothing is made, and the page says where there are others', async () => {
  await openWithGone([]);
  await app.chat.send();
  await drawn();
  expect(sending()).toEqual([]);
  expect(app.chat.draft).toBe('Hello');
  expect(screen.getByRole('heading', { name: 'Choose a model to start' })).toBeTruthy();
});

test('Enter pressed twice while the models are listed sends one message', async () => {
  await openWithGone([]);
  const listed = gate<Reply>();
  platform.answers.list_models = listed.promise;
  const sent = app.chat.send();
  await app.chat.send();
  app.chat.draft = 'Hello there';
  listed.open({ type: 'models', models: [model('owner/gone', { is_proposed: true })] });
  await sent;
  expect(sending()).toEqual(['new_conversation', 'send_message']);
  expect(platform.asked.at(-1)).toMatchObject({ text: 'Hello there' });
  expect(app.chat.queued).toEqual([]);
});

test('in a chat that has begun, a model that is gone is named before another answers', async () => {
  await open({ model: of({ name: 'owner/other', source: 'answer' }) });
  platform.answers.list_models = { type: 'models', models: [model('owner/model')] };
  const renewed = conversation('a', { model: of({ missing: 'owner/other' }) });
  platform.answers.get_conversation = { type: 'conversation', conversation: renewed, messages: [] };
  app.chat.draft = 'And now?';
  await app.chat.send();
  await drawn();
  expect(sending()).toEqual([]);
  expect(app.chat.draft).toBe('And now?');
  expect(offered('other is not here; model answers.')).toBeTruthy();
  await app.chat.send();
  expect(sending()).toEqual(['send_message']);
});

test('a message waits in its new chat where the model that was chosen for it is refused', async () => {
  await open();
  app.newChat();
  await app.chatModel.choose('owner/other');
  platform.answers.new_conversation = { type: 'conversation', conversation: conversation('b'), messages: [] };
  platform.answers.choose_model = new Error('It is gone.');
  app.chat.draft = 'Hello';
  await app.chat.send();
  await drawn();
  expect(platform.asked.map(({ type }) => type)).not.toContain('send_message');
  expect(app.chat.selectedId).toBe('b');
  expect(app.chat.draft).toBe('Hello');
});

/** A chat of `owner/other`, which is listed, not in memory, and gone. */
async function openGone(): Promise<void> {
  await open({ model: of({ name: 'owner/other', source: 'answer' }) });
  platform.answers.list_models = { type: 'models', models: [model('owner/model')] };
  const renewed = conversation('a', { model: of({ missing: 'owner/other' }) });
  platform.answers.get_conversation = { type: 'conversation', conversation: renewed, messages: [] };
}

const asking = () =>
  platform.askedTypes().filter((type) => /^(send|continue|regenerate|edit|write|compare|ask)_?/.test(type));

test.each<[string, ask: () => unknown, type: string]>([
  ['what waits', () => app.chat.sendQueued(), 'send_message'],
  ['what waits in a chat that is not open', () => (app.newChat(), app.chat.sendQueued('a')), 'send_message'],
  ['an answer that goes on', () => app.chat.continueAnswer('x'), 'continue_answer'],
  ['another version', () => app.chat.regenerate('x'), 'regenerate'],
])('of a model that is gone %s is not asked before that is told', async (_, ask, type) => {
  await openGone();
  app.chat.queue.add('a', { text: 'And then?', documents: [] });
  await ask();
  await drawn();
  expect(asking()).toEqual([]);
  expect(app.chat.queue.of('a')).toHaveLength(1);
  app.chat.select('a');
  await drawn();
  expect(offered('other is not here; model answers.')).toBeTruthy();
  await ask();
  expect(asking()).toEqual([type]);
});

test('an answer by a model that is gone is not begun, and the reason stays', async () => {
  await openGone();
  await app.chat.regenerate('x', 'owner/other');
  expect(asking()).toEqual([]);
  expect(app.toasts.items.map(({ text }) => text)).toEqual(['other is not here. Choose another model.']);
  await app.chat.regenerate('x', 'owner/model');
  expect(asking()).toEqual(['regenerate']);
});

test('a comparison with a model that is gone is not begun, and says so', async () => {
  await openGone();
  app.chat.draft = 'Which?';
  app.chat.openCompare(['owner/model', 'owner/other']);
  await app.chat.compare.start();
  await drawn();
  expect(asking()).toEqual([]);
  expect(screen.getByRole('alert').textContent).toBe('other is not here. Choose another model.');
});
