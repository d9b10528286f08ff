// Actions on saved context, and when the page fetches it again.
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { App } from '../app.svelte';
import { CallError } from '../platform/platform';
import {
  bootstrap,
  conversation,
  FakePlatform,
  gate,
  saved,
  startingPoint,
  node,
  overview,
  settle,
} from '../testing/fake';
import type { Reply } from '../platform/wire';

beforeEach(() => {
  localStorage.clear();
  vi.useFakeTimers();
});
afterEach(() => vi.useRealTimers());

async function start() {
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap({
      conversations: [conversation('a', { cache: saved() }), conversation('b')],
      named: [startingPoint('x'), startingPoint('y')],
    }),
    get_conversation: { type: 'conversation', conversation: conversation('a'), messages: [] },
    get_cache: {
      type: 'cache',
      cache: overview({ named: [startingPoint('x'), startingPoint('y')], nodes: [node('k')] }),
    },
  };
  const app = new App(platform, { storage: localStorage, nextFrame: (run) => run() });
  app.start();
  platform.connect('open');
  await settle();
  platform.asked.length = 0;
  return {
    app,
    platform,
    cache: app.cache,
    names: () => app.cache.startingPoints.map(({ name }) => name),
    toasts: () => app.toasts.items.map(({ text }) => text),
    numAsked: () => platform.askedTypes().filter((type) => type === 'get_cache').length,
  };
}

test('starting points are known from the start and follow events', async () => {
  const { names, platform } = await start();
  expect(names()).toEqual(['Name x', 'Name y']);
  platform.emit({ type: 'named_caches', named: [startingPoint('z')] });
  expect(names()).toEqual(['Name z']);
});

test('changes are asked for at most once a second, and only while the page is open', async () => {
  const { app, numAsked, platform } = await start();
  vi.advanceTimersByTime(5000);
  platform.emit({ type: 'cache_changed' });
  await vi.advanceTimersByTimeAsync(5000);
  expect(numAsked()).toBe(0);

  app.openSaved();
  await settle();
  expect(numAsked()).toBe(1);
  for (let turn = 0; turn < 30; turn++) {
    platform.emit({ type: 'cache_changed' });
    await vi.advanceTimersByTimeAsync(100);
  }
  expect(numAsked()).toBe(4);

  platform.emit({ type: 'cache_changed' });
  app.closePage();
  await vi.advanceTimersByTimeAsync(5000);
  expect(numAsked()).toBe(4);
});

test('a change while the answer is on its way is asked for afterwards', async () => {
  const { app, cache, numAsked, platform } = await start();
  const answer = gate<Reply>();
  platform.answers.get_cache = answer.promise;
  app.openSaved();
  platform.emit({ type: 'cache_changed' }, { type: 'cache_changed' });
  await vi.advanceTimersByTimeAsync(3000);
  expect(numAsked()).toBe(1);
  platform.answers.get_cache = { type: 'cache', cache: overview({ num_chunks: 99 }) };
  answer.open({ type: 'cache', cache: overview() });
  await vi.advanceTimersByTimeAsync(0);
  expect(numAsked()).toBe(2);
  expect(cache.overview?.num_chunks).toBe(99);
});

test('an overview that cannot be loaded says why, and the starting points stay', async () => {
  const { app, cache, platform } = await start();
  platform.answers.get_cache = new CallError('storage', 'The disk is gone.');
  app.openSaved();
  await settle();
  expect([cache.problem, cache.startingPoints.length]).toEqual(['The disk is gone.', 2]);
});

test.each<[name: string, failure: CallError | null, isPinned: boolean]>([
  ['a pin is shown at once', null, true],
  ['a pin that was refused is removed again', new CallError('storage', 'No.'), false],
])('%s', async (_, failure, isPinned) => {
  const { app, cache, platform } = await start();
  if (failure) platform.answers.pin_conversation = failure;
  const pinning = cache.pin('a', true);
  expect(app.chat.list.get('a')?.cache?.is_pinned).toBe(true);
  await pinning;
  expect(app.chat.list.get('a')?.cache?.is_pinned).toBe(isPinned);
  expect(platform.asked).toEqual([{ type: 'pin_conversation', id: 'a', is_pinned: true }]);
});

test('deleting the saved context of a chat leaves the chat', async () => {
  const { app, cache, platform, toasts } = await start();
  await cache.deleteSaved('a');
  expect(platform.asked).toEqual([{ type: 'purge_conversation', id: 'a' }]);
  expect(app.chat.list.get('a')).toMatchObject({ title: 'Title a', cache: null });
  expect(toasts()).toEqual(['Deleted the saved context that only “Title a” used. Its messages stay.']);
});

test('what is still saved after deleting is shown, whenever it is told', async () => {
  const { app, cache, platform } = await start();
  const remaining = saved({ cached_tokens: 24, own_bytes: 0 });
  platform.answers.purge_conversation = () => {
    platform.emit({ type: 'conversation', conversation: conversation('a', { cache: remaining }) });
    return { type: 'done' };
  };
  await cache.deleteSaved('a');
  expect(app.chat.list.get('a')?.cache).toEqual(remaining);
});

test('what could not be deleted is still shown as saved', async () => {
  const { app, cache, platform, toasts } = await start();
  platform.answers.purge_conversation = new CallError('storage', 'No.');
  await cache.deleteSaved('a');
  expect(app.chat.list.get('a')?.cache).not.toBeNull();
  expect(toasts()).toEqual(['No.']);
});

test('saving a starting point closes the dialog, which says that a name is taken', async () => {
  const { cache, names, platform, toasts } = await start();
  cache.askForName('a');
  platform.answers.save_named_cache = new CallError('invalid', 'There is one of this name.');
  await cache.save(' Notes ');
  expect([cache.savingId, cache.saveProblem, toasts()]).toEqual(['a', 'There is one of this name.', []]);
  platform.answers.save_named_cache = { type: 'named', named: startingPoint('n', { name: 'Notes' }) };
  await cache.save(' Notes ');
  expect(platform.asked.at(-1)).toEqual({ type: 'save_named_cache', conversation_id: 'a', name: 'Notes' });
  expect([cache.savingId, names()]).toEqual([null, ['Notes', 'Name x', 'Name y']]);
});

test.each<[name: string, typed: string, isAsked: boolean, expected: string]>([
  ['a new name', ' New ', true, 'New'],
  ['the same name', 'Name x', false, 'Name x'],
  ['no name', ' ', false, 'Name x'],
])('renaming to %s', async (_, typed, isAsked, expected) => {
  const { cache, names, platform } = await start();
  cache.renamingId = 'x';
  await cache.rename('x', typed);
  expect(platform.askedTypes().includes('rename_named_cache')).toBe(isAsked);
  expect([names()[0], cache.renamingId]).toEqual([expected, null]);
});

test('a name that is taken is said where it was typed', async () => {
  const { cache, names, platform, toasts } = await start();
  platform.answers.rename_named_cache = new CallError('invalid', 'There is one of this name.');
  cache.askForRename('x');
  await cache.rename('x', 'Name y');
  expect(names()).toEqual(['Name x', 'Name y']);
  expect([cache.renamingId, cache.renameProblem, toasts()]).toEqual(['x', 'There is one of this name.', []]);
  cache.askForRename(null);
  expect(cache.renameProblem).toBeNull();
});

test('a name that is refused while another is being typed is told in a message', async () => {
  const { cache, platform, toasts } = await start();
  platform.answers.rename_named_cache = new CallError('invalid', 'There is one of this name.');
  cache.askForRename('x');
  const renaming = cache.rename('x', 'Name y');
  cache.askForRename('y');
  await renaming;
  expect([cache.renamingId, cache.renameProblem, toasts()]).toEqual(['y', null, ['There is one of this name.']]);
});

test('a deleted starting point is gone at once, and Undo brings it back', async () => {
  const { app, cache, names, platform, toasts } = await start();
  await cache.deleteStartingPoint('x');
  expect([names(), toasts()]).toEqual([['Name y'], ['Deleted “Name x”.']]);
  app.toasts.act(app.toasts.items[0]?.id ?? 0);
  await settle();
  expect(platform.asked.at(-1)).toEqual({ type: 'restore_named_cache', id: 'x' });
  expect(names()).toEqual(['Name x', 'Name y']);
});

test('a starting point that could not be deleted stays', async () => {
  const { cache, names, platform, toasts } = await start();
  platform.answers.delete_named_cache = new CallError('storage', 'The disk is full.');
  await cache.deleteStartingPoint('x');
  expect([names(), toasts()]).toEqual([['Name x', 'Name y'], ['The disk is full.']]);
});

test('deleting all saved context asks for the page again', async () => {
  const { app, cache, platform } = await start();
  app.openSaved();
  await settle();
  await cache.deleteAll();
  expect(platform.askedTypes()).toEqual(['get_cache', 'clear_cache', 'get_cache']);
});

test.each<[name: string, answer: boolean | Error, toasts: string[]]>([
  ['that worked', true, ['Exported “A/B: notes?”.']],
  ['that the person gave up', false, []],
  ['that failed', new CallError('storage', 'The disk is full.'), ['The disk is full.']],
])('an export %s', async (_, answer, expected) => {
  const { cache, platform, toasts } = await start();
  platform.exportAnswer = answer;
  cache.askForExport({ type: 'named', id: 'x' }, 'A/B: notes?');
  const exporting = cache.export('0.32');
  expect(toasts()).toEqual(['Exporting “A/B: notes?”…']);
  await exporting;
  expect(platform.exported).toEqual([[{ type: 'named', id: 'x' }, '0.32', 'A B notes.safetensors']]);
  expect(toasts()).toEqual(expected);
});

test('an export of a chat says that it is its saved context', async () => {
  const { cache, toasts } = await start();
  cache.askForExport({ type: 'conversation', id: 'a' }, 'Title a');
  const exporting = cache.export('0.32');
  expect(toasts()).toEqual(['Exporting the saved context of “Title a”…']);
  await exporting;
  expect(toasts()).toEqual(['Exported the saved context of “Title a”.']);
});

test('a chat from a starting point is opened instead of the page, with the draft in it', async () => {
  const { app, platform } = await start();
  app.newChat();
  app.chat.draft = 'Hello';
  app.openSaved();
  platform.answers.new_conversation_from = { type: 'conversation', conversation: conversation('new'), messages: [] };
  await app.startFrom('x');
  expect(platform.asked).toContainEqual({ type: 'new_conversation_from', named_id: 'x' });
  expect([app.navigation.page, app.chat.selectedId, app.chat.draft, app.cache.isOpen]).toEqual([
    'chat',
    'new',
    'Hello',
    false,
  ]);
  expect(platform.askedTypes()).not.toContain('get_conversation');
});

test('a chat that could not be started leaves the page as it was', async () => {
  const { app, platform, toasts } = await start();
  app.openSaved();
  platform.answers.new_conversation_from = new CallError('engine', 'That model is not there.');
  await app.startFrom('x');
  expect([app.navigation.page, toasts(), app.cache.isStarting]).toEqual(['saved', ['That model is not there.'], false]);
});
