// What is asked about models, such as what search results take in memory: how many at once, and how often.
import { expect, test } from 'vitest';
import { facts, FakePlatform, found, gate, memory, recommended, settle } from '../testing/fake';
import type { ModelFacts, Reply } from '../platform/wire';
import { Asked } from './asked.svelte';
import { DiscoverStore } from './discover.svelte';

const reply = (fit: 'well' | 'too_large'): Reply => ({
  type: 'model_facts',
  facts: facts({ memory: memory({ fit }) }),
});

test('four are asked for at once, each once, and a row that has gone not at all', async () => {
  const gates = new Map<string, ReturnType<typeof gate<string>>>();
  const all = new Asked((name) => {
    const opened = gate<string>();
    gates.set(name, opened);
    return opened.promise;
  });
  for (const name of ['a', 'b', 'c', 'd', 'e', 'f', 'a']) all.want(name);
  expect([...gates.keys()]).toEqual(['a', 'b', 'c', 'd']);
  all.forget('e');
  gates.get('b')?.open('known');
  await settle();
  expect([...gates.keys()]).toEqual(['a', 'b', 'c', 'd', 'f']);
  expect([all.get('b'), all.get('a')]).toEqual(['known', undefined]);
  all.want('b');
  all.want('e');
  expect(gates.size).toBe(5);
});

test('what failed is asked for again when a row shows it again, what is known only when it may have changed', async () => {
  let answer: () => Promise<ModelFacts | null> = () => Promise.reject(new Error('The connection was cut.'));
  let numAsked = 0;
  const all = new Asked(() => {
    numAsked++;
    return answer();
  });
  all.want('a');
  await settle();
  expect([numAsked, all.get('a')]).toEqual([1, undefined]);
  // That there are none is an answer, too.
  answer = async () => null;
  all.want('a');
  await settle();
  all.want('a');
  await settle();
  expect([numAsked, all.get('a')]).toEqual([2, null]);
  answer = async () => facts();
  all.renew('a');
  expect(all.get('a')).toBe(null);
  await settle();
  expect([numAsked, all.get('a')]).toEqual([3, facts()]);
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
