// What the palette finds, in which order.
import { expect, test } from 'vitest';
import { fromMatch, matchesIn, matchOf } from './palette';

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

test.each<[words: string, query: string, expected: string]>([
  ['Lease for the Berlin flat', 'lease', '[Lease] for the Berlin flat'],
  ['Lease for the Berlin flat', 'flat lea', '[Lea]se for the Berlin [flat]'],
  ['A slate for a late guest', 'late', 'A slate for a [late] guest'],
  ['Überraschung', 'uber', '[Über]raschung'],
  ['Weiße Steine', 'steine', 'Weiße [Steine]'],
  ['Nothing of it', 'xyz', 'Nothing of it'],
  ['Everything', '', 'Everything'],
])('of “%s” for “%s” is marked: %s', (words, query, expected) => {
  const pieces = matchesIn(words, query);
  expect(pieces.map(({ text, is_match }) => (is_match ? `[${text}]` : text)).join('')).toBe(expected);
});

test.each([
  ['You wrote to a customer, setting a ', 'price', '…setting a '],
  ['You set a ', 'price', 'You set a '],
  ['Donaudampfschifffahrts', 'gesellschaft', '…'],
  ['', 'price', ''],
])('what stands before a word that was found is short: %j', (before, word, shown) => {
  const excerpt = [
    { text: before, is_match: false },
    { text: word, is_match: true },
    { text: ' of stones', is_match: false },
  ].filter(({ text }) => text !== '');
  const pieces = fromMatch(excerpt);
  const at = pieces.findIndex(({ is_match }) => is_match);
  expect(
    pieces
      .slice(0, at)
      .map(({ text }) => text)
      .join(''),
  ).toBe(shown);
  expect(
    pieces
      .slice(at)
      .map(({ text }) => text)
      .join(''),
  ).toBe(`${word} of stones`);
});
