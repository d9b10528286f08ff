// Numbers, times and plural forms.
import { expect, test } from 'vitest';
import { Formats } from './format';

const english = new Formats('en-US', ['“', '”']);
const german = new Formats('de-DE', ['„', '“']);

test.each<[bytes: number, words: string]>([
  [0, '0 MB'],
  [395, '395 B'],
  [999.7, '1 kB'],
  [1_600, '2 kB'],
  [12_000, '12 kB'],
  [1e6, '1 MB'],
  [512.4e6, '512 MB'],
  [999.7e6, '1 GB'],
  [1.24e9, '1.2 GB'],
  [20e9, '20 GB'],
  [240.4e9, '240 GB'],
])('%d bytes are %s', (bytes, words) => {
  expect(english.bytes(bytes)).toBe(words);
});

test.each<[done: number, total: number, words: string]>([
  [0, 101e3, '0 kB'],
  [0, 2.3e9, '0 GB'],
  [0, 0, '0 MB'],
  [64e6, 2.3e9, '64 MB'],
])('of %d bytes, done of %d, is said %s', (done, total, words) => {
  expect(english.doneBytes(done, total)).toBe(words);
});

test('counts are grouped, and one is not plural', () => {
  expect([0, 1, 2, 1812].map((count) => english.plural(count, 'token', 'tokens'))).toEqual([
    '0 tokens',
    '1 token',
    '2 tokens',
    '1,812 tokens',
  ]);
  expect(english.count(1_234_567)).toBe('1,234,567');
});

test('names are quoted and joined', () => {
  expect([['A'], ['A', 'B'], ['A', 'B', 'C']].map(english.names)).toEqual(['“A”', '“A” and “B”', '“A”, “B”, and “C”']);
});

test('of many names two are said, and how many others there are', () => {
  const some = (names: string[]) => english.someNames(names, (count) => english.plural(count, 'other', 'others'));
  expect(
    [
      ['A', 'B', 'C'],
      ['A', 'B', 'C', 'D'],
    ].map(some),
  ).toEqual(['“A”, “B”, and “C”', '“A”, “B”, and 2 others']);
});

test('rates', () => {
  expect([4.04, 99.96, 1234.5].map(english.rate)).toEqual(['4.0', '100', '1,235']);
});

test('measured times', () => {
  expect([0, 312.4, 999.6, 12_340, 59_960, 119_600, 125_000].map(english.milliseconds)).toEqual([
    '0 ms',
    '312 ms',
    '1.0 s',
    '12.3 s',
    '1 min 0 s',
    '2 min 0 s',
    '2 min 5 s',
  ]);
});

test('estimates have no more precision than they deserve', () => {
  expect([200, 1400, 55_300, 99_400, 100_000, 252_000, 3_590_000, 5_460_000].map(english.estimate)).toEqual([
    '1 s',
    '1 s',
    '55 s',
    '99 s',
    '2 min',
    '4 min',
    '1 h 0 min',
    '1 h 31 min',
  ]);
});

test('only all of it is 100%, and only nothing is 0%', () => {
  expect([0, 0.0001, 0.75, 0.9999, 1].map(english.share)).toEqual(['0%', '1%', '75%', '99%', '100%']);
});

test('how long ago', () => {
  const now = new Date(2026, 2, 10, 12).getTime();
  const ago = (minutes: number) => english.ago(now - minutes * 60_000, now);
  expect([-1, 0.9, 1, 59, 60, 60 * 47, 60 * 48, 60 * 24 * 40].map(ago)).toEqual([
    null,
    null,
    '1 minute ago',
    '59 minutes ago',
    '1 hour ago',
    '1 day ago',
    '2 days ago',
    'Jan 29, 2026',
  ]);
});

test('months name their year unless it is this one', () => {
  const now = new Date(2026, 2, 10).getTime();
  expect(english.month(new Date(2026, 0, 5).getTime(), now)).toBe('January');
  expect(english.month(new Date(2025, 10, 5).getTime(), now)).toBe('November 2025');
});

test('another language has its own marks, separators and plural forms', () => {
  expect(german.bytes(1.24e9)).toBe('1,2 GB');
  expect(german.count(1_234_567)).toBe('1.234.567');
  expect(german.names(['A', 'B'])).toBe('„A“ und „B“');
  expect([0, 1, 2].map((count) => german.plural(count, 'Stein', 'Steine'))).toEqual([
    '0 Steine',
    '1 Stein',
    '2 Steine',
  ]);
  expect(german.month(new Date(2025, 2, 5).getTime(), new Date(2026, 2, 10).getTime())).toBe('März 2025');
});

test.each([
  [5, '5 s'],
  [55, '55 s'],
  [60, '1 min'],
  [65, '2 min'],
  [3600, '1 h 0 min'],
  [5405, '1 h 31 min'],
])('%d s are left as %s', (seconds, expected) => {
  expect(english.timeLeft(seconds)).toBe(expected);
});
