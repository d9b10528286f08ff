// What is found in a chat, and which of it is shown.
import { expect, test } from 'vitest';
import { comparable, Find, matchesOf, unitTexts, withoutSigns } from './find.svelte';
import { rangesOf } from './findMarks';
import { message } from '../testing/fake';

const unit = (messageId: string, count: number, index = 0) => ({ messageId, index, count });

test('steps go through all matches, and from the last to the first', () => {
  const find = new Find();
  find.found([unit('a', 2), unit('b', 1, 1)]);
  const seen = [0, 1, 2, 3].map(() => {
    const { place } = find;
    find.step(1);
    return place && [place.unit.messageId, place.unit.index, place.match];
  });
  expect(seen).toEqual([
    ['a', 0, 0],
    ['a', 0, 1],
    ['b', 1, 0],
    ['a', 0, 0],
  ]);
  find.step(-1);
  find.step(-1);
  expect([find.current, find.count]).toEqual([2, 3]);
});

test('the shown match stays when others come before it, and another is shown when it goes', () => {
  const find = new Find();
  find.found([unit('b', 3)]);
  find.current = 1;
  find.found([unit('a', 4), unit('b', 3)]);
  expect(find.place).toMatchObject({ unit: { messageId: 'b' }, match: 1 });
  find.found([unit('b', 1)]);
  expect(find.place).toMatchObject({ unit: { messageId: 'b' }, match: 0 });
  find.found([]);
  expect([find.place, find.current]).toEqual([null, 0]);
  find.step(1);
  expect(find.current).toBe(0);
});

test.each([
  ['a **bold** `word`', 'a bold word'],
  ['see [the page](https://x.test)', 'see the page'],
  ['## Title', 'Title'],
  ['snake_case stays', 'snake_case stays'],
])('%j is searched as %j', (markdown, text) => {
  expect(withoutSigns(markdown)).toBe(text);
});

test('neither case nor the kind of a space counts, and lengths stay', () => {
  expect(matchesOf(comparable('Straße STRASSE\u00a0x'), comparable('strasse X'))).toEqual([7]);
  expect(matchesOf('aaaa', 'aa')).toEqual([0, 2]);
  expect(comparable('İstanbul')).toHaveLength(8);
  expect(matchesOf('x', '')).toEqual([]);
});

test('an answer is searched by its segments', () => {
  expect(unitTexts(message('a', { text: 'a *b*' }))).toEqual(['a b']);
  expect(unitTexts(message('a', { role: 'user', text: '*a*' }))).toEqual(['*a*']);
});

test('a match goes over elements in a line, not over the ends of blocks or into buttons', () => {
  document.body.innerHTML =
    '<p>Find <strong>th</strong>is</p><p>th</p><p>is</p><button>this</button><pre><span>th</span><span>is</span></pre>';
  expect(rangesOf(document.body, 'THIS').map(String)).toEqual(['this', 'this']);
  document.body.innerHTML = '';
});
