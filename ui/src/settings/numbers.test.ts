// What number fields accept.
import { expect, test } from 'vitest';
import { formatBytes, formatMilliseconds, formatRate } from '../ui/numbers';
import { parseNumber, parseSeed } from './numbers';

test.each<[text: string, expected: number | string]>([
  ['0', 0],
  ['0.7', 0.7],
  ['0,7', 0.7],
  [' 2 ', 2],
  ['', 'Enter a number from 0 to 2.'],
  ['abc', 'Enter a number from 0 to 2.'],
  ['2.01', 'Enter a number from 0 to 2.'],
  ['-1', 'Enter a number from 0 to 2.'],
  ['NaN', 'Enter a number from 0 to 2.'],
  ['Infinity', 'Enter a number from 0 to 2.'],
])('%j', (text, expected) => {
  const parsed = parseNumber(text, { least: 0, most: 2 });
  expect('value' in parsed ? parsed.value : parsed.problem).toBe(expected);
});

test('whole numbers and seeds', () => {
  expect(parseNumber('1.5', { least: 1, most: 4096, isWhole: true })).toEqual({
    problem: 'Enter a whole number from 1 to 4,096.',
  });
  expect(parseSeed(' ')).toEqual({ value: null });
  expect(parseSeed('42')).toEqual({ value: 42 });
  expect(parseSeed('9007199254740993')).toHaveProperty('problem');
});

test.each<[bytes: number, words: string]>([
  [0, '0 MB'],
  [900, '1 kB'],
  [12_000, '12 kB'],
  [1e6, '1 MB'],
  [512.4e6, '512 MB'],
  [999.7e6, '1.0 GB'],
  [1.24e9, '1.2 GB'],
  [240e9, '240 GB'],
])('%d bytes are %s', (bytes, words) => {
  expect(formatBytes(bytes)).toBe(words);
});

test('rates and times', () => {
  expect([4.04, 99.96, 1234.5].map(formatRate)).toEqual(['4.0', '100', '1,235']);
  expect([0, 312.4, 999.6, 12_340, 125_000].map(formatMilliseconds)).toEqual([
    '0 ms',
    '312 ms',
    '1.0 s',
    '12.3 s',
    '2 min 5 s',
  ]);
});
