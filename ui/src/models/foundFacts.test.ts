// What search results take in memory: how many are asked for, and that each is asked for once.
import { expect, test } from 'vitest';
import { facts, FakePlatform, found, gate, memory, recommended, settle } from '../testing/fake';
import type { Reply } from '../platform/wire';
import { DiscoverStore } from './discover.svelte';
import { FoundFacts } from './foundFacts.svelte';

const reply = (fit: 'well' | 'too_large'): Reply => ({
  type: 'model_facts',
  facts: facts({ memory: memory({ fit }) }),
});

test('four are asked for at once, each once, and a row that has gone not at all', async () => {
  const platform = new FakePlatform();
  const gates = new Map<string, ReturnType<typeof gate<Reply>>>();
  platform.answers.get_model_facts = (command) => {
    const opened = gate<Reply>();
    if (command.type === 'get_model_facts') gates.set(command.name, opened);
    return opened.promise;
  };
  const all = new FoundFacts(platform);
  for (const name of ['a', 'b', 'c', 'd', 'e', 'f', 'a']) all.want(name);
  expect([...gates.keys()]).toEqual(['a', 'b', 'c', 'd']);
  all.forget('e');
  gates.get('b')?.open(reply('well'));
  await settle();
  expect([...gates.keys()]).toEqual(['a', 'b', 'c', 'd', 'f']);
  expect([all.get('b')?.memory.fit, all.get('a')]).toEqual(['well', null]);
  all.want('b');
  all.want('e');
  expect(gates.size).toBe(5);
});

test('what cannot be known is not asked for again', async () => {
  const platform = new FakePlatform();
  platform.answers.get_model_facts = new Error('It has no weights.');
  const all = new FoundFacts(platform);
  all.want('a');
  await settle();
  all.want('a');
  expect([platform.asked.length, all.get('a')]).toEqual([1, null]);
});

test('the filter follows what is known of a model, else its weights', async () => {
  const platform = new FakePlatform();
  const discover = new DiscoverStore({ platform });
  platform.answers = {
    get_recommended_models: { type: 'recommended_models', models: [recommended('r')], memory_bytes: 2 ** 34 },
    search_models: { type: 'found_models', models: [found('a/long'), found('a/unknown'), found('a/good')] },
    get_model_facts: (command) =>
      reply(command.type === 'get_model_facts' && command.name === 'a/long' ? 'too_large' : 'well'),
  };
  await discover.loadRecommended();
  discover.type('a', true);
  await settle();
  const shown = () => discover.shownFound.map(({ name }) => name);
  expect(shown()).toEqual(['a/long', 'a/unknown', 'a/good']);
  for (const name of ['a/long', 'a/good']) discover.facts.want(name);
  await settle();
  expect([shown(), discover.numHidden]).toEqual([['a/unknown', 'a/good'], 1]);
  discover.onlyFitting = false;
  expect(shown()).toHaveLength(3);
});
