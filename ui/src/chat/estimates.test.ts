// Times that are estimated from what was measured in the same chat.
import { expect, test } from 'vitest';
import { message, saved, stats } from '../testing/fake';
import { readingRate, rereadMilliseconds, savedMilliseconds } from './estimates';

const answer = (id: string, change: Parameters<typeof stats>[0]) => message(id, { stats: stats(change) });
/** 4,000 tokens were read at 80 a second; the next turn took most of them from saved context. */
const paste = answer('a', { prompt_tokens: 4000, cached_tokens: 0, generation_tokens: 100, prompt_tps: 80 });
const next = answer('b', { prompt_tokens: 4420, cached_tokens: 4400, generation_tokens: 80, prompt_tps: 9 });
const MODEL = 'owner/model';

test.each([
  ['the longest reading counts, not the last one', [paste, next], MODEL, 80],
  ['too few tokens tell nothing', [next], MODEL, null],
  ['another model reads at another rate', [paste, next], 'owner/other', null],
  ['a chat without an answer', [message('u', { role: 'user' })], MODEL, null],
])('the reading rate: %s', (_, messages, model, rate) => {
  expect(readingRate(messages, model)).toBe(rate);
});

test('what saved context saved is what it would have taken to read', () => {
  expect(savedMilliseconds(stats({ cached_tokens: 4400 }), [paste, next])).toBe(55_000);
  expect(savedMilliseconds(stats({ cached_tokens: 40 }), [paste, next])).toBeNull();
  expect(savedMilliseconds(stats({ cached_tokens: 4400 }), [next])).toBeNull();
  const ahead = { in_memory: 0, restored: 0, shared: 0, read_ahead: 4400 };
  expect(savedMilliseconds(stats({ cached_tokens: 4400, cached_from: ahead }), [paste, next])).toBeNull();
});

test('what will be read again is what the chat has beyond its saved context', () => {
  expect(rereadMilliseconds(null, [paste, next], MODEL)).toBe(56_250);
  expect(rereadMilliseconds(saved({ cached_tokens: 4100 }), [paste, next], MODEL)).toBe(5000);
  expect(rereadMilliseconds(saved({ cached_tokens: 4500 }), [paste, next], MODEL)).toBeNull();
  expect(rereadMilliseconds(null, [], MODEL)).toBeNull();
});
