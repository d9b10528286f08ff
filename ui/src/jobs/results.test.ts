// The figures of rows and of a job's pace.
import { expect, test } from 'vitest';
import type { JobOption } from '../platform/wire';
import { job } from '../testing/jobs';
import { answerOf, optionsFrom, secondsLeft } from './results';

test('a row is answered by its likeliest option, which is before the next', () => {
  expect(answerOf({ probabilities: [0.125, 0.625, 0.25] })).toEqual({ option: 1, probability: 0.625, margin: 0.375 });
  expect(answerOf({ probabilities: null })).toBeNull();
});

test.each<[lines: string, expected: JobOption[]]>([
  ['', []],
  [
    ' a \n\nb',
    [
      { label: 'a', description: null },
      { label: 'b', description: null },
    ],
  ],
  [
    'a: from 1:00 on\nb:',
    [
      { label: 'a', description: 'from 1:00 on' },
      { label: 'b', description: null },
    ],
  ],
])('options of %j', (lines, expected) => {
  expect(optionsFrom(lines)).toEqual(expected);
});

test('the time left is known once rows have a pace, in steps of five seconds', () => {
  const running = job('1', { num_rows: 1000, num_answered: 500, num_failed: 10, rows_per_second: null });
  expect(secondsLeft(running)).toBeNull();
  expect(secondsLeft({ ...running, rows_per_second: 10 })).toBe(50);
  expect(secondsLeft({ ...running, rows_per_second: 1000 })).toBe(5);
  expect(secondsLeft({ ...running, rows_per_second: 10, state: 'paused' })).toBeNull();
});
