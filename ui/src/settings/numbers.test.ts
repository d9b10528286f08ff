// What number fields accept.
import { expect, test } from 'vitest';
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
  expect(parseNumber('0', { least: 0.01, most: 1 })).toEqual({ problem: 'Enter a number from 0.01 to 1.' });
  expect(parseSeed(' ')).toEqual({ value: null });
  expect(parseSeed('42')).toEqual({ value: 42 });
  expect(parseSeed('9007199254740993')).toHaveProperty('problem');
});
