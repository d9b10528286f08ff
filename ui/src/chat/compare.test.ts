// Comparing: what is asked, which events belong to which column, and what the chat does meanwhile.
import { beforeEach, expect, test } from 'vitest';
import type { Command, Event, Message, Reply } from '../platform/wire';
import { conversation, FakePlatform, gate, message, settle, stats } from '../testing/fake';
import { Toasts } from '../ui/toasts.svelte';
import { UndoStack } from '../ui/undo';
import { ChatStore } from './chat.svelte';
import { compareFigures, compareStatus, settingsWords } from './compareWords';

const question = message('q', { role: 'user', text: 'Which?' });
const answer = (id: string, change: Partial<Message> = {}) =>
  message(id, { parent_id: 'q', versions: ['a', 'b'], status: 'streaming', ...change });

let platform: FakePlatform;
let chat: ChatStore;
let now: Record<string, Message>;
let storage: Map<string, string>;

const store = () =>
  new ChatStore({
    platform,
    toasts: new Toasts(),
    undo: new UndoStack(),
    report: (error) => {
      throw error;
    },
    storage: {
      getItem: (key: string) => storage.get(key) ?? null,
      setItem: (key: string, value: string) => void storage.set(key, value),
      removeItem: (key: string) => void storage.delete(key),
    } as Storage,
    nextFrame: (run) => run(),
  });

beforeEach(async () => {
  platform = new FakePlatform();
  storage = new Map();
  now = { a: answer('a'), b: answer('b') };
  platform.answers.get_conversation = () => ({
    type: 'conversation',
    conversation: conversation('a'),
    messages: [question, message('old', { parent_id: 'q', text: 'Before.' })],
  });
  platform.answers.get_versions = (command) => ({
    type: 'versions',
    messages: command.type === 'get_versions' ? command.message_ids.flatMap((id) => now[id] ?? []) : [],
  });
  platform.answers.compare = () => ({
    type: 'compared',
    conversation: conversation('a', { is_streaming: true }),
    messages: [answer('a'), answer('b')],
  });
  chat = store();
  chat.start([conversation('a')], true);
  await settle();
});

const calls = (type: Command['type']) => platform.asked.filter((command) => command.type === type);
const delta = (message_id: string, text: string): Event => ({
  type: 'segment',
  conversation_id: 'a',
  message_id,
  index: 0,
  segment: { kind: 'text', text },
});
const beside = (event: Event) => chat.receive({ type: 'beside', event });

async function begin(): Promise<void> {
  chat.openCompare(['m', 'n']);
  await chat.compare.start();
  await settle();
}

test('the last question is asked with both models', async () => {
  chat.openCompare(['m', 'n']);
  expect(chat.compare.isOpenIn('a')).toBe(true);
  expect(chat.compare.question?.text).toBe('Which?');
  await chat.compare.start();
  expect(calls('compare')[0]).toMatchObject({
    conversation_id: 'a',
    message_id: 'q',
    text: null,
    columns: [
      { model: 'm', temperature: null, seed: null, thinking: null },
      { model: 'n', temperature: null, seed: null, thinking: null },
    ],
  });
});

test('a draft is a new question, and is gone when it was asked', async () => {
  chat.draft = 'And now?';
  platform.answers.compare = () => ({
    type: 'compared',
    conversation: conversation('a', { is_streaming: true }),
    messages: [message('q2', { role: 'user', parent_id: 'old', text: 'And now?' }), answer('a'), answer('b')],
  });
  chat.openCompare(['m', 'n']);
  expect(chat.compare.question?.isNew).toBe(true);
  await chat.compare.start();
  expect(calls('compare')[0]).toMatchObject({ message_id: null, text: 'And now?' });
  expect(chat.draft).toBe('');
});

test('the first answer is in the chat, the second only beside it', async () => {
  await begin();
  chat.receive(delta('a', 'One.'));
  beside(delta('b', 'Two.'));
  expect(chat.compare.answer(0)?.segments).toEqual([{ kind: 'text', text: 'One.' }]);
  expect(chat.compare.answer(1)?.segments).toEqual([{ kind: 'text', text: 'Two.' }]);
  expect(chat.thread?.messages.map(({ id }) => id)).toEqual(['q', 'a']);
});

test('an answer that ended before the reply came is not streaming', async () => {
  now = { a: answer('a', { status: 'complete', text: 'One.' }), b: answer('b') };
  await begin();
  expect(chat.compare.answer(0)?.status).toBe('complete');
  expect(chat.compare.isAnswering).toBe(true);
});

test('while either is written, a message waits', async () => {
  platform.answers.send_message = () => ({ type: 'sent', conversation: conversation('a'), messages: [] });
  await begin();
  now = { a: answer('a', { status: 'complete' }), b: answer('b') };
  chat.receive({ type: 'message', message: answer('a', { status: 'complete' }) });
  expect(chat.whyBusy).not.toBeNull();
  chat.draft = 'More';
  await chat.send();
  expect(chat.queued.map(({ text }) => text)).toEqual(['More']);
  expect(calls('send_message')).toHaveLength(0);
  beside({ type: 'message', message: answer('b', { status: 'complete' }) });
  await settle();
  expect(calls('send_message')).toHaveLength(1);
  expect(chat.whyBusy).toBeNull();
});

test('another window that knows nothing of it is not disturbed', async () => {
  beside({ type: 'message', message: answer('b') });
  beside(delta('b', 'Two.'));
  expect(chat.thread?.messages.map(({ id }) => id)).toEqual(['q', 'old']);
  expect(chat.whyBusy).not.toBeNull();
  beside({ type: 'message', message: answer('b', { status: 'complete' }) });
  expect(chat.whyBusy).toBeNull();
});

test('going on closes it; each is stopped alone', async () => {
  await begin();
  await chat.compare.stop(1);
  expect(calls('stop_answer')[0]).toMatchObject({ conversation_id: 'a', message_id: 'b' });
  expect(await chat.compare.choose(1)).toBe(true);
  expect(calls('choose_answer')[0]).toMatchObject({ conversation_id: 'a', message_id: 'b' });
  expect(chat.compare.isOpenIn('a')).toBe(false);
  // It is still written, in the chat now.
  chat.receive({ type: 'message', message: answer('b', { status: 'complete' }) });
  chat.receive({ type: 'message', message: answer('a', { status: 'stopped' }) });
  expect(chat.whyBusy).toBeNull();
});

test('a page that is loaded anew shows it again, unless the chat is gone', async () => {
  await begin();
  const again = store();
  again.start([conversation('a')], true);
  await settle();
  expect(again.compare.isOpenIn('a')).toBe(true);
  expect(again.compare.answers).toHaveLength(2);
  const without = store();
  without.start([conversation('other')], true);
  await settle();
  expect(without.compare.question).toBeNull();
});

test('nothing of a private chat is stored', async () => {
  chat.list.put(conversation('a', { is_private: true }));
  await begin();
  expect(chat.compare.answers).toHaveLength(2);
  expect([...storage.values()].join()).not.toContain('Which?');
});

test('what could not begin says why, and stays as it is', async () => {
  platform.answers.compare = new Error('No room.');
  chat.openCompare(['m', 'm']);
  expect(chat.compare.isSame).toBe(true);
  chat.compare.columns[1] = { model: 'm', temperature: 1, seed: null, thinking: null };
  expect(chat.compare.isSame).toBe(false);
  await chat.compare.start();
  expect(chat.compare.problem).toBe('No room.');
  expect(chat.compare.isOpenIn('a')).toBe(true);
});

test('the words of a column', () => {
  expect(settingsWords({ model: 'm', temperature: null, seed: null, thinking: null })).toBe('');
  expect(settingsWords({ model: 'm', temperature: 0.5, seed: 7, thinking: 'off' })).toBe(
    'temperature 0.5, seed 7, thinking: off',
  );
  expect(compareFigures(stats())).toEqual([
    ['First token', 'after 312 ms'],
    ['Writing', '42.1 tok/s'],
    ['Length', '312 tokens'],
  ]);
  const miss = { tokens: 1236, cause: 'other_model', detail: 'm', at_ms: null } as const;
  const read = { ...answer('b'), stats: stats({ cached_tokens: 0, miss }) };
  expect(compareStatus(read, [question, answer('a')])).toMatchObject({
    kind: 'read',
    words: 'First reading with this model',
  });
});

test('a second question goes to both, and both rounds are there after a reload', async () => {
  await begin();
  const done = (id: string) => answer(id, { status: 'complete', text: id });
  now = { a: done('a'), b: done('b') };
  for (const id of ['a', 'b']) beside({ type: 'message', message: done(id) });
  chat.receive({ type: 'message', message: done('a') });
  platform.answers.ask_both = () => ({
    type: 'compared',
    conversation: conversation('a', { is_streaming: true }),
    messages: [
      message('q2', { role: 'user', parent_id: 'a', text: 'And then?' }),
      answer('c', { parent_id: 'q2' }),
      answer('d', { parent_id: 'q3' }),
    ],
  });
  now = { ...now, c: answer('c', { parent_id: 'q2' }), d: answer('d', { parent_id: 'q3' }) };
  expect(await chat.compare.askBoth('And then?')).toBe(true);
  await settle();
  expect(calls('ask_both')[0]).toMatchObject({ message_ids: ['a', 'b'], text: 'And then?', columns: [{}, {}] });
  beside(delta('d', 'Later.'));
  expect(chat.compare.answer(1)?.segments).toEqual([{ kind: 'text', text: 'Later.' }]);
  expect(chat.compare.earlier.map(({ text, answers }) => [text, answers.map(({ id }) => id)])).toEqual([
    ['Which?', ['a', 'b']],
  ]);
  expect(await chat.compare.askBoth('Too early')).toBe(false);

  const again = store();
  again.start([conversation('a')], true);
  await settle();
  expect(again.compare.question?.text).toBe('And then?');
  expect(again.compare.earlier.map(({ text }) => text)).toEqual(['Which?']);
});

/** Holds the look at the models until it is opened; returns what was looked for. */
function holdLook() {
  const looks: { named: readonly (string | null)[]; done: (why: string | null) => void }[] = [];
  chat.whyNotAsk = (_, named = []) => new Promise((done) => looks.push({ named, done }));
  return looks;
}

test('what is closed while its models are looked for is not asked', async () => {
  const looks = holdLook();
  chat.openCompare(['m', 'n']);
  const starting = chat.compare.start();
  chat.compare.close();
  looks[0]?.done(null);
  await starting;
  expect(calls('compare')).toEqual([]);
  expect(chat.compare.answers).toEqual([]);
});

test('a comparison that is opened instead is neither asked the question before nor told its problem', async () => {
  const looks = holdLook();
  chat.openCompare(['m', 'n']);
  const starting = chat.compare.start();
  chat.compare.close();
  chat.compare.open('b', { text: 'Another?', messageId: 'z', isNew: false }, ['m', 'n']);
  looks[0]?.done('m is gone.');
  await starting;
  expect(calls('compare')).toEqual([]);
  expect(chat.compare.problem).toBeNull();
  expect(chat.compare.isOpenIn('b')).toBe(true);
});

test('a model that is chosen while the others are looked for is looked for too, before both are asked', async () => {
  const looks = holdLook();
  chat.openCompare(['m', 'n']);
  const starting = chat.compare.start();
  const second = chat.compare.columns[1];
  if (second) second.model = 'o';
  looks[0]?.done(null);
  await settle();
  expect(looks.map(({ named }) => named)).toEqual([
    ['m', 'n'],
    ['m', 'o'],
  ]);
  expect(calls('compare')).toEqual([]);
  looks[1]?.done(null);
  await starting;
  expect(calls('compare')[0]).toMatchObject({ columns: [{ model: 'm' }, { model: 'o' }] });
});

test('a comparison that is closed before its reply comes shows nothing in the next one', async () => {
  const reply = gate<Reply>();
  platform.answers.compare = reply.promise;
  chat.openCompare(['m', 'n']);
  const starting = chat.compare.start();
  await settle();
  chat.compare.close();
  chat.openCompare(['m', 'n']);
  reply.open({ type: 'compared', conversation: conversation('a'), messages: [answer('a'), answer('b')] });
  await starting;
  expect(chat.compare.answers).toEqual([]);
  expect(chat.thread?.messages.map(({ id }) => id)).toEqual(['q', 'a']);
});

test('the next question to both is not asked of a comparison that was closed', async () => {
  now = { a: answer('a', { status: 'complete' }), b: answer('b', { status: 'complete' }) };
  await begin();
  const looks = holdLook();
  const asking = chat.compare.askBoth('And then?');
  chat.compare.close();
  looks[0]?.done(null);
  expect(await asking).toBe(false);
  expect(calls('ask_both')).toEqual([]);
});
