// Every reason for reading again has its sentence, and where there is something that prevents it, its action.
import { expect, test } from 'vitest';
import type { CacheMiss, MissCause } from '../platform/wire';
import { de } from '../text/de';
import { en } from '../text/en';
import { causeWords, remedyOf, remedyWords, type Circumstances, type Remedy } from './misses';

const DAY = 86_400_000;
const now: Circumstances = {
  isPinned: false,
  isPrivate: false,
  systemPrompt: 'Be verbose.',
  settings: { cache_budget_bytes: 20e9, cache_ram_budget_bytes: 2e9 },
  models: ['owner/model', 'owner/other'],
  loaded: 'owner/model',
};
const memoryOnly = { settings: { cache_budget_bytes: 0, cache_ram_budget_bytes: 2e9 } };
const miss = (cause: MissCause, detail: string | null = null, at_ms: number | null = null): CacheMiss => ({
  tokens: 10,
  cause,
  detail,
  at_ms,
});

/** One row at least for each cause: what it names, the sentence's end, and what is offered. */
const table: [cause: MissCause, detail: string | null, words: string, remedy: Remedy['type'] | null][] = [
  ['system_prompt_changed', 'Be brief.', 'the system prompt changed', 'system_prompt'],
  ['system_prompt_changed', null, 'the system prompt changed', null],
  ['template_changed', null, 'the chat template of the model changed', null],
  ['message_changed', null, 'an earlier message changed', null],
  ['oldest_forgotten', null, 'the oldest messages are no longer read', null],
  ['other_model', 'owner/other', 'other read it before', 'model'],
  ['other_model', 'owner/gone', 'gone read it before', null],
  ['other_revision', null, 'the files of the model have changed', null],
  ['other_kv_format', 'eight_bits', 'its memory was stored in another way before', 'kv_bits'],
  ['other_kv_format', null, 'its memory was stored in another way before', null],
  ['imported_again', null, 'its starting point was imported again', null],
  ['disk_limit', null, 'deleted to stay within the disk limit', 'pin'],
  ['memory_limit', null, 'dropped to stay within the memory limit', 'memory_limit'],
  ['deleted', null, 'its saved context was deleted', null],
  ['cleared', null, 'all saved context was deleted', 'pin'],
  ['file_missing', null, 'a file of its saved context is missing', null],
  ['unreadable', 'no permission', 'a file of its saved context cannot be read (no permission)', null],
  ['damaged', null, 'a file of its saved context was damaged', null],
  ['not_restorable', 'bad shape', 'its saved context could not be used (bad shape)', null],
  ['removed_by_another_program', null, 'another program removed its saved context', null],
  ['not_written', 'the disk is full', 'it could not be saved (the disk is full)', null],
  ['only_in_memory', null, 'it was saved in memory only', null],
  ['earlier_version', null, 'an earlier version of Cairn saved it', null],
  ['not_stored', null, 'this part had not been saved yet', 'pin'],
  ['other', 'saved on a Tuesday', 'saved on a Tuesday', null],
];

test.each(table)('%s of %s', (cause, detail, words, remedy) => {
  expect(causeWords(miss(cause, detail), 0)).toBe(words);
  const found = remedyOf(miss(cause, detail), 'owner/model', now);
  expect(found?.type ?? null).toBe(remedy);
  if (found) for (const part of Object.values(remedyWords(found))) expect(part).not.toBe('');
});

test('the table has every cause, in both languages', () => {
  const causes = [...new Set(table.map(([cause]) => cause))].sort();
  expect(causes).toEqual(Object.keys(en.misses.causes).sort());
  for (const cause of causes) {
    for (const words of [en.misses.causes[cause]('x'), de.misses.causes[cause]('x')]) expect(words).not.toBe('');
  }
});

test('a loss says how long ago it was when the answer was asked for', () => {
  expect(causeWords(miss('disk_limit', null, 8 * DAY), 10 * DAY)).toBe(
    'deleted to stay within the disk limit, 2 days ago',
  );
  expect(causeWords(miss('disk_limit', null, 10 * DAY), 10 * DAY)).toBe(
    'deleted to stay within the disk limit, just now',
  );
});

test.each<[name: string, miss: CacheMiss, change: Partial<Circumstances>, remedy: Remedy | null]>([
  ['a pinned chat needs no pin', miss('disk_limit'), { isPinned: true }, null],
  ['a private chat cannot be pinned', miss('not_stored'), { isPrivate: true }, null],
  ['with a disk limit of 0 the disk helps', miss('only_in_memory'), memoryOnly, { type: 'disk_limit', bytes: 10e9 }],
  ['also where memory was short', miss('memory_limit'), memoryOnly, { type: 'disk_limit', bytes: 10e9 }],
  ['and where nothing is known', miss('not_stored'), memoryOnly, { type: 'disk_limit', bytes: 10e9 }],
  ['memory is doubled', miss('memory_limit'), {}, { type: 'memory_limit', bytes: 4e9 }],
  ['settings are not there yet', miss('memory_limit'), { settings: null }, null],
  ['the prompt is as it was', miss('system_prompt_changed', 'Be verbose.'), {}, null],
  ['the prompt of a starting point', miss('system_prompt_changed', 'x'), { systemPrompt: null }, null],
  ['the prompt was removed', miss('system_prompt_changed', ''), {}, { type: 'system_prompt', text: '' }],
  ['the other model is loaded', miss('other_model', 'owner/other'), { loaded: 'owner/other' }, null],
  [
    'keys and values as before',
    miss('other_kv_format', 'plain'),
    {},
    { type: 'kv_bits', model: 'owner/model', value: 'plain' },
  ],
  ['an unknown way of storing', miss('other_kv_format', 'three_bits'), {}, null],
])('%s', (_, miss, change, remedy) => {
  expect(remedyOf(miss, 'owner/model', { ...now, ...change })).toEqual(remedy);
});
