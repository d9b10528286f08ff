// Finding a model: the pause before a search, names that are pasted, and replies that come too late.
import { expect, test } from 'vitest';
import { CallError } from '../platform/platform';
import type { Reply } from '../platform/wire';
import { FakeClock } from '../testing/clock';
import { facts, FakePlatform, found, gate, hubModel, memory, recommended, settle } from '../testing/fake';
import { DiscoverStore } from './discover.svelte';
import { hubNameIn } from './names';

function open() {
  const platform = new FakePlatform();
  const clock = new FakeClock();
  return { platform, clock, discover: new DiscoverStore({ platform, after: clock.after }) };
}

const results = (...names: string[]): Reply => ({ type: 'found_models', models: names.map((name) => found(name)) });
const card = (name: string): Reply => ({ type: 'hub_model', model: hubModel(name) });
const offline = new CallError('offline', 'No route.');
const names = (models: { name: string }[]) => models.map(({ name }) => name);

test('a search waits for a pause in typing', async () => {
  const { clock, discover, platform } = open();
  platform.answers.search_models = results('a/b');
  for (const text of ['q', 'qw', 'qwen']) discover.type(text);
  expect([platform.asked, clock.waits, discover.isSearching]).toEqual([[], [300], true]);
  clock.run();
  await settle();
  expect(platform.asked).toEqual([{ type: 'search_models', text: 'qwen' }]);
  expect([names(discover.shownFound), discover.isSearching]).toEqual([['a/b'], false]);
});

test('a reply to what is no longer asked is ignored', async () => {
  const { discover, platform } = open();
  const [first, second] = [gate<Reply>(), gate<Reply>()];
  platform.answers.search_models = (command) =>
    command.type === 'search_models' && command.text === 'one' ? first.promise : second.promise;
  discover.type('one', true);
  discover.type('two', true);
  second.open(results('a/two'));
  await settle();
  first.open(results('a/one'));
  await settle();
  expect(names(discover.shownFound)).toEqual(['a/two']);
  discover.type('');
  expect([discover.found, discover.isSearch]).toEqual([null, false]);
});

test.each<[typed: string, name: string | null]>([
  ['owner/name', 'owner/name'],
  [' mlx-community/Qwen3-4B-4bit ', 'mlx-community/Qwen3-4B-4bit'],
  ['https://huggingface.co/owner/name', 'owner/name'],
  ['https://huggingface.co/owner/name/tree/main?x=1#y', 'owner/name'],
  ['hf.co/owner/name', 'owner/name'],
  ['qwen3 4b', null],
  ['qwen/', null],
  ['https://example.com/owner/name', null],
  ['../../etc', null],
  ['owner/..', null],
])('the name in %j is %j', (typed, name) => {
  expect(hubNameIn(typed)).toBe(name);
});

test('a pasted address opens the card at once', async () => {
  const { clock, discover, platform } = open();
  platform.answers.get_hub_model = card('owner/name');
  discover.type('https://huggingface.co/owner/name', true);
  await settle();
  expect(clock.waits).toEqual([]);
  expect(platform.asked).toEqual([{ type: 'get_hub_model', name: 'owner/name' }]);
  expect([discover.exactName, discover.card?.model?.name]).toEqual(['owner/name', 'owner/name']);
});

test('a name that the hub does not have is searched for', async () => {
  const { discover, platform } = open();
  platform.answers.get_hub_model = new CallError('not_found', 'There is no such model.');
  platform.answers.search_models = results('owner/name-4bit');
  discover.type('owner/nam', true);
  await settle();
  expect([names(discover.shownFound), discover.exactName, discover.trouble]).toEqual([['owner/name-4bit'], null, null]);
});

test('offline is a state that is left by trying again', async () => {
  const { discover, platform } = open();
  platform.answers.search_models = offline;
  discover.type('qwen', true);
  await settle();
  expect(discover.trouble).toEqual({ why: 'offline', sentence: 'No route.' });
  platform.answers.search_models = results('a/b');
  await discover.search();
  expect([discover.trouble, names(discover.shownFound)]).toEqual([null, ['a/b']]);
});

test('only the card that was opened last is shown', async () => {
  const { discover, platform } = open();
  const slow = gate<Reply>();
  platform.answers.get_hub_model = (command) =>
    command.type === 'get_hub_model' && command.name === 'a/slow' ? slow.promise : card('a/fast');
  discover.toggleCard('a/slow');
  discover.toggleCard('a/fast');
  await settle();
  slow.open(card('a/slow'));
  await settle();
  expect(discover.card?.model?.name).toBe('a/fast');
  discover.toggleCard('a/fast');
  expect(discover.card).toBeNull();
});

test('suggestions keep their order, and those with a choice are offered first', async () => {
  const { discover, platform } = open();
  platform.answers.get_recommended_models = {
    type: 'recommended_models',
    memory_bytes: 2 ** 34,
    models: [
      recommended('first', { choices: ['start'], facts: facts({ memory: memory({ fit: 'tight' }) }) }),
      recommended('both', { choices: ['better', 'code'] }),
      recommended('other'),
    ],
  };
  await Promise.all([discover.loadRecommended(), discover.loadRecommended()]);
  await discover.loadRecommended();
  expect(platform.askedTypes()).toEqual(['get_recommended_models']);
  expect(names(discover.recommended ?? [])).toEqual(['first', 'both', 'other']);
  expect(names(discover.choices)).toEqual(['first', 'both']);
});

test('results are filtered by their weights and put in order', async () => {
  const { discover, platform } = open();
  platform.answers.get_recommended_models = {
    type: 'recommended_models',
    memory_bytes: 2 ** 34,
    models: [recommended('r')],
  };
  platform.answers.search_models = {
    type: 'found_models',
    models: [
      found('huge', { parameters: 70e9 }),
      found('plain', { parameters: 8e9, quantization_bits: null, downloads: 1 }),
      found('small', { parameters: 1e9, downloads: 2, updated_at_ms: 5 }),
      found('unknown', { parameters: null, downloads: 3 }),
    ],
  };
  await discover.loadRecommended();
  discover.type('x', true);
  await settle();
  expect([names(discover.shownFound), discover.numHidden]).toEqual([['small', 'unknown'], 2]);
  discover.onlyFitting = false;
  const orders = (['downloads', 'newest', 'smallest'] as const).map((order) => {
    discover.sort = order;
    return discover.shownFound[0]?.name;
  });
  expect(orders).toEqual(['huge', 'small', 'small']);
});
