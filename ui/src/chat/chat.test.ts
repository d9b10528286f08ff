// What commands, replies and events do to the conversations.
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { App } from '../app.svelte';
import { CallError } from '../platform/platform';
import type { Message, Model, Reply } from '../platform/wire';
import { bootstrap, conversation, FakePlatform, gate, message, model, problem, settle, status } from '../testing/fake';
import type { ChatStore } from './chat.svelte';
import { ageOf } from './dates';

beforeEach(() => {
  localStorage.clear();
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const three = [
  conversation('a', { updated_at_ms: 30 }),
  conversation('b', { updated_at_ms: 20 }),
  conversation('c', { updated_at_ms: 10 }),
];

async function start(change: Parameters<typeof bootstrap>[0] = { conversations: three }) {
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap(change),
    get_conversation: { type: 'conversation', conversation: conversation('a'), messages: [] },
    new_conversation: {
      type: 'conversation',
      conversation: conversation('new', { title: '', updated_at_ms: 40 }),
      messages: [],
    },
  };
  const app = new App(platform, { storage: localStorage, nextFrame: (run) => run() });
  app.start();
  platform.connect('open');
  await settle();
  return { app, platform, chat: app.chat, rows: () => app.chat.list.items.map(({ id }) => id) };
}

const sent = (id: string): Reply => ({
  type: 'sent',
  conversation: conversation(id, { title: 'Hello', updated_at_ms: 50, is_streaming: true }),
  messages: [
    message('u', { conversation_id: id, role: 'user', text: 'Hello' }),
    message('m', { conversation_id: id, parent_id: 'u', status: 'streaming' }),
  ],
});

test('the newest conversation is opened at first, later the one that was open', async () => {
  const first = await start();
  expect(first.chat.selectedId).toBe('a');
  first.chat.select('b');
  expect((await start()).chat.selectedId).toBe('b');
  (await start()).chat.newChat();
  expect((await start()).chat.selectedId).toBeNull();
  localStorage.setItem('cairn.conversation', 'long gone');
  expect((await start()).chat.selectedId).toBeNull();
});

test('the first message makes the conversation', async () => {
  const { chat, platform, rows } = await start({ conversations: [] });
  platform.answers.send_message = sent('new');
  chat.draft = 'Hello';
  await chat.send();
  expect(platform.askedTypes()).toEqual(['bootstrap', 'get_recommended_models', 'new_conversation', 'send_message']);
  expect(rows()).toEqual(['new']);
  expect(chat.selected?.title).toBe('Hello');
  expect(chat.thread?.messages.map(({ id }) => id)).toEqual(['u', 'm']);
  expect(chat.thread?.isStreaming).toBe(true);
  expect(chat.draft).toBe('');
});

test('a private chat is made at once and says what it is', async () => {
  const { app, chat, platform } = await start();
  platform.answers.new_private_conversation = {
    type: 'conversation',
    conversation: conversation('p', { title: '', is_private: true }),
    messages: [],
  };
  chat.select('c');
  app.newPrivateChat();
  await settle();
  expect(platform.askedTypes()).toContain('new_private_conversation');
  expect([chat.selectedId, chat.selected?.is_private]).toEqual(['p', true]);
  platform.answers.send_message = sent('p');
  chat.draft = 'Hello';
  // Not even its id is written anywhere.
  const written = [...Array(localStorage.length).keys()].map((index) => localStorage.key(index) ?? '');
  expect(written.map((key) => [key, localStorage.getItem(key)]).flat()).not.toContain('p');
  expect(written.filter((key) => key.endsWith('.p'))).toEqual([]);
  await chat.send();
  expect(platform.askedTypes()).not.toContain('new_conversation');
});

test.each([
  ['nothing', ''],
  ['blanks', ' \n\t'],
])('%s is not sent', async (_, text) => {
  const { chat, platform } = await start();
  chat.draft = text;
  await chat.send();
  expect(platform.askedTypes()).not.toContain('send_message');
});

/** A chat whose answer is being written, and messages that wait. */
async function startWaiting(...texts: string[]) {
  const started = await start();
  const { chat, platform } = started;
  platform.answers.send_message = sent('a');
  chat.draft = 'Hello';
  await chat.send();
  for (const text of texts) {
    chat.draft = text;
    await chat.send();
  }
  const sentTexts = () => platform.asked.flatMap((asked) => (asked.type === 'send_message' ? [asked.text] : []));
  const end = (change: Partial<Message> = {}) =>
    platform.emit({ type: 'message', message: message('m', { parent_id: 'u', text: 'Yes.', ...change }) });
  return { ...started, sentTexts, end };
}

/** The reply to a message behind others: it is being answered. */
const sentAfter = (parent_id: string, text: string): Reply => ({
  type: 'sent',
  conversation: conversation('a', { is_streaming: true }),
  messages: [message('v', { parent_id, role: 'user', text }), message('n', { parent_id: 'v', status: 'streaming' })],
});

const texts = (chat: ChatStore) => chat.queued.map(({ text }) => text);

test('while an answer is written messages wait, and follow it one by one', async () => {
  const { chat, platform, sentTexts, end } = await startWaiting('More', 'And more');
  await chat.regenerate();
  expect(platform.askedTypes()).not.toContain('regenerate');
  expect([sentTexts(), texts(chat), chat.draft]).toEqual([['Hello'], ['More', 'And more'], '']);
  chat.select('b');
  expect(texts(chat)).toEqual([]);
  platform.answers.send_message = sentAfter('m', 'More');
  end();
  await settle();
  expect(sentTexts()).toEqual(['Hello', 'More']);
  chat.select('a');
  expect(texts(chat)).toEqual(['And more']);
});

test('a message that waits can be edited, removed and sent', async () => {
  const { chat, sentTexts, end } = await startWaiting('One', 'Two', 'Three');
  chat.editQueued(1);
  expect([texts(chat), chat.draft]).toEqual([['One', 'Three'], 'Two']);
  chat.editQueued(0);
  expect([texts(chat), chat.draft]).toEqual([['Two', 'Three'], 'One']);
  chat.removeQueued(0);
  expect(texts(chat)).toEqual(['Three']);
  end({ status: 'stopped' });
  await settle();
  expect([sentTexts(), texts(chat)]).toEqual([['Hello'], ['Three']]);
  await chat.sendQueued();
  expect([sentTexts(), texts(chat)]).toEqual([['Hello', 'Three'], []]);
});

test('a message that is written while another is being sent waits, however fast the answer is', async () => {
  const { chat, platform, sentTexts, end } = await startWaiting();
  end();
  const reply = gate<Reply>();
  platform.answers.send_message = reply.promise;
  chat.draft = 'More';
  const sending = chat.send();
  chat.draft = 'And more';
  await chat.send();
  expect([sentTexts(), texts(chat), chat.draft]).toEqual([['Hello', 'More'], ['And more'], '']);
  platform.emit({ type: 'message', message: message('v', { parent_id: 'm', role: 'user', text: 'More' }) });
  platform.emit({ type: 'message', message: message('n', { parent_id: 'v', status: 'streaming' }) });
  platform.emit({ type: 'message', message: message('n', { parent_id: 'v', text: 'Done.' }) });
  expect(sentTexts()).toEqual(['Hello', 'More']);
  platform.answers.send_message = sent('a');
  reply.open(sent('a'));
  await sending;
  await settle();
  expect([sentTexts(), texts(chat)]).toEqual([['Hello', 'More', 'And more'], []]);
});

test('a message that waits and cannot be sent goes on waiting', async () => {
  const { chat, platform, end } = await startWaiting('More');
  platform.answers.send_message = new CallError('storage', 'The disk is full.');
  end();
  await settle();
  expect(texts(chat)).toEqual(['More']);
});

test('while one chat looks whether its model is here, what waits in another is sent, and a new one begins', async () => {
  const { chat, platform, sentTexts, end } = await startWaiting('More');
  chat.select('b');
  await settle();
  const looks = new Map<string | null, (why: string | null) => void>();
  chat.whyNotAsk = (id) => (id === 'b' ? new Promise((done) => looks.set(id, done)) : null);
  const again = chat.regenerate();
  end();
  await settle();
  expect(sentTexts()).toEqual(['Hello', 'More']);
  chat.select(null);
  chat.draft = 'A new one';
  platform.answers.new_conversation = { type: 'conversation', conversation: conversation('c'), messages: [] };
  await chat.send();
  expect(sentTexts()).toEqual(['Hello', 'More', 'A new one']);
  looks.get('b')?.('It is gone.');
  await again;
});

test('what is written while another version is refused stays in the composer, and can be sent then', async () => {
  const { chat, sentTexts, end } = await startWaiting();
  end();
  let refuse: (why: string) => void = () => {};
  chat.whyNotAsk = () => new Promise((done) => (refuse = done));
  const again = chat.regenerate();
  chat.draft = 'More';
  await chat.send();
  refuse('It is gone.');
  await again;
  expect([texts(chat), chat.draft, sentTexts()]).toEqual([[], 'More', ['Hello']]);
  chat.whyNotAsk = () => null;
  await chat.send();
  expect(sentTexts()).toEqual(['Hello', 'More']);
});

test('what waits is there after a reload, and goes with its chat', async () => {
  await startWaiting('More');
  localStorage.setItem('cairn.queue.a', '["As an earlier version stored it"]');
  expect(texts((await start()).chat)).toEqual(['As an earlier version stored it']);
  localStorage.removeItem('cairn.queue.a');
  await startWaiting('More');
  const again = await start();
  expect(texts(again.chat)).toEqual(['More']);
  again.platform.emit({ type: 'conversations_deleted', ids: ['a'] });
  expect(texts((await start()).chat)).toEqual([]);
});

test('what waits and what is written come back with a chat that was deleted', async () => {
  const { chat, platform } = await startWaiting('More');
  chat.draft = 'Not sent yet';
  await chat.actions.remove(['a']);
  platform.emit({ type: 'conversations_deleted', ids: ['a'] });
  expect([...chat.queue.of('a')]).toEqual([]);
  platform.emit({ type: 'conversations', conversations: [conversation('a')] });
  chat.select('a');
  expect([texts(chat), chat.draft]).toEqual([['More'], 'Not sent yet']);
  const again = await start();
  expect([texts(again.chat), again.chat.draft]).toEqual([['More'], 'Not sent yet']);
});

test('what is written while others wait goes behind them, and the first of them is sent', async () => {
  const { chat, sentTexts, end } = await startWaiting('One', 'Two');
  end({ status: 'stopped' });
  await settle();
  chat.draft = 'Three';
  await chat.send();
  expect([sentTexts(), texts(chat), chat.draft]).toEqual([['Hello', 'One'], ['Two', 'Three'], '']);
});

/** The locks of a browser, as far as they are asked for here. */
function browserLocks() {
  const held = new Set<string>();
  return {
    request: async (name: string, _: LockOptions, hold: (lock: object | null) => Promise<void> | undefined) => {
      // It is granted a while later.
      for (let turn = 0; turn < 5; turn++) await Promise.resolve();
      if (held.has(name)) return hold(null);
      held.add(name);
      await hold({});
      held.delete(name);
    },
  };
}

test('of two windows only the one in which it was written sends what waits, and both show it', async () => {
  vi.stubGlobal('navigator', { ...navigator, locks: browserLocks() });
  const first = await startWaiting('One', 'Two');
  const other = await start();
  const tell = (to: ChatStore) =>
    to.queue.follow(new StorageEvent('storage', { key: 'cairn.queue.a', storageArea: localStorage }));
  tell(other.chat);
  expect(texts(other.chat)).toEqual(['One', 'Two']);
  const whole = message('m', { parent_id: 'u', text: 'Yes.' });
  const sentBy = ({ platform }: typeof other) =>
    platform.asked.flatMap((asked) => (asked.type === 'send_message' ? [asked.text] : []));
  other.platform.emit({ type: 'message', message: whole });
  await settle();
  expect(sentBy(other)).toEqual([]);
  first.platform.answers.send_message = sentAfter('m', 'One');
  first.end();
  await settle();
  tell(other.chat);
  expect([sentBy(first), texts(other.chat)]).toEqual([['Hello', 'One'], ['Two']]);
  // Once nothing waits any more, whoever writes first sends.
  first.chat.removeQueued(0);
  tell(other.chat);
  other.chat.queue.add('a', { text: 'Three', documents: [] });
  tell(first.chat);
  await settle();
  other.platform.answers.send_message = sent('a');
  other.platform.emit({ type: 'message', message: whole });
  await settle();
  expect(sentBy(other)).toEqual(['Three']);
});

test('what is queued just when the answer ends is sent, and whoever queues next asks anew', async () => {
  vi.stubGlobal('navigator', { ...navigator, locks: browserLocks() });
  const { chat, platform, sentTexts, end } = await startWaiting();
  platform.answers.send_message = sentAfter('m', 'One');
  chat.queue.add('a', { text: 'One', documents: [] });
  end();
  await settle();
  expect([sentTexts(), texts(chat)]).toEqual([['Hello', 'One'], []]);
  const other = await start();
  other.chat.queue.add('a', { text: 'Two', documents: [] });
  expect(await other.chat.queue.claim('a')).toBe(true);
});

test('an answer that repeats itself waits for a choice', async () => {
  const { chat, platform, end } = await startWaiting('More');
  end({ status: 'streaming', is_held: true });
  expect(chat.announcement).toBe('This answer repeats itself.');
  expect(texts(chat)).toEqual(['More']);
  await chat.goOn();
  expect(platform.asked.at(-1)).toEqual({ type: 'go_on', conversation_id: 'a' });
});

test('a private chat that the core has lost is said to be gone', async () => {
  const { app, chat, platform } = await start({ conversations: [conversation('p', { is_private: true }), ...three] });
  chat.select('p');
  platform.connect('reconnecting');
  platform.answers.bootstrap = bootstrap({ conversations: three });
  platform.connect('open');
  await settle();
  expect(chat.selectedId).toBeNull();
  expect(app.toasts.items.map(({ text }) => text)).toEqual(['The private chat is gone: Cairn was closed meanwhile.']);
  // That another chat is gone, its row tells.
  chat.select('a');
  platform.answers.bootstrap = bootstrap({ conversations: [] });
  platform.connect('open');
  await settle();
  expect(app.toasts.items).toHaveLength(1);
});

test.each<[models: Model[], page: string]>([
  [[], 'models'],
  // Whoever has models stays where the question is.
  [[model('owner/model')], 'chat'],
])('text that could not be sent comes back, in the conversation it was for', async (models, page) => {
  const { app, chat, platform } = await start({ conversations: [], models });
  platform.answers.send_message = new CallError('no_model', 'No model can be loaded.');
  chat.draft = 'Hello';
  await chat.send();
  expect(chat.selectedId).toBe('new');
  expect(chat.draft).toBe('Hello');
  expect(app.toasts.items.map(({ text }) => text)).toEqual(['No model can be loaded.']);
  expect(app.navigation.page).toBe(page);
  expect(platform.askedTypes().includes('list_models')).toBe(page === 'chat');
});

test('each conversation keeps its draft', async () => {
  const { chat } = await start();
  chat.draft = 'to a';
  chat.select('b');
  expect(chat.draft).toBe('');
  chat.draft = 'to b';
  chat.newChat();
  chat.draft = 'to nobody yet';
  chat.select('a');
  expect(chat.draft).toBe('to a');
  chat.newChat();
  expect(chat.draft).toBe('to nobody yet');
});

test('a second click on the button makes no second branch', async () => {
  const { chat, platform, rows } = await start();
  const reply = gate<Reply>();
  platform.answers.branch_conversation = reply.promise;
  const clicks = [chat.branchOff('m'), chat.branchOff('m')];
  reply.open({ type: 'conversation', conversation: conversation('new', { updated_at_ms: 40 }), messages: [] });
  await Promise.all(clicks);
  expect(platform.askedTypes().filter((type) => type === 'branch_conversation')).toHaveLength(1);
  expect([rows(), chat.selectedId]).toEqual([['new', 'a', 'b', 'c'], 'new']);
  await chat.branchOff('m');
  expect(platform.askedTypes().filter((type) => type === 'branch_conversation')).toHaveLength(2);
});

test('a deleted conversation is gone at once, and Undo brings it back', async () => {
  const { app, chat, platform, rows } = await start();
  chat.select('b');
  await chat.actions.remove(['b']);
  expect(rows()).toEqual(['a', 'c']);
  expect(chat.selectedId).toBe('c');
  expect(app.toasts.items.map(({ text, actions }) => [text, actions[0]?.label])).toEqual([
    ['Deleted “Title b”.', 'Undo'],
  ]);
  platform.emit({ type: 'conversations_deleted', ids: ['b'] });
  app.toasts.act(app.toasts.items[0]?.id ?? 0);
  await settle();
  expect(platform.asked).toContainEqual({ type: 'restore_conversations', ids: ['b'] });
  expect(rows()).toEqual(['a', 'b', 'c']);
  expect(chat.selectedId).toBe('b');
  expect(app.toasts.items).toEqual([]);
});

test('a chat that another window deletes makes room for a new one, which takes over what is written', async () => {
  // As it is after a reload.
  localStorage.setItem('cairn.draft.b', 'Half a sent');
  const { app, chat, platform, rows } = await start();
  chat.select('b');
  platform.emit({ type: 'conversations_deleted', ids: ['b'] });
  expect([rows(), chat.selectedId, chat.draft]).toEqual([['a', 'c'], null, 'Half a sent']);
  expect(app.toasts.items.map(({ text, actions }) => [text, actions[0]?.label])).toEqual([
    ['“Title b” was deleted in another window.', 'Undo'],
  ]);
  app.toasts.act(app.toasts.items[0]?.id ?? 0);
  await settle();
  expect(platform.asked).toContainEqual({ type: 'restore_conversations', ids: ['b'] });
  expect([rows(), chat.selectedId, chat.draft]).toEqual([['a', 'b', 'c'], 'b', 'Half a sent']);
  chat.newChat();
  expect(chat.draft).toBe('');

  // Another chat than the open one goes without a word.
  chat.select('a');
  platform.emit({ type: 'conversations_deleted', ids: ['c'] });
  expect([rows(), chat.selectedId, app.toasts.items]).toEqual([['a', 'b'], 'a', []]);
});

test('Undo is offered for eight seconds, not counting those under the pointer', async () => {
  const { app, chat } = await start();
  await chat.actions.remove(['a']);
  vi.advanceTimersByTime(7900);
  expect(app.toasts.items).toHaveLength(1);
  app.toasts.hold();
  vi.advanceTimersByTime(60_000);
  expect(app.toasts.items).toHaveLength(1);
  app.toasts.release();
  vi.advanceTimersByTime(8100);
  expect(app.toasts.items).toHaveLength(0);
});

test('a conversation that could not be deleted stays', async () => {
  const { app, chat, platform, rows } = await start();
  platform.answers.delete_conversations = new CallError('storage', 'The disk is full.');
  await chat.actions.remove(['b']);
  expect(rows()).toEqual(['a', 'b', 'c']);
  expect(app.toasts.items.map(({ tone, text }) => [tone, text])).toEqual([['error', 'The disk is full.']]);
});

test('deleting the last conversation leads to an empty page', async () => {
  const { chat } = await start({ conversations: [conversation('a')] });
  await chat.actions.remove(['a']);
  expect(chat.selectedId).toBeNull();
});

test.each<[name: string, typed: string, isAsked: boolean, title: string]>([
  ['a new title', '  New  ', true, 'New'],
  ['the same title', 'Title a', false, 'Title a'],
  ['no title', '  ', false, 'Title a'],
])('renaming to %s', async (_, typed, isAsked, title) => {
  const { chat, platform } = await start();
  chat.actions.renamingId = 'a';
  await chat.actions.rename('a', typed);
  expect(platform.askedTypes().includes('rename_conversation')).toBe(isAsked);
  expect(chat.list.get('a')?.title).toBe(title);
  expect(chat.actions.renamingId).toBeNull();
});

test('a title that could not be saved is taken back', async () => {
  const { chat, platform } = await start();
  platform.answers.rename_conversation = new CallError('storage', 'No.');
  await chat.actions.rename('a', 'New');
  expect(chat.list.get('a')?.title).toBe('Title a');
});

test('the list follows activity, but not under the pointer', async () => {
  const { chat, platform, rows } = await start();
  chat.list.hold();
  platform.emit({ type: 'conversation', conversation: conversation('c', { updated_at_ms: 99 }) });
  expect(rows()).toEqual(['a', 'b', 'c']);
  chat.list.release();
  expect(rows()).toEqual(['c', 'a', 'b']);
});

test('events for conversations that are not open only touch the list', async () => {
  const { chat, platform } = await start();
  platform.emit(
    { type: 'message', message: message('x', { conversation_id: 'c' }) },
    { type: 'delta', conversation_id: 'c', message_id: 'x', segment: 0, offset: 5, text: 'y' },
  );
  expect(chat.thread?.messages).toEqual([]);
  expect(platform.askedTypes()).toEqual(['bootstrap', 'get_conversation', 'get_recommended_models']);
});

test('a finished answer is read out, tokens are not', async () => {
  const { chat, platform } = await start();
  platform.answers.send_message = sent('a');
  chat.draft = 'Hello';
  await chat.send();
  expect(chat.announcement).toBe('The answer is being written.');
  const segment = { kind: 'text' as const, text: 'Good day.' };
  platform.emit({ type: 'segment', conversation_id: 'a', message_id: 'm', index: 0, segment });
  expect(chat.announcement).toBe('The answer is being written.');
  platform.emit({ type: 'message', message: message('m', { parent_id: 'u', text: 'Good day.' }) });
  expect(chat.announcement).toBe('Answer finished. Good day.');
  let before: string | null = null;
  platform.answers.send_message = () => {
    before = chat.announcement;
    return sent('a');
  };
  chat.draft = 'Hello';
  await chat.send();
  expect(before).toBe('');
});

test('after a crash, the chat whose answer was interrupted is open where no other was', async () => {
  const interrupted = { conversations: three, interrupted: 'b' };
  expect((await start(interrupted)).chat.selectedId).toBe('b');
  localStorage.setItem('cairn.conversation', '');
  expect((await start(interrupted)).chat.selectedId).toBe('b');
  localStorage.setItem('cairn.conversation', 'c');
  expect((await start(interrupted)).chat.selectedId).toBe('c');
  localStorage.setItem('cairn.conversation', '');
  expect((await start({ conversations: three })).chat.selectedId).toBe(null);
});

test('events that come before the state are applied after it', async () => {
  const platform = new FakePlatform();
  const state = gate<Reply>();
  platform.answers = { bootstrap: state.promise };
  const app = new App(platform);
  app.start();
  platform.connect('open');
  platform.emit({ type: 'conversation', conversation: conversation('a', { title: 'Newer' }) });
  state.open(bootstrap({ conversations: [conversation('a', { title: 'Older' })] }));
  await settle();
  expect(app.chat.list.items.map(({ title }) => title)).toEqual(['Newer']);
});

test('after a lost connection the state and the open conversation are asked for again', async () => {
  const { app, chat, platform, rows } = await start();
  chat.draft = 'unsent';
  platform.connect('reconnecting');
  expect(app.connection).toBe('reconnecting');
  platform.answers.bootstrap = bootstrap({ conversations: [conversation('a'), conversation('z')] });
  platform.answers.get_conversation = {
    type: 'conversation',
    conversation: conversation('a'),
    messages: [message('m', { text: 'While away.' })],
  };
  platform.connect('open');
  await settle();
  expect(rows().toSorted()).toEqual(['a', 'z']);
  expect(chat.selectedId).toBe('a');
  expect(chat.thread?.messages.map(({ text }) => text)).toEqual(['While away.']);
  expect(chat.draft).toBe('unsent');
});

test('a conversation that was deleted while the connection was lost is no longer selected', async () => {
  const { chat, platform } = await start();
  platform.answers.bootstrap = bootstrap({ conversations: [conversation('z')] });
  platform.connect('open');
  await settle();
  expect(chat.selectedId).toBeNull();
});

test('a chat that is made while the list is on its way stays open', async () => {
  const { chat, platform, rows } = await start();
  let send = (_: Reply) => {};
  platform.answers.bootstrap = () => new Promise((resolve) => (send = resolve));
  platform.connect('open');
  await settle();
  platform.answers.new_conversation = { type: 'conversation', conversation: conversation('made'), messages: [] };
  chat.select(null);
  await chat.make();
  expect(chat.selectedId).toBe('made');
  send(bootstrap({ conversations: [conversation('a'), conversation('z')] }));
  await settle();
  expect(chat.selectedId).toBe('made');
  expect(rows().toSorted()).toEqual(['a', 'made', 'z']);
});

test('when the state cannot be had, the reason is shown and can be tried again', async () => {
  const platform = new FakePlatform();
  platform.answers = { bootstrap: new CallError('storage', 'The data folder cannot be written.') };
  const app = new App(platform);
  app.start();
  platform.connect('open');
  await settle();
  expect([app.isReady, app.problem]).toEqual([false, 'The data folder cannot be written.']);
  platform.answers = { bootstrap: bootstrap() };
  await app.bootstrap();
  expect([app.isReady, app.problem]).toEqual([true, null]);
});

test.each<[name: string, change: Parameters<typeof bootstrap>[0], why: string | null]>([
  [
    'no model',
    { models: [], status: { ...status, engine: { state: 'empty' } } },
    'There is no model on this computer yet.',
  ],
  [
    'only broken models',
    { models: [model('x', problem('broken'))], status: { ...status, engine: { state: 'empty' } } },
    'None of the models on this computer can be loaded.',
  ],
  ['a model that can be loaded', { status: { ...status, engine: { state: 'empty' } } }, null],
  ['a model loaded from elsewhere', { models: [] }, null],
])('whether a message can be sent: %s', async (_, change, why) => {
  expect((await start(change)).app.models.whyNotReady).toBe(why);
});

test('settings that could not be saved are taken back', async () => {
  const { app, platform } = await start();
  await app.settings.set('temperature', 0);
  expect(app.settings.current?.temperature).toBe(0);
  platform.answers.set_setting = new CallError('invalid', 'No.');
  await app.settings.set('top_p', 0.5);
  expect(app.settings.current).toMatchObject({ temperature: 0, top_p: 0.95 });
});

test('ages are counted in calendar days', () => {
  const now = new Date(2026, 2, 10, 0, 30);
  const age = (day: number, hour = 12) => ageOf(new Date(2026, 2, day, hour).getTime(), now);
  expect([age(10, 0), age(9, 23), age(8), age(4), age(3), age(-20)]).toEqual([
    'Today',
    'Yesterday',
    'Last 7 days',
    'Last 7 days',
    'March',
    'February',
  ]);
});
