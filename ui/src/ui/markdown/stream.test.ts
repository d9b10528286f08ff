// Markdown that arrives in pieces must look like the same markdown parsed at once.
import { expect, test } from 'vitest';
import type { Block } from './parse';
import { MarkdownStream } from './stream';

function whole(source: string): Block[] {
  return new MarkdownStream().update(source, true).map((piece) => piece.block);
}

function growing(source: string): Block[] {
  return new MarkdownStream().update(source, false).map((piece) => piece.block);
}

/** Feeds `source` in steps and compares each state with a parse of the same text from the start. */
function check(source: string, step: number) {
  const stream = new MarkdownStream();
  for (let end = step; end < source.length + step; end += step) {
    const prefix = source.slice(0, end);
    expect(
      stream.update(prefix, false).map((piece) => piece.block),
      JSON.stringify(prefix),
    ).toEqual(growing(prefix));
  }
  expect(stream.update(source, true).map((piece) => piece.block)).toEqual(whole(source));
}

/** The lines of a list. */
function items(count: number, line = (n: number) => `- item ${n}\n`): string {
  return Array.from({ length: count }, (_, n) => line(n + 1)).join('');
}

const cases: [string, string][] = [
  ['paragraphs', 'One *two*\nthree\n\nfour\n\nfive `six`\n\nseven\n'],
  ['headings of both kinds', '# a\n## b\nc\n===\nd\n---\n---\ne'],
  ['a list that first looks like a paragraph', '1. a\n2. b\n\ntext\n\n1. c\n\n2. d\n   more\n\n       code\n\nend\n'],
  ['lists next to each other', '- a\n- b\n* c\n+ d\n\n\n- e\n\n  f\n- g\nlazy\n\nh'],
  ['a long list', `All:\n\n${items(130)}\nend\n\nof it`],
  ['a long list with lists in it', items(60, (n) => `- **${n}** of\n  - a\n  - b\n`)],
  ['a long list that gets an empty line', `${items(70)}\n- last\n- one\n\n- more`],
  [
    'a long list with a fence and a definition',
    `${items(50)}- x\n  \`\`\`\n  code\n  \`\`\`\n${items(30)}- [a]: /b\n${items(60)}- see [a]\n`,
  ],
  ['a long list with a fence that is never closed', `${items(50)}- x\n  \`\`\`\n  code\n${items(60)}`],
  ['a long list, then one of another sign', `${items(60)}* a\n* b\n`],
  ['a long numbered list', items(120, (n) => `${n}. *item* ${n}\n`)],
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

/** The words of blocks, without their signs. */
function wordsOf(node: unknown): string {
  if (Array.isArray(node)) return node.map(wordsOf).join('');
  if (typeof node !== 'object' || node === null) return '';
  const { kind, text, label, children, items, head, rows, alt } = node as Record<string, unknown>;
  const own = kind === 'break' ? ' ' : kind === 'code' || kind === 'math' || kind === 'text' ? String(text) : '';
  return (
    own +
    (kind === 'note' ? String(label) : '') +
    wordsOf([children, items, head, rows]) +
    (alt === undefined ? '' : String(alt))
  );
}

const kindsOf = (blocks: Block[]) => blocks.map(({ kind }) => kind);

/** What a person would see flicker: a block that changes its kind, or signs that come and go. */
function checkStillness(source: string) {
  const stream = new MarkdownStream();
  const final = whole(source);
  const finalWords = wordsOf(final).replaceAll(/\s/g, '');
  for (let end = 1; end <= source.length; end++) {
    const now = stream.update(source.slice(0, end), false).map((piece) => piece.block);
    const words = wordsOf(now).replaceAll(/\s/g, '');
    const where = JSON.stringify(source.slice(0, end));
    expect(kindsOf(now), where).toEqual(kindsOf(final).slice(0, now.length));
    expect(finalWords.startsWith(words) ? words : finalWords, where).toBe(words);
    expect(finalWords.length - words.length, `${where} shows too little: ${words}`).toBeLessThanOrEqual(
      source.length - end + LAG,
    );
  }
}
/** How many letters may be held back: signs, and the longest target of a link below. */
const LAG = 60;

test.each<[name: string, source: string]>([
  ['a table', 'Here:\n\n| Name | **Value** |\n|:-----|------:|\n| a | 1 |\n| b `c` | *2* |\n\nEnd.'],
  ['a table behind a line', 'The table:\n| a | b |\n|---|---|\n| 1 | 2 |\n'],
  ['a table in an item', '1. First\n\n   | a | b |\n   |---|---|\n   | 1 | 2 |\n\n2. Second'],
  [
    'emphasis',
    'A **bold word**, *slanted one*, ***both***, ~~gone~~ and `code span`. __b__ _i_ 2 * 3 * 4, snake_case_name.',
  ],
  ['links', 'See [the page](https://example.org/a_b(c)) and [*that*](https://x.test "t") but arr[0] and [1] stay.'],
  ['an image', 'See ![a map](https://x.test/m.png) here.'],
  ['headings and rules', '# One\n\ntext\n\n---\n\n## Two **bold**\n\n***\n\nend'],
  ['lists', '- a\n- **b**: c\n  - d\n  - e\n\n1. one\n2. two\n   - x\n10. ten'],
  ['tasks', '- [ ] open\n- [x] done\n- [link](https://x.test) to\n'],
  ['code', 'Run:\n\n```bash\nls -la\n\necho `date`\n```\n\nThen ``a ` b`` it.'],
  ['code in a list', '1. Do:\n\n   ```js\n   const a = 1;\n   ```\n\n2. And:\n   ```\n   x\n   ```\n'],
  ['quotes', '> a **b**\n> c\n>\n> - d\n\nend'],
  ['formulas', 'If $a^2 + b$ then \\(c_1\\) so\n\n$$\nE = mc^2\n$$\n\nand\n\n\\[\nx\n\\]\n\nIt is $5, or $10.'],
  ['footnotes', 'A claim.[^1] Another.[^2]\n\n[^1]: The *source*.\n[^2]: Other.\n'],
  ['tags', 'H<sub>2</sub>O<br>x<sup>2</sup> <kbd>Esc</kbd> a &lt; b &amp; c'],
  ['Chinese', '这是**重点**，还有`代码`。\n\n- 一\n- **二**：三'],
  ['Arabic', 'هذا **مهم** و`كود`.\n\n1. واحد\n2. اثنان'],
])('%s is drawn from its first letter as what it becomes', (_, source) => checkStillness(source));

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
