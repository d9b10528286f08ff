import { expect, test } from 'vitest';
import { stored } from './stored';

test('what is damaged counts as not there', () => {
  const check = (text: string | null, expected: unknown) =>
    expect(stored({ getItem: () => text }, 'key')).toEqual(expected);
  check('["a"]', ['a']);
  check('["a', undefined);
  check('', undefined);
  check(null, undefined);
  expect(stored(undefined, 'key')).toBeUndefined();
});
