// What number fields accept: the ranges of the table, however a person writes a number.
import { afterEach, expect, test } from 'vitest';
import { language } from '../text';
import { fieldText, fromField, parseField, toField, type NumberKind } from './numbers';
import { table } from './table';

afterEach(() => language.choose('system', localStorage));

const temperature: NumberKind = { type: 'number', min: 0, max: 2, step: 0.05 };

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
  const parsed = parseField(temperature, text);
  expect('value' in parsed ? parsed.value : parsed.problem).toBe(expected);
});

test('whole numbers, numbers that may be missing, and sizes', () => {
  expect(parseField({ type: 'count', min: 1, max: 4096 }, '1.5')).toEqual({
    problem: 'Enter a whole number from 1 to 4,096.',
  });
  const seed: NumberKind = { type: 'optional_count', min: 0, max: 10 };
  expect([parseField(seed, ' '), parseField(seed, '7')]).toEqual([{ value: null }, { value: 7 }]);
  const size: NumberKind = { type: 'bytes', max: 20_500_000_000 };
  expect(parseField(size, '1.5')).toEqual({ value: 1.5 });
  expect([fromField(size, 1.5), toField(size, 1_500_000_000)]).toEqual([1_500_000_000, 1.5]);
  expect(parseField(size, '21')).toEqual({ problem: 'Enter a number from 0 to 20.' });
});

const count: NumberKind = { type: 'count', min: 1, max: 100_000 };

test.each<[language: 'en' | 'de', kind: NumberKind, value: number, text: string]>([
  ['en', temperature, 0.7, '0.7'],
  ['de', temperature, 0.7, '0,7'],
  ['en', count, 4096, '4,096'],
  ['de', count, 4096, '4.096'],
  ['de', { type: 'bytes', max: 20_500_000_000 }, 12.85, '12,85'],
])('in %s, %o, %d is written and read as %j', (name, kind, value, text) => {
  language.choose(name, localStorage);
  expect(fieldText(kind, value)).toBe(text);
  expect(parseField(kind, text)).toEqual({ value });
  expect(parseField(kind, String(value))).toEqual({ value });
});

test.each<[bytes: number, shown: number]>([
  [0, 0],
  [900, 0.000_000_9],
  [4_300_000, 0.0043],
  [8_000_000, 0.008],
  [123_456_789, 0.12],
  [20_004_000_000, 20],
])('%d bytes are shown as %d GB', (bytes, shown) => {
  expect(toField({ type: 'bytes', max: 20_500_000_000 }, bytes)).toBe(shown);
});

/** The bounds of a row as its field shows them, and one step. */
function boundsOf(kind: NumberKind): [min: number, max: number, step: number] {
  if (kind.type === 'bytes') return [0, Math.floor(kind.max / 1e9), 1];
  return [kind.min, kind.max, kind.type === 'number' ? kind.step : 1];
}

const numberRows = table.flatMap(({ key, kind }) =>
  kind.type === 'choice' || kind.type === 'text' || kind.type === 'lines' || kind.type === 'switch'
    ? []
    : [{ key, kind }],
);

test.each(numberRows)('$key has the range of its row', ({ kind }) => {
  const [min, max, step] = boundsOf(kind);
  expect(parseField(kind, String(min))).toEqual({ value: min });
  expect(parseField(kind, String(max))).toEqual({ value: max });
  expect(parseField(kind, String(min - step))).toHaveProperty('problem');
  expect(parseField(kind, String(max + step))).toHaveProperty('problem');
});
