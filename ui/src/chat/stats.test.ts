// The sentences under an answer.
import { expect, test } from 'vitest';
import type { Message } from '../platform/wire';
import { message, stats } from '../testing/fake';
import { endingWords, memoryWords, peakWords, prefillWords, statsRows, statsWords } from './stats';

test.each<[name: string, change: Parameters<typeof stats>[0], words: string[]]>([
  ['most from cache', {}, ['42.1 tok/s', 'first token 312 ms', '1,204 of 1,236 tokens read from cache']],
  [
    'nothing from cache',
    { cached_tokens: 0 },
    ['42.1 tok/s', 'first token 312 ms', '0 of 1,236 tokens read from cache'],
  ],
  [
    'slow and fast',
    { generation_tps: 132.6, time_to_first_token_ms: 4210 },
    ['133 tok/s', 'first token 4.2 s', '1,204 of 1,236 tokens read from cache'],
  ],
  [
    'stopped before the first token',
    { generation_tokens: 0, generation_tps: 0, time_to_first_token_ms: 0 },
    ['1,204 of 1,236 tokens read from cache'],
  ],
  [
    'minutes',
    { time_to_first_token_ms: 61_000 },
    ['42.1 tok/s', 'first token 1 min 1 s', '1,204 of 1,236 tokens read from cache'],
  ],
])('the line of figures: %s', (_, change, words) => {
  expect(statsWords(stats(change))).toEqual(words);
});

test('memory now and at most', () => {
  expect(memoryWords(stats())).toBe('app 512 MB, MLX 271 MB');
  expect(peakWords(stats())).toBe('Most memory: app 648 MB, MLX 1.4 GB');
});

test('an answer without a token has no rate and no first token', () => {
  const rows = Object.fromEntries(
    statsRows(stats({ generation_tokens: 0, generation_tps: 0, time_to_first_token_ms: 0 })),
  );
  expect(rows['Answer']).toBe('stopped before its first token');
  expect(rows).not.toHaveProperty('First token');
});

test('all figures', () => {
  expect(Object.fromEntries(statsRows(stats()))).toEqual({
    Model: 'owner/model',
    Prompt: '32 tokens newly read at 812 tok/s, 1,204 from cache',
    Answer: '312 tokens at 42.1 tok/s',
    'First token': 'after 312 ms',
    'App memory': '512 MB now, 648 MB at most',
    'MLX memory': '271 MB now, 1.4 GB at most',
  });
});

test('an answer that waited says so', () => {
  const rows = Object.fromEntries(statsRows(stats({ time_to_first_token_ms: 4210, queue_ms: 3900 })));
  expect(rows['First token']).toBe('after 4.2 s, of which 3.9 s waiting for its turn');
});

test('progress', () => {
  expect(prefillWords({ processed_tokens: 640, total_tokens: 1236 })).toBe('Reading 640 of 1,236 tokens');
});

test.each<[name: string, change: Partial<Message>, isLast: boolean, words: string | null]>([
  ['streaming', { status: 'streaming' }, true, null],
  ['complete', { stats: stats() }, true, null],
  [
    'length',
    { stats: stats({ finish_reason: 'length', generation_tokens: 1024 }) },
    true,
    'This answer reached its limit of 1,024 tokens. Ask to continue, or raise the limit in Settings.',
  ],
  [
    'length, earlier',
    { stats: stats({ finish_reason: 'length', generation_tokens: 8 }) },
    false,
    'This answer reached its limit of 8 tokens.',
  ],
  ['stopped', { status: 'stopped' }, true, 'You stopped this answer. Regenerate to have it written again.'],
  ['stopped, earlier', { status: 'stopped' }, false, 'You stopped this answer.'],
  [
    'interrupted',
    { status: 'interrupted' },
    true,
    'Cairn was closed while this was written. Regenerate to have it written anew.',
  ],
  ['failed', { status: 'failed', error: 'Out of memory.' }, true, 'Out of memory. Regenerate to try again.'],
  ['failed without a reason', { status: 'failed' }, false, 'This answer could not be written.'],
])('how an answer ended: %s', (_, change, isLast, words) => {
  expect(endingWords(message('m', change), isLast)).toBe(words);
});
