// What stays as it is while an answer grows is not drawn again.
import { expect, test } from 'vitest';
import { groupsOf, sectionsOf } from './sections';
import { MarkdownStream } from './stream';

const ITEMS = Array.from({ length: 200 }, (_, n) => `- item *${n}*\n  - of it\n`).join('');
const PARAGRAPHS = Array.from({ length: 120 }, (_, n) => `Paragraph ${n}.\n\n`).join('');

test.each([
  ['a list', ITEMS],
  ['paragraphs', PARAGRAPHS],
])('all sections but the last ones of %s stay the same', (_, source) => {
  const stream = new MarkdownStream();
  const half = source.length / 2;
  const before = sectionsOf(stream.update(source.slice(0, half), false));
  const after = sectionsOf(stream.update(source.slice(0, half + 20), false));
  expect(before.length).toBeGreaterThan(2);
  const numSame = after.filter((section, index) => section === before[index]).length;
  // Of a list the items in the last two sections are parsed again.
  expect(numSame).toBeGreaterThanOrEqual(before.length - 2);
  expect(after.flatMap((pieces) => pieces.map(({ block }) => block))).toEqual(
    sectionsOf(new MarkdownStream().update(source.slice(0, half + 20), false)).flatMap((pieces) =>
      pieces.map(({ block }) => block),
    ),
  );
});

test.each([
  ['a list', ITEMS.repeat(4)],
  ['paragraphs', PARAGRAPHS.repeat(6)],
])('the groups of %s hold all sections, and all but the last two stay the same', (_, source) => {
  const stream = new MarkdownStream();
  const half = source.length / 2;
  const before = groupsOf(stream.update(source.slice(0, half), false));
  const pieces = stream.update(source.slice(0, half + 20), false);
  const after = groupsOf(pieces);
  expect(before.length).toBeGreaterThan(2);
  for (const [index, group] of before.slice(0, -2).entries()) expect(after[index]).toBe(group);
  expect(after.flat()).toEqual(sectionsOf(pieces));
});
