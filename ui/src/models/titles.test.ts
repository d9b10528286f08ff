// What models are called, by the table that the menu bar is held to as well.
import { expect, test } from 'vitest';
import recommended from '../../../crates/app/src/models/recommended.json';
import table from './titles.json';
import { titleAmong } from './titles';

const cases = table.cases as [string[], string[]][];

test.each(cases)('%j are called %j', (names, titles) => {
  expect(names.map((name) => titleAmong(name, names))).toEqual(titles);
});

test('a recommended model is called as it is recommended', () => {
  for (const { name, title } of recommended) expect(titleAmong(name, [])).toBe(title);
});
