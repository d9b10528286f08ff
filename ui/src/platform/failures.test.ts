// What a core says has failed: each kind has a sentence in both languages.
import { expect, test } from 'vitest';
import { knownNames } from '../models/knownNames.svelte';
import { de } from '../text/de';
import { en } from '../text/en';
import { callModels, failureSentence } from './failures';
import type { FailureKind } from './wire';

const model = 'mlx-community/Qwen3-4B-4bit';
/** The type says that no kind is missing. */
const kinds: { [Type in FailureKind['type']]: Extract<FailureKind, { type: Type }>[] } = {
  no_model: [{ type: 'no_model' }],
  not_loaded: [{ type: 'not_loaded', model }],
  not_enough_memory: (
    [
      ['answer', [], []],
      [{ model }, [], []],
      [{ model }, ['o/other'], []],
      [{ model }, ['o/other'], ['o/pinned', 'o/third']],
      ['answer', [], ['o/pinned']],
      ['texts', [], []],
    ] as const
  ).map(([what, in_use, pinned]) => ({
    type: 'not_enough_memory',
    what,
    needed_bytes: 9e9,
    free_bytes: 3e9,
    limit_bytes: 12e9,
    in_use: [...in_use],
    pinned: [...pinned],
  })),
  load_cancelled: [{ type: 'load_cancelled', model }],
  context_full: [{ type: 'context_full', tokens: 5000, context_length: 4096 }],
  interrupted: [{ type: 'interrupted' }],
  engine_fault: [{ type: 'engine_fault' }],
  closing: [{ type: 'closing' }],
  offline: [{ type: 'offline', host: 'hub.example', reason: 'no route' }],
  too_many_requests: [
    { type: 'too_many_requests', host: 'hub.example', seconds: 40 },
    { type: 'too_many_requests', host: 'hub.example', seconds: 300 },
  ],
  disk_full: [{ type: 'disk_full' }],
  no_room_for_model: [{ type: 'no_room_for_model', folder: '/a/models', needed_bytes: 4e9, free_bytes: 1e9 }],
  not_writable: [{ type: 'not_writable', path: '/a/b' }],
  not_readable: [{ type: 'not_readable', name: 'chats.json' }],
  no_chats: [{ type: 'no_chats', name: 'chats.json' }],
  still_answering: [{ type: 'still_answering' }],
  gone: (
    ['chat', 'message', 'deletion', 'document', 'starting_point', 'folder', 'preset', 'persona', 'key', 'job'] as const
  ).map((what) => ({ type: 'gone', what })),
  name_taken: [{ type: 'name_taken', name: 'Manual' }],
  no_name: [{ type: 'no_name' }],
  empty_message: [{ type: 'empty_message' }],
  nothing_saved: [{ type: 'nothing_saved' }],
};

test.each(Object.values(kinds).flat())('%j is said in both languages', (kind) => {
  const [english, german] = [en, de].map(({ failures }) =>
    (failures[kind.type] as (kind: FailureKind) => string)(kind),
  );
  for (const sentence of [english, german]) expect(sentence).toMatch(/^\S.*[^ .]\.$/u);
  expect(german).not.toBe(english);
});

test('what is rare, or newer than the window, is the core’s own sentence', () => {
  const message = 'The tokenizer has no such token.';
  expect(failureSentence({ message })).toBe(message);
  expect(failureSentence({ message, kind: null })).toBe(message);
  expect(failureSentence({ message, kind: { type: 'of_tomorrow' } as unknown as FailureKind })).toBe(message);
});

test('a hub is named, with the time after which it can be asked again', () => {
  const [, kind] = kinds.too_many_requests;
  expect(failureSentence({ message: '', kind })).toBe(
    'hub.example allows no more requests for now: try again in 5 min.',
  );
});

test('models are called as everywhere else', () => {
  knownNames.receive([
    { name: model, alias: null },
    { name: 'o/other', alias: 'Writer' },
  ]);
  callModels((name) => knownNames.of(name));
  const [, , kind, , , texts] = kinds.not_enough_memory;
  expect(failureSentence({ message: '', kind: texts })).toBe(
    'Reading several texts at once needs 9 GB of memory, and 3 GB of the 12 GB for models are free: choose a smaller model, or ask about shorter texts.',
  );
  expect(failureSentence({ message: '', kind })).toBe(
    'Qwen3 4B needs 9 GB of memory, and 3 GB of the 12 GB for models are free: wait until “Writer” is no longer in use, or choose a smaller model.',
  );
});
