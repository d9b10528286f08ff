// What the palette finds, in which order.
import { expect, test } from 'vitest';
import { matchOf } from './palette';

test.each<[words: string, query: string, expected: number]>([
  ['Lease for the Berlin flat', '', 1],
  ['Lease for the Berlin flat', 'lease', 3],
  ['Lease for the Berlin flat', 'BERLIN', 2],
  ['Lease for the Berlin flat', 'flat lea', 2],
  ['Lease for the Berlin flat', 'erl', 1],
  ['Lease for the Berlin flat', 'berlin x', 0],
  ['Übersetzung', 'uber', 3],
  ['Plan  for\tspring', 'plan for', 3],
])('“%s” for “%s”', (words, query, expected) => {
  expect(matchOf(words, query)).toBe(expected);
});
