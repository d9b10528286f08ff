// Markdown that arrives in pieces must look like the same markdown parsed at once.
import { expect, test } from 'vitest';
import type { Block } from './parse';
import { MarkdownStream } from './stream';

function whole(source: string): Block[] {
  return new MarkdownStream().update(source, true).map((piece) => piece.block);
}

/** Feeds `source` in steps and compares each state with a parse of the same text from the start. */
function check(source: string, step: number) {
  const stream = new MarkdownStream();
  for (let end = step; end < source.length + step; end += step) {
    const prefix = source.slice(0, end);
    expect(
      stream.update(prefix, false).map((piece) => piece.block),
      JSON.stringify(prefix),
    ).toEqual(whole(prefix));
  }
  expect(stream.update(source, true).map((piece) => piece.block)).toEqual(whole(source));
}

const cases: [string, string][] = [
  ['paragraphs', 'One *two*\nthree\n\nfour\n\nfive `six`\n\nseven\n'],
  ['headings of both kinds', '# a\n## b\nc\n===\nd\n---\n---\ne'],
  ['a list that first looks like a paragraph', '1. a\n2. b\n\ntext\n\n1. c\n\n2. d\n   more\n\n       code\n\nend\n'],
  ['lists next to each other', '- a\n- b\n* c\n+ d\n\n\n- e\n\n  f\n- g\nlazy\n\nh'],
  ['nested lists', '- a\n  - b\n    1. c\n    2. d\n  - e\n- f\n\ng\n\nh'],
  ['fences', 'a\n```rust\nfn x() {}\n\n# no heading\n```\nb\n~~~\n```\n~~~\n\n````\n```\n````\nc'],
  ['an open fence', 'a\n\n```py\nx = 1\n\n\ny = 2\n'],
  ['a fence in a list', '1. a\n\n   ```\n   b\n   ```\n\n2. c\n\nd\n\ne'],
  ['tables', 'a | b\n---|--:\n1 | 2\n3 | *4*\n\ntext\nx | y\n--- | ---\n5 | 6\n\nend'],
  ['quotes', '> a\n> b\nlazy\n\n> c\n>> d\n\ne\n> f\n> ```\n> g\n\nh'],
  ['indented code', 'a\n\n    b\n\n    c\n\nd\n\n    e\nf'],
  ['rules', 'a\n\n---\n\n***\nb\n\n- - -\nc'],
  ['definitions before their use', '[a]: https://x.test "t"\n\nsee [a]\n\nand [a][a]\n\nb\n\nc [a]\n'],
  ['a definition cut anywhere', 'p\n\nq\n\n[long]: https://example.test/a/long/path\n\nr [long]\n\ns\n\nt [long]'],
  ['carriage returns', 'a\r\n\r\n- b\r\n- c\r\n\r\nd\r\n\r\n```\r\ne\r\n```\r\n\r\nf\rg\r\rh'],
  ['astral characters', '🪨🪨\n\n**🪨**\n\n🪨\n\n`🪨`\n'],
  ['HTML is text', '<b>x</b>\n\n<script>alert(1)</script>\n\n<!-- c -->\n\n<img src=x onerror=alert(1)>\n'],
  [
    'links and images',
    '[a](https://b.test) ![c](https://d.test/e.png)\n\n<https://f.test>\n\n[g](javascript:alert(1))\n',
  ],
  ['unbalanced emphasis', '**a *b __c\n\n***\n\n_d_e_ ~~f\n\n~~g~~ [h](\n\n![i'],
  ['deep quotes', `a\n\n${'>'.repeat(200)} b\n\nc\n\nd`],
  ['deep lists', `${Array.from({ length: 30 }, (_, n) => `${' '.repeat(n * 2)}- x`).join('\n')}\n\nend\n\nreally`],
  ['many openers', `${'['.repeat(120)}\n\n${'*a '.repeat(60)}\n\n${'`'.repeat(99)}\n\nend`],
  ['controls and NUL', 'a\u0000b\n\n\u202Ec\n\n\u0007\n\n\uD800 d'],
  ['blank and empty', '\n\n   \n\t\n'],
];

test.each(cases)('grows one character at a time: %s', (_, source) => check(source, 1));
test.each(cases)('grows in larger pieces: %s', (_, source) => check(source, 7));

test('a definition after its use counts in the end', () => {
  const source = 'see [a]\n\nb\n\nc\n\nd\n\n[a]: https://x.test\n';
  const stream = new MarkdownStream();
  for (let end = 1; end <= source.length; end++) stream.update(source.slice(0, end), false);
  const blocks = stream.update(source, true).map((piece) => piece.block);
  expect(blocks).toEqual(whole(source));
  expect(JSON.stringify(blocks[0])).toContain('https://x.test');
});

test('a text that was replaced, not appended to, is read from the start', () => {
  const stream = new MarkdownStream();
  stream.update('a\n\nb\n\nc\n\nd', false);
  expect(stream.update('x\n\ny', false).map((piece) => piece.raw)).toEqual(['x\n\n', 'y']);
});

test('the raw texts of the pieces join to the source', () => {
  for (const [name, source] of cases) {
    if (name.startsWith('definition') || name.startsWith('a definition') || name.startsWith('blank')) continue;
    const pieces = new MarkdownStream().update(source, true);
    expect(pieces.map((piece) => piece.raw).join(''), name).toBe(source);
  }
});

test('what nests too deeply is shown as it was written', () => {
  const deep = `${'>'.repeat(200)} secret`;
  expect(new MarkdownStream().update(`a\n\n${deep}`, true)[1]).toEqual({
    block: { kind: 'plain', text: deep },
    raw: deep,
  });
});

test('settled blocks are not parsed again', () => {
  const stream = new MarkdownStream();
  const before = stream.update('a\n\nb\n\nc\n\nd', false);
  const after = stream.update('a\n\nb\n\nc\n\nd\n\ne', false);
  expect(after[0]).toBe(before[0]);
  expect(after[1]).toBe(before[1]);
});
