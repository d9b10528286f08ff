// The messages of one chat stay equal to the core's, in whatever order events and replies arrive.
import { expect, test, vi } from 'vitest';
import type { AnswerSegment, Message } from '../platform/wire';
import { gate, message, settle } from '../testing/fake';
import { readable } from './segments';
import { Thread, type ThreadEvent } from './thread.svelte';

const delta = (offset: number, text: string, segment = 0): ThreadEvent => ({
  type: 'delta',
  conversation_id: 'a',
  message_id: 'm',
  segment,
  offset,
  text,
});
const begins = (index: number, segment: AnswerSegment): ThreadEvent => ({
  type: 'segment',
  conversation_id: 'a',
  message_id: 'm',
  index,
  segment,
});
const said = (text: string): AnswerSegment => ({ kind: 'text', text });
const thought = (text: string, duration_ms: number | null): AnswerSegment => ({
  kind: 'reasoning',
  text,
  began_at_ms: 1,
  duration_ms,
});
const writing = (text: string): Message => message('m', { status: 'streaming', text, segments: [said(text)] });
const whole = (next: Message): ThreadEvent => ({ type: 'message', message: next });

/** A thread that draws frames at once and takes its replies from a list. */
async function open(...answers: (Message[] | Promise<Message[]>)[]) {
  const fetch = vi.fn(async () => (await answers.shift()) ?? []);
  const onFinished = vi.fn();
  const thread = new Thread({ fetch, onFinished, nextFrame: (run) => run() });
  await thread.refetch();
  return { thread, fetch, onFinished };
}

const textOf = (thread: Thread) => readable(thread.messages.at(-1)?.segments ?? []);
const segmentsOf = (thread: Thread) => thread.messages.at(-1)?.segments;

test.each<[name: string, start: string, deltas: [number, string][], text: string]>([
  [
    'in order',
    '',
    [
      [0, 'He'],
      [2, 'llo'],
    ],
    'Hello',
  ],
  [
    'twice',
    'He',
    [
      [0, 'He'],
      [2, 'llo'],
      [2, 'llo'],
    ],
    'Hello',
  ],
  [
    'overlapping',
    'Hel',
    [
      [1, 'ello'],
      [5, '!'],
    ],
    'Hello!',
  ],
  [
    'counted in UTF-16 units',
    '🪨',
    [
      [2, '🪨'],
      [4, 'x'],
    ],
    '🪨🪨x',
  ],
])('deltas %s', async (_, start, deltas, text) => {
  const { thread, fetch } = await open([writing(start)]);
  for (const [offset, part] of deltas) thread.receive(delta(offset, part));
  expect(textOf(thread)).toBe(text);
  expect(fetch).toHaveBeenCalledTimes(1);
});

test('text is drawn once a frame, and counted before it is drawn', async () => {
  const frames: (() => void)[] = [];
  const thread = new Thread({ fetch: async () => [writing('')], nextFrame: (run) => frames.push(run) });
  await thread.refetch();
  for (const [index, part] of ['a', 'b', 'c'].entries()) thread.receive(delta(index, part));
  expect(frames).toHaveLength(1);
  expect(textOf(thread)).toBe('');
  frames[0]?.();
  expect(textOf(thread)).toBe('abc');
});

test.each<[name: string, answer: string]>([
  ['reaches up to the gap', 'Hell'],
  ['reaches into what came meanwhile', 'Hello'],
  ['has it all', 'Hello!'],
])('a gap asks again, and what comes meanwhile is laid over an answer that %s', async (_, text) => {
  const answer = gate<Message[]>();
  const { thread, fetch } = await open([writing('He')], answer.promise);
  thread.receive(delta(4, 'o'));
  thread.receive(delta(5, '!'));
  expect(textOf(thread)).toBe('He');
  answer.open([writing(text)]);
  await settle();
  expect(textOf(thread)).toBe('Hello!');
  expect(fetch).toHaveBeenCalledTimes(2);
});

test('a gap that the answer leaves open is asked about again later, not at once', async () => {
  vi.useFakeTimers();
  const { thread, fetch } = await open([writing('')], [writing('ab')], [writing('abcdef')]);
  thread.receive(delta(4, 'e'));
  thread.receive(delta(5, 'f'));
  await settle();
  expect(fetch).toHaveBeenCalledTimes(2);
  await vi.advanceTimersByTimeAsync(600);
  expect(fetch).toHaveBeenCalledTimes(3);
  expect(textOf(thread)).toBe('abcdef');
  vi.useRealTimers();
});

test('an end that overtakes an older answer is not undone by it', async () => {
  const answer = gate<Message[]>();
  const { thread, onFinished } = await open([writing('')], answer.promise);
  thread.receive(delta(9, 'gap'));
  thread.receive(whole(message('m', { text: 'All of it.' })));
  answer.open([writing('All')]);
  await settle();
  expect(thread.isStreaming).toBe(false);
  expect(textOf(thread)).toBe('All of it.');
  expect(onFinished).toHaveBeenCalledTimes(1);
});

test('a whole message replaces what was there, pending text included', async () => {
  const frames: (() => void)[] = [];
  const thread = new Thread({ fetch: async () => [writing('')], nextFrame: (run) => frames.push(run) });
  await thread.refetch();
  thread.receive(delta(0, 'draft'));
  thread.receive(whole(message('m', { status: 'stopped', text: 'dra' })));
  for (const run of frames) run();
  expect(textOf(thread)).toBe('dra');
});

test('a second answer replaces the first', async () => {
  const user = message('u', { role: 'user', text: 'Why?' });
  const { thread } = await open([user, message('one', { parent_id: 'u', text: 'Because.' })]);
  thread.receive(whole(message('two', { parent_id: 'u', status: 'streaming' })));
  expect(thread.messages.map(({ id }) => id)).toEqual(['u', 'two']);
});

test('of many messages that an import brought, those around the view are drawn', async () => {
  const chat = (length: number) =>
    Array.from({ length }, (_, index) => message(`m${index}`, { parent_id: index > 0 ? `m${index - 1}` : null }));
  const { thread } = await open(chat(4), chat(500));
  await thread.refetch();
  const drawn = thread.drawn.rows(thread.messages).filter(({ gap }) => gap === null);
  expect(drawn.map(({ message: { id } }) => id)).toEqual(['m494', 'm495', 'm496', 'm497', 'm498', 'm499']);
});

test('a message whose parent is unknown leads to asking again', async () => {
  vi.useFakeTimers();
  const user = message('u', { role: 'user' });
  const { thread, fetch } = await open(
    [user],
    [user, message('x', { parent_id: 'u' }), message('y', { parent_id: 'x' })],
  );
  thread.receive(whole(message('y', { parent_id: 'x' })));
  await vi.advanceTimersByTimeAsync(600);
  expect(fetch).toHaveBeenCalledTimes(2);
  expect(thread.messages.map(({ id }) => id)).toEqual(['u', 'x', 'y']);
  vi.useRealTimers();
});

test('rows that the events brought first are not put back by the reply', async () => {
  const { thread } = await open([]);
  thread.receive(whole(writing('')));
  thread.receive(delta(0, 'Already'));
  thread.add([writing('')]);
  expect(textOf(thread)).toBe('Already');
});

test('progress is shown until the first word', async () => {
  const { thread } = await open([writing('')]);
  thread.receive({
    type: 'prefill',
    conversation_id: 'a',
    message_id: 'm',
    processed_tokens: 3,
    total_tokens: 9,
    cached_tokens: 1,
  });
  expect(thread.prefill?.processed_tokens).toBe(3);
  thread.receive(delta(0, 'x'));
  expect(thread.prefill).toBeNull();
});

test('of a long conversation the end is drawn, and the rest when it is asked for', async () => {
  const many = Array.from({ length: 120 }, (_, index) =>
    message(`m${index}`, { parent_id: index ? `m${index - 1}` : null }),
  );
  const { thread } = await open(many);
  const rows = () => thread.drawn.rows(thread.messages);
  expect(rows()[0]?.gap).toMatchObject({ first: 0, count: 114 });
  expect(
    rows()
      .slice(1)
      .map(({ message }) => message.id)[0],
  ).toBe('m114');
  thread.receive(whole(message('new', { parent_id: 'm119' })));
  expect(rows().at(-1)).toMatchObject({ gap: null, message: { id: 'new' } });
  const before = rows()[0]?.gap?.height ?? 0;
  thread.drawn.draw(thread.messages, 50, 2);
  expect(
    rows()
      .map(({ gap, message }) => (gap ? gap.count : message.id))
      .slice(0, 4),
  ).toEqual([50, 'm50', 'm51', 62]);
  const after = rows().reduce((sum, { gap }) => sum + (gap?.height ?? 0), 0);
  expect(after).toBeCloseTo((before * 112) / 114);
  thread.drawn.begin(thread.messages, { id: 'm60', top: 0 });
  expect(
    rows()
      .map(({ gap, message }) => (gap ? gap.count : message.id))
      .slice(0, 2),
  ).toEqual([58, 'm58']);
});

test('when the messages cannot be fetched the reason is shown', async () => {
  const thread = new Thread({
    fetch: async () => {
      throw new Error('Gone.');
    },
  });
  await thread.refetch();
  expect([thread.isLoaded, String(thread.problem)]).toEqual([false, 'Error: Gone.']);
});

test('segments come one after another, and are replaced when they end', async () => {
  const { thread, fetch } = await open([message('m', { status: 'streaming' })]);
  thread.receive(begins(0, thought('Hm', null)));
  thread.receive(delta(2, ', yes.'));
  thread.receive(begins(0, thought('Hm, yes.', 1200)));
  thread.receive(begins(1, said('It')));
  thread.receive(delta(2, ' is.', 1));
  expect(segmentsOf(thread)).toEqual([thought('Hm, yes.', 1200), said('It is.')]);
  const call = { kind: 'tool_call' as const, name: 'look', arguments: '{', outcome: null, raw: '' };
  thread.receive(begins(2, call));
  thread.receive(delta(1, '}', 2));
  expect(segmentsOf(thread)?.[2]).toEqual({ ...call, arguments: '{}' });
  expect(fetch).toHaveBeenCalledTimes(1);
});

test('segments that were fetched already do not come again', async () => {
  const known = message('m', { status: 'streaming', segments: [thought('Hm, yes.', 1200), said('It is')] });
  const { thread, fetch } = await open([known]);
  thread.receive(begins(0, thought('Hm', null)));
  thread.receive(delta(2, ', yes.'));
  thread.receive(begins(1, said('It')));
  thread.receive(delta(2, ' is.', 1));
  expect(segmentsOf(thread)).toEqual([thought('Hm, yes.', 1200), said('It is.')]);
  expect(fetch).toHaveBeenCalledTimes(1);
});

test.each<[name: string, event: ThreadEvent]>([
  ['a segment behind one that is not known', begins(2, said('late'))],
  ['text of a segment that is not known', delta(0, 'late', 1)],
])('%s asks again', async (_, event) => {
  const { thread, fetch } = await open([writing('He')], [writing('Hello')]);
  thread.receive(event);
  await settle();
  expect(fetch).toHaveBeenCalledTimes(2);
  expect(textOf(thread)).toBe('Hello');
});

const user = (id: string, parent_id: string | null = null) => message(id, { role: 'user', parent_id, text: id });
const ids = (thread: Thread) => thread.messages.map(({ id }) => id);

test('how long a summary takes is known once some of it is written', async () => {
  let now = 0;
  const thread = new Thread({ fetch: async () => [writing('')], now: () => now });
  await thread.refetch();
  const left = (milliseconds: number, processed_tokens: number, written_tokens: number) => {
    now = milliseconds;
    const counts = { processed_tokens, total_tokens: 100, written_tokens, limit_tokens: 1000 };
    thread.receive({ type: 'summarizing', conversation_id: 'a', message_id: 'm', ...counts });
    return thread.summarizing?.secondsLeft;
  };
  expect(left(0, 0, 0)).toBeNull();
  expect(left(60_000, 50, 0)).toBeNull();
  // How long the reading took says nothing about the writing.
  expect(left(100_000, 100, 1)).toBeNull();
  expect(left(110_000, 100, 101)).toBe(90);
  expect(left(130_000, 100, 201)).toBe(90);
  expect(left(140_000, 100, 901)).toBe(5);
});

test('another branch takes the place of what followed', async () => {
  const { thread, fetch } = await open([user('u'), message('m', { parent_id: 'u' }), user('v', 'm')]);
  thread.editing = { id: 'v', text: 'half', documents: [], attached: [] };
  const other = message('n', { parent_id: 'u', versions: ['m', 'n'] });
  thread.receive({ type: 'branch', conversation_id: 'a', after: 'u', messages: [other] });
  expect(ids(thread)).toEqual(['u', 'n']);
  expect(thread.last?.versions).toEqual(['m', 'n']);
  expect([thread.editing, thread.numSwitches]).toEqual([null, 1]);
  thread.receive({ type: 'branch', conversation_id: 'a', after: null, messages: [user('w')] });
  expect(ids(thread)).toEqual(['w']);
  thread.receive({ type: 'branch', conversation_id: 'a', after: 'w', messages: [] });
  expect(ids(thread)).toEqual(['w']);
  expect(fetch).toHaveBeenCalledTimes(1);
});

test('a branch behind a message that is not known is fetched', async () => {
  vi.useFakeTimers();
  const { thread, fetch } = await open([user('u')], [user('x')]);
  thread.receive({ type: 'branch', conversation_id: 'a', after: 'elsewhere', messages: [] });
  await vi.runAllTimersAsync();
  expect(fetch).toHaveBeenCalledTimes(2);
  expect(ids(thread)).toEqual(['x']);
  vi.useRealTimers();
});

test('another branch is drawn, whatever was drawn of the one before', async () => {
  const chain = (name: string, count: number, parent: string | null) =>
    Array.from({ length: count }, (_, index) => user(`${name}${index}`, index ? `${name}${index - 1}` : parent));
  const { thread } = await open(chain('u', 120, null));
  const drawn = () =>
    thread.drawn
      .rows(thread.messages)
      .filter(({ gap }) => gap === null)
      .map(({ message }) => message.id);
  thread.receive({ type: 'branch', conversation_id: 'a', after: 'u9', messages: [user('other', 'u9')] });
  expect(drawn()).toEqual(['other']);
  thread.receive({ type: 'branch', conversation_id: 'a', after: 'u9', messages: chain('v', 100, 'u9') });
  expect(drawn()).toContain('v0');
  expect(drawn().length).toBeLessThan(20);
});

test('an answer that goes on is the same message', async () => {
  const { thread } = await open([user('u'), message('m', { parent_id: 'u', status: 'stopped', text: 'Half' })]);
  thread.receive(whole(writing('Half')));
  expect(thread.isStreaming).toBe(true);
  thread.receive(begins(0, said('Half')));
  thread.receive(delta(4, ' and half'));
  expect(thread.last?.segments).toEqual([said('Half and half')]);
  expect(thread.messages.length).toBe(2);
});

test('answers say which model wrote them where there are several', async () => {
  const { thread } = await open([user('u'), message('m', { parent_id: 'u', model: 'one' })]);
  expect(thread.hasSeveralModels).toBe(false);
  thread.receive(whole(user('v', 'm')));
  thread.receive(whole(message('n', { parent_id: 'v', model: 'two' })));
  expect(thread.hasSeveralModels).toBe(true);
});
