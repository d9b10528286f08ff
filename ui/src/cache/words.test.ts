// What is kept, as people read it.
import { expect, test } from 'vitest';
import { kept, named, overview, preview } from '../testing/fake';
import {
  agoWords,
  extentOf,
  hitWords,
  keptWords,
  namedWords,
  noteWords,
  previewRows,
  purgedWords,
  purgeWords,
  resumeWords,
  roomWords,
  spanWords,
  startWords,
  type Extent,
} from './words';

const LOADED = { name: 'owner/model', fingerprint: 'f' };
const LOST = 'evicted 2 days ago to make room';

test.each<
  [name: string, change: Parameters<typeof kept>[0], loaded: typeof LOADED | null, words: string, extent: Extent]
>([
  ['all in memory', {}, LOADED, '3,120 tokens kept (143 MB, in memory), resumes instantly', 'memory'],
  [
    'all on disk and pinned',
    { tier: 'disk', is_pinned: true },
    LOADED,
    '3,120 tokens kept (143 MB, on disk), resumes instantly, pinned',
    'disk',
  ],
  [
    'a part',
    { tier: 'disk', is_whole: false, lost: LOST },
    LOADED,
    '3,120 tokens kept (143 MB, on disk), the rest is read again',
    'part',
  ],
  [
    'another model',
    { tier: 'disk', fingerprint: 'g', model: 'owner/other' },
    LOADED,
    '3,120 tokens kept (143 MB, on disk), read by other',
    'disk',
  ],
  ['no model loaded', { tier: 'disk' }, null, '3,120 tokens kept (143 MB, on disk), read by model', 'disk'],
  [
    'nothing but a pin',
    { kept_tokens: 0, kept_bytes: 0, is_whole: false, is_pinned: true },
    LOADED,
    'Nothing is kept of this conversation now, pinned',
    'part',
  ],
  [
    'one token',
    { kept_tokens: 1, kept_bytes: 46_080 },
    LOADED,
    '1 token kept (46 kB, in memory), resumes instantly',
    'memory',
  ],
])('the row of a conversation: %s', (_, change, loaded, words, extent) => {
  expect(keptWords(kept(change), loaded)).toBe(words);
  expect(extentOf(kept(change))).toBe(extent);
});

test.each<[name: string, change: Parameters<typeof kept>[0], loaded: typeof LOADED | null, words: string]>([
  ['all of it', {}, LOADED, 'Resumes instantly.'],
  ['no model', {}, null, 'Resumes instantly once model is loaded.'],
  [
    'another model',
    { fingerprint: 'g', model: 'owner/other' },
    LOADED,
    'It was read by other. With model all of it is read again; load other to go on at once.',
  ],
  [
    'another model of the same name',
    { fingerprint: 'g' },
    LOADED,
    'It was read by another version of model: all of it is read again.',
  ],
  [
    'a part without a model',
    { is_whole: false },
    null,
    'Not all of it is kept: what is missing is read again with your next message.',
  ],
  [
    'a part',
    { is_whole: false },
    LOADED,
    'Not all of it is kept: what is missing is read again with your next message.',
  ],
  [
    'nothing is kept',
    { kept_tokens: 0, fingerprint: 'g', is_whole: false },
    LOADED,
    'Nothing is kept of it; its messages are read again with the next one.',
  ],
])('whether a conversation goes on at once: %s', (_, change, loaded, words) => {
  expect(resumeWords(kept(change), loaded)).toBe(words);
});

test('purging speaks of others only where there are any', () => {
  expect(purgeWords(kept())).not.toContain('others');
  expect(purgeWords(kept({ shared_with: ['A'] }))).toContain('A beginning that others share stays with them.');
});

test.each<[name: string, change: Parameters<typeof named>[1], words: string, start: string]>([
  ['on disk', {}, '2,048 tokens · 94 MB · on disk · used just now', '2,048 tokens · starts instantly'],
  [
    'used',
    { tier: 'memory', num_conversations: 1 },
    '2,048 tokens · 94 MB · in memory · 1 conversation · used just now',
    '2,048 tokens · starts instantly',
  ],
  [
    'lost',
    { tier: null, bytes: 0, num_conversations: 12 },
    '2,048 tokens · not kept now, would be read again · 12 conversations · used just now',
    '2,048 tokens · would be read again',
  ],
  [
    'lost in part',
    { tier: null },
    '2,048 tokens · only partly kept, the rest would be read again · used just now',
    '2,048 tokens · would be read again',
  ],
  [
    'imported for another model',
    { fingerprint: 'g', model: 'owner/other', imported_from: 'x.safetensors' },
    '2,048 tokens · 94 MB · on disk · for other · used just now',
    '2,048 tokens · for other · imported',
  ],
])('a named prompt cache: %s', (_, change, words, start) => {
  expect(namedWords(named('a', change), LOADED, 2).join(' · ')).toBe(words);
  expect(startWords(named('a', change), LOADED)).toBe(start);
});

test.each<[change: Parameters<typeof overview>[0], words: string]>([
  [{ lookups: 0, prompt_tokens: 0, cached_tokens: 0 }, 'Nothing has been read since Cairn started.'],
  [{}, '75% of what was needed since Cairn started came from here: 3,000 of 4,000 tokens in 3 prompts.'],
  [
    { lookups: 1, prompt_tokens: 4000, cached_tokens: 3999 },
    '99% of what was needed since Cairn started came from here: 3,999 of 4,000 tokens in 1 prompt.',
  ],
])('the hit rate of %o', (change, words) => {
  expect(hitWords(overview(change))).toBe(words);
});

test.each<[note: string, words: string]>([
  ['re-read 3,100 tokens: evicted 2 days ago', 'Why it took longer: re-read 3,100 tokens: evicted 2 days ago.'],
  ['re-read 12 tokens. ', 'Why it took longer: re-read 12 tokens.'],
])('the note %j', (note, words) => {
  expect(noteWords(note)).toBe(words);
});

test.each<[own_bytes: number, words: string]>([
  [12e6, 'Only what it shares with others is kept of “A”. Its messages are all there.'],
  [143e6, 'Nothing is kept of “A” any more. Its messages are all there.'],
])('what is left when %d of 143 MB were its own', (own_bytes, words) => {
  expect(purgedWords('A', kept({ own_bytes }))).toBe(words);
});

test.each<[bytes: number, budget: number, words: string]>([
  [55e6, 20e9, '55 MB of 20.0 GB'],
  [0, 0, '0 MB of 0 MB'],
  [55e6, 0, '55 MB, above the limit of 0 MB'],
])('%d bytes of a budget of %d', (bytes, budget, words) => {
  expect(roomWords(bytes, budget)).toBe(words);
});

test('of a file that could not be read only its name and size are known', () => {
  const unread = preview({ title: null, made_by: null, model: '', tokens: 0, bytes: 0, problem: 'It is a text.' });
  expect(previewRows(unread)).toEqual([
    ['File', 'file.safetensors'],
    ['Size', '0 MB'],
  ]);
});

test('a file about to be imported: only what it says', () => {
  const bare = preview({ title: null, made_by: null, kind: 'conversation' });
  expect(previewRows(bare).map(([name, value]) => `${name}: ${value}`)).toEqual([
    'File: file.safetensors',
    'Model: owner/model',
    'Holds: a conversation',
    'Length: 2,048 tokens',
    'Size: 94 MB',
  ]);
  const noon = new Date(2026, 2, 10, 12).getTime();
  expect(previewRows(preview({ created_at_ms: noon }))).toEqual(
    expect.arrayContaining([
      ['Title', 'Title'],
      ['Holds', 'the beginning of a conversation'],
      ['Made by', 'Cairn 0.1.0'],
      ['Made on', 'Mar 10, 2026'],
    ]),
  );
});

test('positions are counted from 1', () => {
  expect([spanWords(0, 256), spanWords(2047, 1), spanWords(0, 2048)]).toEqual(['1–256', '2,048', '1–2,048']);
});

test('how long ago', () => {
  const now = new Date(2026, 2, 10, 12).getTime();
  const ago = (minutes: number) => agoWords(now - minutes * 60_000, now);
  expect([-1, 0.9, 1, 59, 60, 60 * 47, 60 * 48, 60 * 24 * 40].map(ago)).toEqual([
    'just now',
    'just now',
    '1 minute ago',
    '59 minutes ago',
    '1 hour ago',
    '1 day ago',
    '2 days ago',
    'on Jan 29, 2026',
  ]);
});
