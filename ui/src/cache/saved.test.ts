// Saved context, as people read it.
import { expect, test } from 'vitest';
import type { AnsweringModel } from '../chat/chatModel.svelte';
import type { ConversationCache } from '../platform/wire';
import { overview, preview, saved, startingPoint } from '../testing/fake';
import {
  cutAtWord,
  deletedMessage,
  deleteQuestion,
  hitRate,
  outlook,
  positions,
  previewRows,
  savedState,
  savedSummary,
  startingPointFacts,
  startingPointOutlook,
  startingPointState,
  storageUsage,
  type SavedState,
} from './saved';

const LOADED = { name: 'owner/model', fingerprint: 'f' };
const isHere = (name: string) => name !== 'owner/gone';
const EMPTY = { cached_tokens: 0, cached_bytes: 0, is_whole: false };

interface Case {
  change: Parameters<typeof saved>[0];
  loaded: AnsweringModel | null;
  state: SavedState;
  summary: string;
  heading: string;
  reason?: string;
}

test.each<[cached: number, state: SavedState, heading: string]>([
  [0, 'none', 'Will be read again once'],
  [10, 'none', 'Will be read again once'],
  [50, 'partly', 'Partly saved: the rest will be read again once'],
  [98, 'saved', 'Ready to continue'],
])('a chat that was imported goes on from what other chats have saved: %d of 100 tokens', (cached, state, heading) => {
  const ahead = { model: 'owner/model', known_tokens: 100, cached_tokens: cached, miss: null };
  expect(savedState(null, LOADED, isHere, ahead)).toBe(state);
  expect(outlook(null, LOADED, isHere, null, ahead)).toEqual({ heading, reason: null });
});

test.each<[name: string, expected: Case]>([
  [
    'all of it',
    {
      change: {},
      loaded: LOADED,
      state: 'saved',
      summary: 'Saved: 3,120 tokens, 143 MB',
      heading: 'Ready to continue',
    },
  ],
  [
    'one token, pinned',
    {
      change: { cached_tokens: 1, cached_bytes: 46_080, is_pinned: true },
      loaded: LOADED,
      state: 'saved',
      summary: 'Saved: 1 token, 46 kB, pinned',
      heading: 'Ready to continue',
    },
  ],
  [
    'no model is loaded',
    {
      change: {},
      loaded: null,
      state: 'saved',
      summary: 'Saved: 3,120 tokens, 143 MB',
      heading: 'Ready to continue once model is loaded',
    },
  ],
  [
    'its model is not in memory',
    {
      change: {},
      loaded: { name: 'owner/model', fingerprint: null },
      state: 'saved',
      summary: 'Saved: 3,120 tokens, 143 MB',
      heading: 'Ready to continue once model is loaded',
    },
  ],
  [
    'another model was chosen that is not in memory',
    {
      change: {},
      loaded: { name: 'owner/other', fingerprint: null },
      state: 'none',
      summary: 'Not saved for other, only for model',
      heading: 'Will be read again once (about 6 s)',
      reason: 'It is saved for model, and other answers. Choose model to continue without reading again.',
    },
  ],
  [
    'a part',
    {
      change: { is_whole: false },
      loaded: LOADED,
      state: 'partly',
      summary: 'Partly saved: 3,120 tokens, 143 MB',
      heading: 'Partly saved: the rest will be read again once (about 6 s)',
    },
  ],
  [
    'another model has read it',
    {
      change: { fingerprint: 'g', model: 'owner/other' },
      loaded: LOADED,
      state: 'none',
      summary: 'Not saved for model, only for other',
      heading: 'Will be read again once (about 6 s)',
      reason: 'It is saved for other, and model answers. Choose other to continue without reading again.',
    },
  ],
  [
    'another model of the same name has read it',
    {
      change: { fingerprint: 'g' },
      loaded: LOADED,
      state: 'none',
      summary: 'Not saved for this version of model',
      heading: 'Will be read again once (about 6 s)',
      reason: 'The files of model have changed since it read this chat.',
    },
  ],
  [
    'a model that is gone has read it',
    {
      change: { fingerprint: 'g', model: 'owner/gone' },
      loaded: LOADED,
      state: 'none',
      summary: 'Not saved for model, only for gone',
      heading: 'Will be read again once (about 6 s)',
      reason: 'It is saved for gone, which is not here; model will read it again.',
    },
  ],
  [
    'a model that is gone has read it, and there is no other',
    {
      change: { model: 'owner/gone' },
      loaded: null,
      state: 'none',
      summary: 'Only saved for gone, which is not here',
      heading: 'Will be read again once (about 6 s)',
      reason: 'It is saved for gone, which is not here.',
    },
  ],
  [
    'nothing',
    {
      change: { ...EMPTY, fingerprint: 'g' },
      loaded: LOADED,
      state: 'none',
      summary: 'Not saved',
      heading: 'Will be read again once (about 6 s)',
    },
  ],
  [
    'nothing but a pin',
    {
      change: { ...EMPTY, is_pinned: true },
      loaded: null,
      state: 'none',
      summary: 'Not saved, pinned',
      heading: 'Will be read again once (about 6 s)',
    },
  ],
])('what is saved of a chat: %s', (_, { change, loaded, state, summary, heading, reason = null }) => {
  const cache = saved(change);
  expect([savedState(cache, loaded, isHere), savedSummary(cache, loaded, isHere)]).toEqual([state, summary]);
  expect(outlook(cache, loaded, isHere, 6200)).toEqual({ heading, reason });
});

test('a time that nothing tells is not made up', () => {
  expect(outlook(saved(EMPTY), LOADED, isHere, null).heading).toBe('Will be read again once');
  expect(outlook(saved({ is_whole: false }), LOADED, isHere, null).heading).toBe(
    'Partly saved: the rest will be read again once',
  );
});

test('what is saved in memory only is ready no longer than Cairn runs', () => {
  const reason = (change: Partial<ConversationCache>, hasDisk: boolean) =>
    outlook(saved(change), LOADED, isHere, null, null, { hasDisk, isFull: false, hasUnread: false }).reason;
  expect(reason({ tier: 'memory' }, false)).toBe('Only until Cairn is closed: the disk limit for saved context is 0.');
  expect(reason({ tier: 'memory' }, true)).toBe(null);
  expect(reason({ tier: 'memory', is_pinned: true }, false)).toBe(null);
  expect(reason({ tier: 'disk' }, false)).toBe(null);
});

test.each([
  [{}, { isFull: true }, 'Saved, but the context is full', null],
  [{ is_whole: false }, { isFull: true }, 'The context is full', null],
  [EMPTY, { isFull: true }, 'The context is full', null],
  [{}, { hasUnread: true }, 'Ready to continue', 'The attached documents will be read with your question.'],
])('says what the next message finds: %o, %o', (change, now, heading, reason) => {
  const surroundings = { hasDisk: true, isFull: false, hasUnread: false, ...now };
  expect(outlook(saved(change), LOADED, isHere, null, null, surroundings)).toEqual({ heading, reason });
});

test('a chat of which nothing was ever saved', () => {
  expect([savedState(null, LOADED, isHere), savedSummary(null, LOADED, isHere)]).toEqual(['none', 'Not saved']);
});

test('deleting speaks of other chats only where there are any', () => {
  expect(deleteQuestion(saved())).toContain('the saved context of this chat');
  expect(deleteQuestion(saved({ shared_with: ['A'] }))).toContain('that only this chat uses');
});

test.each<[own_bytes: number, words: string]>([
  [12e6, 'Deleted the saved context that only “A” used. Its messages stay.'],
  [143e6, 'Deleted the saved context of “A”. Its messages stay.'],
])('what was deleted when %d of 143 MB were its own', (own_bytes, words) => {
  expect(deletedMessage('A', saved({ own_bytes }))).toBe(words);
});

test.each<[name: string, change: Parameters<typeof startingPoint>[1], facts: string, expected: string]>([
  ['on disk', {}, '2,048 tokens · 94 MB on disk', '2,048 tokens · ready'],
  [
    'used by one chat',
    { tier: 'memory', num_conversations: 1 },
    '2,048 tokens · 94 MB ready in memory · 1 chat',
    '2,048 tokens · ready',
  ],
  [
    'lost',
    { tier: null, bytes: 0, num_conversations: 12 },
    '2,048 tokens · not saved, will be read again once · 12 chats',
    '2,048 tokens · will be read again once',
  ],
  [
    'lost in part',
    { tier: null },
    '2,048 tokens · partly saved, the rest will be read again once',
    '2,048 tokens · will be read again once',
  ],
  [
    'imported for another model',
    { fingerprint: 'g', model: 'owner/other', imported_from: 'x.safetensors' },
    '2,048 tokens · 94 MB on disk · for other',
    '2,048 tokens · ready · for other · imported',
  ],
])('a starting point: %s', (_, change, facts, expected) => {
  const point = startingPoint('a', change);
  expect(startingPointFacts(point, inMemory(LOADED), () => true).join(' · ')).toBe(facts);
  expect(startingPointOutlook(point, inMemory(LOADED), () => true)).toBe(expected);
});

const OTHER = { name: 'owner/other', fingerprint: 'g' };

test.each<[models: (typeof LOADED)[], here: boolean, state: string, facts: string]>([
  [[LOADED], true, 'saved', '2,048 tokens · ready'],
  [[], true, 'saved', '2,048 tokens · ready · for model'],
  [[], false, 'none', '2,048 tokens · for model, which is not here'],
  // The same files by another name.
  [[LOADED], false, 'saved', '2,048 tokens · ready'],
  // Another is loaded: the one that has read it answers.
  [[OTHER], true, 'saved', '2,048 tokens · ready · for model'],
  [[OTHER, LOADED], true, 'saved', '2,048 tokens · ready · for model'],
  [[OTHER, LOADED], false, 'saved', '2,048 tokens · ready · for model'],
  [[{ ...LOADED, fingerprint: 'other files' }], true, 'none', '2,048 tokens · will be read again once · for model'],
])('a starting point where %o are in memory and its model is here: %s', (models, isThere, state, facts) => {
  const point = startingPoint('a');
  expect(startingPointState(point, inMemory(...models), () => isThere)).toBe(state);
  expect(startingPointOutlook(point, inMemory(...models), () => isThere)).toBe(facts);
});

/** These models, of which the first is the one that is loaded. */
function inMemory(...models: (typeof LOADED)[]) {
  return {
    loaded: models[0] ?? null,
    inMemory: new Map(models.map(({ name, fingerprint }) => [name, fingerprint])),
  };
}

test.each<[change: Parameters<typeof overview>[0], words: string]>([
  [{ lookups: 0, prompt_tokens: 0, cached_tokens: 0 }, 'No prompt has been read since Cairn started.'],
  [{}, 'Since Cairn started, 75% of the prompts had been read before (3,000 of 4,000 tokens).'],
  [
    { prompt_tokens: 4000, cached_tokens: 3999 },
    'Since Cairn started, 99% of the prompts had been read before (3,999 of 4,000 tokens).',
  ],
])('the hit rate of %o', (change, words) => {
  expect(hitRate(overview(change))).toBe(words);
});

test.each<[bytes: number, limit: number, words: string]>([
  [55e6, 20e9, '55 MB of 20 GB'],
  [0, 0, '0 MB of 0 MB'],
  [55e6, 0, '55 MB, over the limit of 0 MB'],
])('%d bytes of a limit of %d', (bytes, limit, words) => {
  expect(storageUsage(bytes, limit)).toBe(words);
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
    'Contains: a chat',
    'Length: 2,048 tokens',
    'Size: 94 MB',
  ]);
  const noon = new Date(2026, 2, 10, 12).getTime();
  expect(previewRows(preview({ created_at_ms: noon }))).toEqual(
    expect.arrayContaining([
      ['Title', 'Title'],
      ['Contains', 'the beginning of a chat'],
      ['Made by', 'Cairn 0.1.0'],
      ['Made on', 'Mar 10, 2026'],
    ]),
  );
});

test('positions are counted from 1', () => {
  expect([positions(0, 256), positions(2047, 1), positions(0, 2048)]).toEqual(['1–256', '2,048', '1–2,048']);
});

test.each([
  ['A lease', 10, 'A lease'],
  ['A lease for Berlin', 12, 'A lease for…'],
  ['A lease for Berlin', 15, 'A lease for…'],
  ['Mietvertragsunterlagen', 10, 'Mietvertr…'],
  ['Mietvert🪨🪨', 10, 'Mietvert…'],
])('of the name %o with %i characters, whole words are left', (name, most, cut) => {
  expect(cutAtWord(name, most)).toBe(cut);
});
