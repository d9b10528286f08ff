// The words under an answer.
import { expect, test } from 'vitest';
import type { CachedFrom, Message } from '../platform/wire';
import { message, stats } from '../testing/fake';
import { endingWords, prefillWords, statsRows, statusLine } from './stats';

const earlier = [
  message('u'),
  message('long', { stats: stats({ prompt_tokens: 4000, cached_tokens: 0, prompt_tps: 80 }) }),
  message('v'),
];

const other = {
  model: 'owner/other',
  cached_tokens: 0,
  miss: { tokens: 2100, cause: 'other_model', detail: 'owner/model', at_ms: null },
} as const;

test.each<[name: string, change: Parameters<typeof stats>[0], before: Message[], line: string]>([
  ['the next turn', { cached_tokens: 4400, prompt_tokens: 4420 }, earlier, 'continued: Continued, 55 s saved'],
  [
    'a chat where no reading was long enough to tell',
    {},
    [message('u'), message('m'), message('v')],
    'continued: Continued',
  ],
  ['the first turn', { cached_tokens: 0, prompt_tokens: 43 }, [message('u')], 'read: Read 43 tokens'],
  ['one token', { cached_tokens: 0, prompt_tokens: 1 }, [message('u')], 'read: Read 1 token'],
  [
    'a first answer that is written again',
    { cached_tokens: 44, prompt_tokens: 45 },
    [message('u')],
    'continued: Continued',
  ],
  [
    'a first turn whose template is shared',
    { cached_tokens: 24, prompt_tokens: 43 },
    [message('u')],
    'read: Read 19 tokens',
  ],
  [
    'a first turn of which nearly all is a persona that other chats have too',
    { cached_tokens: 180, prompt_tokens: 195 },
    [message('u')],
    'read: Read 15 tokens',
  ],
  [
    'the first turn of a chat that shares much with another',
    { cached_tokens: 2048, prompt_tokens: 2060 },
    [message('u')],
    'continued: Continued',
  ],
  [
    'a long question in a short chat',
    { cached_tokens: 200, prompt_tokens: 3200 },
    [
      message('u'),
      message('m', { stats: stats({ prompt_tokens: 150, generation_tokens: 50, prompt_tps: 0 }) }),
      message('v'),
    ],
    'continued: Continued',
  ],
  [
    'an imported chat that shares a system prompt with others',
    { cached_tokens: 24, prompt_tokens: 918 },
    [message('u'), message('m', { stats: null }), message('v')],
    'read: Read 894 tokens',
  ],
  ['nothing was saved', { cached_tokens: 0, prompt_tokens: 900 }, earlier, 'read: Read 900 tokens'],
  [
    'a long prompt of which some is kept',
    { cached_tokens: 0, prompt_tokens: 128_000, kept_tokens: 5000 },
    [message('u')],
    'read: Read 128,000 tokens, kept 5,000',
  ],
  [
    'an earlier part changed',
    { cache_note: 're-read 3,285 tokens: the system prompt changed at token 12' },
    earlier,
    'reread: Read 3,285 tokens again: the system prompt changed',
  ],
  [
    'a reason with a colon',
    { cache_note: 're-read 1 tokens: evicted: the disk is full' },
    earlier,
    'reread: Read 1 token again: evicted: the disk is full',
  ],
  ['a model that reads the chat for the first time', other, earlier, 'read: First reading with this model'],
  [
    'a model that has answered before another one did',
    other,
    [...earlier, message('w', { stats: stats({ model: 'owner/other' }) }), message('z', { stats: stats() })],
    'reread: Read 2,100 tokens again: model read it before',
  ],
  ['a note of another form', { cache_note: 'The file was damaged.' }, earlier, 'reread: The file was damaged.'],
])('the status line: %s', (_, change, before, line) => {
  const answer = { ...message('x'), stats: stats(change) };
  const { kind, words } = statusLine(answer, [...before, answer], false);
  expect(`${kind}: ${words}`).toBe(line);
});

const cached_from = (change: Partial<CachedFrom>): CachedFrom => ({
  in_memory: 0,
  restored: 0,
  shared: 0,
  read_ahead: 0,
  ...change,
});

test.each<[from: Partial<CachedFrom>, saved_ms: number | null, line: string]>([
  [{ read_ahead: 4400 }, null, 'read: Read while you typed'],
  [{ in_memory: 4000, read_ahead: 400 }, null, 'continued: Continued'],
  [{ in_memory: 400, read_ahead: 4000 }, null, 'read: Read while you typed'],
  [{ restored: 4000, read_ahead: 400 }, 50_000, 'continued: Continued, 50 s saved'],
  [{ in_memory: 4400 }, null, 'continued: Continued'],
  [{ shared: 4400 }, 55_000, 'continued: Continued, 55 s saved'],
])('claims saved time only where there is some: %o', (from, saved_ms, line) => {
  const figures = stats({ cached_tokens: 4400, prompt_tokens: 4420, saved_ms });
  const answer = { ...message('x'), stats: { ...figures, cached_from: cached_from(from) } };
  const { kind, words } = statusLine(answer, [...earlier, answer], false);
  expect(`${kind}: ${words}`).toBe(line);
});

test('the figures say where a prompt came from', () => {
  const figures = { ...stats(), cached_from: cached_from({ restored: 1000, read_ahead: 204 }) };
  const rows = Object.fromEntries(statsRows(figures));
  expect(rows).toMatchObject({
    Prompt: '32 tokens read, 1,204 read before',
    'From saved context': '1,000 tokens',
    'Read while you typed': '204 tokens',
  });
  expect(rows).not.toHaveProperty('Still in memory');
});

test('the first turn after a starting point continues it, however short it is', () => {
  const answer = { ...message('x'), stats: stats({ cached_tokens: 90, prompt_tokens: 105 }) };
  const words = (hasStartingPoint: boolean) => statusLine(answer, [message('u'), answer], hasStartingPoint).words;
  expect([words(true), words(false)]).toEqual(['Continued', 'Read 15 tokens']);
});

test('behind the status line are the tokens', () => {
  const answer = { ...message('x'), stats: stats() };
  expect(statusLine(answer, [answer], false).detail).toBe('32 tokens read, 1,204 from saved context');
});

test('the figures say what was kept of a prompt', () => {
  const answer = { ...message('x'), stats: stats({ kept_tokens: 500 }) };
  expect(statusLine(answer, [answer], false).detail).toBe('32 tokens read, 1,204 from saved context, 500 kept');
});

test('an answer without a token has no rate and no first token', () => {
  const rows = Object.fromEntries(
    statsRows(stats({ generation_tokens: 0, generation_tps: 0, time_to_first_token_ms: 0 })),
  );
  expect(rows['Answer']).toBe('stopped before its first token');
  expect(rows).not.toHaveProperty('First token');
});

test('a model is called as elsewhere, and its whole name is the tooltip', () => {
  const named = stats({ model: 'mlx-community/Qwen3-4B-4bit' });
  expect(statsRows(named)[0]).toEqual(['Model', 'Qwen3 4B', 'mlx-community/Qwen3-4B-4bit']);
});

test('how fast a few tokens were read is not said', () => {
  const names = (read: number) =>
    statsRows(stats({ prompt_tokens: 1204 + read, cached_tokens: 1204 })).map(([name]) => name);
  expect([names(1), names(15), names(16)].map((all) => all.includes('Reading speed'))).toEqual([false, false, true]);
});

test('all figures', () => {
  expect(Object.fromEntries(statsRows(stats()))).toEqual({
    Model: 'model',
    Prompt: '32 tokens read, 1,204 from saved context',
    'Reading speed': '812 tok/s',
    Answer: '312 tokens at 42.1 tok/s',
    'First token': 'after 312 ms',
    'App memory': '512 MB now, 648 MB at most',
    'MLX memory': '271 MB now, 1.4 GB at most',
  });
});

test('the figures say what was guessed ahead, where anything was', () => {
  const guesses = { proposed: 40, accepted: 27, checked: 31 };
  const rows = Object.fromEntries(statsRows(stats({ guesses })));
  expect(rows['Guessed ahead']).toBe('27 of 40 tokens taken, 31 checked several at a time');
  expect(Object.fromEntries(statsRows(stats()))).not.toHaveProperty('Guessed ahead');
});

test('an answer that waited says so', () => {
  const rows = Object.fromEntries(statsRows(stats({ time_to_first_token_ms: 4210, queue_ms: 3900 })));
  expect(rows['First token']).toBe('after 4.2 s, 3.9 s of it waiting for other answers');
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
    'This answer reached the limit of 1,024 tokens. Ask the model to continue, or raise the maximum answer length in Settings.',
  ],
  [
    'length, earlier',
    { stats: stats({ finish_reason: 'length', generation_tokens: 8 }) },
    false,
    'This answer reached the limit of 8 tokens.',
  ],
  [
    'context',
    { stats: stats({ finish_reason: 'context' }) },
    true,
    'This answer ended because the context of the model is full. Start a new chat, or raise the context length in the settings of the model.',
  ],
  ['stopped', { status: 'stopped' }, true, 'You stopped this answer. Regenerate to have it written again.'],
  ['stopped, earlier', { status: 'stopped' }, false, 'You stopped this answer.'],
  [
    'interrupted',
    { status: 'interrupted' },
    true,
    'Cairn quit before this answer was finished. Regenerate to have it written again.',
  ],
  ['failed', { status: 'failed', error: 'Out of memory.' }, true, 'Out of memory. Regenerate to try again.'],
  [
    'the prompt is too long',
    {
      status: 'failed',
      error: "The prompt has 9 tokens, but the model's context ends at 8: shorten it or start a new conversation.",
    },
    true,
    "The prompt has 9 tokens, but the model's context ends at 8: shorten it or start a new conversation.",
  ],
  [
    'the prompt is too long, as the core says by its kind',
    {
      status: 'failed',
      error: 'The prompt does not fit.',
      error_kind: { type: 'context_full', tokens: 9, context_length: 8 },
    },
    true,
    'With this question there are 9 tokens to read, and the model reads 8 at most: shorten the question, start a new chat, or choose a model with a longer context.',
  ],
  [
    'another model has read the starting point',
    {
      status: 'failed',
      error: 'This conversation starts from a context of owner/other: choose that model to continue.',
    },
    true,
    'This conversation starts from a context of owner/other: choose that model to continue.',
  ],
  [
    'a reason that names no remedy',
    { status: 'failed', error: 'The model failed: out of memory.' },
    true,
    'The model failed: out of memory. Regenerate to try again.',
  ],
  ['failed without a reason', { status: 'failed' }, false, 'This answer could not be written.'],
])('how an answer ended: %s', (_, change, isLast, words) => {
  expect(endingWords(message('m', change), isLast)).toBe(words);
});

test('what is offered above the composer is not said beside the answer, too', () => {
  const error_kind = { type: 'context_full' as const, tokens: 9, context_length: 8 };
  const refused = message('m', { status: 'failed', error: 'Too long', error_kind });
  const why = 'With this question there were 9 tokens to read, and the model reads 8 at most.';
  expect(endingWords(refused, true, true)).toBe(why);
  expect(endingWords(refused, false)).toBe(why);
  const full = message('m', { stats: stats({ finish_reason: 'context' }) });
  expect(endingWords(full, true, true)).toBe('This answer ended because the context of the model is full.');
});

test.each(['load_failed', 'model_unusable'] as const)(
  'where the files are at fault, they are to change: %s',
  (type) => {
    const detail = 'Model.safetensors is incomplete: it has 500 bytes, not 900.';
    const failed = message('m', { status: 'failed', error: detail, error_kind: { type, model: 'stone', detail } });
    expect(endingWords(failed, true)).toMatch(/Download or import the model again, or choose another one\.$/);
    expect(endingWords(failed, false)).toMatch(/not 900\.$/);
  },
);
